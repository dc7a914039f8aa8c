"""What the linter says of mistakes, and that it says nothing without one; `linter_threads.toml` has the threads."""

import copy
import json
import math
import re
import tomllib
import warnings

import numpy as np
import pytest
import torch
from drawn import seeded
from lint_on_two_processes import CASES
from lint_programs import PROGRAMS, B, D, T, batch, clip, ranking, rows
from processes import run_twice
from scripts import ROOT
from torch import nn
from torch.nn.functional import (
    cosine_similarity,
    cross_entropy,
    logsigmoid,
    nll_loss,
    normalize,
    triplet_margin_loss,
    triplet_margin_with_distance_loss,
)

from hnlib import methods
from hnlib.lint import Findings, lint, watch

THREADS = tomllib.loads((ROOT / "tests/linter_threads.toml").read_text(encoding="utf-8"))["thread"]
CAUSES = {thread["where"]: thread["cause"] for thread in THREADS}
STAGES = np.load(ROOT / "book/results/stages.npz")
GRADIENTS = {  # what the page of questions says of several GPUs
    "modelscope/ms-swift#10081": "is 1/2 of the whole batch's",
    "SupContrast, rows put back": "is 1/2 of the whole batch's",
    "KevinMusgrave/pytorch-metric-learning#562": "is 2 times the whole batch's",
    "modelscope/ms-swift#5477": "lacks what gathered rows should feel",
    "alike, own rows": "lacks what gathered rows should feel",
    "modelscope/ms-swift#5477, doubled": "lacks what gathered rows should feel",
}
Y = torch.arange(B) % 8
Q, K = batch()


def first(*arguments, **named):
    """The first cause that the linter names."""
    return next(iter(lint(*arguments, **named).causes), None)


def softmax(change):
    """InfoNCE of changed logits."""
    return lambda q, k: cross_entropy(change(normalize(q) @ normalize(k).T), torch.arange(len(q)))


def simclr(z1, z2, own=-torch.inf, partner=None):
    """NT-Xent of [2n, d]; the other view is n rows further."""
    z = normalize(torch.cat([z1, z2]))
    s = z @ z.T / 0.5
    s[range(len(s)), range(len(s))] += own
    here = torch.arange(len(s))
    return cross_entropy(s, (here + len(z1)) % len(s) if partner is None else partner(here))


def supcon(features, labels=None, axis=2):
    """SupContrast's form, [n, views, d]."""
    n, views = features.shape[:2]
    z = torch.cat(normalize(features, dim=axis).unbind(1))
    labels = torch.arange(n) if labels is None else labels
    same = (labels[:, None] == labels).repeat(views, views)
    off = ~torch.eye(len(z), dtype=torch.bool)
    s = (z @ z.T / 0.1).masked_fill(~off, -torch.inf)
    log_p = (s - s.logsumexp(1, keepdim=True)).masked_fill(~(same & off), 0)
    return -(log_p.sum(1) / (same & off).sum(1)).mean()


def masked(q, k, labels, keep=True):
    """Keys of the query's class are not negatives; the query's own key must stay."""
    same = labels[:, None] == labels
    if keep:
        same = same.clone().fill_diagonal_(False)
    return cross_entropy(
        (normalize(q) @ normalize(k).T / 0.1).masked_fill(same, -1e9), torch.arange(len(q))
    )


def moco(q, k, queue, t=T):
    q, k, queue = map(normalize, (q, k, queue))
    logits = torch.cat([(q * k).sum(1, keepdim=True), q @ queue.T], 1)
    return cross_entropy(logits / t, torch.zeros(len(q), dtype=torch.long))


def siglip(q, k, labels=lambda n: 2 * torch.eye(n) - 1):
    logits = 10 * normalize(q) @ normalize(k).T - 10
    return -logsigmoid(labels(len(q)) * logits).sum() / len(q)


def unpushed(q, k):
    """InfoNCE whose denominator is made under no_grad."""
    s = normalize(q) @ normalize(k).T / T
    return (s.detach().logsumexp(1) - s.diagonal()).mean()


def swapped(a, p, n):
    return triplet_margin_with_distance_loss(a, p, n, distance_function=cosine_similarity)


def barlow(z1, z2):
    z1, z2 = ((z - z.mean(0)) / z.std(0) for z in (z1, z2))
    c = z1.T @ z2 / len(z1)
    return (c.diagonal() - 1).square().sum() + 0.005 * c.fill_diagonal_(0).square().sum()


def units(margin):
    """Triplets of rows of length one."""
    return lambda *z: triplet_margin_loss(*map(normalize, z), margin=margin)


def naive(t):
    """InfoNCE by exp, without the maximum subtracted."""

    def loss(q, k):
        e = (normalize(q) @ normalize(k).T / t).exp()
        return -(e.diagonal() / e.sum(1)).log().mean()

    return loss


def hardest(q, k, own=-2.0):
    """A hinge of the nearest key; its own is none of the negatives, unless `own` is 0."""
    s = normalize(q) @ normalize(k).T
    return (0.2 + (s + own * torch.eye(len(s))).amax(1) - s.diagonal()).relu().mean()


def semi_hard(q, k):
    """A hinge of the keys that are less near than the own one, by less than the margin."""
    s = normalize(q) @ normalize(k).T
    lead = s.diagonal()[:, None] - s
    mined = (lead > 0) & (lead < 0.3)
    return ((0.3 - lead) * mined).sum() / mined.sum().clamp_min(1)


def batch_hard(z, y, same=0.0):
    """The farthest row of the label against the nearest of another, if `same` is large."""
    far, equal = torch.cdist(normalize(z), normalize(z)), (y[:, None] == y).float()
    return ((far * equal).amax(1) - (far + same * equal).amin(1) + 0.3).relu().mean()


def siamese(q, k, y):
    """Pairs that are alike, y = 1, or not."""
    far = (normalize(q) - normalize(k)).norm(dim=1)
    return (y * far**2 + (1 - y) * (1 - far).relu() ** 2).mean()


def of_weights(q, k, w, t=10.0):
    """InfoNCE of queries that weigh."""
    rows = cross_entropy(normalize(q) @ normalize(k).T / t, torch.arange(len(q)), reduction="none")
    return (w * rows).sum() / w.sum()


def with_itself(z, y, other=0):
    """SupCon of rows with labels, in which each row is its own positive unless `other` is 1."""
    s = normalize(z) @ normalize(z).T / 0.1
    own = torch.eye(len(z), dtype=torch.bool) & (other > 0)
    same = (y[:, None] == y) & ~own
    log_p = s - s.masked_fill(own, -torch.inf).logsumexp(1, keepdim=True)
    return -((log_p * same).sum(1) / same.sum(1).clamp_min(1)).mean()


