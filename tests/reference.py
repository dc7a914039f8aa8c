"""Slow references for the tests: loops over numbers, written from the equations of the papers.

Matrices are arrays of float64 or bool: `S` [n,m] the similarities, `A` [n,m] the admissible
negatives, `P` [n,m] the positives, `W` [n,m] weights (rows sum to one; a row of zeros has no
negative).
"""

import math
from functools import partial

import numpy as np
import ot


def unit(row):
    """A row divided by its norm."""
    norm = math.sqrt(sum(x * x for x in row))
    return [x / norm for x in row]


def views(z1, z2, labels=None, positives="class"):
    """Embeddings, similarities, positives and admissible negatives of a batch seen twice."""
    Z = np.array([unit(row) for z in (z1, z2) for row in z.tolist()])
    images, n = len(z1), len(Z)
    S, P, A = np.zeros((n, n)), np.zeros((n, n), bool), np.zeros((n, n), bool)
    for i, j in np.ndindex(n, n):
        S[i, j] = sum(float(x) * float(y) for x, y in zip(Z[i], Z[j]))
        other_view = i != j and i % images == j % images
        if labels is None:
            P[i, j], A[i, j] = other_view, i % images != j % images
        else:
            same = labels[i % images] == labels[j % images]
            P[i, j] = (same and i != j) if positives == "class" else other_view
            A[i, j] = not same
    return Z, S, P, A


def weigh(scores, A):
    """Weights proportional to scores [n,m] over the admissible candidates of each row."""
    W, scores = np.zeros(A.shape), np.broadcast_to(scores, A.shape)
    for i, row in enumerate(A):
        total = sum(float(scores[i, j]) for j in np.flatnonzero(row))
        for j in np.flatnonzero(row):
            W[i, j] = scores[i, j] / total if total > 0 else 0.0
    return W


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
    values, pairs = [], []
    for i, t in enumerate(np.broadcast_to(temperature, (len(S), 1))[:, 0]):
        mass = sum(W[i, j] * math.exp(S[i, j] / t) for j in np.flatnonzero(W[i]))
        terms = []
        for k in np.flatnonzero(P[i]) if W[i].any() else ():
            positive, negative = math.exp(S[i, k] / t), mass
            if tau_plus > 0:
                negative = (mass - tau_plus * positive) / (1 - tau_plus)
                negative = max(negative, math.exp(-1 / t))
            terms.append(math.log1p(scale * negative / positive))
        values.append(sum(terms) / max(1, len(terms)))
        pairs += terms
    return sum(pairs) / len(pairs) if average == "pairs" else np.array(values)


def over_positives(x, P):
    """The means of the rows of x over the positives, 0 without one."""
    return (x * P).sum(1) / P.sum(1).clip(1)


def bisect(f, low, high):
    """The zero of an increasing function, to the last digits."""
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if f(middle) < 0 else (low, middle)
    return (low + high) / 2


def chi2_ball(S, A, eta=0.2):
    """Weights (s - l)_+ with the level l at which half the chi-square divergence from uniform is
    eta, by bisection."""
    W = np.zeros(S.shape)
    for i, row in enumerate(A):
        some = [float(S[i, j]) for j in np.flatnonzero(row)]
        top, spread = max(some), max(some) - min(some)

        def law(level, some=some):
            raw = [max(s - level, 0.0) for s in some]
            return [x / sum(raw) for x in raw]

        def excess(level, law=law, some=some):
            return sum((len(some) * w - 1) ** 2 for w in law(level)) / len(some) / 2 - eta

        W[i, row] = law(bisect(excess, top - 1e4 * spread, top - 1e-12 * spread))
    return W


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


