r"""What an embedding is worth: readouts of its features, and diagnostics of its geometry and of the losses."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from hnlib import augment
from hnlib.contrast import Contrast

HARDENINGS = ("exp", "threshold")
PROTOCOLS = ("clean", "paper")
SVM_PENALTIES = tuple(10.0**k for k in range(-3, 4))  # the grid of C
INNER_FOLDS = 5  # of the cross-validation that chooses among them


@torch.no_grad()
def embed(encoder: nn.Module, x: Tensor, batch_size: int = 1000, device=None) -> Tensor:
    """Features [N,d] of the plain images `x` uint8 [N,H,W,C], encoder in eval mode (its mode is restored after).

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
    train_x: Tensor, train_y: Tensor, test_x: Tensor, test_y: Tensor, k: int = 200, temperature: float = 0.5,
    num_classes: int | None = None, chunk: int = 1000, reduction: str = "mean",
):
    r"""Accuracy of the weighted $k$-nearest-neighbour vote: neighbour $j$ at cosine $s_j$ has $e^{s_j/t}$ votes.

    `temperature` is the readout's own; .5 and $k=200$ as in the code released with hcl. Test rows go in chunks.
    `reduction="none"`: which test rows are right, bool [N].
    ValueError: $k$ outside 1 … number of training rows, $t\le0$, features and labels that do not fit together.
    """
    _check_features(train_x, train_y, test_x, test_y)
    if not 1 <= k <= len(train_x):
        raise ValueError(f"k={k} neighbours cannot be found among {len(train_x)} training images; "
                         f"choose k from 1 to {len(train_x)}")
    if not temperature > 0:
        raise ValueError(f"kNN temperature={temperature} must be positive")
    num_classes = num_classes or int(train_y.max()) + 1
    bank = functional.normalize(train_x).T
    correct = []
    for x, y in zip(test_x.split(chunk), test_y.split(chunk)):
        similarity, index = (functional.normalize(x) @ bank).topk(k, sorted=False)
        votes = similarity.new_zeros(len(x), num_classes)
        votes.scatter_add_(1, train_y[index], ((similarity - 1) / temperature).exp())  # −1: the same vote, no overflow
        correct.append(votes.argmax(1) == y)
    return _share(torch.cat(correct), reduction)


