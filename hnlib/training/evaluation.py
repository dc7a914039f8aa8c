"""Evaluate embeddings: kNN, linear probe, support vector machine, cross-validated regressions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

Parts = Sequence[tuple[Tensor, Tensor]]  # row numbers (train, test)
SVM_PENALTIES = tuple(10.0**k for k in range(-3, 4))  # the grid of C
INNER_FOLDS = 5  # of the cross-validation that chooses among them
PENALTIES = tuple(10.0**k for k in range(-4, 0))  # the grid of C of `classify`
INNER = 3  # of the cross-validation that chooses among them


@contextmanager
def eval_mode(encoder: nn.Module) -> Iterator[None]:
    """Put the encoder into eval mode, without gradients, in the block."""
    training = encoder.training
    encoder.eval()
    with torch.no_grad():
        yield
    encoder.train(training)


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
    top: int = 1,
) -> Tensor:
    r"""Return which test rows the weighted $k$-nearest-neighbour vote gets right, bool [N].

    Neighbour $j$ at cosine $s_j$ has $e^{s_j/t}$ votes; $t=0.5$ and $k=200$ as in the code released
    with hcl. A row is right if its class is among the `top` with the most votes. Test rows go in
    chunks.
    """
    bank, classes = functional.normalize(train_x).T, int(train_y.max()) + 1
    correct = []
    for x, y in zip(test_x.split(chunk), test_y.split(chunk)):
        similarity, index = (functional.normalize(x) @ bank).topk(k, sorted=False)
        votes = similarity.new_zeros(len(x), classes)
        # −1: the same vote, no overflow
        votes.scatter_add_(1, train_y[index], ((similarity - 1) / temperature).exp())
        correct.append(_among(votes, y, top))
    return torch.cat(correct)


def linear_probe(
    train_x: Tensor, train_y: Tensor, test_x: Tensor, test_y: Tensor, C: float = 1.0, top: int = 1
) -> Tensor:
    r"""Return for which test rows the right class is among a linear probe's `top`, bool [N].

    It is a logistic regression with scikit-learn's `C` on features standardised by the training
    mean and deviation; a constant feature becomes zero. Deterministic, on any device.
    """
    mean, spread = train_x.double().mean(0), train_x.double().std(0, unbiased=False)
    spread = torch.where(spread > 1e-6 * mean.abs(), spread, torch.inf)
    standardised = [((x - mean) / spread).to(train_x.dtype) for x in (train_x, test_x)]
    rows = torch.arange(len(train_x), device=train_x.device)
    options = dict(max_iter=300, history_size=20, tolerance_grad=1e-5)
    solution = _LogisticRegressions(standardised[0], train_y, [rows]).fit(C, **options)
    if top > 1:
        return _among(_scores(standardised[1], *solution)[:, 0], test_y, top)
    return _predicted(standardised[1], *solution)[:, 0] == test_y


def _among(scores: Tensor, y: Tensor, top: int) -> Tensor:
    """Return whether the class is among the `top` with the highest scores [N,C]."""
    if top == 1:
        return scores.argmax(1) == y
    best = scores.topk(min(top, scores.shape[1]), dim=1).indices
    return (best == y[:, None]).any(1)


def stratified_folds(labels, folds: int = 10, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Return sorted row numbers (train, test) of each fold; every class is spread evenly.

    The folds depend on labels and seed alone, so methods evaluated with one seed are paired.
    """
    from sklearn.model_selection import StratifiedKFold

    y = np.asarray(labels)
    classes, counts = np.unique(y, return_counts=True)
    if len(classes) < 2 or counts.min() < folds:
        rarest = classes[counts.argmin()]
        raise ValueError(
            f"{folds} stratified folds need at least 2 classes of {folds} members, got "
            f"{len(classes)}, of which class {rarest} has {counts.min()} members"
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


@torch.inference_mode(False)
def classify(x: Tensor, y: Tensor, parts: Parts, seed: int = 0) -> list[tuple[Tensor, float]]:
    r"""Return the predictions of a logistic regression on each test part, and its inner accuracy.

    For each (train, test) of `parts`, train alone decides $C$, by the inner accuracy. `x` $[N,d]$;
    `y` int64 $[N]$, any numbers. Features are standardised with the mean and deviation of train;
    constant ones are dropped. $C\in\{10^{-4},\dots,10^{-1}\}$ by accuracy over `INNER` stratified
    folds of train (shuffled by `seed`), the smallest of equally good ones. The optimum is that of
    scikit-learn's LogisticRegression, for all parts and folds together: each step is two matrix
    products. Source: SentEval (Conneau & Kiela, 2018), which has another grid and ten inner folds.
    """
    from sklearn.model_selection import StratifiedKFold

    check_finite(x)
    classes, y = y.unique(return_inverse=True)
    splits = []  # for each part its inner ones, and itself
    for train, test in parts:
        if len(y[train].unique()) < 2:
            raise ValueError(f"all {len(train)} labels of a training part are the same")
        inner = StratifiedKFold(INNER, shuffle=True, random_state=seed).split(train, y[train])
        splits += [*((train[a], train[b]) for a, b in inner), (train, test)]
    fits, held_out = zip(*splits)
    x, mean, spread = _standardisation(x, fits)
    regressions = _LogisticRegressions(x, y, fits, mean, spread)
    options = dict(max_iter=200, tolerance_grad=1e-4)
    predicted = [_predicted(x, *regressions.fit(C, **options)) for C in PENALTIES]
    results = []
    for first in range(0, len(splits), INNER + 1):
        last, inner = first + INNER, range(first, first + INNER)
        train, test = splits[last]
        correct = [
            sum(int((p[held_out[i], i] == y[held_out[i]]).sum()) for i in inner) for p in predicted
        ]
        best = int(np.argmax(correct))
        results.append((classes[predicted[best][test, last]], correct[best] / len(train)))
    return results


def _standardisation(x: Tensor, fits: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return centred features in single precision, and each part's mean and deviation [P,d].

    One row for each fit; the deviation is inf where nothing varies.
    """
    parts = fits[INNER :: INNER + 1]
    raw = x.double()
    x = raw - raw[torch.cat(parts).unique()].mean(0)
    inside = _uniform(x, parts).T
    mean = inside @ x
    spread = (inside @ x.square() - mean.square()).clamp_min(0).sqrt()
    rounding = 1e-6 * mean.abs() + 1e-12 * (inside @ raw.abs())
    spread = torch.where(spread > rounding, spread, torch.inf)
    mean, spread = (v.float().repeat_interleave(INNER + 1, 0) for v in (mean, spread))
    return x.float(), mean, spread


def _uniform(x: Tensor, subsets: Sequence[Tensor]) -> Tensor:
    """Return the uniform distribution [N,P] on each subset of the rows of `x`."""
    share = x.new_zeros(len(x), len(subsets))
    for column, rows in enumerate(subsets):
        share[rows, column] = 1 / len(rows)
    return share


class _LogisticRegressions:
    r"""Logistic regressions on the subsets `fits` of the rows of `x`, all fitted at once.

    $\min\frac1n\sum_i\mathrm{CE}(Wx_i+b,y_i)+\frac1{2Cn}\lVert W\rVert^2$ by L-BFGS from zero, with
    features standardised by `mean` and `spread` [P,d]. Two classes need one score.
    """

    def __init__(self, x, y, fits, mean=None, spread=None):
        self.x, self.y, self.mean, self.spread = x, y, mean, spread
        self.share, self.counts = _uniform(x, fits), x.new_tensor([len(rows) for rows in fits])
        classes = int(y.max()) + 1
        self.binary, width = classes == 2, 1 if classes == 2 else classes
        seen = torch.stack([y[rows].bincount(minlength=classes) for rows in fits]) > 0
        self.absent = torch.where(seen, 0.0, -1e30)  # a class that a fold lacks plays no part
        self.w = x.new_zeros(len(fits), width, x.shape[1], requires_grad=True)
        self.b = x.new_zeros(len(fits), width, requires_grad=True)

    @torch.enable_grad()
    def fit(self, C: float, **options) -> tuple[Tensor, Tensor]:
        """Return weights [P,K,d] and biases [P,K] for a $C$, starting where the last fit ended."""
        optimiser = torch.optim.LBFGS([self.w, self.b], line_search_fn="strong_wolfe", **options)

        def closure():
            optimiser.zero_grad()
            loss = self.loss(C)
            loss.backward()
            return loss

        optimiser.step(closure)
        weight, bias = (part.detach().clone() for part in self.solution())
        return weight, bias if self.binary else bias + self.absent

    def solution(self) -> tuple[Tensor, Tensor]:
        """Return weights and biases for features that are not standardised."""
        if self.mean is None:
            return self.w, self.b
        v = self.w / self.spread[:, None]  # so that no part needs its own standardised copy of x
        return v, self.b - (v * self.mean[:, None]).sum(2)

    def loss(self, C: float) -> Tensor:
        """Return the sum of the objectives."""
        s = _scores(self.x, *self.solution())
        if self.binary:
            each = functional.softplus(s.squeeze(2) * (1 - 2 * self.y.to(s))[:, None])
        else:
            s = s + self.absent
            each = s.logsumexp(2) - s[torch.arange(len(s), device=s.device), :, self.y]
        penalty = self.w.square().sum((1, 2)) / (2 * C * self.counts)
        return (each * self.share).sum(dtype=torch.float64) + penalty.sum(dtype=torch.float64)


def _scores(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the scores [N,P,K] of regressions."""
    scores = torch.addmm(bias.flatten(), x, weight.flatten(0, 1).T)
    return scores.unflatten(1, bias.shape)


def _predicted(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the classes [N,P] that regressions predict."""
    scores = _scores(x, weight, bias)
    return (scores.squeeze(2) > 0).long() if scores.shape[2] == 1 else scores.argmax(2)


def check_finite(x: Tensor) -> None:
    """Raise ValueError unless all embeddings $[N,d]$ are finite."""
    if bad := int((~x.isfinite().all(1)).sum()):
        raise ValueError(
            f"{bad} of the {len(x)} embeddings are not finite; the encoder has diverged: train it "
            "with a smaller learning rate or for fewer epochs"
        )
