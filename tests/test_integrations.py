"""The losses in other people's trainers, and their losses as ours with uniform weights.

Their libraries are imported where a test needs them: together they take seconds.
"""

import warnings
import weakref
from importlib import import_module

import pytest
import torch
from drawn import seeded
from torch.nn import functional

from hnlib import lint, methods
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


def gradients(loss, model, features, labels=None):
    """The loss and the gradient of every parameter, by a backward pass."""
    model.zero_grad(set_to_none=True)
    value = loss(features, labels)
    (2 * value).backward()
    return [value.detach(), *(p.grad.clone() for p in model.parameters())]


def farthest(first, second):
    return max(float((a - b).abs().max()) for a, b in zip(first, second, strict=True))


CACHED = {  # columns of mined negatives, and options; "ot" and "unremix" cannot be streamed
    "plain": (0, dict(method="simclr")),
    "mined": (2, dict(method="hcl")),
    "both": (0, dict(method="dcl", both=True)),
    "classes": (0, dict(method="scl")),
    "guided": (1, dict(method="simclr", mask=lambda c, _: c.similarity > 0.8)),
    "transport": (0, dict(method="ot", tol=1e-12)),
}


@pytest.mark.parametrize("size", [1, 5, 12, 100])
@pytest.mark.parametrize("case", CACHED)
def test_texts_may_be_embedded_some_at_a_time(case, size):
    """The near miss: gradients of mini-batches are added, so each has its own negatives alone."""
    mined, options = CACHED[case]
    model, features = Tower(0), texts(1, 2 + mined)
    labels = torch.arange(12) % 4 if case == "classes" else None
    plain = HardNegatives(model, **options)
    expected = gradients(plain, model, features, labels)
    cached = HardNegatives(model, **options, mini_batch_size=size)
    assert farthest(gradients(cached, model, features, labels), expected) < 1e-12
    halves = [
        [{"input_ids": x["input_ids"][own]} for x in features] for own in (slice(6), slice(6, 12))
    ]
    parts = [None if labels is None else labels[:6]] * 2
    two = [gradients(plain, model, *given) for given in zip(halves, parts)]
    assert farthest([(a + b) / 2 for a, b in zip(*two)], expected) > 1e-3
    with torch.no_grad():
        assert cached(features, labels) == pytest.approx(float(expected[0]), abs=1e-12)


def cached_ranking(model, size, scale=20.0):
    """Theirs without its constructor, which asks for modules."""
    kind = sentence_losses().CachedMultipleNegativesRankingLoss
    loss = kind.__new__(kind)
    torch.nn.Module.__init__(loss)
    vars(loss).update(mini_batch_size=size, mini_batch_num_tokens=None, show_progress_bar=False)
    loss.model, loss.loss = model, sentence_losses().MultipleNegativesRankingLoss(model, scale)
    return loss


def test_a_cached_loss_is_theirs():
    model, features = Tower(0), texts(2, 3)
    ours = HardNegatives(model, "simclr", mini_batch_size=5)
    found = gradients(ours, model, features)
    assert farthest(found, gradients(cached_ranking(model, 5), model, features)) < 1e-6
    assert farthest(found, gradients(cached_ranking(model, 5, 20.01), model, features)) > 1e-5


class Dropping(Tower):
    """A tower with dropout, which writes into its features, and of which `hidden` tells what lives."""

    def __init__(self, seed):
        super().__init__(seed)
        self.hidden, self.sizes = [], []

    def forward(self, features):
        hidden = functional.dropout(features["input_ids"], 0.5).requires_grad_().tanh()
        features["input_ids"].zero_()
        self.hidden.append(weakref.ref(hidden))
        self.sizes.append((len(hidden), sum(x() is not None for x in self.hidden)))
        return features | {"sentence_embedding": self[0](hidden)}


def test_a_second_call_repeats_the_first_and_keeps_one_part_at_a_time():
    """Dropout draws the same, features are as they were, and activations of one part are alive."""
    model, features = Dropping(0), texts(3, 2)
    torch.manual_seed(7)
    parts = [
        [
            model({"input_ids": part.clone()})["sentence_embedding"]
            for part in x["input_ids"].split(5)
        ]
        for x in features
    ]
    drawn = [torch.cat(part) for part in parts]
    HardNegatives(None, "hcl").of_columns(drawn).backward()
    expected = model[0].weight.grad
    model.zero_grad(set_to_none=True)
    model.sizes.clear()
    del parts, drawn
    torch.manual_seed(7)
    before = features[0]["input_ids"].clone()
    loss = HardNegatives(model, "hcl", mini_batch_size=5)(features)
    after = torch.rand(1)
    loss.backward()
    torch.testing.assert_close(model[0].weight.grad, expected, rtol=1e-12, atol=1e-12)
    assert sorted(model.sizes) == sorted([(5, 1), (5, 1), (2, 1)] * 4)
    assert torch.equal(features[0]["input_ids"], before) and torch.rand(1) != after


