"""Evaluate embeddings: kNN, linear probe, support vector machine, cross-validated regressions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

Parts = Sequence[tuple[Tensor, Tensor]]  # row numbers (train, test)
SVM_PENALTIES = tuple(10.0**k for k in range(-3, 4))  # the grid of C
INNER_FOLDS = 5  # of the cross-validation that chooses among them
PENALTIES = tuple(10.0**k for k in range(-4, 0))  # the grid of C of `classify`
INNER = 3  # of the cross-validation that chooses among them
PROBE = dict(max_iter=300, history_size=20, tolerance_grad=1e-5)  # of `linear_probe`


def embed(encoder: nn.Module, batches: Iterable, forward: Callable | None = None) -> Tensor:
    """Return the embeddings of all batches, float32, by `forward` (default: the encoder).

    The encoder is in eval mode meanwhile; batches go to its device, and the embeddings stay there.
    """
    training, device = encoder.training, next((p.device for p in encoder.parameters()), None)
    encoder.eval()
    with torch.no_grad():
        parts = [(forward or encoder)(batch.to(device)).float() for batch in batches]
    encoder.train(training)
    return torch.cat(parts)


def neighbours(n: int) -> int:
    """Return how many neighbours vote among `n` training images.

    That is 200 as in the papers' code, but at most one image in 50: of 50,000 images, 200 are a
    small part of a class; of 1,437 they are more than a class and would measure its size.
    """
    return max(1, min(200, n // 50))


def weighted_knn(
    train_x: Tensor,
    train_y: Tensor,
    test_x: Tensor,
    test_y: Tensor,
    k: int = 200,
    temperature: float = 0.5,
    chunk: int = 1000,
) -> Tensor:
    r"""Return which test rows the weighted $k$-nearest-neighbour vote gets right, bool [N].

    Neighbour $j$ at cosine $s_j$ has $e^{s_j/t}$ votes; $t=0.5$ and $k=200$ as in the code released
    with hcl. Test rows go in chunks.
    """
    bank, classes = functional.normalize(train_x).T, int(train_y.max()) + 1
    correct = []
    for x, y in zip(test_x.split(chunk), test_y.split(chunk)):
        similarity, index = (functional.normalize(x) @ bank).topk(k, sorted=False)
        votes = similarity.new_zeros(len(x), classes)
        # −1: the same vote, no overflow
        votes.scatter_add_(1, train_y[index], ((similarity - 1) / temperature).exp())
        correct.append(votes.argmax(1) == y)
    return torch.cat(correct)


@torch.enable_grad()
def linear_probe(
    train_x: Tensor, train_y: Tensor, test_x: Tensor, test_y: Tensor, C: float = 1.0
) -> Tensor:
    r"""Return which test rows a linear probe gets right, bool [N].

    It is a logistic regression with scikit-learn's `C` on features standardised by the training
    mean and deviation; a constant feature becomes zero. Deterministic, on any device:
    $\min\frac1n\sum_i\mathrm{CE}(Wx_i+b,y_i)+\frac1{2Cn}\lVert W\rVert^2$ by L-BFGS from zero.
    """
    mean, spread = train_x.double().mean(0), train_x.double().std(0, unbiased=False)
    spread = torch.where(spread > 1e-6 * mean.abs(), spread, torch.inf)
    x, x_test = (((part - mean) / spread).to(train_x.dtype) for part in (train_x, test_x))
    classes, y = train_y.unique(return_inverse=True)
    binary, n = len(classes) == 2, len(x)  # two classes need one score
    w = x.new_zeros(1 if binary else len(classes), x.shape[1], requires_grad=True)
    b = x.new_zeros(len(w), requires_grad=True)
    optimiser = torch.optim.LBFGS([w, b], line_search_fn="strong_wolfe", **PROBE)

    def objective():
        optimiser.zero_grad()
        s = torch.addmm(b, x, w.T)
        if binary:
            each = functional.softplus(s.squeeze(1) * (1 - 2 * y.to(s)))
        else:
            each = s.logsumexp(1) - s.gather(1, y[:, None]).squeeze(1)
        penalty = w.square().sum() / (2 * C * n)
        loss = (each * (1 / n)).sum(dtype=torch.float64) + penalty.double()
        loss.backward()
        return loss

    optimiser.step(objective)
    scores = torch.addmm(b, x_test, w.T).detach()
    predicted = (scores.squeeze(1) > 0).long() if binary else scores.argmax(1)
    return classes[predicted] == test_y


def stratified_folds(labels, folds: int = 10, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Return sorted row numbers (train, test) of each fold; every class is spread evenly.

    The folds depend on labels and seed alone, so methods evaluated with one seed are paired. Raises
    ValueError if a class has fewer examples than there are folds.
    """
    from sklearn.model_selection import StratifiedKFold

    y = np.asarray(labels)
    fewest = np.unique(y, return_counts=True)[1].min()
    if folds > fewest:
        raise ValueError(
            f"folds must be at most {fewest}, the examples of the smallest class, got {folds}"
        )
    parts = StratifiedKFold(folds, shuffle=True, random_state=seed).split(y, y)
    return [(torch.from_numpy(train), torch.from_numpy(test)) for train, test in parts]


