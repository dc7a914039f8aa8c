"""What an embedding is worth: kNN, linear probe and support vector machine on frozen features."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from hnlib.images import augment

PROTOCOLS = ("clean", "paper")
SVM_PENALTIES = tuple(10.0**k for k in range(-3, 4))  # the grid of C
INNER_FOLDS = 5  # of the cross-validation that chooses among them


@torch.no_grad()
def embed(encoder: nn.Module, x: Tensor, batch_size: int = 1000, device=None) -> Tensor:
    """Features [N,d] of the plain images `x` uint8 [N,H,W,C], encoder in eval mode (its mode is
    restored after).

    Batches go to `device` (default: where the encoder is), the features stay there, float32.
    """
    if device is None:
        device = next((p.device for p in encoder.parameters()), x.device)
    was_training = encoder.training
    encoder.eval()
    features = [encoder(augment.plain(part.to(device))).float() for part in x.split(batch_size)]
    encoder.train(was_training)
    return torch.cat(features)


def weighted_knn(
    train_x: Tensor,
    train_y: Tensor,
    test_x: Tensor,
    test_y: Tensor,
    k: int = 200,
    temperature: float = 0.5,
    num_classes: int | None = None,
    chunk: int = 1000,
    reduction: str = "mean",
):
    r"""Accuracy of the weighted $k$-nearest-neighbour vote: neighbour $j$ at cosine $s_j$ has
    $e^{s_j/t}$ votes.

    `temperature` is the readout's own; .5 and $k=200$ as in the code released with hcl. Test rows
    go in chunks. `reduction="none"`: which test rows are right, bool [N]. ValueError: $k$ outside 1
    … number of training rows, $t\le0$, features and labels that do not fit together.
    """
    _check_features(train_x, train_y, test_x, test_y)
    if not 1 <= k <= len(train_x):
        raise ValueError(
            f"k={k} neighbours cannot be found among {len(train_x)} training images; "
            f"choose k from 1 to {len(train_x)}"
        )
    if not temperature > 0:
        raise ValueError(f"kNN temperature={temperature} must be positive")
    num_classes = num_classes or int(train_y.max()) + 1
    bank = functional.normalize(train_x).T
    correct = []
    for x, y in zip(test_x.split(chunk), test_y.split(chunk)):
        similarity, index = (functional.normalize(x) @ bank).topk(k, sorted=False)
        votes = similarity.new_zeros(len(x), num_classes)
        # −1: the same vote, no overflow
        votes.scatter_add_(1, train_y[index], ((similarity - 1) / temperature).exp())
        correct.append(votes.argmax(1) == y)
    return _share(torch.cat(correct), reduction)


def knn(encoder: nn.Module, dataset, device=None) -> float:
    """Test accuracy of `weighted_knn` on a `data.Dataset`, with as many neighbours as
    `neighbours` says."""
    sets = []
    for x, y in ((dataset.x_train, dataset.y_train), (dataset.x_test, dataset.y_test)):
        features = embed(encoder, x, device=device)
        sets += [features, y.to(features.device)]
    classes = dataset.num_classes
    return float(weighted_knn(*sets, num_classes=classes, k=neighbours(len(sets[0]))))


def linear_probe(
    train_x: Tensor,
    train_y: Tensor,
    test_x: Tensor,
    test_y: Tensor,
    penalty: float = 1.0,
    max_iterations: int = 300,
    num_classes: int | None = None,
    reduction: str = "mean",
):
    r"""Accuracy of a linear probe: multinomial logistic regression on standardised features.

    $\min_{W,b}\ \frac1N\sum_i\mathrm{CE}(Wx_i+b,y_i)+\frac{\lambda}{2N}\lVert W\rVert^2$, $\lambda$
    = `penalty` (scikit-learn's $1/C$), by L-BFGS from zero: deterministic, on any device. Features
    are standardised with the training mean and deviation; a constant feature becomes zero.
    `reduction="none"`: which test rows are right, [N]. ValueError: negative penalty, features and
    labels that do not fit together.
    """
    _check_features(train_x, train_y, test_x, test_y)
    if penalty < 0:
        raise ValueError(f"penalty={penalty} must not be negative")
    num_classes = num_classes or int(train_y.max()) + 1
    mean, spread = train_x.mean(0), train_x.std(0, unbiased=False)
    spread = torch.where(spread > 1e-6 * (mean.abs() + spread.max()), spread, torch.inf)
    train_x, test_x = (train_x - mean) / spread, (test_x - mean) / spread
    weight, bias = fit_logistic(train_x, train_y, num_classes, penalty, max_iterations)
    return _share(torch.addmm(bias, test_x, weight.T).argmax(1) == test_y, reduction)


def _share(correct: Tensor, reduction: str):
    if reduction not in ("mean", "none"):
        raise ValueError(f'reduction={reduction!r} is unknown; use "mean" or "none"')
    return correct if reduction == "none" else int(correct.sum()) / len(correct)


@torch.enable_grad()
def fit_logistic(
    x: Tensor, y: Tensor, num_classes: int, penalty: float = 1.0, max_iterations: int = 300
) -> tuple[Tensor, Tensor]:
    """Weight [C,d] and bias [C] of the regression that `linear_probe` describes, on features
    taken as they are."""
    x = x.detach()
    weight = x.new_zeros(num_classes, x.shape[1], requires_grad=True)
    bias = x.new_zeros(num_classes, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [weight, bias],
        max_iter=max_iterations,
        history_size=20,
        tolerance_grad=1e-5,
        line_search_fn="strong_wolfe",
    )

    def closure():
        optimiser.zero_grad()
        loss = functional.cross_entropy(torch.addmm(bias, x, weight.T), y)
        loss = loss + penalty / (2 * len(x)) * weight.square().sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    return weight.detach(), bias.detach()


def neighbours(n: int) -> int:
    """How many neighbours vote among `n` training images: 200 as in the papers' code, but at most
    one image in 50.

    On 50,000 images 200 are a small part of a class; on 1,437 they are more than a class and would
    measure its size.
    """
    return max(1, min(200, n // 50))


def paper_readout(
    encoder: nn.Module,
    dataset,
    recipe: str | augment.Recipe = "hcl",
    epochs: int = 100,
    batch_size: int = 512,
    lr: float = 1e-3,
    weight_decay: float = 1e-6,
    seed: int = 0,
    device=None,
) -> float:
    """Test accuracy of a linear layer trained as in the code released with hcl (`image/linear.py`);
    its defaults.

    Odd, and kept: the weights of the encoder are frozen, but while the layer learns the encoder is
    in train mode. So the layer learns on features normalised by the statistics of their batch, and
    each batch moves the running statistics, which the test images then meet in eval mode. The layer
    learns from augmented images, one fresh view an epoch, and is tested on plain ones. Nothing is
    standardised; Adam, batches shuffled, the last partial one kept.

    The encoder comes back as it was: this works on a copy. The result is a function of `seed` and
    of the arguments. A `recipe` with a size (STL-10 as released) needs an encoder for images of any
    size. ValueError: an unknown recipe; epochs, batch_size or lr not positive, weight_decay
    negative.
    """
    for name, value in (("epochs", epochs), ("batch_size", batch_size), ("lr", lr)):
        if not value > 0:
            raise ValueError(f"{name}={value} of the readout must be positive")
    if weight_decay < 0:
        raise ValueError(f"weight_decay={weight_decay} of the readout must not be negative")
    recipe = augment.resolve(recipe)
    if device is None:
        device = next((p.device for p in encoder.parameters()), dataset.x_train.device)
    device = torch.device(device)
    x, y = dataset.x_train.to(device), dataset.y_train.to(device)
    encoder = copy.deepcopy(encoder).to(device)
    encoder.eval()
    with torch.no_grad():
        dimension = encoder(augment.plain(x[:1])).shape[1]
    generator = torch.Generator(device).manual_seed(seed)
    # The caller's random state stays; ours decides the layer's start and what an encoder draws
    # itself in train mode.
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())), torch.enable_grad():
        torch.manual_seed(seed)
        layer = nn.Linear(dimension, dataset.num_classes).to(device)
        optimiser = torch.optim.Adam(layer.parameters(), lr=lr, weight_decay=weight_decay)
        encoder.train()
        for _ in range(epochs):
            order = torch.randperm(len(x), generator=generator, device=device)
            for batch in order.split(batch_size):
                views = augment.view(x[batch], generator, recipe)
                with torch.no_grad():
                    views = views.contiguous(memory_format=torch.channels_last)
                    features = encoder(views).float()
                loss = functional.cross_entropy(layer(features), y[batch])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
    with torch.no_grad():
        predicted = layer(embed(encoder, dataset.x_test, device=device)).argmax(1)
    return int((predicted == dataset.y_test.to(device)).sum()) / len(dataset.y_test)


def readouts(
    encoder: nn.Module,
    dataset,
    k: int | None = None,
    device=None,
    batch_size: int = 1000,
    protocols: tuple[str, ...] = ("clean",),
    recipe: str | augment.Recipe | None = None,
    readout_epochs: int = 100,
    correct: dict[str, Tensor] | None = None,
) -> dict[str, float]:
    """The readouts of the named protocols.

    "clean": knn, knn_k and linear, with the frozen encoder in eval mode, plain images, features
    computed once; where the data set has validation images, knn_validation and linear_validation
    too. A dictionary given as `correct` takes which images were right: bool [N] for each of these
    names but knn_k. "paper": linear_paper, by `paper_readout` with `recipe` (by default after the
    channels) and `readout_epochs`. `dataset` is a `data.Dataset`; `k` defaults to `neighbours`.
    `encoders.build("pixels", …)` scores the raw pixels. ValueError: an unknown protocol, none at
    all.
    """
    protocols = (protocols,) if isinstance(protocols, str) else tuple(protocols)
    if not protocols or (unknown := set(protocols) - set(PROTOCOLS)):
        named = f"unknown readout protocol {min(unknown)!r}" if protocols else "no readout protocol"
        raise ValueError(f"{named}; known: {', '.join(PROTOCOLS)}")
    scores = {}
    if "clean" in protocols:
        scores |= _clean(
            encoder, dataset, k, device, batch_size, {} if correct is None else correct
        )
    if "paper" in protocols:
        recipe = augment.recipe_for(dataset.channels) if recipe is None else recipe
        scores["linear_paper"] = paper_readout(
            encoder, dataset, recipe, readout_epochs, device=device
        )
    return scores


def _clean(encoder, dataset, k, device, batch_size, correct: dict[str, Tensor]) -> dict:
    parts = {"": (dataset.x_test, dataset.y_test)}
    if dataset.x_validation is not None:
        parts["_validation"] = (dataset.x_validation, dataset.y_validation)
    train_x = embed(encoder, dataset.x_train, batch_size, device)
    x = torch.cat([embed(encoder, x, batch_size, device) for x, _ in parts.values()])
    y = torch.cat([y for _, y in parts.values()]).to(x.device)
    sets = train_x, dataset.y_train.to(x.device), x, y
    k, classes = neighbours(len(train_x)) if k is None else k, dataset.num_classes
    right: dict[str, Any] = {
        "knn": weighted_knn(*sets, k=k, num_classes=classes, reduction="none"),
        "linear": linear_probe(*sets, num_classes=classes, reduction="none"),
    }
    scores = {"knn_k": k}
    for name, bits in right.items():  # one readout, judged on both parts
        for part, judged in zip(parts, bits.split([len(y) for _, y in parts.values()])):
            correct[name + part], scores[name + part] = judged, _share(judged, "mean")
    return scores


def _check_features(train_x, train_y, test_x, test_y):
    for part, x, y in (("training", train_x, train_y), ("test", test_x, test_y)):
        if x.ndim != 2 or y.shape != x.shape[:1] or not len(x):
            raise ValueError(
                f"{part} features of shape {tuple(x.shape)} and labels of shape {tuple(y.shape)} "
                "do not fit; features are [N,d], labels [N]"
            )
    if train_x.shape[1] != test_x.shape[1]:
        raise ValueError(
            f"training features have {train_x.shape[1]} dimensions, test features {test_x.shape[1]}"
        )


def stratified_folds(labels: Tensor, folds: int = 10, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """(train index, test index) of each fold: every class is spread over the test parts as evenly
    as it can be.

    `labels` int [N]; the indices are sorted LongTensors, the test parts disjoint with union 0 …
    N−1. A function of labels and seed alone, so methods evaluated with one seed are paired
    (scikit-learn's StratifiedKFold, shuffled). ValueError: folds < 2, labels of another shape or
    kind, unknown ones (−1), fewer than two classes, a class with fewer members than folds.
    """
    from sklearn.model_selection import StratifiedKFold

    y = _known_labels(labels)
    if isinstance(folds, bool) or not isinstance(folds, int | np.integer) or folds < 2:
        raise ValueError(f"folds={folds} must be a whole number, at least 2")
    classes, counts = np.unique(y, return_counts=True)
    if len(classes) < 2:
        raise ValueError(
            f"all {len(y)} labels are {classes[0]}; stratified folds need at least 2 classes"
        )
    if (members := int(counts.min())) < folds:
        remedy = f"take at most {members} folds or leave" if members > 1 else "leave"
        raise ValueError(
            f"class {classes[counts.argmin()]} has {members} member{'s' * (members > 1)}, fewer "
            f"than the {folds} folds; {remedy} the class out"
        )
    parts = StratifiedKFold(int(folds), shuffle=True, random_state=seed).split(y, y)
    return [(torch.from_numpy(train), torch.from_numpy(test)) for train, test in parts]


@dataclass(frozen=True)
class SvmScore:
    """`test`: accuracy on the test part; `inner`: mean accuracy of the chosen `C` over the inner
    folds; shares."""

    test: float
    inner: float
    C: float


def svm(
    x: Tensor, y: Tensor, train: Tensor, test: Tensor, seed: int = 0, inner: int = INNER_FOLDS
) -> SvmScore:
    r"""Test accuracy of a support vector machine whose $C$ the training part alone decides.

    Kernel $k(x,x')=e^{-\lVert x-x'\rVert^2/(d\,\mathrm{Var})}$, Var over all entries of the
    features that the machine is fitted on (scikit-learn's gamma="scale"; 1 for $d\,$Var where they
    are constant). $C\in\{10^{-3},\dots,10^3\}$ by mean accuracy over `inner` stratified folds of
    the training part (shuffled by `seed`), of equal ones the smallest; then the machine is fitted
    on the whole training part.

    `x` [N,d] features, neither centred nor scaled, as in the code released with hcl
    (`graph/evaluate_embedding.py`; the inner folds there are not shuffled). `y` int [N]; `train`,
    `test` index vectors without a common row. The score is that of GridSearchCV(SVC(), …), in half
    the time: all penalties share a kernel. ValueError: features and labels that do not fit together
    or are not finite, a row in both parts, and what `stratified_folds` refuses.
    """
    x, y, train, test = (torch.as_tensor(v).detach().cpu() for v in (x, y, train, test))
    _check_parts(x, y, train, test)
    fit_x, fit_y, test_y = (
        x[train].double().numpy(),
        _known_labels(y[train]),
        _known_labels(y[test]),
    )
    try:
        parts = stratified_folds(fit_y, inner, seed)
    except ValueError as error:
        raise ValueError(f"inner folds of the training part: {error}") from None
    accuracy = [
        _svm_accuracy(SVM_PENALTIES, fit_x[fit], fit_y[fit], fit_x[held_out], fit_y[held_out])
        for fit, held_out in parts
    ]
    means = np.mean(accuracy, 0)
    best = int(means.round(12).argmax())  # a tie is a tie whatever the order of the summands
    C = SVM_PENALTIES[best]
    (score,) = _svm_accuracy([C], fit_x, fit_y, x[test].double().numpy(), test_y)
    return SvmScore(score, float(means[best]), C)


def _svm_accuracy(penalties, x, y, test_x, test_y) -> list[float]:
    from sklearn.metrics.pairwise import rbf_kernel
    from sklearn.svm import SVC

    gamma = 1 / (x.shape[1] * x.var() or 1.0)
    x, test_x = x - x.mean(0), test_x - x.mean(0)  # less to cancel in the distances
    kernel, test_kernel = rbf_kernel(x, gamma=gamma), rbf_kernel(test_x, x, gamma=gamma)
    machines = [SVC(C=C, kernel="precomputed").fit(kernel, y) for C in penalties]
    return [float((machine.predict(test_kernel) == test_y).mean()) for machine in machines]


def _check_parts(x: Tensor, y: Tensor, train: Tensor, test: Tensor) -> None:
    if any(part.ndim != 1 or part.dtype != torch.long for part in (train, test)):
        raise ValueError(
            f"train ({train.dtype}, shape {tuple(train.shape)}) and test ({test.dtype}, shape "
            f"{tuple(test.shape)}) must be vectors of row numbers, as stratified_folds gives them"
        )
    _check_features(x[train], y[train], x[test], y[test])
    if shared := len(np.intersect1d(train, test)):
        raise ValueError(
            f"{shared} of the {len(test)} test rows are training rows; the parts must not overlap"
        )
    check_finite(x[torch.cat([train, test])])


def check_finite(x: Tensor) -> None:
    """ValueError unless all embeddings $[N,d]$ are finite."""
    if bad := int((~x.isfinite().all(1)).sum()):
        raise ValueError(
            f"{bad} of the {len(x)} embeddings are not finite; the encoder has diverged: train it "
            "with a smaller learning rate or for fewer epochs"
        )


def _known_labels(labels) -> np.ndarray:
    y = torch.as_tensor(labels).detach().cpu()
    whole = not (y.is_floating_point() or y.is_complex() or y.dtype == torch.bool)
    if y.ndim != 1 or not len(y) or not whole:
        raise ValueError(
            f"labels of shape {tuple(y.shape)} and type {y.dtype} must be a non-empty vector of "
            "integers"
        )
    if unknown := int((y < 0).sum()):
        raise ValueError(
            f"{unknown} of {len(y)} labels are unknown (negative); leave these out of the "
            "evaluation"
        )
    return y.numpy()
