"""What embeddings of sentences are worth: logistic regression on them, and whether their cosines
say who is alike."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from torch import Tensor, nn

from hnlib.runs.readouts import stratified_folds
from hnlib.sentences import data
from hnlib.sentences.tasks import Task

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
        x, y = x.double().numpy(), task.y
        if task.train:
            parts = [(np.arange(task.train), np.arange(task.train, len(y)))]
        else:
            parts = [
                (a.numpy(), b.numpy())
                for a, b in stratified_folds(torch.from_numpy(y), FOLDS, seed)
            ]
        predicted, seen = np.full(len(y), -1), []
        for train, test in parts:
            predicted[test], validation = classify(x[train], y[train], x[test], seed)
            seen.append(validation)
        judged = np.concatenate([test for _, test in parts])
        judged.sort()
        right = predicted[judged] == y[judged]
        found = {task.name: float(right.mean()), f"{task.name}_validation": float(np.mean(seen))}
        if task.name == "msrp":
            hits = float((right & (y[judged] == 1)).sum())
            found["msrp_f1"] = (
                2 * hits / float((y[judged] == 1).sum() + (predicted[judged] == 1).sum())
            )
        return found, {task.name: torch.from_numpy(right)}


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

    cosines = torch.nn.functional.cosine_similarity(x.double(), other.double())
    return float(spearmanr(cosines.numpy().round(6), degrees)[0])


def classify(
    x: np.ndarray, y: np.ndarray, test_x: np.ndarray, seed: int = 0
) -> tuple[np.ndarray, float]:
    r"""Predictions of a logistic regression whose $C$ the training part alone decides, and the
    accuracy on the training part's own folds that decided it.

    Features are standardised with the training mean and deviation, a constant one is left out.
    $C\in\{10^{-4},\dots,10^{-1}\}$ by accuracy over three stratified folds of the training part
    (shuffled by `seed`), of equal ones the smallest; the multinomial regression, scikit-learn's by
    L-BFGS, is then fitted on the whole part. Source: SentEval (Conneau & Kiela, 2018), whose grid
    is another and whose inner folds are ten.
    """
    from sklearn.model_selection import StratifiedKFold

    mean, spread = x.mean(0), x.std(0)
    spread[spread == 0] = np.inf
    # in single precision: as exact as the embeddings, and two and a half times as fast
    x, test_x = (((part - mean) / spread).astype(np.float32) for part in (x, test_x))
    right = np.zeros(len(PENALTIES))
    for a, b in StratifiedKFold(INNER, shuffle=True, random_state=seed).split(x, y):
        right += [(p == y[b]).sum() for p in _path(x[a], y[a], x[b], PENALTIES)]
    best = PENALTIES[: int(right.argmax()) + 1]
    return _path(x, y, test_x, best)[-1], float(right.max() / len(y))


def _path(x, y, test_x, penalties) -> list[np.ndarray]:
    """Predictions for each $C$ in turn, each regression starting where the last one ended."""
    from sklearn.linear_model import LogisticRegression

    model, found = LogisticRegression(warm_start=True, tol=1e-4, max_iter=200), []
    for C in penalties:
        model.C = C
        with warnings.catch_warnings(action="ignore"):
            model.fit(x, y)
        found.append(model.predict(test_x))
    return found