def linear_readout(
    train_x: Tensor, train_y: Tensor, test_x: Tensor, test_y: Tensor, penalty: float = 1.0,
    max_iterations: int = 300, num_classes: int | None = None, reduction: str = "mean",
):
    r"""Accuracy of multinomial logistic regression on frozen, standardised features.

    $\min_{W,b}\ \frac1N\sum_i\mathrm{CE}(Wx_i+b,y_i)+\frac{\lambda}{2N}\lVert W\rVert^2$, $\lambda$ = `penalty`
    (scikit-learn's $1/C$), by L-BFGS from zero: deterministic, on any device. Features are standardised with the
    training mean and deviation; a constant feature becomes zero. `reduction="none"`: which test rows are right, [N].
    ValueError: negative penalty, features and labels that do not fit together.
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
    """Weight [C,d] and bias [C] of the regression that `linear_readout` describes, on features taken as they are."""
    x = x.detach()
    weight = torch.zeros(num_classes, x.shape[1], dtype=x.dtype, device=x.device, requires_grad=True)
    bias = torch.zeros(num_classes, dtype=x.dtype, device=x.device, requires_grad=True)
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=max_iterations, history_size=20, tolerance_grad=1e-5,
                                  tolerance_change=1e-9, line_search_fn="strong_wolfe")

    def closure():
        optimiser.zero_grad()
        loss = functional.cross_entropy(torch.addmm(bias, x, weight.T), y)
        loss = loss + penalty / (2 * len(x)) * weight.square().sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    return weight.detach(), bias.detach()


def neighbours(n: int) -> int:
    """How many neighbours vote among `n` training images: 200 as in the papers' code, but at most one image in 50.

    On 50,000 images 200 are a small part of a class; on 1,437 they are more than a class and would measure its size.
    """
    return max(1, min(200, n // 50))


def paper_readout(
    encoder: nn.Module, dataset, recipe: str | augment.Recipe = "hcl", epochs: int = 100, batch_size: int = 512,
    lr: float = 1e-3, weight_decay: float = 1e-6, seed: int = 0, device=None,
) -> float:
    """Test accuracy of a linear layer trained as in the code released with hcl (`image/linear.py`); its defaults.

    Odd, and kept: the weights of the encoder are frozen, but while the layer learns the encoder is in train mode. So
    the layer learns on features normalised by the statistics of their batch, and each batch moves the running
    statistics, which the test images then meet in eval mode. The layer learns from augmented images, one fresh view
    an epoch, and is tested on plain ones. Nothing is standardised; Adam, batches shuffled, the last partial one kept.

    The encoder comes back as it was: this works on a copy. The result is a function of `seed` and of the arguments.
    A `recipe` with a size (STL-10 as released) needs an encoder for images of any size.
    ValueError: an unknown recipe; epochs, batch_size or lr not positive, weight_decay negative.
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
    # The caller's random state stays; ours decides the layer's start and what an encoder draws itself in train mode.
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())), torch.enable_grad():
        torch.manual_seed(seed)
        layer = nn.Linear(dimension, dataset.num_classes).to(device)
        optimiser = torch.optim.Adam(layer.parameters(), lr=lr, weight_decay=weight_decay)
        encoder.train()
        for _ in range(epochs):
            for batch in torch.randperm(len(x), generator=generator, device=device).split(batch_size):
                views = augment.view(x[batch], generator, recipe).contiguous(memory_format=torch.channels_last)
                with torch.no_grad():
                    features = encoder(views).float()
                loss = functional.cross_entropy(layer(features), y[batch])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
    with torch.no_grad():
        predicted = layer(embed(encoder, dataset.x_test, device=device)).argmax(1)
    return int((predicted == dataset.y_test.to(device)).sum()) / len(dataset.y_test)


def readouts(
    encoder: nn.Module, dataset, k: int | None = None, device=None, batch_size: int = 1000,
    protocols: tuple[str, ...] = ("clean",), recipe: str | augment.Recipe | None = None, readout_epochs: int = 100,
    correct: dict[str, Tensor] | None = None,
) -> dict[str, float]:
    """The readouts of the named protocols.

    "clean": knn, knn_k and linear, with the frozen encoder in eval mode, plain images, features computed once; where
    the data set has validation images, knn_validation and linear_validation too. A dictionary given as `correct`
    takes which images were right: bool [N] for each of these names but knn_k.
    "paper": linear_paper, by `paper_readout` with `recipe` (by default after the channels) and `readout_epochs`.
    `dataset` is a `data.Dataset`; `k` defaults to `neighbours`. `encoders.build("pixels", …)` scores the raw pixels.
    ValueError: an unknown protocol, none at all.
    """
    protocols = (protocols,) if isinstance(protocols, str) else tuple(protocols)
    if not protocols or (unknown := set(protocols) - set(PROTOCOLS)):
        named = f"unknown readout protocol {min(unknown)!r}" if protocols else "no readout protocol"
        raise ValueError(f"{named}; known: {', '.join(PROTOCOLS)}")
    scores = {}
    if "clean" in protocols:
        correct = {} if correct is None else correct
        held_out = [] if dataset.x_validation is None else [(dataset.x_validation, dataset.y_validation)]
        parts = [(dataset.x_test, dataset.y_test), *held_out]
        train_x = embed(encoder, dataset.x_train, batch_size, device)
        train_y = dataset.y_train.to(train_x.device)
        together = torch.cat([embed(encoder, x, batch_size, device) for x, _ in parts])
        sets = train_x, train_y, together, torch.cat([y for _, y in parts]).to(train_x.device)
        k = neighbours(len(train_x)) if k is None else k
        right = {"knn": weighted_knn(*sets, k=k, num_classes=dataset.num_classes, reduction="none"),
                 "linear": linear_readout(*sets, num_classes=dataset.num_classes, reduction="none")}
        for name, bits in right.items():  # one readout, judged on both parts
            for part, judged in zip(("", "_validation"), bits.split([len(y) for _, y in parts])):
                correct[name + part], scores[name + part] = judged, _share(judged, "mean")
        scores["knn_k"] = k
    if "paper" in protocols:
        recipe = augment.recipe_for(dataset.channels) if recipe is None else recipe
        scores["linear_paper"] = paper_readout(encoder, dataset, recipe, readout_epochs, device=device)
    return scores