def of_groups(q, k, negatives):
    """InfoNCE of each query's own negatives, [n, k, d]."""
    q, *keys = (normalize(x, dim=-1) for x in (q, k[:, None], negatives))
    logits = torch.einsum("nd,nkd->nk", q, torch.cat(keys, 1)) / T
    return cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))


def by_cosines(z, y, least=1.0, most=0.0):
    """Rows of a label have a cosine of at least one margin, others of at most the other."""
    s, same = normalize(z) @ normalize(z).T, y[:, None] == y
    return ((least - s).relu() * same + (s - most).relu() * ~same).mean()


def smoothed(t):
    """InfoNCE with a tenth of the target spread over all keys."""
    return lambda q, k: cross_entropy(
        normalize(q) @ normalize(k).T / t, torch.arange(len(q)), label_smoothing=0.1
    )


def taught(q, k, q_of_teacher, k_of_teacher):
    """InfoNCE and a teacher's softmax as targets."""
    one, other = (normalize(a) @ normalize(b).T for a, b in ((q, k), (q_of_teacher, k_of_teacher)))
    targets = (other / 0.02).softmax(1).detach()
    return ranking(q, k) - (targets * (one / 0.05).log_softmax(1)).sum(1).mean()


def classified(z, y):
    """The rows of ten classes beside fixed proxies."""
    return cross_entropy(16 * normalize(z) @ normalize(rows(4, 10)).T, y)


def proxy_anchor(z, y):
    """The same, in which a proxy sees the rows of its class together."""
    s, own = normalize(z) @ normalize(rows(4, 10)).T, torch.eye(10, dtype=torch.bool)[y]
    pull = (32 * (0.1 - s)).masked_fill(~own, -torch.inf)
    push = (32 * (0.1 + s)).masked_fill(own, -torch.inf)
    return sum(torch.nn.functional.softplus(x.logsumexp(0)).mean() for x in (pull, push))


def crossed(p1, p2, z1, z2):
    """SimSiam: each view's prediction and the other's projection."""
    return -cosine_similarity(p1, z2.detach()).mean() - cosine_similarity(p2, z1.detach()).mean()


def projected(z):
    """What a head makes of rows, normalised."""
    return normalize(z + z @ rows(4, z.shape[1], z.shape[1]) / 20)


def of_both(q, k, y):
    """A classifier of pairs, as of entailment, by both rows and their difference."""
    return cross_entropy(torch.cat([q, k, (q - k).abs()], 1) @ rows(4, 3 * q.shape[1], 3) / 9, y)


def to_partners(z, partners):
    """SimCLR with the row of each partner as the target."""
    s = normalize(z) @ normalize(z).T / T
    return cross_entropy(s.fill_diagonal_(-torch.inf), partners)


def in_order(q, k, y):
    """CoSENT: pairs of a lower score must have a lower cosine."""
    s = 20 * cosine_similarity(q, k)
    return torch.log1p((s[:, None] - s)[y[:, None] < y].exp().sum())


def padded(q, k, negatives, empty):
    """InfoNCE of each query's own negatives, of which some places are empty."""
    s = torch.cat([k[:, None], negatives], 1)
    s = torch.einsum("nd,nkd->nk", normalize(q), normalize(s, dim=-1)) / T
    s[:, 1:] = s[:, 1:].masked_fill(empty, -1e4)
    return cross_entropy(s, torch.zeros(len(q), dtype=torch.long))


def of_one_sum(q, k):
    """InfoNCE whose denominator is the sum of the whole matrix."""
    e = (normalize(q) @ normalize(k).T / 0.1).exp()
    return -(e.diagonal() / e.sum()).log().mean()


def hidden(q, k, mask):
    """InfoNCE without the masked candidates."""
    s = (normalize(q) @ normalize(k).T / T).masked_fill(mask, -1e9)
    return cross_entropy(s, torch.arange(len(q)))


def above_and_below(above, below):
    """MoCo whose pair and whose queue have temperatures of their own; rows are normalised first."""

    def loss(q, k, queue):
        q, k, queue = map(normalize, (q, k, queue))
        logits = torch.cat([(q * k).sum(1, keepdim=True) / above, q @ queue.T / below], 1)
        return cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))

    return loss


def of_two_views(q1, q2, k1, k2):
    """MoCo of two views, each with the momentum key of the other; the queue is a constant."""
    queue = rows(5, 120, q1.shape[1])
    return (moco(q1, k2, queue, 0.2) + moco(q2, k1, queue, 0.2)) / 2


def hits_masked(q, k, further, items, others):
    """InfoNCE without candidates that are the query's own item."""
    hit = (torch.cat([items, others]) == items[:, None]).fill_diagonal_(False)
    s = normalize(q) @ normalize(torch.cat([k, further])).T / 0.1
    return cross_entropy(s.masked_fill(hit, -1e9), torch.arange(len(q)))


class Learned(nn.Module):
    """CLIP with a learned scale."""

    def __init__(self, start, change=torch.exp):
        super().__init__()
        self.logit_scale, self.change = nn.Parameter(torch.tensor(start)), change

    def forward(self, a, b):
        return clip(a, b, 1 / self.change(self.logit_scale))