def supcon(z1, z2, y, temperature=0.5):
    """L_out of the paper: a logarithm for each positive, over all but the anchor itself."""
    Z, S, P, _ = views(z1, z2, y)
    total = 0.0
    for i in range(len(Z)):
        everyone = sum(math.exp(S[i, a] / temperature) for a in range(len(Z)) if a != i)
        mates = np.flatnonzero(P[i])
        logs = [math.log(math.exp(S[i, p] / temperature) / everyone) for p in mates]
        total -= sum(logs) / len(mates)
    return total / len(Z)


def basic(weights, z1, z2, y, **options):
    """The mean of the negatives less that of the positives."""
    _, S, P, A = views(z1, z2)
    return np.mean((weights(S, A, **options) * S).sum(1) - over_positives(S, P))


def mw(z1, z2, y, temperature=0.5):
    _, S, P, A = views(z1, z2)
    values = []
    for i in range(len(S)):
        some = [float(S[i, j]) for j in np.flatnonzero(A[i])]
        mean = sum(some) / len(some)
        variance = sum((s - mean) ** 2 for s in some) / len(some)
        (own,) = S[i, P[i]]
        values.append(mean + variance / (2 * temperature) - own)
    return np.mean(values)


def loud(z1, z2, y, temperature=0.5, loudness=1.0):
    """The ratio that InfoNCE takes the softplus of, its loss at other powers of the loudness."""
    _, S, P, A = views(z1, z2)
    values = info_nce(S, P, uniform(S, A), temperature, 0.0, len(S) - 2)
    if loudness == 0:
        return np.log(np.expm1(values)).mean()
    return np.mean(values * (1 - np.exp(-values)) ** (loudness - 1))


def siglip(z1, z2, y, temperature=0.5, bias=None):
    _, S, P, A = views(z1, z2)
    bias, total = -math.log(len(S) - 2) if bias is None else bias, 0.0
    for i, j in np.ndindex(*S.shape):
        x = S[i, j] / temperature + bias
        total += math.log1p(math.exp(-x)) if P[i, j] else A[i, j] * math.log1p(math.exp(x))
    return total / len(S)


def artanh(z1, z2, y, temperature=0.5):
    _, S, P, A = views(z1, z2)
    S = np.where(A | P, S, 0.0)
    F = np.log((1 + S) / (1 - S)) / 2
    return np.mean(info_nce(F, P, uniform(S, A), temperature, scale=len(S) - 2))


def bpr(z1, z2, y, temperature=0.5):
    _, S, P, A = views(z1, z2)
    return np.mean(
        [
            math.log1p(math.exp((S[i, j] - S[i, k]) / temperature))
            for i, k in zip(*P.nonzero())
            for j in np.flatnonzero(A[i])
        ]
    )


def soft_targets(z1, z2, y, temperature=0.5, teacher_temperature=0.5, share=0.5):
    _, S, P, A = views(z1, z2)
    total = 0.0
    for i in range(len(S)):
        seen = np.flatnonzero(A[i] | P[i])
        student, teacher = (
            [math.exp(S[i, j] / t) for j in seen] for t in (temperature, teacher_temperature)
        )
        for j, p, q in zip(seen, student, teacher):
            target = share * P[i, j] + (1 - share) * q / sum(teacher)
            total += target * math.log(target / (p / sum(student))) if target else 0.0
    return total / len(S)


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


def unremix(
    z1,
    z2,
    y,
    features,
    temperature=0.5,
    mixture=(1 / 3,) * 3,
    gradient="pseudo-label",
    printed=False,
):
    if printed:
        return unremix_printed(z1, z2, features, temperature, mixture, gradient)
    _, S, P, A = views(z1, z2)
    U = unremix_score(z1, z2, features, temperature, mixture, gradient)
    W = weigh(U.clip(0), A)
    W = np.where(W.sum(1, keepdims=True) > 0, W, uniform(S, A))
    return np.mean(info_nce(S, P, W, temperature, 0.0, len(S) - 2))


def unremix_printed(z1, z2, features, temperature, mixture, gradient):
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


WRITTEN = (siglip, artanh, bpr, mw, soft_targets, unremix, mochi, supcon)
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