def svm(x: Tensor, y: Tensor, train: Tensor, test: Tensor, seed: int = 0) -> tuple[float, ...]:
    r"""Return an RBF support vector machine's accuracies on test and inner folds, and its $C$.

    It takes the features [N,d] as they are. $C\in\{10^{-3},\dots,10^3\}$ is chosen by `INNER_FOLDS`
    stratified folds of the training part, shuffled by `seed`; ties go to the smallest. As in the
    code released with hcl (`graph/evaluate_embedding.py`), whose inner folds are not shuffled.
    """
    from sklearn.model_selection import GridSearchCV, StratifiedKFold
    from sklearn.svm import SVC

    check_finite(x)
    features, labels = x.double().numpy(), y.numpy()
    search = GridSearchCV(
        SVC(),
        {"C": SVM_PENALTIES},
        cv=StratifiedKFold(INNER_FOLDS, shuffle=True, random_state=seed),
        # a tie is a tie whatever the order of the summands
        refit=lambda results: results["mean_test_score"].round(12).argmax(),
    )
    search.fit(features[train], labels[train])
    inner = float(search.cv_results_["mean_test_score"][search.best_index_])
    test_accuracy = float(search.score(features[test], labels[test]))
    return test_accuracy, inner, SVM_PENALTIES[search.best_index_]


def classify(x: Tensor, y: Tensor, parts: Parts, seed: int = 0) -> list[tuple[Tensor, float]]:
    r"""Return the predictions of a logistic regression on each test part, and its inner accuracy.

    For each (train, test) of `parts`, train alone decides $C$, by the inner accuracy. `x` $[N,d]$;
    `y` int64 $[N]$, any numbers. Features are standardised with the mean and deviation of train.
    $C\in\{10^{-4},\dots,10^{-1}\}$ by accuracy over `INNER` stratified folds of train (shuffled by
    `seed`), the smallest of equally good ones. Source: SentEval (Conneau & Kiela, 2018), which has
    another grid and ten inner folds.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.preprocessing import StandardScaler

    check_finite(x)
    features, labels = x.double().numpy(), y.numpy()
    folds, results = StratifiedKFold(INNER, shuffle=True, random_state=seed), []
    for train, test in parts:
        scaler = StandardScaler().fit(features[train])
        scaled = (scaler.transform(features[part]) for part in (train, test))
        z, z_test = (np.asarray(part, np.float32) for part in scaled)
        classes = labels[train]
        models = [LogisticRegression(C=C, max_iter=1000) for C in PENALTIES]
        inner = [cross_val_predict(model, z, classes, cv=folds) == classes for model in models]
        best = int(np.argmax([right.sum() for right in inner]))
        predicted = models[best].fit(z, classes).predict(z_test)
        results.append((torch.from_numpy(predicted), float(inner[best].mean())))
    return results


def check_finite(x: Tensor) -> None:
    """Raise ValueError unless all embeddings $[N,d]$ are finite."""
    if bad := int((~x.isfinite().all(1)).sum()):
        raise ValueError(
            f"{bad} of the {len(x)} embeddings are not finite; the encoder has diverged: train it "
            "with a smaller learning rate or for fewer epochs"
        )
