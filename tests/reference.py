"""Slow references for the tests: plain loops over Python numbers, written from the equations of the
papers.

Matrices are numpy arrays of float64 or bool: `S` [n,m] the similarities, `A` [n,m] the admissible
negatives, `P` [n,m] the positives, `W` [n,m] weights (rows sum to one; a row of zeros has no
negative).
"""

import functools
import math

import numpy as np


def unit(z):
    z = np.array([[float(x) for x in row] for row in z])
    for i in range(len(z)):
        z[i] = z[i] / math.sqrt(sum(float(x) ** 2 for x in z[i]))
    return z


def views(z1, z2, labels=None, positives="class"):
    """Embeddings, similarities, positives and admissible negatives of a batch seen twice."""
    Z = np.concatenate([unit(z1), unit(z2)])
    B, n = len(z1), 2 * len(z1)
    S, P, A = np.zeros((n, n)), np.zeros((n, n), bool), np.zeros((n, n), bool)
    for i in range(n):
        for j in range(n):
            S[i, j] = float(sum(Z[i] * Z[j]))
            if i == j:
                continue
            other_view = i % B == j % B
            if labels is None:
                P[i, j], A[i, j] = other_view, not other_view
            else:
                same = labels[i % B] == labels[j % B]
                P[i, j], A[i, j] = same if positives == "class" else other_view, not same
    return Z, S, P, A


def weigh(score, S, A):
    """Weights proportional to score(i, j) over the admissible candidates of each row."""
    n, m = S.shape
    W = np.zeros((n, m))
    for i in range(n):
        values = {j: score(i, j) for j in range(m) if A[i, j]}
        total = sum(values.values())
        for j, value in values.items():
            W[i, j] = value / total if total > 0 else 0.0
    return W


def uniform(S, A):
    return weigh(lambda i, j: 1.0, S, A)


def tilted(S, A, beta=1.0, temperature=0.5, exponent=1.0):
    return weigh(lambda i, j: math.exp(-beta * (1 - S[i, j]) ** exponent / temperature), S, A)


def thresholded(S, A, tau, temperature=0.5, level=None):
    tau = tau if level is None else math.exp(level / temperature)
    return weigh(lambda i, j: float(math.exp(S[i, j] / temperature) >= tau), S, A)


def gaussian(S, A, mu=0.7, sigma=1.0):
    return weigh(lambda i, j: math.exp(-((S[i, j] - mu) ** 2) / (2 * sigma**2)), S, A)


def sinkhorn(C, p, q, epsilon, relaxation=math.inf, A=None, rounds=20_000):
    """The plan [n,m] of (semi-relaxed) entropic transport, by scaling rows and columns in turn
    until nothing moves."""
    m = C.shape[1]
    K = np.exp(-C / epsilon) * np.outer(p, q) * (1 if A is None else A)
    power = 1.0 if math.isinf(relaxation) else relaxation / (relaxation + epsilon)
    b = np.ones(m)
    for _ in range(rounds):
        a = p / (K @ b)
        new = (q / (K.T @ a)) ** power
        if max(abs(new / b - 1)) < 1e-14:
            break
        b = new
    return (p / (K @ b))[:, None] * K * b


def transport_weights(S, A, epsilon=0.5, relaxation=math.inf, cost=None):
    n, m = S.shape
    C = 1 - S if cost is None else cost
    return sinkhorn(C, np.full(n, 1 / n), np.full(m, 1 / m), epsilon, relaxation, A) * n


def info_nce(S, P, W, temperature=0.5, tau_plus=0.0, scale=1.0, average="anchors"):
    """One value per anchor [n] (a list), or the mean over all pairs for average="pairs"."""
    n, m = S.shape

    def at(x, i):
        return float(x[i]) if np.ndim(x) else float(x)

    per_anchor, pairs = [], []
    for i in range(n):
        t, prior, terms = at(temperature, i), at(tau_plus, i), []
        if W[i].sum() == 0:
            per_anchor.append(0.0)
            continue
        total = sum(W[i, j] * math.exp(S[i, j] / t) for j in range(m) if W[i, j] > 0)
        for k in range(m):
            if P[i, k]:
                positive = math.exp(S[i, k] / t)
                negative = total
                if prior > 0:
                    negative = max((total - prior * positive) / (1 - prior), math.exp(-1 / t))
                terms.append(math.log1p(scale * negative / positive))
        per_anchor.append(sum(terms) / len(terms))
        pairs += terms
    return sum(pairs) / len(pairs) if average == "pairs" else per_anchor