def alignment(z1: Tensor, z2: Tensor) -> float:
    r"""$\mathbb E\lVert z-z^+\rVert^2$ over the pairs of normalised rows; 0 is perfect (wangisola, Sec. 4.1.1)."""
    return float((functional.normalize(z1) - functional.normalize(z2)).square().sum(1).mean())


def uniformity(z: Tensor, t: float = 2.0) -> float:
    r"""$\log\mathbb E\,e^{-t\lVert z-z'\rVert^2}$ over pairs of rows: lower is more uniform (wangisola, Sec. 4.1.2).

    ValueError: fewer than two rows.
    """
    if len(z) < 2:
        raise ValueError(f"uniformity needs at least 2 embeddings; got {len(z)}")
    exponent = -t * torch.pdist(functional.normalize(z)).square()
    return float(exponent.logsumexp(0)) - math.log(len(exponent))


def collision_mass(contrast: Contrast, log_w: Tensor, labels: Tensor | None = None) -> float:
    r"""Mean over the anchors of the weight on candidates of the anchor's own class,
    $\frac1n\sum_i\sum_{j:\,y_j=y_i}w_{ij}$. Anchors without any negative (a row of $-\infty$) are left out.

    `labels` [B] for a contrast built without. NaN if no anchor has a negative.
    """
    mass = (log_w.exp() * contrast.same_class(labels)).sum(1)
    return float(mass[log_w.amax(1) > -torch.inf].mean())


def assumption_fraction(
    contrast: Contrast, labels: Tensor | None = None, beta: float = 1.0, temperature: float = 0.5,
    hardening: str | Callable = "exp", tau: float = math.exp(-0.5), reduction: str = "mean",
):
    r"""Fraction of the anchors that satisfy H-SCL's Assumption 1,
    $\mathbb E_{H_{col}}e^g\ge\mathbb E_{H\text{-}SCL}e^g$, with $g=s/\gamma$, $\gamma$ = `temperature`.

    Both expectations are over the batch law: the negatives $x^-$ are the contrast's admissible candidates, for two
    views everyone but the anchor *and its own other view* (its positive, which would mostly help the left side), each
    as likely as the other, reweighted by $\eta(g)$ within the anchor's class and outside it. `hardening`: "exp",
    $\eta=e^{\beta g}$; "threshold", $\eta=1(e^g\ge\tau)$; or a function $g\mapsto\log\eta(g)$.
    The contrast must admit same-class candidates: build it with `Contrast.from_views(z1, z2)` and pass `labels` here.
    An anchor with no (surviving) candidate on one side leaves its expectation undefined and is not counted;
    `reduction="none"` gives [n] with 1, 0, or NaN there; NaN if no anchor is defined. Source: hscl, Assumption 1.
    ValueError: no labels, no same-class candidate, $\gamma\le0$ or $\tau\le0$, an unknown hardening.
    """
    collision, other, _ = _two_sides(contrast, labels, beta, temperature, hardening, tau)
    defined = collision.isfinite() & other.isfinite()
    holds = torch.where(defined, (collision >= other).to(collision.dtype), torch.nan)
    return holds if reduction == "none" else float(holds.nanmean())


