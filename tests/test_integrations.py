"""The losses in other people's trainers, and their losses as ours with uniform weights.

Their libraries are imported where a test needs them: together they take seconds.
"""

from importlib import import_module

import pytest
import torch
from drawn import seeded
from torch.nn import functional

from hnlib import methods
from hnlib.images import _torchvision  # noqa: F401, which those libraries import: see there
from hnlib.integrations.sentence_transformers import HardNegatives

BOTH = dict(directions=("query_to_doc", "doc_to_query"), partition_mode="per_direction")


def columns(seed, count=2, n=7, d=5):
    """Embeddings, not of length one, of so many columns of texts."""
    drawn = 3 * torch.randn(count, n, d, generator=seeded(seed), dtype=torch.float64)
    return [z.clone().requires_grad_() for z in drawn]


def ours(method="simclr", **options):
    return HardNegatives(None, method, **options).of_columns


def views(name):
    return lambda z: methods.build(name, temperature=0.1)(*z)


def siglip(z):
    return methods.build("siglip", temperature=0.1, bias=-10.0).pairs(*z)


def ranking(**options):
    def loss(z):
        losses = import_module("sentence_transformers.sentence_transformer.losses")
        theirs = losses.MultipleNegativesRankingLoss(None, **options)
        return theirs.compute_loss_from_embeddings(z, None)

    return loss


def lightly(name):
    return lambda z: getattr(import_module("lightly.loss"), name)(temperature=0.1)(*z)


def clip(*options):
    def loss(z):
        return import_module("open_clip.loss").SigLipLoss()(
            *(functional.normalize(x) for x in z), *options
        )

    return loss


def far(first, second, z):
    """The largest difference of two losses and of their gradients."""
    both = [[x, *torch.autograd.grad(x, z, retain_graph=True)] for x in (first, second)]
    return max(float((a - b).detach().abs().max()) for a, b in zip(*both, strict=True))


HARD, MINED = (
    ranking(hardness_mode=f"{among}_negatives", hardness_strength=5.0)
    for among in ("in_batch", "all")
)
# columns of mined negatives, our loss, theirs, and one that is nearly theirs; more in *Pairs*
THEIRS = {
    "ranking, mined": (2, ours(temperature=1.0), ranking(scale=1.0), ranking(scale=1.001)),
    "hardness in the batch": (0, ours(hardness_strength=5.0), HARD, ranking()),
    "hardness, mined": (2, ours(hardness_strength=5.0), MINED, HARD),
    "two directions": (0, ours(both=True), ranking(**BOTH), ranking()),
    "two views": (0, views("simclr"), lightly("NTXentLoss"), lightly("DCLLoss")),
    "decoupled": (0, views("dcl"), lightly("DCLLoss"), lightly("NTXentLoss")),
    "sigmoid": (0, siglip, clip(10.0, -10.0), clip(10.0, -9.99)),
}


@pytest.mark.parametrize("case", THEIRS)
def test_our_losses_with_uniform_weights_are_theirs(case):
    mined, ours, theirs, near = THEIRS[case]
    z = columns(mined, 2 + mined)
    assert far(ours(z), theirs(z), z) < 1e-6
    assert far(ours(z), near(z), z) > 1e-5


def test_a_mask_takes_negatives_away():
    """With this one a model is its own guide."""
    query, noise, mined = z = columns(0, 3)
    answer, own = query + noise, torch.eye(7, 14, dtype=torch.bool)

    def beats(contrast, labels):
        return contrast.similarity > contrast.similarity.diagonal()[:, None] - 0.1

    found = ours(mask=beats, temperature=0.2)([query, answer, mined])
    unit = functional.normalize
    s = unit(query) @ unit(torch.cat([answer, mined])).T
    masked = ((s > s.diagonal()[:, None] - 0.1) & ~own).detach()
    scores = (s / 0.2).masked_fill(masked, -torch.inf)
    assert far(found, functional.cross_entropy(scores, torch.arange(7)), z) < 1e-6
    assert far(found, functional.cross_entropy(s / 0.2, torch.arange(7)), z) > 1e-4


def test_defaults_are_those_of_pairs_and_any_may_be_said():
    assert HardNegatives(None).method.options["temperature"] == 0.05
    assert HardNegatives(None, "debiased").method.options["tau_plus"] == 0.0
    assert HardNegatives(None, "debiased", tau_plus=0.01).method.options["tau_plus"] == 0.01
    card = HardNegatives(None, "hcl", beta=2.0).get_config_dict()
    assert card["method"] == "hcl" and card["beta"] == 2.0 and card["both"] is False


@pytest.mark.parametrize(
    ("given", "count", "sentence"),
    [
        (dict(method="hlc"), 2, "method 'hlc' is unknown; the catalogue has simclr"),
        (dict(), 1, "one column of texts has no answers; give pairs"),
        (dict(method="scl"), 2, "scl learns from labels; pass labels"),
        (dict(both=True), 3, "only pairs without further keys"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(given, count, sentence):
    with pytest.raises(ValueError, match=f"^{sentence}"):
        HardNegatives(None, **given).of_columns(columns(6, count))