def test_an_epoch_may_end_in_a_batch_of_one_pair():
    """Which has no negatives: the loss is 0, as theirs is, and so is the gradient."""
    model = Tower(0)
    one = [{"input_ids": x["input_ids"][:1]} for x in texts(0, 2)]
    ours, theirs = (
        HardNegatives(model, "dcl"),
        sentence_losses().MultipleNegativesRankingLoss(model),
    )
    found = gradients(ours, model, one)
    assert ours(one) == theirs(one, None) == 0 and not any(x.any() for x in found)
    with pytest.raises(ValueError, match="got 1 and 1; drop_last=True leaves out a last batch"):
        ours.method.pairs(torch.ones(1, 4), torch.ones(1, 4))
    of_three = [{"input_ids": x["input_ids"][:1]} for x in texts(0, 3)]
    assert HardNegatives(model, "simclr")(of_three) > 0  # its mined negative


def test_a_mask_of_answers_leaves_mined_negatives_alone():
    features, labels = texts(0, 3), torch.arange(12) // 2
    square, whole = (
        HardNegatives(Tower(0), "simclr", mask=mask)(features, labels)
        for mask in (
            lambda _, y: y[:, None] == y,
            lambda _, y: functional.pad(y[:, None] == y, (0, 12)),
        )
    )
    unmasked = HardNegatives(Tower(0), "simclr")(features, labels)
    assert square == whole and unmasked - square > 1e-3


def test_features_without_a_row_for_each_text_are_not_split():
    """As those of static embeddings, which have a row for each token."""
    bag = {"input_ids": torch.arange(9), "offsets": torch.tensor([0, 4, 6])}
    rule = r"^features must have a row for each text, or leave out mini_batch_size, got input_ids"
    with pytest.raises(ValueError, match=rule):
        HardNegatives(Tower(0), mini_batch_size=2)([bag, bag])
    with pytest.raises(ValueError, match=r"^mini_batch_size must be an integer of at least 1"):
        HardNegatives(Tower(0), mini_batch_size=0)


@pytest.mark.parametrize(
    "cached",
    [lambda m: HardNegatives(m, "simclr", mini_batch_size=5), lambda m: cached_ranking(m, 5)],
)
def test_a_cached_loss_is_watched_as_another(cached):
    """Nothing is said of a healthy batch, a copy is seen, and what the model learns is not changed."""
    model, features = Tower(0), texts(0, 2)
    expected = gradients(cached(model), model, features)
    loss = watch(cached(model), every=1)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        assert farthest(gradients(loss, model, features), expected) < 1e-12
        assert not found
        features[1]["input_ids"][6:] = features[1]["input_ids"][:6]
        gradients(loss, model, features)
    assert [str(x.message)[:22] for x in found] == ["step 1, equal keys: 12"]


class Alike(torch.nn.Module):
    """Pairs that are alike, label 1, or not, 0."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, features, labels):
        a, b = (functional.normalize(self.model(dict(x))["sentence_embedding"]) for x in features)
        far = (a - b).norm(dim=1)
        return (labels * far**2 + (1 - labels) * (1 - far).relu() ** 2).mean()


def test_labels_of_a_trainer_tell_which_pairs_are_alike():
    """Labels that are all one number are a placeholder, not classes."""
    features, labels = texts(0, 2), torch.arange(12) // 2 % 2
    model = Tower(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watch(Alike(model))(features, labels)
        watch(HardNegatives(model, "simclr"))(features, 0 * labels)


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


def test_a_lightning_training_is_watched():
    """The loss that a LightningModule calls; copies come with the third batch."""
    lightning = pytest.importorskip("pytorch_lightning")

    class Pairs(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.encoder = torch.nn.Linear(128, 64)
            self.loss = lint.watch(methods.build("simclr", temperature=0.07).pairs, every=2)

        def training_step(self, pair, index):
            return self.loss(*map(self.encoder, pair))

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    x, noise = torch.randn(2, 5, 64, 128, generator=seeded())
    batches = [*zip(x, x + 0.3 * noise)]
    batches[2][1][32:] = batches[2][1][:32]
    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", **dict.fromkeys(quiet, False))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        trainer.fit(Pairs(), torch.utils.data.DataLoader(batches, batch_size=None))
    said = [str(x.message) for x in found if str(x.message).startswith("step")]
    assert [x[:19] for x in said] == ["step 2, equal keys:"] and trainer.global_step == 5


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
    card = HardNegatives(None, "hcl", beta=2.0, mini_batch_size=8).get_config_dict()
    assert card["method"] == "hcl" and card["beta"] == 2.0 and card["both"] is False
    assert card["mini_batch_size"] == 8


@pytest.mark.parametrize(
    ("given", "count", "sentence"),
    [
        (dict(method="hlc"), 2, "method 'hlc' is unknown; the catalogue has simclr"),
        (dict(), 1, "one column of texts has no answers; give pairs"),
        (dict(method="scl"), 2, "scl learns from labels; pass labels"),
        (dict(both=True), 3, "only pairs without further keys"),
        (dict(method="scl"), 3, "scl learns from labels of pairs; give two columns, got 3"),
        (dict(both="False"), 2, "both must be True or False, got 'False'"),
        (dict(gather_across_devices="no"), 2, "gather_across_devices must be True or False"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(given, count, sentence):
    with pytest.raises(ValueError, match=f"^{sentence}"):
        HardNegatives(None, **given).of_columns(columns(6, count))