def four_losses(
    contrast: Contrast, labels: Tensor | None = None, beta: float = 1.0, temperature: float = 0.5,
    hardening: str | Callable = "exp", tau: float = math.exp(-0.5), reduction: str = "mean",
) -> dict[str, Tensor]:
    r"""The four losses of H-SCL's Fig. 5 in the limit of many negatives, on the batch law and *one* set of positives:

    $\ell_i=\operatorname{mean}_{p\in P(i)}\log\!\big(1+M\,e^{-g_{ip}}\,\mathbb E_{q_i}e^{g}\big)$, $M=2B-2$,

    $P(i)$: every candidate of the anchor's class but the anchor; $q_i$ uniform over the admissible candidates for UCL
    (everyone but the anchor and its own other view), reweighted by $\eta(g)$ for H-UCL, restricted to other classes
    for SCL, both for H-SCL. Anchor by anchor H-UCL ≥ H-SCL exactly where Assumption 1 holds.

    Returns {"UCL", "H-UCL", "SCL", "H-SCL"}: means over the anchors for which all four exist (a threshold may leave an
    anchor without negatives), or with `reduction="none"` tensors [n] with NaN where one does not exist. Arguments and
    errors as in `assumption_fraction`. Source: hscl, eq. (3), with the sign of its first exponent corrected.
    """
    _, _, log_e = _two_sides(contrast, labels, beta, temperature, hardening, tau)
    g = contrast.similarity / temperature
    positives = contrast.same_class(labels) & (contrast.admissible | contrast.positives)  # not the anchor itself
    count = positives.sum(1)
    losses = {}
    for name, e in log_e.items():
        terms = functional.softplus(math.log(contrast.scale) + e[:, None] - g)
        losses[name] = torch.where(e.isfinite(), (terms * positives).sum(1) / count, torch.nan)
    if reduction == "none":
        return losses
    defined = torch.stack(list(losses.values())).isfinite().all(0)
    return {name: loss[defined].mean() for name, loss in losses.items()}


@torch.no_grad()
def diagnostics(
    z1: Tensor, z2: Tensor, labels: Tensor, log_weights=None, supervised: bool = False, features=None
) -> dict:
    r"""What the learning curves show, of two views [B,d] of one fixed batch (and the last layer's inputs, if needed).

    "collision": weight that `log_weights` (a method's) puts on same-class negatives, zero by construction for a
    supervised method, None without one; "alignment"; "uniformity" (of the first views); and for each hardening, "exp"
    ($\beta=1$) and "threshold" ($\tau=e^{-1/2}$), both at $\gamma=.5$: the "assumption" fraction, the four losses,
    "undefined" anchors, and "violations", the anchors whose H-UCL falls below their H-SCL.
    """
    z1, z2 = z1.float(), z2.float()
    contrast = Contrast.from_views(z1, z2, features=features)
    row = {"collision": None, "alignment": alignment(z1, z2), "uniformity": uniformity(z1)}
    if log_weights is not None:
        own = Contrast.from_views(z1, z2, labels, features=features) if supervised else contrast
        row["collision"] = collision_mass(own, log_weights(own), labels)
    for hardening in HARDENINGS:
        holds = assumption_fraction(contrast, labels, hardening=hardening, reduction="none")
        losses = four_losses(contrast, labels, hardening=hardening, reduction="none")
        defined = torch.stack(list(losses.values())).isfinite().all(0)
        # a difference of rounding is no violation: where Assumption 1 is an equality the two losses are one number
        below = losses["H-UCL"] < losses["H-SCL"] - 1e-6 * losses["H-SCL"].abs()
        row[hardening] = {
            "assumption": float(holds.nanmean()),
            **{name: float(loss[defined].mean()) for name, loss in losses.items()},
            "violations": int((below & defined).sum()),
            "undefined": int((~defined).sum()),
        }
    return row


def _two_sides(contrast, labels, beta, temperature, hardening, tau):
    """log E e^g [n] under Hcol and under H-SCL, and under the four negative distributions; not finite if undefined."""
    if not temperature > 0:
        raise ValueError(f"temperature={temperature} must be positive")
    g = contrast.similarity / temperature
    if callable(hardening):
        log_eta = hardening(g)
    elif hardening == "exp":
        log_eta = beta * g
    elif hardening == "threshold":
        if not tau > 0:
            raise ValueError(f"tau={tau} must be positive")
        log_eta = torch.zeros_like(g).masked_fill(g < math.log(tau), -torch.inf)
    else:
        raise ValueError(f"unknown hardening {hardening!r}; known: {', '.join(HARDENINGS)}, or a function of g")
    same = contrast.same_class(labels)
    collision, other = contrast.admissible & same, contrast.admissible & ~same
    if not collision.any():
        raise ValueError("no anchor has an admissible candidate of its own class; build the contrast with "
                         "Contrast.from_views(z1, z2), pass the labels here, and take a batch with repeated classes")

    def log_mean(mask, log_eta):  # log of the eta-weighted mean of e^g over the mask
        log_eta = torch.where(mask, log_eta, -torch.inf)
        return (log_eta + g).logsumexp(1) - log_eta.logsumexp(1)

    zero = torch.zeros_like(g)
    log_e = {"UCL": log_mean(contrast.admissible, zero), "H-UCL": log_mean(contrast.admissible, log_eta),
             "SCL": log_mean(other, zero), "H-SCL": log_mean(other, log_eta)}
    return log_mean(collision, log_eta), log_e["H-SCL"], log_e