def basic(S, P, W):
    return [float(sum(W[i] * S[i]) - np.mean(S[i, P[i]])) for i in range(len(S))]


def mean_variance(S, P, W, temperature=0.5):
    values = []
    for i in range(len(S)):
        mean = sum(W[i] * S[i])
        variance = sum(W[i] * (S[i] - mean) ** 2)
        values.append(float(mean + variance / (2 * temperature) - np.mean(S[i, P[i]])))
    return values


def bisect(f, low, high):
    """The zero of an increasing function, to the last digits."""
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if f(middle) < 0 else (low, middle)
    return (low + high) / 2


def chi2_ball(S, A, eta=0.2):
    """Weights (s - l)_+ with the level l at which half the chi-square divergence from uniform is
    eta, by bisection."""
    n, m = S.shape
    W = np.zeros((n, m))
    for i in range(n):
        some = [j for j in range(m) if A[i, j]]
        top = max(S[i, j] for j in some)
        spread = top - min(S[i, j] for j in some)
        hardest = [j for j in some if S[i, j] == top]

        def law(level, i=i, some=some):
            raw = [max(S[i, j] - level, 0.0) for j in some]
            return [x / sum(raw) for x in raw]

        def radius(level, law=law, some=some):
            return sum((len(some) * w - 1) ** 2 for w in law(level)) / len(some) / 2

        if eta >= (len(some) / len(hardest) - 1) / 2:
            for j in hardest:
                W[i, j] = 1 / len(hardest)
            continue
        level = bisect(
            lambda x, radius=radius: radius(x) - eta, top - 1e4 * spread, top - 1e-12 * spread
        )
        for j, w in zip(some, law(level)):
            W[i, j] = w
    return W


def kl_temperature(values, masses, eta):
    """The temperature at which the tilt of the masses is eta away from them in divergence; 0 if
    none is."""
    pairs = [(float(x), float(q)) for x, q in zip(values, masses) if q > 0]
    top = max(x for x, _ in pairs)
    if eta >= -math.log(sum(q for x, q in pairs if x == top)):
        return 0.0

    def divergence(t):
        tilt = [q * math.exp((x - top) / t) for x, q in pairs]
        total = sum(tilt)
        return sum(v / total * math.log(v / total / q) for v, (_, q) in zip(tilt, pairs) if v > 0)

    return math.exp(bisect(lambda x: eta - divergence(math.exp(x)), -12.0, 12.0))


def mean_over_anchors(values, W):
    """The mean over the anchors that have a negative at all."""
    kept = [value for value, row in zip(values, W) if row.sum() > 0]
    return sum(kept) / len(kept)


# The catalogue, spelt out: what each method computes on two views, with the papers' options as
# arguments.


def nce(z1, z2, weights, temperature=0.5, tau_plus=0.0):
    """InfoNCE of two views, averaged over anchors, with the weights of a function of S and A."""
    _, S, P, A = views(z1, z2)
    return np.mean(info_nce(S, P, weights(S, A), temperature, tau_plus, len(S) - 2))


def simclr(z1, z2, y, temperature=0.5, hardness_strength=0.0):
    return nce(z1, z2, lambda S, A: uniform(S, A) * np.exp(hardness_strength * S), temperature)


def loud(z1, z2, y, temperature=0.5, loudness=1.0):
    """The ratio that InfoNCE takes the softplus of, its loss at other powers of the loudness."""
    _, S, P, A = views(z1, z2)
    values = info_nce(S, P, uniform(S, A), temperature, 0.0, len(S) - 2)
    if loudness == 0:
        return np.mean([math.log(math.expm1(x)) for x in values])
    return np.mean([x * (1 - math.exp(-x)) ** (loudness - 1) for x in values])


