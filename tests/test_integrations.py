"""The losses in other people's trainers, and their losses as ours with uniform weights.

Their libraries are imported where a test needs them: together they take seconds.
"""

import warnings
from importlib import import_module

import pytest
import torch
from drawn import seeded
from torch.nn import functional

from hnlib import methods
from hnlib.images import _torchvision  # noqa: F401, which those libraries import: see there
from hnlib.integrations.sentence_transformers import HardNegatives, watch

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


def sentence_losses():
    return import_module("sentence_transformers.sentence_transformer.losses")


def ranking(**options):
    def loss(z):
        theirs = sentence_losses().MultipleNegativesRankingLoss(None, **options)
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


@pytest.mark.parametrize(
    "labels",
    [
        [0, 0, 0, 1, 1, 2, 2],
        [0, 1, 1, 1, 1, 1, 1],  # a class of one image
        [4, -1, 4, 4, 9, 9, 9],
    ],
)
def test_supcon_is_that_of_pytorch_metric_learning(labels):
    """SCL, whose denominator has no other positives, is another loss."""
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    y = torch.tensor(labels)
    for seed in range(5):
        z = columns(seed)
        for t in (0.5, 0.07):
            theirs = losses.SupConLoss(temperature=t)(torch.cat(z), y.repeat(2))
            first, near, other = (
                methods.build(name, temperature=at)(*z, y)
                for name, at in (("supcon", t), ("supcon", 1.0001 * t), ("scl", t))
            )
            assert far(first, theirs, z) < 1e-12
            assert far(near, theirs, z) > 1e-6 and far(other, theirs, z) > 1e-4


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


def test_a_watched_loss_is_looked_at_with_the_columns_of_a_trainer():
    """The model is asked once more, and stays the loss's model."""
    model, features = Tower(0), texts(0, 2)
    loss = watch(HardNegatives(model, "simclr"), every=2)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        loss(features)
        features[1]["input_ids"][6:] = features[1]["input_ids"][:6]
        loss(features)
        assert not found
        value = loss(features)
    assert [str(x.message)[:22] for x in found] == ["step 2, equal keys: 12"]
    assert loss.model is model and value.requires_grad


def test_columns_and_labels_are_those_of_all_devices(monkeypatch):
    """`gather` is replaced: what this device holds stands for what all of them hold."""
    whole, labels = [z.detach() for z in columns(1, n=6)], torch.tensor([0, 1, 1, 2, 0, 2])
    held = [*(z[:3] for z in whole), labels[:3]]
    by_part = dict(zip(map(id, held), (*whole, labels)))
    integration = import_module("hnlib.integrations.sentence_transformers")
    monkeypatch.setattr(integration, "gather", lambda part: by_part[id(part)])
    expected = HardNegatives(None, "scl").of_columns(whole, labels)
    found = HardNegatives(None, "scl", gather_across_devices=True).of_columns(held[:2], held[2])
    assert found == expected
    assert expected != HardNegatives(None, "scl").of_columns(whole, labels.roll(1))


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
