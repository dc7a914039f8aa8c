"""Small training programs with a mistake, as public threads describe them, and the same ones repaired.

Each returns the loss and what one batch passes to it. `linter_threads.toml` names the threads.
"""

import torch
from drawn import seeded
from torch.nn.functional import cross_entropy, normalize

B, D, T = 64, 128, 0.07


def rows(seed, n=B, d=D):
    return torch.randn(n, d, generator=seeded(seed))


def batch(seed=0, n=B, d=D, noise=1.0):
    """Queries and keys as towers give them, neither of length one."""
    q = rows(seed, n, d)
    return q, q + noise * rows(seed + 1, n, d)


def ranking(q, *keys, t=T):
    """In-batch negatives and mined ones, as MultipleNegativesRankingLoss counts them."""
    keys = torch.cat(keys)
    return cross_entropy(normalize(q) @ normalize(keys).T / t, torch.arange(len(q)))


def clip(a, b, t=T):
    return (ranking(a, b, t=t) + ranking(b, a, t=t)) / 2


def one_text_for_several(repaired):
    """PaddleNLP #8129: an answer that several queries share is a negative of each."""
    q, k = batch()
    if not repaired:
        k = torch.cat([k[:16], k[:48]])
    return ranking, q, k


def positives_among_the_mined(repaired):
    """RAG #10: 17 of 256 mined negatives are the positive of their own query."""
    (q, k), mined = batch(0, 256), rows(7, 256)
    if not repaired:
        mined[40:57] = k[40:57]
    return ranking, q, k, mined


def scale_and_temperature(repaired):
    """AdaCon #2: a scale of 150, divided by the temperature as well."""
    scale = 1 if repaired else 150
    return lambda q, k: ranking(q, k, t=T / scale), *batch()


def groups_of_twelve(repaired):
    """FlagEmbedding #276: each query with its own group, log 12 from the first step on."""

    def loss(q, *group):
        scores = torch.stack([(normalize(q) * normalize(k)).sum(1) for k in group], 1)
        return cross_entropy(scores / 0.02, torch.zeros(len(q), dtype=torch.long))

    q, k = batch()
    others = [rows(seed) for seed in range(20, 31)]
    if not repaired:
        q, k, *others = (0 * x + rows(9, 1) for x in (q, k, *others))
    return loss, q, k, *others


def few_texts(repaired):
    """open_clip #821: captions made of scene, weather and light, here 4 · 3 · 3."""
    images, captions = batch(0, 128)
    return clip, images, captions if repaired else captions[torch.arange(128) % 36]


def class_names(repaired):
    """Chinese-CLIP #240: the ten names of CIFAR-10's classes as texts of 128 images."""
    images, captions = batch(1, 128)
    return clip, images, captions if repaired else captions[:10][torch.arange(128) % 10]


def temperature_in_front_of_the_fraction(repaired):
    """Lafite #25: −log(τ · A/B), with cosines that nothing divides."""
    if repaired:
        return clip, *batch()

    def loss(q, k):
        e = (normalize(q) @ normalize(k).T).exp()
        return -(T * e.diagonal() / e.sum(1)).log().mean()

    return loss, *batch()


def pixels_at_a_hundred(repaired):
    """SPCL #3: features of pixels against prototypes of classes, at a temperature of 100."""
    t = 0.1 if repaired else 100.0
    return lambda pixels, prototypes: ranking(pixels, prototypes, t=t), *batch(3)


def one_score_for_all(repaired):
    """FlagEmbedding #281: a model whose last layer gives every text the same vector."""
    q, k = batch(4)
    weight = torch.eye(D) if repaired else torch.zeros(D, D)
    bias = 0.0 if repaired else 1.0
    return ranking, q @ weight + bias, k @ weight + bias


PROGRAMS = {
    "PaddlePaddle/PaddleNLP#8129": one_text_for_several,
    "Dayallenr/RAG#10": positives_among_the_mined,
    "xmed-lab/AdaCon#2": scale_and_temperature,
    "FlagOpen/FlagEmbedding#276": groups_of_twelve,
    "mlfoundations/open_clip#821": few_texts,
    "OFA-Sys/Chinese-CLIP#240": class_names,
    "drboog/Lafite#25": temperature_in_front_of_the_fraction,
    "BinhuiXie/SPCL#3": pixels_at_a_hundred,
    "FlagOpen/FlagEmbedding#281": one_score_for_all,
}