def siglip(z1, z2, y, temperature=0.5, bias=None):
    _, S, P, A = views(z1, z2)
    bias = -math.log(len(S) - 2) if bias is None else bias
    total = 0.0
    for i, j in np.ndindex(*S.shape):
        x = S[i, j] / temperature + bias
        total += math.log1p(math.exp(-x)) if P[i, j] else math.log1p(math.exp(x)) * A[i, j]
    return total / len(S)


def of_logits(S, P, A, F):
    """InfoNCE of logits F[i, j], averaged over anchors, with uniform negatives and Q = |N|."""
    values = []
    for i in range(len(S)):
        (positive,) = [F[i, k] for k in range(len(S)) if P[i, k]]
        total = sum(math.exp(F[i, j]) for j in range(len(S)) if A[i, j])
        values.append(math.log((math.exp(positive) + total) / math.exp(positive)))
    return np.mean(values)


def artanh(z1, z2, y, temperature=0.5):
    _, S, P, A = views(z1, z2)
    F = {
        (i, j): math.log((1 + S[i, j]) / (1 - S[i, j])) / 2 / temperature
        for i, j in zip(*np.nonzero(A | P))
    }
    return of_logits(S, P, A, F)


def bpr(z1, z2, y, temperature=0.5):
    _, S, P, A = views(z1, z2)
    values = []
    for i in range(len(S)):
        terms = [
            math.log1p(math.exp((S[i, j] - S[i, k]) / temperature))
            for j in range(len(S))
            for k in range(len(S))
            if A[i, j] and P[i, k]
        ]
        values.append(sum(terms) / len(terms))
    return np.mean(values)


def soft_targets(z1, z2, y, temperature=0.5, teacher_temperature=0.5, share=0.5):
    _, S, P, A = views(z1, z2)
    values = []
    for i in range(len(S)):
        seen = [j for j in range(len(S)) if A[i, j] or P[i, j]]
        p, tau = (
            np.array([math.exp(S[i, j] / t) for j in seen])
            for t in (temperature, teacher_temperature)
        )
        target = share * P[i, seen] + (1 - share) * tau / tau.sum()
        values.append(sum(target * np.log(target / (p / p.sum()))))
    return np.mean(values)


def debiased(z1, z2, y, temperature=0.5, tau_plus=0.1):
    return nce(z1, z2, uniform, temperature, tau_plus)


def hcl(z1, z2, y, temperature=0.5, beta=1.0, tau_plus=0.1):
    return nce(z1, z2, lambda S, A: tilted(S, A, beta, temperature), temperature, tau_plus)


def ot(z1, z2, y, temperature=0.5, epsilon=0.5, tau_plus=0.1, relaxation=math.inf):
    def weights(S, A):
        return transport_weights(S, A, epsilon, relaxation)

    return nce(z1, z2, weights, temperature, tau_plus)


def chi2_dro(z1, z2, y, eta=0.2):
    _, S, P, A = views(z1, z2)
    return np.mean(basic(S, P, chi2_ball(S, A, eta)))


def bcl(z1, z2, y, temperature=0.5, beta=1.0, exponent=1.0):
    _, S, P, A = views(z1, z2)
    return np.mean(basic(S, P, tilted(S, A, beta, temperature, exponent)))


def bcl_ot(z1, z2, y, epsilon=0.5):
    _, S, P, A = views(z1, z2)
    return np.mean(basic(S, P, transport_weights(S, A, epsilon)))


def adnce(z1, z2, y, temperature=0.5, mu=0.7, sigma=1.0):
    return nce(z1, z2, lambda S, A: gaussian(S, A, mu, sigma), temperature)


def mw(z1, z2, y, temperature=0.5):
    _, S, P, A = views(z1, z2)
    return np.mean(mean_variance(S, P, uniform(S, A), temperature))