MISTAKES = {
    # cause, loss, arguments; the same without the mistake, or nearly with it, in RIGHT
    "multiplied by the temperature": ("temperature", softmax(lambda s: s * T), Q, K),
    "the pair without a temperature": ("temperature", above_and_below(1, 0.2), Q, K, rows(5, 256)),
    "the numerator without a temperature": (
        "temperature",
        lambda q, k: (
            (normalize(q) @ normalize(k).T / T).logsumexp(1) - (normalize(q) * normalize(k)).sum(1)
        ).mean(),
        Q,
        K,
    ),
    "no temperature, a queue of length one": (
        "temperature",
        lambda q, k, queue: cross_entropy(
            torch.cat(
                [(normalize(q) * normalize(k)).sum(1, keepdim=True), normalize(q) @ queue.T], 1
            ),
            torch.zeros(len(q), dtype=torch.long),
        ),
        Q,
        K,
        normalize(rows(5, 256)),
    ),
    "softmax over own negatives": (
        "softmax",
        lambda q, k, negatives: cross_entropy(
            torch.einsum(
                "nd,nkd->nk", normalize(q), normalize(torch.cat([k[:, None], negatives], 1), dim=-1)
            )
            .div(T)
            .softmax(1),
            torch.zeros(len(q), dtype=torch.long),
        ),
        Q,
        K,
        rows(3, 6 * B).view(B, 6, D),
    ),
    "normalised over the views": (
        "lengths",
        lambda z, y: supcon(z, y, axis=1),
        torch.stack([Q, K], 1),
        torch.arange(B) % 4,
    ),
    "no temperature": ("temperature", softmax(lambda s: s), Q, K),
    "in front": ("temperature", lambda q, k: T * softmax(lambda s: s)(q, k), Q, K),
    "scaled before it is normalised": ("temperature", lambda q, k: ranking(q / T, k, t=1.0), Q, K),
    "twice": ("temperature", softmax(lambda s: s * 20 / 0.05), Q, K),
    "exp of the scale itself": ("temperature", Learned(14.3), Q, K),
    "softmax before cross_entropy": ("softmax", softmax(lambda s: (s / T).softmax(1)), Q, K),
    "sigmoid before cross_entropy": ("softmax", softmax(lambda s: (s / T).sigmoid()), Q, K),
    "nll_loss of probabilities": (
        "softmax",
        lambda q, k: nll_loss((normalize(q) @ normalize(k).T / T).softmax(1), torch.arange(len(q))),
        Q,
        K,
    ),
    "not normalised": (
        "lengths",
        lambda q, k: cross_entropy(q @ k.T / T, torch.arange(len(q))),
        Q,
        K,
    ),
    "keys not normalised": (
        "lengths",
        lambda q, k: cross_entropy(normalize(q) @ k.T / T, torch.arange(len(q))),
        Q,
        K,
    ),
    "normalised over the batch": (
        "lengths",
        lambda q, k: cross_entropy(
            normalize(q, dim=0) @ normalize(k, dim=0).T / T, torch.arange(len(q))
        ),
        Q,
        K,
    ),
    "targets one too far": (
        "pairing",
        lambda q, k: cross_entropy(
            normalize(q) @ normalize(k).T / T, torch.arange(len(q)).roll(-1)
        ),
        Q,
        K,
    ),
    "partners side by side": (
        "pairing",
        lambda a, b: simclr(a, b, partner=lambda here: here ^ 1),
        Q,
        K,
    ),
    "wrong sign": ("pairing", lambda q, k: -ranking(q, k), Q, K),
    "distances as similarities": (
        "pairing",
        lambda q, k: cross_entropy(
            torch.cdist(normalize(q), normalize(k)) / T, torch.arange(len(q))
        ),
        Q,
        K,
    ),
    "the mask hides the positive": ("labels", lambda q, k, y: masked(q, k, y, False), Q, K, Y),
    "one class": ("labels", supcon, torch.stack([Q, K], 1), 0 * Y),
    "itself a negative": ("own row", lambda a, b: simclr(a, b, own=0.0), Q, K),
    "a queue that has the keys": ("equal keys", moco, Q, K, torch.cat([K, rows(5)])),
    "queries twice": ("equal keys", ranking, torch.cat([Q[:32]] * 2), K),
    "no augmentation": ("equal views", ranking, Q, Q.clone()),
    "collapse": ("equal scores", ranking, 0 * Q + 1, 0 * K + 1),
    "shuffled on one side": (
        "shuffled pairs",
        ranking,
        Q,
        K[torch.randperm(B, generator=seeded())],
    ),
    "log-scale without exp": ("scale", Learned(2.6593, lambda x: 1 * x), Q, K),
    "another log-scale without exp": ("scale", Learned(3.0, lambda x: 1 * x), Q, K),
    "clamped": ("scale", Learned(4.7, lambda x: x.exp().clamp(max=50.0)), Q, K),
    "at the limit": ("scale", Learned(math.log(100)), Q, K),
    "detached": ("no gradient", lambda q, k: ranking(q.detach(), k.detach()), Q, K),
    "logarithm of a cosine": (
        "not finite",
        lambda q, k: (normalize(q) @ normalize(k).T).log().mean(),
        Q,
        K,
    ),
    "queries detached": ("no gradient", lambda q, k: ranking(q.detach(), k), Q, K),
    "terms cancel": ("pairing", lambda q, k: ranking(q, k) - ranking(k, q), Q, K),
    "views in turn": (
        "shuffled pairs",
        lambda z: simclr(*z.chunk(2)),
        torch.stack([Q, K], 1).flatten(0, 1),
    ),
    "a queue that nobody filled": ("zero rows", moco, Q, K, torch.zeros(256, D)),
    "negatives that are one text": ("equal negatives", ranking, Q, K, rows(5, 1).repeat(B, 1)),
    "softmax over queries": (
        "unused",
        lambda q, k: -(normalize(q) @ normalize(k).T / T).log_softmax(0).diagonal().mean(),
        Q,
        torch.cat([K, rows(5)]),
    ),
    "a margin of five": ("margin", units(5.0), Q, K, rows(3)),
    "each row its own positive": ("own row", with_itself, torch.cat([Q, K]), Y.repeat(2)),
    "a denominator without gradient": ("no push", unpushed, Q, K),
    "labels of 0 for 1 and -1": (
        "no push",
        lambda q, k: siglip(q, k, labels=torch.eye),
        Q.clone().requires_grad_(),
        K.clone().requires_grad_(),
    ),
    "views in turn, cut in two": (
        "shuffled pairs",
        ranking,
        *torch.stack([Q, Q + 0.3 * K], 1).flatten(0, 1).chunk(2),
    ),
    "similarity as a distance": ("pairing", swapped, Q, K, rows(3)),
    "exp that overflows where pairs are equal": ("not finite", naive(0.011), Q, K),
    "exp that overflows in half precision": ("not finite", naive(0.08), Q.half(), K.half()),
    "the own key is mined as a negative": ("own key", lambda q, k: hardest(q, k, 0.0), Q, K),
    "all labels are equal to each other": (
        "labels",
        lambda z, y: with_itself(z, 0 * y, 1),
        torch.cat([Q, K]),
        Y.repeat(2),
    ),
    "each row is its nearest negative": (
        "no push",
        batch_hard,
        torch.cat([Q, K]).requires_grad_(),
        Y.repeat(2),
    ),
    "a batch of one pair": ("no negatives", ranking, Q[:1], K[:1]),
    "queries repeated as a whole, keys one by one": (
        "shuffled pairs",
        ranking,
        rows(0, 32, 16).repeat(2, 1),
        rows(0, 32, 16).repeat_interleave(2, 0) + 0.3 * rows(1, 64, 16),
    ),
    "scores of pairs turned round": (
        "pairing",
        lambda q, k, y: siamese(q, k, 1 - y),
        *batch(0, 64, 32),
        (Y % 2).float(),
    ),
    "weights of queries, in few dimensions": (
        "temperature",
        of_weights,
        *batch(0, 64, 32),
        torch.rand(64, generator=seeded()),
    ),
    "weights of queries, and a copy of each key": (
        "equal keys",
        lambda q, k, w: of_weights(q, k, w, 0.1),
        Q,
        torch.cat([K[:32]] * 2),
        torch.rand(64, generator=seeded()),
    ),
    "margins of distances for cosines": (
        "margin",
        lambda z, y: by_cosines(z, y, 0.0, 1.0),
        torch.cat([Q, K]),
        Y.repeat(2),
    ),
    "a label for each row": (
        "labels",
        lambda z, y: with_itself(z, y, 1),
        torch.cat([Q, K]),
        torch.arange(2 * B),
    ),
    "own answers among each query's negatives": (
        "equal keys",
        of_groups,
        Q,
        K,
        torch.stack([rows(5), torch.cat([K[:8], rows(3)[8:]])], 1),
    ),
    "queries mined as their own negatives": ("equal keys", ranking, Q, K, Q.clone()),
    "a sum over the whole batch": ("own row", of_one_sum, Q, K),
    "both views have the first's targets": (
        "pairing",
        lambda a, b: simclr(a, b, own=-1e9, partner=lambda here: here % B),
        Q,
        K,
    ),
    "targets in another order, behind a head": (
        "pairing",
        lambda q, k, y: cross_entropy(projected(q) @ projected(k).T / T, y),
        Q,
        K,
        torch.arange(B).roll(1),
    ),
    "a mask of equal texts hides the own": ("pairing", hidden, Q, K, torch.eye(B) > 0),
    "a bias of the wrong sign": (
        "pairing",
        lambda q, k: (
            -logsigmoid((2 * torch.eye(len(q)) - 1) * (10 * normalize(q) @ normalize(k).T + 10))
        ).mean(),
        Q,
        K,
    ),
    "views joined with cat, and taken apart as if stacked": (
        "shuffled pairs",
        lambda z: ranking(*z.unbind(1)),
        torch.cat([Q, K]).view(B, 2, D),
    ),
    "a queue of zeros at a low temperature": (
        "zero rows",
        lambda q, k, queue: moco(q, k, queue, t=0.02),
        Q,
        K,
        torch.zeros(64, D),
    ),
    "a mask hides all negatives": (
        "margin",
        softmax(lambda s: (s / T).masked_fill(torch.eye(len(s)) < 1, -1e9)),
        Q,
        K,
    ),
    "classes as targets": (
        "labels",
        lambda q, k, y: cross_entropy(normalize(q) @ normalize(k).T / T, y),
        Q,
        K,
        Y,
    ),
    "all is won": ("floor", triplet_margin_loss, Q, Q + 0.01 * K, rows(9)),
}
RIGHT = {
    "margins of cosines": (by_cosines, torch.cat([Q, K]), Y.repeat(2)),
    "a class for each row": (
        lambda z, y: cross_entropy(normalize(z) @ normalize(rows(4, 2 * B)).T / T, y),
        torch.cat([Q, K]),
        torch.arange(2 * B),
    ),
    "a teacher of both sides": (taught, Q, K, Q + 0.1 * rows(5), K + 0.1 * rows(6)),
    "smoothed labels of a small batch": (smoothed(0.05), *batch(0, 16)),
    "smoothed labels, warm": (smoothed(0.5), Q, K),
    "ten classes": (classified, torch.cat([Q, K]), torch.arange(2 * B) % 10),
    "ten classes that proxies see together": (proxy_anchor, Q, torch.arange(B) % 10),
    "scores of pairs, none below zero": (
        lambda q, k, y: (cosine_similarity(q, k) - y).square().mean(),
        Q.clone().requires_grad_(),
        K.clone().requires_grad_(),
        torch.rand(B, generator=seeded(3)),
    ),
    "classes of pairs": (of_both, Q, K, torch.arange(B) % 3),
    "keys of a second encoder behind both views": (
        lambda q1, q2, k1, k2: ranking(q1, k2) + ranking(q2, k1),
        *(x + 0.1 * rows(seed) for seed, x in enumerate((Q, K, Q, K), 20)),
    ),
    "sigmoid of two pairs": (siglip, Q[:2], K[:2]),
    "scores that give an order": (in_order, Q, K, torch.rand(B, generator=seeded(3))),
    "empty places and their mask": (
        padded,
        Q,
        K,
        torch.stack([rows(5), rows(6) * (Y % 2)[:, None]], 1),
        torch.stack([Y < 0, Y % 2 == 0], 1),
    ),
    "two predictions of two projections": (
        crossed,
        *(x + 0.1 * rows(seed) for seed, x in enumerate((Q, K, Q, K), 20)),
    ),
    "few predictions of few projections": (
        crossed,
        *(x[:16] + 0.1 * rows(seed, 16) for seed, x in enumerate((Q, K, Q, K), 20)),
    ),
    "each row's negative answers another": (units(1.0), Q, K, K.roll(1, 0)),
    "each query's negatives answer others": (
        of_groups,
        Q,
        K,
        torch.stack([K.roll(i, 0) for i in (1, 2)], 1),
    ),
    "distances of rows of any length": (
        lambda q, k: cross_entropy(-(torch.cdist(q, k) ** 2), torch.arange(len(q))),
        0.3 * Q,
        0.3 * K,
    ),
    "semi-hard negatives in few dimensions": (semi_hard, *batch(0, 64, 16, 0.5)),
    "the nearest row of another label": (
        lambda z, y: batch_hard(z, y, 9.0),
        torch.cat([Q, K]).requires_grad_(),
        Y.repeat(2),
    ),
    "rows of a label close together": (
        lambda z, y: (torch.cdist(z, z) * (y[:, None] == y)).mean(),
        normalize(torch.cat([Q, K])).requires_grad_(),
        Y.repeat(2),
    ),
    "the hardest negative": (hardest, *batch(0, 64, 16)),
    "exp in range": (naive(0.05), Q, K),
    "pairs alike or not": (siamese, *batch(0, 64, 32), (Y % 2).float()),
    "pairs alike or not, whole numbers": (siamese, *batch(0, 64, 32), Y % 2),
    "a queue of more rows than dimensions": (
        lambda q, k, queue: cross_entropy(
            torch.cat([(q * k).sum(1, keepdim=True), q @ queue.T], 1) / T,
            torch.zeros(len(q), dtype=torch.long),
        ),
        *map(normalize, (*batch(0, 64, 32), rows(5, 512, 32))),
    ),
    "sigmoid in few dimensions": (siglip, *batch(0, 64, 32)),
    "correlations in few dimensions": (barlow, *batch(0, 128, 32)),
    "a margin that opposite rows reach": (units(1.7), Q, K, rows(3)),
    "a small margin": (units(0.05), Q, K, K + 0.01 * rows(3)),
    "labels with rows in any order": (
        lambda z, y: with_itself(z, y, 1),
        torch.cat([Q, K]),
        Y.repeat(2),
    ),
    "keys alone train": (lambda q, k: ranking(q.detach(), k), Q, K.clone().requires_grad_()),
    "ranking": (ranking, Q, K),
    "cold": (lambda q, k: ranking(q, k, t=0.01), Q, K),
    "warm": (lambda q, k: ranking(q, k, t=0.8), Q, K),
    "a factor": (lambda q, k: 3 * ranking(q, k), Q, K),
    "two directions": (clip, Q, K),
    "two views": (simclr, Q, K),
    "a single tensor": (lambda z: simclr(*z.chunk(2)), torch.cat([Q, K])),
    "labels": (supcon, torch.stack([Q, K], 1), Y),
    "no labels": (supcon, torch.stack([Q, K], 1)),
    "a mask": (masked, Q, K, Y),
    "targets": (
        lambda q, k, y: cross_entropy(normalize(q) @ normalize(k).T / T, y),
        Q,
        K,
        torch.arange(B),
    ),
    "a queue": (moco, Q, K, rows(5, 256)),
    "sigmoid": (siglip, Q, K),
    "no negatives": (lambda q, k: -cosine_similarity(q, k.detach()).mean(), Q, K),
    "no negatives, above zero": (lambda q, k: 2 - cosine_similarity(q, k.detach()).mean(), Q, K),
    "correlations": (barlow, Q, K),
    "inner products": (lambda q, k: cross_entropy(q @ k.T, torch.arange(len(q))), 0.3 * Q, 0.3 * K),
    "triplets": (triplet_margin_loss, normalize(Q), normalize(K), normalize(rows(3))),
    "fewer dimensions than rows": (ranking, *batch(0, 256, 48)),
    "half precision": (ranking, Q.half(), K.half()),
    "duplicates that labels name": (masked, Q, torch.cat([K[:8]] * 8), Y),
    "a learned scale": (Learned(2.6593), Q, K),
    "the other view's momentum key, and a queue": (
        of_two_views,
        *(rows(1, 12) + 0.5 * rows(seed, 12) for seed in range(2, 6)),
    ),
    "copies that a mask of the loss leaves out": (
        lambda q, k: hidden(q, k, (Y[:, None] == Y).fill_diagonal_(False)),
        Q,
        torch.cat([K[:8]] * 8),
    ),
    "accidental hits that two vectors of ids name": (
        hits_masked,
        Q,
        K,
        torch.cat([rows(5, 5), K[:8], rows(6, 7)]),
        torch.arange(B),
        torch.cat([torch.arange(100, 105), torch.arange(8), torch.arange(105, 112)]),
    ),
    "few dimensions": (ranking, *batch(0, 12, 4, 0.5)),
    "no negatives, keys of another tower": (
        lambda q, k: -cosine_similarity(q, k).mean(),
        Q.clone().requires_grad_(),
        K,
    ),
    "distances without a derivative at 0": (
        lambda a, p, n: (
            ((a - p).square().sum(1).sqrt() - (a - n).square().sum(1).sqrt() + 1)
            .clamp_min(0)
            .mean()
        ),
        *map(normalize, (Q, K, rows(3))),
    ),
    "weights without gradient": (
        lambda q, k: methods.build("hcl", weights_gradient=False)(q, k),
        Q.clone().requires_grad_(),
        K.clone().requires_grad_(),
    ),
    "the row of each partner as its target": (
        to_partners,
        torch.cat([Q, K]).requires_grad_(),
        torch.arange(2 * B).roll(B),
    ),
    "two of a class side by side, two untrained towers": (
        ranking,
        *(
            (rows(5, B // 2).repeat_interleave(2, 0) + 0.3 * rows(seed)) @ rows(8 + seed, D)
            for seed in (1, 2)
        ),
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_first(name):
    cause, *given = MISTAKES[name]
    found = lint(*given)
    assert found.causes[:1] == (cause,)
    assert str(found).startswith(f"{cause}: ") and len(str(found).splitlines()) == len(found.causes)


REMEDY = r"use|check|look|drop|mask|sum|take|give|fill|normalise|let|do not|sample|join|start|fix|gather|shuffle|embed|divide"


@pytest.mark.parametrize("name", MISTAKES)
def test_a_cause_comes_with_what_to_do(name):
    """A verb in the imperative, or what was probably meant, behind what is wrong."""
    for cause, says in lint(*MISTAKES[name][1:]).sentences.items():
        assert re.search(rf"[;:,] (\w+ )?({REMEDY})\b|; .+\?$|was meant, divide", says), (
            cause,
            says,
        )


@pytest.mark.parametrize("name", RIGHT)
def test_nothing_is_said_without_a_mistake(name):
    found = lint(*RIGHT[name])
    assert not found and str(found) == ""


@pytest.mark.parametrize("where", PROGRAMS)
def test_threads_are_told_their_cause(where):
    assert first(*PROGRAMS[where](False)) == CAUSES[where]
    assert first(*PROGRAMS[where](True)) is None


def test_every_thread_of_the_list_is_replayed():
    """As a program, or on two processes; at least a dozen, half of them held out."""
    assert {*CAUSES} == {*PROGRAMS} | ({*CASES} & {*CAUSES}) and len(CAUSES) >= 12
    assert 2 * sum(thread.get("held_out", False) for thread in THREADS) >= len(THREADS)


@pytest.mark.parametrize("seed", range(6))
def test_a_softmax_of_cosines_is_well_at_any_usual_temperature(seed):
    """And what is not usual is found: the temperature that the loss was given."""
    draw = torch.rand(4, generator=seeded(seed)).tolist()
    t, n, both = 0.02 * 40 ** draw[0], int(4 + 20 * draw[1]), draw[2] > 0.5
    d = int(1 + draw[3] * 3) * 2 * n
    q, k = batch(seed, n, d)
    loss = clip if both else ranking
    assert not lint(lambda q, k: loss(q, k, t=t), q, k)
    hot = lint(lambda q, k: loss(q, k, t=10 * t + 1), q, k).sentences["temperature"]
    assert float(re.search(r"divided by t = (\S+),", hot)[1]) == pytest.approx(10 * t + 1, 0.02)
    cold = lint(lambda q, k: loss(q, k, t=t / 250), q, k).sentences["temperature"]
    scale = float(re.search(r"multiplied by (\S+),", cold)[1])
    assert scale == pytest.approx(250 / t, 0.1)


@pytest.mark.parametrize("t", [0.01, 0.02, 0.05, 0.2])
@pytest.mark.parametrize(("n", "d"), [(64, 384), (32, 96), (128, 128), (64, 48), (7, 33)])
def test_lengths_are_told_apart_from_rounding_at_a_low_temperature(n, d, t):
    """Where near pairs are won, nothing but rounding is left of their loss."""
    q, k = batch(1, n, d)
    dot = lambda q, k: cross_entropy(q @ k.T / t, torch.arange(len(q)))  # noqa: E731
    assert not lint(dot, normalize(q), normalize(k))
    found = first(lambda q, k: by_parts(normalize(q), normalize(k), t), q, k)
    assert found in (None, "floor")  # seven pairs may be won
    assert first(lambda q, k: dot(q, normalize(k)), q, k) == "lengths"


def by_parts(q, k, t):
    """InfoNCE as it is often written: positives by themselves."""
    return ((q @ k.T / t).logsumexp(1) - (q * k).sum(1) / t).mean()


@pytest.mark.parametrize(("n", "d"), [(256, 48), (128, 96), (64, 64)])
def test_pairs_that_a_loss_leaves_out_are_named_where_rows_outnumber_dimensions(n, d):
    def negatives_alone(q, k):
        logits = 10 * normalize(q) @ normalize(k).T - 10
        return -logsigmoid(-logits.masked_fill(torch.eye(len(q)) > 0, -torch.inf)).sum() / len(q)

    def shifted(q, k):
        logits = (normalize(q) @ normalize(k).T / T).masked_fill(torch.eye(len(q)) > 0, -1e9)
        return cross_entropy(logits, torch.arange(len(q)).roll(1))

    assert first(negatives_alone, *batch(2, n, d)) == "pairing"
    assert first(shifted, *batch(2, n, d)) == "pairing"


def test_a_loss_of_zero_wherever_rows_lie_has_a_mask_that_hides_all_negatives():
    _, *given = MISTAKES["a mask hides all negatives"]
    assert "a mask that hides all negatives" in lint(*given).sentences["margin"]


def test_a_steep_logit_is_not_suspected_where_rows_outnumber_dimensions():
    assert not lint(methods.build("artanh", temperature=0.05).pairs, *batch(2, 256, 384))


@pytest.mark.parametrize("scale", [10, 20, 115])
@pytest.mark.parametrize(("n", "d"), [(256, 384), (128, 64), (64, 64)])
def test_a_sigmoid_is_not_suspected_where_rows_outnumber_dimensions(n, d, scale):
    """All rows are nearly one there, so a sharp sigmoid has won its positives; a shift is seen."""
    q, k = batch(2, n, d)
    loss = methods.build("siglip", temperature=1 / scale, bias=-10.0).pairs
    assert not lint(loss, q, k)
    assert first(lambda q, k: loss(q, k.roll(1, 0)), q, k) == "pairing"


@pytest.mark.parametrize("views", [2, 3, 4])
def test_further_views_of_a_row_are_no_negatives_of_it(views):
    """Of n rows with all their views; with itself among its candidates a row is."""
    z = torch.stack([Q + 0.7 * rows(20 + i) for i in range(views)], 1)

    def supcon(z, own):
        n, v, d = z.shape
        z, y = normalize(z.transpose(0, 1).reshape(n * v, d)), torch.arange(n).repeat(v)
        itself = torch.eye(n * v, dtype=torch.bool)
        positive = (y[:, None] == y) & ~itself
        log_p = (z @ z.T / 0.1 + own * itself).log_softmax(1)
        return -((log_p * positive).sum(1) / (v - 1)).mean()

    assert not lint(lambda z: supcon(z, -1e9), z)
    found = lint(lambda z: supcon(z, 0.0), z).sentences
    assert f"above log {views};" in found["own row"]


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 3, 2, 1)])
def test_two_terms_of_a_symmetric_loss_are_two_sets_of_pairs(order):
    z = Q, K, K + 0.1 * rows(5), Q + 0.1 * rows(6)
    loss = lambda q1, k2, q2, k1: ranking(q1, k2) + ranking(q2, k1)  # noqa: E731
    given = [z[i] for i in order]
    assert not lint(lambda *z: loss(*(z[order.index(i)] for i in range(4))), *given)


@pytest.mark.parametrize("method", methods.CATALOGUE)
def test_no_method_of_the_catalogue_is_suspected_on_recorded_batches(method):
    entry = methods.CATALOGUE[method]
    for name in ("cifar10 early", "scifact late"):
        z1, z2 = torch.from_numpy(STAGES[name]).float()
        loss, y = methods.build(method), torch.arange(len(z1)) % 4
        if entry.features:
            views = lambda a, b: loss(a, b, None, (a.relu(), b.relu()))  # noqa: B023, E731
        else:
            views = loss
        assert str(lint(views, z1, z2, *[y] * entry.supervised)) == ""


def test_the_floor_of_equal_keys_is_the_least_loss():
    """By the loss of embeddings that are as good as they can be; half the copies, half the floor."""
    for copies in (4, 2):
        k = torch.cat([K[: B // copies]] * copies)
        says = lint(ranking, Q, k).sentences["equal keys"]
        floor = float(re.search(r"below (\S+),", says)[1])
        assert floor == pytest.approx(math.log(copies), abs=5e-3)
        assert floor == pytest.approx(float(ranking(k, k, t=0.01)), abs=5e-3)
    assert f"query 0: keys {B // 2})" in says and "64 of 64 queries" in says


def test_a_lower_floor_than_a_hundredth_is_not_worth_a_word():
    q, k, mined = (*batch(0, 256), rows(7, 256))
    for many, cause in ((3, None), (4, "equal keys")):
        mined[:many] = k[:many]
        assert first(ranking, q, k, mined) == cause  # log(2)/64 for four


def test_equal_inputs_are_equal_keys_whatever_dropout_makes_of_them():
    texts = [f"answer {i % 16}" for i in range(B)]
    queries = [f"query {i}" for i in range(B)]
    assert first(ranking, Q, K, inputs=[queries, texts]) == "equal keys"
    assert first(ranking, Q, K) is None
    assert first(ranking, Q, K, inputs=[queries, [f"answer {i}" for i in range(B)]]) is None
    ids = torch.arange(B)[:, None] // 4
    assert first(ranking, Q, K, inputs=[torch.arange(B)[:, None], ids]) == "equal keys"


def test_labels_in_another_order_than_rows_are_seen_in_the_rows():
    z, own = torch.cat([Q, K]), torch.arange(B)
    loss = lambda z, y: supcon(z[:, None], y)  # noqa: E731
    assert first(loss, z, own.repeat(2)) is None
    assert first(loss, z, own.repeat_interleave(2)) == "labels"
    few = torch.randint(8, (B,), generator=seeded(0))  # by chance views share a label, too
    near, loss = torch.cat([Q, Q + 0.1 * rows(2)]), lambda z, y: with_itself(z, y, 1)
    assert first(loss, near, few.repeat(2)) is None
    says = lint(loss, near, few.repeat_interleave(2)).sentences["labels"]
    assert says.endswith("rows are one view after the other: use y.repeat(2)")
    turns = near.view(2, B, D).transpose(0, 1).flatten(0, 1)
    assert first(loss, turns, few.repeat_interleave(2)) is None
    says = lint(loss, turns, few.repeat(2)).sentences["labels"]
    assert says.endswith("rows are views in turn: use y.repeat_interleave(2)")


def test_views_in_turn_are_seen_where_one_pass_made_both_sides():
    z = nn.Linear(D, D)(torch.stack([Q, Q + 0.3 * K], 1).flatten(0, 1))
    halves = [normalize(part) for part in z.chunk(2)]  # no views of one tensor any more
    assert first(ranking, *halves) == "shuffled pairs"
    assert first(ranking, *(part.detach() for part in halves)) is None  # nobody can know


def test_a_wrong_target_is_named_where_rows_outnumber_dimensions():
    q, k = batch(0, 64, 32)
    zero = lambda q, k: cross_entropy(  # noqa: E731
        normalize(q) @ normalize(k).T / T, torch.zeros(len(q), dtype=torch.long)
    )
    assert "63 of 64 queries" in (says := lint(zero, q, k).sentences["pairing"])
    assert "(query 1 to key 0)" in says
    for name in ("wrong sign", "similarity as a distance", "scores of pairs turned round"):
        assert "pushes queries away" in lint(*MISTAKES[name][1:]).sentences["pairing"]


def test_different_inputs_that_are_embedded_equally_are_the_encoder_s_mistake():
    """As where padding is pooled: a quarter of the rows have one embedding."""
    texts = [[f"{side} {i}" for i in range(B)] for side in ("query", "key")]
    pooled = K.clone()
    pooled[: B // 4] = K[0]
    found = lint(ranking, Q, pooled, inputs=texts)
    assert found.causes == ("equal rows", "equal keys")
    assert "16 of 64 keys equal another one whose input differs (keys 0 and 1)" in str(found)
    assert "pass inputs=" in lint(ranking, Q, pooled).sentences["equal keys"]
    same = [texts[0], ["key 0"] * (B // 4) + texts[1][B // 4 :]]
    assert lint(ranking, Q, pooled, inputs=same).causes == ("equal keys",)


def test_a_tower_without_a_gradient_is_named_unless_it_is_meant():
    a, b = (nn.Linear(D, D) for _ in range(2))
    towers = nn.ModuleList([a, b])
    with torch.no_grad():
        k = b(K)
    found = lint(ranking, a(Q), k, model=towers)
    assert found.causes == ("no gradient",) and "2 of 4 parameters" in str(found)
    assert not lint(ranking, a(Q), b(K), model=towers)
    assert not lint(ranking, a(Q), k)  # without the model nobody can know
    assert not lint(ranking, a(Q), k, model=nn.ModuleList([a, b.requires_grad_(False)]))
    assert not lint(ranking, a(Q), k, model=b)  # frozen as a whole
    momentum = nn.Linear(D, D)
    momentum.load_state_dict({name: 0.9 * p for name, p in a.state_dict().items()})
    with torch.no_grad():
        k = momentum(K)
    assert not lint(ranking, a(Q), k, model=nn.ModuleList([a, momentum]))


class Encoder(nn.Module):
    """A layer, a slope that PReLU learns, and a scale that the loss uses."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(D, D), nn.PReLU())
        self.log_scale = nn.Parameter(torch.tensor(2.5))

    def forward(self, x):
        return self.layers(x)


class OfModel(nn.Module):
    """CLIP with the scale of a model that the loss holds."""

    def __init__(self, model, change=torch.exp):
        super().__init__()
        self.model, self.change = model, change

    def forward(self, a, b):
        return clip(a, b, 1 / self.change(self.model.log_scale))


def test_a_learned_number_counts_where_it_is_used():
    """In the encoder, or in the loss, which is a copy and may hold the model or be a part of it."""
    model = Encoder()
    z = model(Q), model(K)
    assert not lint(lambda a, b: clip(a, b, 1 / model.log_scale.exp()), *z, model=model)
    assert not lint(OfModel(model), *z, model=model)
    assert not lint(OfModel(model), *(x.detach() for x in z), model=model)
    loss = Learned(2.5)
    assert not lint(loss, *z, model=nn.ModuleList([model.layers, loss]))
    found = lint(ranking, *z, model=model)
    assert found.causes == ("scale",) and "log_scale = 2.5 gets no gradient" in str(found)
    found = lint(OfModel(model, lambda x: x.exp().item()), *z, model=model)
    assert found.causes == ("scale",) and "log_scale = 2.5 gets no gradient" in str(found)


def test_a_scale_may_be_an_argument_of_the_loss():
    """Its graph stays for the training's own backward pass."""
    model = Encoder()
    z = model(Q), model(K)
    for most, causes in ((100.0, ()), (10.0, ("scale",))):
        scale = model.log_scale.exp().clamp(max=most)
        assert lint(lambda a, b, s: clip(a, b, 1 / s), *z, scale, model=model).causes == causes
        scale.backward()


def test_state_of_loss_and_generators_stays():
    class Queue(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("keys", rows(3))

        def forward(self, q, k):
            loss = moco(q, k, self.keys + 0.01 * torch.randn_like(self.keys))
            self.keys = torch.cat([k.detach(), self.keys])[:B]
            return loss

    loss, state = Queue(), torch.random.get_rng_state()
    before = loss.keys.clone()
    assert not lint(loss, Q, K)
    assert torch.equal(loss.keys, before) and torch.equal(torch.random.get_rng_state(), state)
    loss(Q, K)
    assert not torch.equal(loss.keys, before)


@pytest.mark.parametrize(("n", "d"), [(256, 128), (64, 128), (96, 64)])
def test_a_loss_with_targets_of_its_own_is_examined_where_rows_outnumber_dimensions(n, d):
    targets, (q, k) = torch.arange(n), batch(0, n, d)
    cosines = lambda q, k: normalize(q) @ normalize(k).T  # noqa: E731
    assert first(lambda q, k: cross_entropy(cosines(q, k), targets), q, k) == "temperature"
    assert first(lambda q, k: cross_entropy(q @ k.T / T, targets), q, k) == "lengths"
    softmaxed = lambda q, k: cross_entropy((cosines(q, k) / T).softmax(1), targets)  # noqa: E731
    assert first(softmaxed, q, k) == "softmax"
    assert not lint(lambda q, k: cross_entropy(cosines(q, k) / T, targets), q, k)


class Statistics(nn.Module):
    """Batch norm behind a layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.norm = nn.Linear(128, 64), nn.BatchNorm1d(64)

    def forward(self, x):
        return self.norm(self.layer(x))


def test_statistics_of_parts_of_a_batch_tell_pairs_apart():
    """Each four rows of a view share an offset, which hides pairs, unless a part's mean removes it."""
    model, shared = Statistics(), rows(0)
    x = [
        shared + 0.3 * rows(seed) + 5 * rows(10 + seed, B // 4).repeat_interleave(4, 0)
        for seed in (1, 2)
    ]
    whole = [model(view).detach() for view in x]
    parts = [torch.cat([model(part) for part in view.split(4)]).detach() for view in x]
    assert not lint(ranking, *whole, inputs=x, model=model)
    says = lint(ranking, *parts, inputs=x, model=model).sentences["batch statistics"]
    shares = [int(share) for share in re.findall(r"(\d+)%", says)]
    assert shares[0] > 90 and shares[1] < 20 and "shuffle or synchronise" in says
    assert not lint(ranking, *parts, inputs=x)  # without the model nobody can know
    assert not lint(ranking, *parts, inputs=x, model=model.eval())
    model.train()
    kept = model.norm.running_mean.clone()
    lint(ranking, *parts, inputs=x, model=model)
    assert torch.equal(kept, model.norm.running_mean)


def test_a_training_with_batch_norm_goes_on_after_a_look():
    """The statistics that its graph has kept are not written to."""
    model = Statistics()
    x = [rows(0) + 0.1 * rows(seed) for seed in (1, 2)]
    z = [model(view) for view in x]
    assert not lint(ranking, *z, inputs=x, model=model)
    ranking(*z).backward()
    assert model.layer.weight.grad is not None


class Pooled(Statistics):
    """An encoder that returns more than its embeddings."""

    def forward(self, x):
        return super().forward(x), x


@pytest.mark.parametrize("model", [nn.ModuleList([Statistics(), Statistics()]), Pooled()])
def test_a_model_that_does_not_turn_inputs_into_embeddings_is_not_asked(model):
    """Two towers cannot be called, and a tuple is no embedding."""
    assert not lint(ranking, Q, K, inputs=(rows(1), rows(2)), model=model)


def told(loss, steps, **options):
    """What a training with a watched loss warns of."""
    watched = watch(loss, **options)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for given in steps:
            watched(*given)
    return watched, [str(warning.message) for warning in found]


def test_the_first_call_and_one_of_so_many_is_looked_at_and_a_cause_told_once():
    fine, twice = (Q, K), (Q, torch.cat([K[:32]] * 2))
    assert told(ranking, [twice, fine], every=2)[1][0].startswith("step 0, equal keys: ")
    assert told(ranking, [fine, twice, fine], every=2)[1] == []
    (one,) = told(ranking, [fine, twice, twice, twice, twice], every=2)[1]
    assert one.startswith("step 2, equal keys: ")


def test_a_watched_module_is_itself_and_a_watched_function_returns_its_loss():
    module = Learned(3.0, lambda x: 1 * x)
    watched, found = told(module, [(Q, K), (Q, K)], every=1)
    assert watched is module and len(found) == 1 and "logit_scale" in found[0]
    watched, _ = told(ranking, [])
    assert watched.__name__ == "ranking" and watched(Q, K) == ranking(Q, K)
    with torch.no_grad():
        assert told(softmax(lambda s: s), [(Q, K)])[1] == []  # an evaluation


def test_the_pairs_of_a_watched_method_are_looked_at_and_a_copy_has_its_own():
    """Mined negatives go in by `pairs`, which no hook of a module sees."""
    method = watch(methods.build("simclr", temperature=0.1))
    given = Q, torch.cat([K, K])
    with pytest.warns(UserWarning, match=r"step 0, equal keys: 64 of 64"):
        value = method.pairs(*given)
    assert value == methods.build("simclr", temperature=0.1).pairs(*given)
    assert copy.deepcopy(method).pairs.__self__ is not method
    own = nn.Module()
    own.pairs = nn.Identity()  # nothing that a loss is called by
    assert watch(own).pairs(3) == 3


def pulled(q, k):
    """One minus the mean cosine of pairs."""
    return (1 - cosine_similarity(q, k)).mean()


@pytest.mark.parametrize("loss", [pulled, lambda q, k: 2 * pulled(q.double(), k.double())])
@pytest.mark.parametrize(("count", "width"), [(64, 64), (16, 64), (15, 256)])
def test_a_loss_without_negatives_is_named_though_its_curve_has_rounding(loss, count, width):
    q, k = (x.requires_grad_() for x in batch(0, count, width))
    assert first(loss, q, k) == "no push"
    assert first(lambda q, k: 1e-3 * ranking(q, k), q, k) is None


def test_a_training_goes_on_where_nobody_can_look():
    _, found = told(lambda text: Q.sum(), [("not embeddings",)] * 2, every=1)
    assert len(found) == 1 and "not examined: the loss cannot be called by itself" in found[0]
    with pytest.raises(ValueError, match="every must be an integer of at least 1, got 0"):
        watch(ranking, every=0)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ((ranking, "text", 3), "pass the loss's embeddings, float tensors .* got str, int"),
        ((lambda q, k: q @ k.T, Q, K), r"the loss must return a scalar tensor, got \(64, 64\)"),
        ((lambda q, k: 3.0, Q, K), "the loss must return a scalar tensor, got float"),
        ((ranking, Q, K[:8]), r"each of at least 2 queries .*got embeddings of \[64, 8\] rows"),
        ((ranking, Q[:1], K), r"each of at least 2 queries .*got embeddings of \[1, 64\] rows"),
        ((triplet_margin_loss, Q[:1], Q[:1], K[:1]), r"each of at least 2 queries .*\[1, 1, 1\]"),
        (
            (lambda q, d: q.sum() + d.sum(), rows(1)[None], rows(2)[None]),
            r"got embeddings of tokens",
        ),
        ((ranking, Q[:63]), r"must be two views \[2n, d\], or come with labels, got 63 rows"),
    ],
)
def test_what_cannot_be_examined_is_said_in_a_sentence(given, sentence):
    with pytest.raises(ValueError, match=sentence):
        lint(*given)


def test_inputs_must_have_the_rows_of_the_embeddings():
    with pytest.raises(ValueError, match=r"inputs must have \[64, 64\] rows, .*got \[64, 1\]"):
        lint(ranking, Q, K, inputs=[["q"] * B, ["k"]])
    names = [[f"q {i}" for i in range(B)], [f"k {i}" for i in range(B)]]
    assert not lint(moco, Q, K, rows(5, 256), inputs=names)  # those of a queue are gone
    assert not lint(lambda z: simclr(*z.chunk(2)), torch.cat([Q, K]), inputs=[names[0] + names[1]])


def test_findings_without_a_sentence_are_false():
    assert not Findings({}) and Findings({"floor": "…"}).causes == ("floor",)


@pytest.mark.slow
def test_the_gradient_of_two_processes_is_compared_with_the_whole_batch_s(tmp_path):
    program = (ROOT / "tests/lint_on_two_processes.py").read_text(encoding="utf-8")
    assert run_twice(program, tmp_path) == 0
    found = [json.loads((tmp_path / f"found{rank}.json").read_text()) for rank in (0, 1)]
    assert len(found[0]) > 10
    for name, says in found[0].items():
        if name == "unshifted":  # right on the first process
            assert not says and list(found[1][name]) == ["pairing"]
        elif name.startswith("right: "):
            assert not says and not found[1][name], name
        else:
            cause = CAUSES.get(name.split(",")[0], "world size")
            assert list(says)[:1] == list(found[1][name])[:1] == [cause], name
    for name, says in GRADIENTS.items():
        assert says in found[0][name]["world size"], name