def _check_features(train_x, train_y, test_x, test_y):
    for part, x, y in (("training", train_x, train_y), ("test", test_x, test_y)):
        if x.ndim != 2 or y.shape != x.shape[:1] or not len(x):
            raise ValueError(f"{part} features of shape {tuple(x.shape)} and labels of shape {tuple(y.shape)} "
                             "do not fit; features are [N,d], labels [N]")
    if train_x.shape[1] != test_x.shape[1]:
        raise ValueError(f"training features have {train_x.shape[1]} dimensions, test features {test_x.shape[1]}")


# --- a support vector machine on frozen embeddings, folds, and comparisons of methods


def stratified_folds(labels: Tensor, folds: int = 10, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """(train index, test index) of each fold: every class is spread over the test parts as evenly as it can be.

    `labels` int [N]; the indices are sorted LongTensors, the test parts disjoint with union 0 … N−1. A function of
    labels and seed alone, so methods evaluated with one seed are paired (scikit-learn's StratifiedKFold, shuffled).
    ValueError: folds < 2, labels of another shape or kind, unknown ones (−1), fewer than two classes, a class with
    fewer members than folds.
    """
    from sklearn.model_selection import StratifiedKFold

    y = _known_labels(labels)
    if isinstance(folds, bool) or not isinstance(folds, int | np.integer) or folds < 2:
        raise ValueError(f"folds={folds} must be a whole number, at least 2")
    classes, counts = np.unique(y, return_counts=True)
    if len(classes) < 2:
        raise ValueError(f"all {len(y)} labels are {classes[0]}; stratified folds need at least 2 classes")
    if (members := int(counts.min())) < folds:
        remedy = f"take at most {members} folds or leave" if members > 1 else "leave"
        raise ValueError(f"class {classes[counts.argmin()]} has {members} member{'s' * (members > 1)}, fewer than the "
                         f"{folds} folds; {remedy} the class out")
    parts = StratifiedKFold(int(folds), shuffle=True, random_state=seed).split(y, y)
    return [(torch.from_numpy(train), torch.from_numpy(test)) for train, test in parts]


@dataclass(frozen=True)
class SvmScore:
    """`test`: accuracy on the test part; `inner`: mean accuracy of the chosen `C` over the inner folds; shares."""

    test: float
    inner: float
    C: float


def svm(
    x: Tensor, y: Tensor, train: Tensor, test: Tensor, seed: int = 0, inner: int = INNER_FOLDS
) -> SvmScore:
    r"""Test accuracy of a support vector machine whose $C$ the training part alone decides.

    Kernel $k(x,x')=e^{-\lVert x-x'\rVert^2/(d\,\mathrm{Var})}$, Var over all entries of the features that the machine
    is fitted on (scikit-learn's gamma="scale"; 1 for $d\,$Var where they are constant), so the inner machines have
    kernels of their own. $C\in\{10^{-3},\dots,10^3\}$ by mean accuracy over `inner` stratified folds of the training
    part (shuffled by `seed`), of equal ones the smallest; then the machine is fitted on the whole training part.

    `x` [N,d] features, taken as they are: neither centred nor scaled, as in the code released with hcl
    (`graph/evaluate_embedding.py`; same kernel, grid and number of folds, the inner folds there not shuffled).
    `y` int [N]; `train`, `test` index vectors without a common row. The score is that of
    GridSearchCV(SVC(), …, cv=StratifiedKFold(inner, shuffle=True, random_state=seed)), two to four times
    sooner: the squared distances are computed once. libsvm iterates to its own tolerance, without any other bound.
    ValueError: features and labels that do not fit together or are not finite, a row in both parts, and what
    `stratified_folds` refuses of the training part.
    """
    x, y, train, test = (torch.as_tensor(v).detach().cpu() for v in (x, y, train, test))
    if any(part.ndim != 1 or part.dtype != torch.long for part in (train, test)):
        raise ValueError(f"train ({train.dtype}, shape {tuple(train.shape)}) and test ({test.dtype}, shape "
                         f"{tuple(test.shape)}) must be vectors of row numbers, as stratified_folds gives them")
    _check_features(x[train], y[train], x[test], y[test])
    if shared := len(np.intersect1d(train, test)):
        raise ValueError(f"{shared} of the {len(test)} test rows are training rows; the parts must not overlap")
    x = x.double()
    if bad := int((~x[torch.cat([train, test])].isfinite().all(1)).sum()):
        raise ValueError(f"{bad} of the {len(train) + len(test)} embeddings are not finite; the encoder has diverged: "
                         "train it with a smaller learning rate or for fewer epochs")
    fit_x, fit_y, test_y = x[train], _known_labels(y[train]), _known_labels(y[test])
    try:
        parts = stratified_folds(fit_y, inner, seed)
    except ValueError as error:
        raise ValueError(f"inner folds of the training part: {error}") from None
    # a diagonal of exactly 1, as in libsvm's own kernel: else its iterations take another path to another last digit
    distances = _squared_distances(fit_x, fit_x).fill_diagonal_(0)
    accuracy = np.empty((len(SVM_PENALTIES), inner))
    for k, (fit, held_out) in enumerate(parts):
        rows = distances[:, fit]
        kernels = _kernels(fit_x[fit], rows[fit], rows[held_out])
        for i, C in enumerate(SVM_PENALTIES):
            accuracy[i, k] = _svm_accuracy(C, *kernels, fit_y[fit], fit_y[held_out])
    means = accuracy.mean(1)
    best = int(means.round(12).argmax())  # a tie is a tie whatever the order of the summands
    kernels = _kernels(fit_x, distances, _squared_distances(x[test], fit_x))
    return SvmScore(_svm_accuracy(SVM_PENALTIES[best], *kernels, fit_y, test_y), float(means[best]),
                    SVM_PENALTIES[best])


@dataclass(frozen=True)
class Paired:
    """`difference` ours − base, its standard `error`, the 95 % interval `low` … `high`, and the two-sided `p`."""

    difference: float
    error: float
    low: float
    high: float
    p: float


def paired(ours, base, test_share: float | None = None) -> Paired:
    r"""Corrected resampled $t$-test of two methods on the same splits of one data set (Nadeau and Bengio, 2003).

    With the $J$ differences $d_j$ (`ours` − `base`, both [seeds, folds], in any one unit) and their variance $s^2$,

    $\bar d=\frac1J\sum_jd_j,\qquad\mathrm{error}^2=\Big(\frac1J+\frac{\rho}{1-\rho}\Big)s^2,\qquad
    \bar d/\mathrm{error}\sim t_{J-1}$ if the methods are equally good,

    $\rho$ = `test_share`, the share of the data that is in a test part: $\rho/(1-\rho)=n_{test}/n_{train}$. By default
    $\rho=1/\mathrm{folds}$: `ours` has all the folds of a cross-validation. Where it has some of them only, say $\rho$.

    The plain $t$-test has $1/J$ alone, as if the $d_j$ were independent. They are not: any two training sets share
    most of their rows, and with every seed the test rows return, so a difference that one sample of the data happens
    to show is in all $d_j$ at once. No $J$ removes it, but the plain error falls as $1/\sqrt J$: with enough of them
    everything is significant. The correction is a rule of thumb (it takes the correlation of two $d_j$ to be $\rho$);
    what it tests is the method on data sets of this size from this source. It pools all splits: with few
    seeds, whose folds share one encoder, and more variance between seeds than between folds, it may be too sure.

    Differences that are all equal give error 0, and p = 1 if they are zero, otherwise 0.
    ValueError: not two tables of one shape, fewer than two values, values that are not finite, $\rho$ outside (0, 1).
    """
    from scipy.special import stdtr, stdtrit

    ours, base = (np.asarray(v, dtype=float) for v in (ours, base))
    if ours.ndim != 2 or ours.shape != base.shape:
        raise ValueError(f"ours of shape {ours.shape} and base of shape {base.shape} cannot be paired; "
                         "both are [seeds, folds]")
    count = ours.size
    if count < 2:
        raise ValueError(f"a paired comparison needs at least 2 values of each method; got {count}")
    if bad := int((~(np.isfinite(ours) & np.isfinite(base))).sum()):
        raise ValueError(f"{bad} of the {count} pairs are not finite numbers; leave out the seeds that did not finish")
    share = 1 / ours.shape[1] if test_share is None else test_share
    if not 0 < share < 1:
        hint = "; with a single fold it has to be given" if test_share is None else ""
        raise ValueError(f"test_share={share:g} must lie between 0 and 1: it is the share of the data in a test "
                         f"part, 0.1 in a 10-fold cross-validation{hint}")
    d = ours - base
    mean, spread = float(d.mean()), float(d.std(ddof=1))
    rounding = 1e-12 * max(np.abs(ours).max(), np.abs(base).max())
    if np.ptp(d) <= rounding:
        mean = mean if abs(mean) > rounding else 0.0
        return Paired(mean, 0.0, mean, mean, float(mean == 0))
    error = math.sqrt(1 / count + share / (1 - share)) * spread
    half = error * float(stdtrit(count - 1, 0.975))
    return Paired(mean, error, mean - half, mean + half, 2 * float(stdtr(count - 1, -abs(mean) / error)))


def holm(p) -> np.ndarray:
    r"""Holm's adjusted p-values [m] of $m$ tests: reject those ≤ α, and any false rejection has probability ≤ α.

    $\tilde p_{(k)}=\max_{l\le k}\min\{1,(m-l+1)\,p_{(l)}\}$, $p_{(1)}\le\dots\le p_{(m)}$; no independence is needed.
    Source: Holm (1979). ValueError: not a vector of numbers from 0 to 1.
    """
    p = np.asarray(p, dtype=float)
    if p.ndim != 1:
        raise ValueError(f"p-values of shape {p.shape} must be a vector")
    if bad := [value for value in p.tolist() if not 0 <= value <= 1]:
        raise ValueError(f"p-value {bad[0]} must lie between 0 and 1")
    order, m = np.argsort(p, kind="stable"), len(p)
    stepped = np.maximum.accumulate(p[order] * np.arange(m, 0, -1)).clip(max=1.0)
    return stepped[np.argsort(order)]


def _known_labels(labels) -> np.ndarray:
    y = torch.as_tensor(labels).detach().cpu()
    if y.ndim != 1 or not len(y) or y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise ValueError(f"labels of shape {tuple(y.shape)} and type {y.dtype} must be a non-empty vector of integers")
    if unknown := int((y < 0).sum()):
        raise ValueError(f"{unknown} of {len(y)} labels are unknown (negative); leave these out of the evaluation")
    return y.numpy()


def _squared_distances(a: Tensor, b: Tensor) -> Tensor:
    centre = b.mean(0)  # less to cancel
    a, b = a - centre, b - centre
    return torch.addmm(a.square().sum(1)[:, None] + b.square().sum(1), a, b.T, alpha=-2).clamp_(min=0)


def _kernels(x: Tensor, *distances: Tensor) -> list[np.ndarray]:
    """Gaussian kernels of squared distances, with the width that scikit-learn calls "scale" of features `x`."""
    variance = float(x.var(correction=0))
    gamma = 1 / (x.shape[1] * variance) if variance else 1.0
    return [(d * -gamma).exp_().numpy() for d in distances]


def _svm_accuracy(C, kernel, test_kernel, y, test_y) -> float:
    from sklearn.svm import SVC

    return float((SVC(C=C, kernel="precomputed").fit(kernel, y).predict(test_kernel) == test_y).mean())
