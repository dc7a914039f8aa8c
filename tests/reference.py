"""Slow references for the tests, written in numpy from the equations of the papers.

Matrices are arrays of float64 or bool: `S` [n,m] the similarities, `A` [n,m] the admissible
negatives, `P` [n,m] the positives, `W` [n,m] weights (rows sum to one; a row of zeros has no
negative).
"""

import math
from functools import partial

import numpy as np
import ot
from scipy.optimize import brentq
from scipy.special import rel_entr


def views(z1, z2, labels=None, positives="class"):
    """Embeddings, similarities, positives and admissible negatives of a batch seen twice."""
    Z = np.concatenate([z1, z2]).astype(float)
    Z = Z / np.linalg.norm(Z, axis=1, keepdims=True)
    image, own = np.tile(np.arange(len(z1)), 2), np.eye(len(Z), dtype=bool)
    other = (image[:, None] == image) & ~own
    if labels is None:
        return Z, Z @ Z.T, other, ~other & ~own
    y = np.tile(labels, 2)
    same = y[:, None] == y
    return Z, Z @ Z.T, same & ~own if positives == "class" else other, ~same


def weigh(scores, A):
    """Weights proportional to scores [n,m] over the admissible candidates of each row."""
    W = np.where(A, scores, 0.0)
    total = W.sum(1, keepdims=True)
    return W / np.where(total > 0, total, 1.0)


def uniform(S, A):
    return weigh(1.0, A)


def tilted(S, A, beta=1.0, temperature=0.5):
    return weigh(np.exp(beta * S / temperature), A)


def thresholded(S, A, tau=0.818731, temperature=0.5, level=None):
    tau = tau if level is None else math.exp(level / temperature)
    return weigh(np.exp(S / temperature) >= tau, A)


def gaussian(S, A, temperature, mu=0.7, sigma=1.0):
    return weigh(np.exp(-((S - mu) ** 2) / (2 * sigma**2)), A)


def hardened(S, A, temperature, hardness_strength=0.0):
    return uniform(S, A) * np.exp(hardness_strength * S)


def sinkhorn(C, p, q, epsilon, relaxation=math.inf, A=True):
    """The plan [n,m] of (semi-relaxed) entropic transport by POT."""
    cost, options = np.where(A, C, np.inf), dict(numItermax=20_000, stopThr=1e-14, warn=False)
    return ot.unbalanced.sinkhorn_unbalanced(p, q, cost, epsilon, (np.inf, relaxation), **options)


def transport_weights(S, A, epsilon=0.5, relaxation=math.inf, cost=None, **_):
    n, m = S.shape
    C = 1 - S if cost is None else cost
    return sinkhorn(C, np.full(n, 1 / n), np.full(m, 1 / m), epsilon, relaxation, A) * n


def info_nce(S, P, W, temperature=0.5, tau_plus=0.0, scale=1.0, average="anchors"):
    """One value per anchor [n], or the mean over all pairs for average="pairs"."""
    positive = np.exp(S / temperature)
    negative = (W * positive).sum(1, keepdims=True)
    if tau_plus > 0:
        negative = (negative - tau_plus * positive) / (1 - tau_plus)
        negative = np.maximum(negative, math.exp(-1 / temperature))
    terms = np.log1p(scale * negative / positive)
    P = P & (W.sum(1, keepdims=True) > 0)
    return terms[P].mean() if average == "pairs" else over_positives(terms, P)


def over_positives(x, P):
    """The means of the rows of x over the positives, 0 without one."""
    return (x * P).sum(1) / P.sum(1).clip(1)


def excess(level, s, eta):
    w = np.maximum(s - level, 0)
    return len(s) * (w**2).sum() / w.sum() ** 2 - 1 - 2 * eta


def chi2_ball(S, A, eta=0.2):
    """Weights (s - l)_+ with the level l at which half the chi-square divergence from uniform is
    eta."""
    W = np.zeros(S.shape)
    for i, on in enumerate(A):
        s, spread = S[i, on], np.ptp(S[i, on])
        ends = s.max() - 1e4 * spread, s.max() - 1e-12 * spread
        W[i, on] = s - brentq(excess, *ends, args=(s, eta))
    return weigh(W.clip(0), A)


# The catalogue, spelt out: what each method computes on two views, with the papers' options as
# arguments.


def nce(weights, z1, z2, y, temperature=0.5, tau_plus=0.0, **options):
    """InfoNCE of two views, averaged over anchors, with the weights of a function of S and A."""
    _, S, P, A = views(z1, z2)
    W = weights(S, A, temperature=temperature, **options)
    return np.mean(info_nce(S, P, W, temperature, tau_plus, len(S) - 2))


def supervised(
    weights, z1, z2, y, temperature=0.5, positives="class", average="anchors", **options
):
    """The same with labels, over the anchors that have a negative."""
    _, S, P, A = views(z1, z2, y, positives)
    W = weights(S, A, temperature=temperature, **options)
    values = info_nce(S, P, W, temperature, 0.0, len(S) - 2, average)
    return values if average == "pairs" else values[W.sum(1) > 0].mean()


def basic(weights, z1, z2, y, **options):
    """The mean of the negatives less that of the positives."""
    _, S, P, A = views(z1, z2)
    return np.mean((weights(S, A, **options) * S).sum(1) - over_positives(S, P))


def mw(z1, z2, y, temperature=0.5):
    _, S, P, A = views(z1, z2)
    W = uniform(S, A)
    mean = (W * S).sum(1)
    variance = (W * (S - mean[:, None]) ** 2).sum(1)
    return np.mean(mean + variance / (2 * temperature) - over_positives(S, P))


