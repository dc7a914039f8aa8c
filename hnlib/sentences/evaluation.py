"""What embeddings of sentences are worth: logistic regression on them, and whether their cosines
say who is alike."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from hnlib.sentences import data
from hnlib.sentences.tasks import Task
from hnlib.training.evaluation import check_finite, stratified_folds

PENALTIES = tuple(10.0**k for k in range(-4, 0))  # the grid of C
FOLDS, INNER = 10, 3


class Judged:
    """A task in the tokens of a corpus, of which each sentence has at most `length`.

    Pairs are judged by $(|u-v|,u\\odot v)$, or where they are graded by the rank correlation of
    $\\cos(u,v)$; a task without a test part by ten folds, the same for all methods of one seed.
    """

    def __init__(self, task: Task, tokenizer, length: int):
        self.task, self.length = task, length
        texts = [task.first] + ([] if task.second is None else [task.second])
        self.texts = []
        for text in texts:
            ids, ends = data.encode(tokenizer, text)
            self.texts.append(
                data.Corpus(task.name, ids, ends, torch.arange(len(text)), tokenizer, "")
            )

    def scores(self, encoder: nn.Module, seed: int) -> tuple[dict[str, float], dict[str, Tensor]]:
        """The metrics of an encoder, and which examples it got right, bool [N] by metric."""
        task, (x, *other) = self.task, [embed(encoder, text, self.length) for text in self.texts]
        if task.graded:
            return {task.name: spearman(x, other[0], task.y)}, {}
        if other:
            x = torch.cat([(x - other[0]).abs(), x * other[0]], 1)
        y = torch.from_numpy(task.y)
        if task.train:
            every = torch.arange(len(y))
            parts = [(every[: task.train], every[task.train :])]
        else:
            parts = stratified_folds(y, FOLDS, seed)
        predicted, seen = torch.full_like(y, -1), []
        for (_, test), (labels, validation) in zip(parts, classify(x, y, parts, seed)):
            predicted[test] = labels
            seen.append(validation)
        judged = torch.cat([test for _, test in parts]).sort().values
        right = predicted[judged] == y[judged]
        found = {
            task.name: float(right.double().mean()),
            f"{task.name}_validation": float(np.mean(seen)),
        }
        if task.name == "msrp":
            hits = float((right & (y[judged] == 1)).sum())
            found["msrp_f1"] = (
                2 * hits / float((y[judged] == 1).sum() + (predicted[judged] == 1).sum())
            )
        return found, {task.name: right}


@torch.no_grad()
def embed(encoder: nn.Module, text: data.Corpus, length: int, batch_size: int = 2000) -> Tensor:
    """Embeddings $[N,d]$ of all sentences, encoder in eval mode (its mode is restored after), on
    the CPU."""
    device, training = next(encoder.parameters()).device, encoder.training
    encoder.eval()
    parts = torch.arange(len(text)).split(batch_size)
    found = [encoder(text.rows(part, length).to(device)).float().cpu() for part in parts]
    encoder.train(training)
    return torch.cat(found)


def spearman(x: Tensor, other: Tensor, degrees: np.ndarray) -> float:
    """The rank correlation of cosines and degrees; cosines that agree to 1e-6 are equal."""
    from scipy.stats import spearmanr

    cosines = functional.cosine_similarity(x.double(), other.double())
    return float(spearmanr(cosines.numpy().round(6), degrees)[0])


@torch.inference_mode(False)
def classify(
    x: Tensor, y: Tensor, parts: list[tuple[Tensor, Tensor]], seed: int = 0
) -> list[tuple[Tensor, float]]:
    r"""For each (train, test) of `parts`, index vectors: the predictions on test of a logistic
    regression whose $C$ train alone decides, and the accuracy on train's own folds that decided it.

    `x` $[N,d]$; `y` int64 $[N]$, any numbers. Features are standardised with the mean and deviation
    of train, a constant one is left out. $C\in\{10^{-4},\dots,10^{-1}\}$ by accuracy over three
    stratified folds of train (shuffled by `seed`), of equal ones the smallest. The optimum is that
    of scikit-learn's LogisticRegression, for all parts and folds together: each step is two matrix
    products. ValueError: features that are not finite, a train of one class. Source: SentEval
    (Conneau & Kiela, 2018), whose grid is another and whose inner folds are ten.
    """
    from sklearn.model_selection import StratifiedKFold

    check_finite(x)
    classes, y = y.unique(return_inverse=True)
    splits = []  # for each part its inner ones, and itself
    for train, test in parts:
        if not (y[train] != y[train[0]]).any():
            label = classes[y[train[0]]]
            raise ValueError(f"all {len(train)} labels of a training part are {label}; give two")
        inner = StratifiedKFold(INNER, shuffle=True, random_state=seed).split(train, y[train])
        splits += [*((train[a], train[b]) for a, b in inner), (train, test)]
    fits, held_out = zip(*splits)
    every = _path(*_scaled(x, fits), y, fits)
    found = []
    for k in range(0, len(splits), INNER + 1):
        inner, (train, test) = held_out[k : k + INNER], splits[k + INNER]
        right = [
            sum(int((p[rows, k + i] == y[rows]).sum()) for i, rows in enumerate(inner))
            for p in every
        ]
        best = max(range(len(right)), key=lambda c: right[c])
        found.append((classes[every[best][test, k + INNER]], right[best] / len(train)))
    return found


def _scaled(x: Tensor, fits) -> tuple[Tensor, Tensor, Tensor]:
    """Features in single precision, centred so that little cancels, and the mean and deviation
    $[P,d]$ of the part that each fit belongs to; inf where nothing varies."""
    parts = fits[INNER :: INNER + 1]
    raw = x.double()
    x = raw - raw[torch.cat(parts).unique()].mean(0)
    inside = _shares(len(x), parts, x.dtype).T
    mean = inside @ x
    spread = (inside @ x.square() - mean.square()).clamp_min(0).sqrt()
    rounding = 1e-6 * mean.abs() + 1e-12 * (inside @ raw.abs())
    spread = torch.where(spread > rounding, spread, torch.inf)
    mean, spread = (v.float().repeat_interleave(INNER + 1, 0) for v in (mean, spread))
    return x.float(), mean, spread


def _shares(n: int, subsets, dtype: torch.dtype) -> Tensor:
    """The uniform law $[n,P]$ on each subset."""
    share = torch.zeros(n, len(subsets), dtype=dtype)
    for column, rows in enumerate(subsets):
        share[rows, column] = 1 / len(rows)
    return share


@torch.enable_grad()
def _path(x: Tensor, mean: Tensor, spread: Tensor, y: Tensor, fits) -> list[Tensor]:
    """For each $C$ in turn the predictions $[N,P]$ of the regressions on the rows `fits`, each
    starting where the last one ended."""
    share, counts = _shares(len(x), fits, x.dtype), torch.tensor([len(rows) for rows in fits])
    seen = torch.stack([y[rows].bincount(minlength=int(y.max()) + 1) for rows in fits]) > 0
    width = 1 if seen.shape[1] == 2 else seen.shape[1]  # two classes need one score
    absent = torch.where(seen, 0.0, -1e30)  # a class that a fold lacks plays no part
    w = x.new_zeros(len(fits), width, x.shape[1], requires_grad=True)
    b = x.new_zeros(len(fits), width, requires_grad=True)
    sign, rows = (1 - 2 * y).to(x)[:, None], torch.arange(len(x))

    def scores():
        v = w / spread[:, None]  # so that no part needs its own standardised copy of x
        offset = b - (v * mean[:, None]).sum(2)
        s = torch.addmm(offset.flatten(), x, v.flatten(0, 1).T).unflatten(1, b.shape)
        return s if width == 1 else s + absent

    def loss(C: float):
        s = scores()
        if width == 1:
            each = functional.softplus(s.squeeze(2) * sign)
        else:
            each = s.logsumexp(2) - s[rows, :, y]
        penalty = w.square().sum((1, 2)) / (2 * C * counts)
        return (each * share).sum(dtype=torch.float64) + penalty.sum(dtype=torch.float64)

    def closure(optimiser, C: float):
        optimiser.zero_grad()
        (value := loss(C)).backward()
        return value

    found = []
    for C in PENALTIES:
        options = dict(max_iter=200, tolerance_grad=1e-4, line_search_fn="strong_wolfe")
        optimiser = torch.optim.LBFGS([w, b], **options)
        optimiser.step(partial(closure, optimiser, C))
        s = scores().detach()
        found.append((s.squeeze(2) > 0).long() if width == 1 else s.argmax(2))
    return found