def unremix_score(z1, z2, features, temperature, mixture, gradient):
    """The score of the paper, with each point's last-layer gradient written out."""
    Z, S, P, A = views(z1, z2)
    n, H = len(Z), np.concatenate([np.asarray(h, float) for h in features])
    norms = [math.sqrt(sum(float(x) ** 2 for x in row)) for z in (z1, z2) for row in z]
    t, seen = (1.0, A) if gradient == "pseudo-label" else (temperature, A | P)
    P_soft, U, gradients = weigh(lambda i, j: math.exp(S[i, j] / t), S, seen), np.zeros((n, n)), []
    for j in range(n):
        target = np.argmax(P_soft[j] if gradient == "pseudo-label" else P[j])
        pull = (sum(P_soft[j, k] * Z[k] for k in range(n)) - Z[int(target)]) / t
        gradients.append(np.outer((pull - sum(pull * Z[j]) * Z[j]) / norms[j], H[j]))
    for i in range(n):
        for j in range(n):
            far = [1 - S[j, k] for k in range(n) if A[i, k] and A[j, k]]
            apart = sum(far) / len(far) if far else 0.0
            parts = np.sum(gradients[i] * gradients[j]), S[i, j], apart
            U[i, j] = np.dot(mixture, parts)
    return U


THIRDS = (1 / 3, 1 / 3, 1 / 3)


def unremix(z1, z2, y, features, temperature=0.5, mixture=THIRDS, gradient="pseudo-label"):
    _, S, P, A = views(z1, z2)
    U, n = unremix_score(z1, z2, features, temperature, mixture, gradient), len(S)
    W = weigh(lambda i, j: max(0.0, U[i, j]), S, A)
    for i in range(n):
        if W[i].sum() == 0:
            W[i] = A[i] / A[i].sum()
    return np.mean(info_nce(S, P, W, temperature, 0.0, n - 2))


def unremix_printed(z1, z2, y, features, temperature=0.5, mixture=THIRDS, gradient="pseudo-label"):
    _, S, P, A = views(z1, z2)
    U, n = unremix_score(z1, z2, features, temperature, mixture, gradient), len(S)
    values = []
    for i in range(n):
        top = sum(math.exp(S[i, j] / temperature) for j in range(n) if P[i, j])
        mass = sum(U[i, j] * math.exp(S[i, j] / temperature) for j in range(n) if A[i, j])
        values.append(-math.log(top / (top + mass)))
    return np.mean(values)


def mochi(z1, z2, y, temperature=0.5, hardest=32, pairs=32, with_anchor=4):
    Z, S, P, A = views(z1, z2)
    n, k = len(Z), pairs + with_anchor
    grown = [np.zeros((n, k)), np.zeros((n, k), bool), np.ones((n, k), bool)]
    for i in range(n):
        order = sorted((j for j in range(n) if A[i, j]), key=lambda j: -S[i, j])[:hardest]
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
            grown[0][i, c] = sum(Z[i] * mixed) / math.sqrt(sum(mixed**2))
    S, P, A = (np.concatenate(pair, 1) for pair in zip((S, P, A), grown))
    return np.mean(info_nce(S, P, uniform(S, A), temperature, 0.0, n - 2 + k))


def _supervised(z1, z2, y, weights, temperature, positives, average):
    _, S, P, A = views(z1, z2, y, positives)
    W = weights(S, A)
    values = info_nce(S, P, W, temperature, 0.0, 2 * len(z1) - 2, average)
    return values if average == "pairs" else mean_over_anchors(values, W)


def scl(z1, z2, y, temperature=0.5, positives="class", average="anchors"):
    return _supervised(z1, z2, y, uniform, temperature, positives, average)


def h_scl(z1, z2, y, temperature=0.5, beta=1.0, positives="class", average="anchors"):
    return _supervised(
        z1, z2, y, lambda S, A: tilted(S, A, beta, temperature), temperature, positives, average
    )


def h_scl_threshold(
    z1, z2, y, temperature=0.5, tau=0.818731, positives="class", average="anchors", level=None
):
    def weights(S, A):
        return thresholded(S, A, tau, temperature, level)

    return _supervised(z1, z2, y, weights, temperature, positives, average)


WRITTEN = (
    *(simclr, debiased, hcl, ot, bcl, bcl_ot, adnce, mw, chi2_dro, siglip, artanh, bpr),
    *(soft_targets, unremix, unremix_printed, mochi, scl, h_scl, h_scl_threshold),
)
METHODS = {function.__name__.replace("_", "-"): function for function in WRITTEN} | {
    "ot-semirelaxed": functools.partial(ot, relaxation=1.0),
    "alpha-cl": bcl,
    "dcl": functools.partial(loud, loudness=0.0),
    "focal": functools.partial(loud, loudness=2.0),
}