def loud(z1, z2, y, temperature=0.5, loudness=1.0):
    """The ratio that InfoNCE takes the softplus of, its loss at other powers of the loudness."""
    _, S, P, A = views(z1, z2)
    values = info_nce(S, P, uniform(S, A), temperature, 0.0, len(S) - 2)
    if loudness == 0:
        return np.log(np.expm1(values)).mean()
    return np.mean(values * (1 - np.exp(-values)) ** (loudness - 1))


def siglip(z1, z2, y, temperature=0.5, bias=None):
    _, S, P, A = views(z1, z2)
    x = S / temperature + (-math.log(len(S) - 2) if bias is None else bias)
    return (P * np.log1p(np.exp(-x)) + A * np.log1p(np.exp(x))).sum() / len(S)


def artanh(z1, z2, y, temperature=0.5):
    _, S, P, A = views(z1, z2)
    S = np.where(A | P, S, 0.0)
    F = np.log((1 + S) / (1 - S)) / 2
    return np.mean(info_nce(F, P, uniform(S, A), temperature, scale=len(S) - 2))


def bpr(z1, z2, y, temperature=0.5):
    _, S, P, A = views(z1, z2)
    return np.log1p(np.exp((S - S[P][:, None]) / temperature))[A].mean()


def soft_targets(z1, z2, y, temperature=0.5, teacher_temperature=0.5, share=0.5):
    _, S, P, A = views(z1, z2)
    p, tau = (weigh(np.exp(S / t), A | P) for t in (temperature, teacher_temperature))
    return rel_entr(share * P + (1 - share) * tau, p).sum() / len(S)


def unremix_score(z1, z2, features, temperature, mixture, gradient):
    """The score of the paper, with each point's last-layer gradient written out."""
    Z, S, P, A = views(z1, z2)
    H, norms = np.concatenate(features), np.linalg.norm(np.concatenate([z1, z2]), axis=1)
    t, seen = (1.0, A) if gradient == "pseudo-label" else (temperature, A | P)
    p = weigh(np.exp(S / t), seen)
    target = p.argmax(1) if gradient == "pseudo-label" else P.argmax(1)
    pull = (p @ Z - Z[target]) / t
    pull = (pull - (pull * Z).sum(1, keepdims=True) * Z) / norms[:, None]
    G = np.stack([np.outer(*parts).ravel() for parts in zip(pull, H)])
    both = A[:, None] & A  # [i, j, k]: k is a negative of i and of j
    apart = (both * (1 - S)).sum(2) / both.sum(2).clip(1)
    return mixture[0] * G @ G.T + mixture[1] * S + mixture[2] * apart


def unremix(z1, z2, y, features, temperature=0.5, mixture=(1 / 3,) * 3, gradient="pseudo-label"):
    _, S, P, A = views(z1, z2)
    U = unremix_score(z1, z2, features, temperature, mixture, gradient)
    W = weigh(U.clip(0), A)
    W = np.where(W.sum(1, keepdims=True) > 0, W, uniform(S, A))
    return np.mean(info_nce(S, P, W, temperature, 0.0, len(S) - 2))


def unremix_printed(
    z1, z2, y, features, temperature=0.5, mixture=(1 / 3,) * 3, gradient="pseudo-label"
):
    _, S, P, A = views(z1, z2)
    U = unremix_score(z1, z2, features, temperature, mixture, gradient)
    terms = np.exp(S / temperature)
    return np.mean(np.log(1 + (U * terms * A).sum(1) / terms[P]))


def mochi(z1, z2, y, temperature=0.5, hardest=32, pairs=32, with_anchor=4):
    Z, S, P, A = views(z1, z2)
    n, k = len(Z), pairs + with_anchor
    made = np.zeros((n, k))
    for i in range(n):
        order = sorted(A[i].nonzero()[0], key=lambda j: -S[i, j])[:hardest]
        for c in range(k):
            index = i * k + c + 1
            # whole numbers below 2³²: multiples of three steps
            one, other, share = (
                index * int(2**32 / 1.2207440846057596**power) % 2**32 for power in (1, 2, 3)
            )
            first = one * len(order) // 2**32
            second = (first + 1 + other * (len(order) - 1) // 2**32) % len(order)
            a = (share + 0.5) / 2**32 / (1 if c < pairs else 2)
            partner = Z[order[second]] if c < pairs else Z[i]
            mixed = a * partner + (1 - a) * Z[order[first]]
            made[i, c] = Z[i] @ mixed / np.linalg.norm(mixed)
    S, P, A = (np.c_[S, made], np.c_[P, made > 2], np.c_[A, made < 2])
    return np.mean(info_nce(S, P, uniform(S, A), temperature, 0.0, n - 2 + k))


WRITTEN = (siglip, artanh, bpr, mw, soft_targets, unremix, unremix_printed, mochi)
METHODS = {function.__name__.replace("_", "-"): function for function in WRITTEN} | {
    "simclr": partial(nce, hardened),
    "hcl": partial(nce, tilted, tau_plus=0.1),
    "debiased": partial(nce, tilted, tau_plus=0.1, beta=0.0),
    "ot": partial(nce, transport_weights, tau_plus=0.1),
    "ot-semirelaxed": partial(nce, transport_weights, tau_plus=0.1, relaxation=1.0),
    "adnce": partial(nce, gaussian),
    "dcl": partial(loud, loudness=0.0),
    "focal": partial(loud, loudness=2.0),
    "bcl": partial(basic, tilted),
    "alpha-cl": partial(basic, tilted),
    "bcl-ot": partial(basic, transport_weights),
    "chi2-dro": partial(basic, chi2_ball),
    "scl": partial(supervised, tilted, beta=0.0),
    "h-scl": partial(supervised, tilted),
    "h-scl-threshold": partial(supervised, thresholded),
}
