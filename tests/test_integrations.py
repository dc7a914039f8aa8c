"""The losses in other people's trainers, and their losses as ours with uniform weights.

Their libraries are imported where a test needs them: together they take seconds.
"""

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


def ours(z, method="simclr", **options):
    return HardNegatives(None, method, **options).of_columns(z)


def sentence_losses():
    from sentence_transformers.sentence_transformer import losses

    return losses


def ranking(z, **options):
    loss = sentence_losses().MultipleNegativesRankingLoss(None, **options)
    return loss.compute_loss_from_embeddings(z, None)


def clip(z):
    import open_clip

    return open_clip.loss.ClipLoss()(*(functional.normalize(x, dim=1) for x in z), 20.0)


def far(first, second, z):
    """The largest difference of two losses and of their gradients."""
    both = [[x, *torch.autograd.grad(x, z, retain_graph=True)] for x in (first, second)]
    return max(float((a - b).detach().abs().max()) for a, b in zip(*both, strict=True))


@pytest.mark.parametrize(("mined", "scale"), [(0, 20.0), (2, 1.0)])
def test_uniform_weights_are_multiple_negatives_ranking(mined, scale):
    z = columns(mined, 2 + mined)
    theirs = ranking(z, scale=scale)
    assert far(ours(z, temperature=1 / scale), theirs, z) < 1e-9
    assert far(ours(z, temperature=1.001 / scale), theirs, z) > 1e-6


@pytest.mark.parametrize("mined", [0, 2])
def test_a_hardness_strength_is_theirs_on_all_negatives(mined):
    z = columns(mined, 2 + mined)
    hard = ours(z, hardness_strength=5.0)
    assert far(hard, ranking(z, hardness_mode="all_negatives", hardness_strength=5.0), z) < 1e-9
    assert far(hard, ranking(z, hardness_mode="all_negatives", hardness_strength=5.01), z) > 1e-6
    others = ranking(z, hardness_mode="in_batch_negatives", hardness_strength=5.0)
    assert (far(hard, others, z) < 1e-9) == (mined == 0)


def test_both_directions_are_theirs_and_those_of_clip():
    z = columns(3)
    two = ours(z, both=True)
    assert far(two, ranking(z, **BOTH), z) < 1e-9 and far(two, clip(z), z) < 1e-9
    assert far(ours(z), clip(z), z) > 1e-6


def test_two_views_are_the_losses_of_lightly():
    from lightly.loss import DCLLoss, NTXentLoss

    z = columns(4)
    for name, theirs, other in (("simclr", NTXentLoss, DCLLoss), ("dcl", DCLLoss, NTXentLoss)):
        ours = methods.build(name, temperature=0.1)(*z)
        assert far(ours, theirs(temperature=0.1)(*z), z) < 1e-6
        assert far(ours, other(temperature=0.1)(*z), z) > 1e-3


def test_the_sigmoid_loss_is_that_of_open_clip():
    import open_clip

    z, bias = columns(5), -10.0
    unit = [functional.normalize(x, dim=1) for x in z]
    theirs = open_clip.loss.SigLipLoss()(*unit, 10.0, bias)
    one, off = (
        methods.build("siglip", temperature=0.1, bias=b).pairs(*z) for b in (bias, bias + 0.01)
    )
    assert far(one, theirs, z) < 1e-6 and far(off, theirs, z) > 1e-5


class Tower(torch.nn.Sequential):
    """Stands where a SentenceTransformer would: from features to embeddings."""

    def __init__(self, seed):
        torch.manual_seed(seed)
        super().__init__(torch.nn.Linear(5, 4, dtype=torch.float64))

    def forward(self, features):
        return features | {"sentence_embedding": self[0](features["input_ids"])}


def texts(seed, count, n=12):
    query, answer, *mined = (z.detach() for z in columns(seed, count, n))
    return [{"input_ids": z} for z in (query, query + 0.5 * answer, *mined)]


def gist(model, guide, margin):
    """Theirs without its constructor, which asks for tokenizers."""
    kind = sentence_losses().GISTEmbedLoss
    loss = kind.__new__(kind)
    torch.nn.Module.__init__(loss)
    off = ("must_retokenize", "contrast_anchors", "contrast_positives", "gather_across_devices")
    vars(loss).update(dict.fromkeys(off, False), margin=margin, margin_strategy="absolute")
    loss.model, loss.guide, loss.temperature = model, guide, 0.05
    loss.similarity_fct = torch.nn.CosineSimilarity(dim=-1)
    loss.cross_entropy_loss = torch.nn.CrossEntropyLoss()
    return loss


@pytest.mark.parametrize(("mined", "margin"), [(0, -0.1), (1, 0.1)])
def test_a_model_that_guides_itself_is_gist_embed(mined, margin):
    model = Tower(0)
    features, weights = texts(mined, 2 + mined), list(model.parameters())

    def beats(contrast, labels):
        return contrast.similarity > contrast.similarity.diagonal()[:, None] - margin

    ours = HardNegatives(model, "simclr", mask=beats)(features)
    assert far(ours, gist(model, model, margin)(features, None), weights) < 1e-6
    assert far(ours, gist(model, Tower(1), margin)(features, None), weights) > 1e-4


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
