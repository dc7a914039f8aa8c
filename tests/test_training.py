"""`train`: a run repeats, resumes, records what was chosen, and does what its options say."""

import copy
import dataclasses
import json
import math

import pytest
import torch
from one_call import train
from torch import nn

from hnlib import __main__ as cli
from hnlib import _checks, methods
from hnlib.images import augment, data, encoders, task
from hnlib.images import evaluation as readouts
from hnlib.images.run import RECIPES, ImageRun
from hnlib.training import loop, records
from hnlib.training import run as training
from hnlib.training.checkpoint import Checkpoint

SMALL = dict(
    epochs=3,
    batch_size=64,
    train_size=200,
    evaluate_every=1,
    evaluate_size=100,
    progress=False,
    device="cpu",
)
ONE = SMALL | dict(epochs=1)
STEP = ONE | dict(max_steps=1)


class At(nn.Module):
    """A method that does something at its k-th call; otherwise it is the one inside."""

    def __init__(self, call, action, inner="hcl", **options):
        super().__init__()
        self.inner, self.call, self.action, self.calls = (
            methods.build(inner, **options),
            call,
            action,
            0,
        )
        self.entry, self.name, self.options = self.inner.entry, self.inner.name, self.inner.options
        self.observe = self.inner.observe

    @property
    def log_weights(self):
        return self.inner.log_weights

    def forward(self, z1, z2, labels=None, **more):
        self.calls += 1
        loss = self.inner(z1, z2, labels, **more)
        return self.action(loss) if self.calls == self.call else loss


def interrupt(loss):
    raise KeyboardInterrupt


def weights(run):
    return {
        **run.encoder.state_dict(),
        **{f"projector.{k}": v for k, v in run.projector.state_dict().items()},
    }


def same(a, b):
    a, b = weights(a), weights(b)
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def learning_curve(run):
    # `At` is not a method of the catalogue, so its rows have no loudness
    varying = ("images_per_second", "loudness", "loudness_low", "dial_angle")
    return [{k: v for k, v in row.items() if k not in varying} for row in run.history]


@pytest.fixture(scope="module")
def whole():
    """The uninterrupted run that others are compared with."""
    return train(method="hcl", **SMALL)


def test_a_run_repeats_bitwise_and_depends_on_its_seed(whole):
    torch.manual_seed(123)  # what the caller did before does not matter
    again = train(method="hcl", **SMALL)
    assert same(whole, again) and learning_curve(whole) == learning_curve(again)
    assert not same(whole, train(method="hcl", **SMALL, seed=1))


def test_the_callers_random_state_is_left_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    train(method="simclr", **ONE)
    assert torch.equal(before, torch.get_rng_state())


def test_the_record_says_what_was_chosen_and_measured(whole):
    record = whole.record
    chosen = record["configuration"]
    assert (
        chosen["method"] == "hcl"
        and chosen["options"]["beta"] == 1.0
        and chosen["train_size"] == 200
    )
    assert chosen["dataset_digest"] == data.subset(data.load("digits"), 200).digest
    assert chosen["augmentation"]["rotation"] == augment.RECIPES["digits"].rotation
    assert record["metrics"]["steps"] == 9 and 0 < record["metrics"]["linear"] <= 1
    assert record["environment"]["hnlib"] == records.source_digest()
    json.dumps(record, allow_nan=False)
    assert [row["epoch"] for row in whole.history] == [0, 1, 2, 3]
    assert whole.history[0]["loss"] is None and whole.history[-1]["knn"] == whole.metrics["knn"]
    for row in whole.history:
        assert {"collision", "alignment", "uniformity", "knn"} <= row.keys()


def test_all_methods_start_from_the_same_encoder_and_are_watched_on_the_same_views(whole):
    other = train(method="scl", **ONE)
    first, second = whole.history[0], other.history[0]
    assert first["knn"] == second["knn"] and first["alignment"] == second["alignment"]
    assert (
        first["collision"] > 0 and second["collision"] == 0
    )  # scl never takes its own class for a negative


@pytest.mark.parametrize("stop, call", [(interrupt, 5), (interrupt, 1)])
def test_interrupted_and_resumed_equals_uninterrupted(whole, tmp_path, stop, call):
    path = tmp_path / "run.pt"
    with pytest.raises(training.Interrupted) as stopped:
        train(method=At(call, stop), checkpoint=path, **SMALL)
    # three steps are an epoch
    assert ("nothing was saved yet" in str(stopped.value)) == (call < 4)
    assert "pass" not in str(stopped.value) and str(path) in str(stopped.value)
    resumed = train(method="hcl", checkpoint=path, **SMALL)
    assert same(whole, resumed) and learning_curve(whole) == learning_curve(resumed)
    assert resumed.metrics["steps"] == 9


@pytest.mark.parametrize("name", ["unremix", "unremix-repaired"])
def test_a_learned_mixture_is_trained_seen_and_resumed(tmp_path, name):
    path, options = tmp_path / "run.pt", dict(inner=name, learn="minimise", mixture=[0.2, 0.3, 0.5])
    given = At(0, None, **options)
    whole = train(method=given, **SMALL | dict(lr=0.01))
    assert given.inner.mixture.tolist() == pytest.approx(
        [0.2, 0.3, 0.5]
    )  # the caller's is not trained
    with pytest.raises(training.Interrupted):
        train(method=At(5, interrupt, **options), checkpoint=path, **SMALL | dict(lr=0.01))
    resumed = train(method=given, checkpoint=path, **SMALL | dict(lr=0.01))
    assert same(whole, resumed) and learning_curve(whole) == learning_curve(resumed)
    assert torch.equal(whole.method.inner.logits, resumed.method.inner.logits)
    seen = [[row[k] for k in "usr"] for row in whole.history]
    assert (
        seen[0] == pytest.approx([0.2, 0.3, 0.5])
        and seen[-1] == resumed.method.inner.mixture.tolist()
    )
    assert all(sum(row) == pytest.approx(1) for row in seen)
    assert max(abs(a - b) for a, b in zip(seen[0], seen[-1])) > 1e-3
    assert whole.record["configuration"]["options"]["mixture"] == [0.2, 0.3, 0.5]


def test_a_learned_mixture_does_not_decay():
    """Coupled decay would be all the gradient where a loss does not ask for another mixture."""

    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.logits = nn.Parameter(torch.tensor([3.0, -2.0]))

        def forward(self, z1, z2, labels=None):
            return (z1 - z2).square().mean() + 0 * self.logits.sum()

    run = train(method=Idle(), **SMALL | dict(epochs=1, weight_decay=0.5))
    assert run.method.logits.tolist() == [3, -2]


def test_a_finished_checkpoint_is_not_trained_again(whole, tmp_path):
    path = tmp_path / "run.pt"
    train(method="hcl", checkpoint=path, **SMALL)
    assert same(whole, train(method=At(1, interrupt), checkpoint=path, **SMALL))
    with pytest.raises(training.Interrupted):
        train(method=At(1, interrupt), checkpoint=path, resume=False, **SMALL)


def test_a_finished_run_can_be_lengthened(whole, tmp_path):
    path = tmp_path / "run.pt"
    train(method="hcl", checkpoint=path, **SMALL | dict(epochs=2))
    longer = train(method="hcl", checkpoint=path, **SMALL)
    assert same(whole, longer) and learning_curve(whole) == learning_curve(longer)
    with pytest.raises(ValueError, match="epochs is 3 there and 2 here"):
        train(method="hcl", checkpoint=path, **SMALL | dict(epochs=2))
    path.unlink()
    seldom = SMALL | dict(evaluate_every=2)
    train(method="hcl", checkpoint=path, **seldom | dict(epochs=3))
    longer, once = (
        train(method="hcl", checkpoint=c, **seldom | dict(epochs=4)) for c in (path, None)
    )
    assert learning_curve(once) == learning_curve(longer) and [
        r["epoch"] for r in once.history
    ] == [0, 2, 4]
    path.unlink()
    train(method="hcl", checkpoint=path, lr_schedule="cosine", **SMALL | dict(epochs=2))
    with pytest.raises(ValueError, match="epochs is 2 there and 3 here"):
        train(method="hcl", checkpoint=path, lr_schedule="cosine", **SMALL)


@pytest.mark.parametrize(
    "change, key",
    [
        (dict(seed=1), "seed is 0 there and 1 here"),
        (dict(lr=0.01), "lr is 0.001 there and 0.01 here"),
        (dict(experiment="corrections"), "experiment is 'images' there and 'corrections' here"),
        (dict(beta=2.0), r"options is .*'beta': 1.0"),
        (dict(train_size=199), "dataset_digest|train_size"),
    ],
)
def test_a_checkpoint_of_another_configuration_is_refused(tmp_path, change, key):
    path = tmp_path / "run.pt"
    train(method="hcl", checkpoint=path, **ONE)
    content = path.read_bytes()
    with pytest.raises(ValueError, match=key):
        train(method="hcl", checkpoint=path, **ONE | change)
    assert path.read_bytes() == content


def test_a_file_that_is_not_a_checkpoint_is_named(tmp_path):
    (tmp_path / "run.pt").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"run\.pt is not a checkpoint; pass another path or"):
        train(method="hcl", checkpoint=tmp_path / "run.pt", **ONE)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_divergence_names_step_rate_and_checkpoint(tmp_path, bad):
    path = tmp_path / "run.pt"
    with pytest.raises(training.Diverged, match=r"step 5 .*lr=0.001.*run\.pt"):
        train(method=At(5, lambda loss: loss * bad), checkpoint=path, **SMALL)
    with pytest.raises(training.Diverged, match="no checkpoint"):
        train(method=At(2, lambda loss: loss * bad), **SMALL)
    assert torch.load(path, weights_only=True)["epoch"] == 1  # the last good one


def infinite_slope(loss):
    """A finite loss whose gradient is not."""
    return loss + (loss - loss.detach()).abs().sqrt()


@pytest.mark.parametrize("call, step", [(1, 2), (3, 3)])
def test_weights_that_are_no_longer_finite_are_divergence_too(tmp_path, call, step):
    """In mid-epoch the next step's embeddings show it; after an epoch's last step no bad checkpoint
    may be written."""
    with pytest.raises(training.Diverged, match=f"step {step} "):
        train(method=At(call, infinite_slope), checkpoint=tmp_path / "run.pt", **SMALL)
    assert not (tmp_path / "run.pt").exists()


def met(loss):
    """What a check does on an accelerator: the condition is kept, and the loss has no value."""
    _checks._deferred[-1].add(torch.tensor([False, True]), "anchor {row} has no negative")
    return loss * math.nan


def test_where_steps_do_not_wait_divergence_and_conditions_are_told_after_the_epoch(monkeypatch):
    monkeypatch.setattr(loop.Loop, "reads_every_loss", False)
    with pytest.raises(training.Diverged, match=r"step 5 .*epoch 2"):
        train(method=At(5, lambda loss: loss * math.nan), **SMALL)
    with pytest.raises(ValueError, match="anchor 1 has no negative") as error:
        train(method=At(6, met), **SMALL)  # the epoch's last step: on the CPU the next would fail
    assert not isinstance(error.value, training.Diverged)


def test_errors_of_a_method_stay_its_own():
    def refuse(loss):
        raise ValueError("this method is unhappy")

    with pytest.raises(ValueError, match="unhappy") as error:
        train(method=At(2, refuse), **SMALL)
    assert not isinstance(error.value, training.Diverged)


def test_only_supervised_methods_see_labels():
    seen = []

    class Spy(nn.Module):
        supervised = False

        def forward(self, z1, z2, labels=None):
            seen.append(labels)
            return (z1 - z2).square().mean()

    train(method=Spy(), **STEP)
    Spy.supervised = True
    run = train(method=Spy(), **STEP)
    assert seen[0] is None and seen[1].shape == (64,)
    assert (
        run.record["configuration"]["method"].startswith("Spy-")
        and run.history[0]["collision"] is None
    )


def test_only_methods_that_ask_see_the_inputs_of_the_last_layer(monkeypatch):
    seen, passes, forward = [], [], encoders.Model.forward

    def watched(model, x, hidden=False):
        passes.append(forward(model, x, hidden))
        return passes[-1]

    monkeypatch.setattr(encoders.Model, "forward", watched)

    class Spy(nn.Module):
        features = False

        def forward(self, z1, z2, labels=None, **more):
            seen.append((z1, z2, more))
            return (z1 - z2).square().mean()

    for Spy.features in (False, True):
        passes.clear()
        train(method=Spy(), **STEP)
    (_, h), *_ = (
        both for both in passes if both[1].requires_grad
    )  # the others are looks at the learning curve
    (a1, a2, nothing), (b1, b2, more) = seen
    assert (
        not nothing
        and list(more) == ["features"]
        and [h.shape for h in more["features"]] == [(64, 128)] * 2
    )
    assert torch.equal(a1, b1) and torch.equal(a2, b2)  # the same step, seen or not
    assert (
        torch.equal(torch.cat(more["features"]), h) and (h >= 0).all()
    )  # after the ReLU, in the order of the views


def test_learning_curves_show_the_last_layer_to_the_method(monkeypatch):
    passes, contrasts, forward = [], [], encoders.Model.forward

    def watched(model, x, hidden=False):
        passes.append(forward(model, x, hidden))
        return passes[-1]

    class Spy(nn.Module):
        def forward(self, z1, z2, labels=None):
            return (z1 - z2).square().mean()

        def log_weights(self, contrast):
            contrasts.append(contrast)
            return contrast.uniform_log_weights

        def observe(self, contrast):
            contrasts.append(contrast)
            return {"seen": 1.5}

    monkeypatch.setattr(encoders.Model, "forward", watched)
    run = train(method=Spy(), **STEP)
    assert [row["seen"] for row in run.history] == [1.5, 1.5] and len(contrasts) == 4
    (z1, h1), (z2, h2) = passes[-2:]
    for contrast in contrasts[-2:]:
        assert torch.equal(contrast.features, torch.cat([h1, h2]))
        assert torch.allclose(
            contrast.norms[:, None] * contrast.candidates, torch.cat([z1, z2]), atol=1e-6
        )


@pytest.mark.parametrize(
    ("name", "options", "columns"),
    [
        ("hcl-exact", dict(beta=2.0), {"guarded"}),
        ("kl-budget", dict(eta=0.2), {"temperature_low", "temperature", "temperature_high"}),
        ("chi2-dro", {}, set()),
        ("unremix", {}, set()),
        ("centred-hcl", {}, set()),
    ],
)
def test_the_corrections_train_and_show_what_they_do(whole, name, options, columns):
    run = train(method=name, **SMALL | dict(epochs=2), **options)
    assert run.metrics["steps"] == 6 and math.isfinite(run.metrics["loss"])
    for row in run.history:
        assert row.keys() - whole.history[0].keys() == columns and row["collision"] > 0
        assert row.get("guarded", 0) <= 1 and row.get("temperature_low", 0) <= row.get(
            "temperature", 0
        )
    assert (
        run.history[0]["knn"] == whole.history[0]["knn"]
        and run.history[0]["alignment"] == whole.history[0]["alignment"]
    )
    json.dumps(run.record, allow_nan=False)


def test_every_epoch_has_its_own_order_and_views(monkeypatch):
    batches, two_views = [], augment.two_views

    def spy(x, generator, recipe, **more):
        views = two_views(x, generator, recipe, **more)
        batches.append((x, views[0]))
        return views

    monkeypatch.setattr(augment, "two_views", spy)
    train(method="simclr", **SMALL | dict(epochs=2, batch_size=200))
    _, (first, view), (second, other) = (
        batches  # before them the fixed views of the learning curves
    )
    assert not torch.equal(first, second) and not torch.equal(view, other)
    assert torch.equal(
        first.flatten(1).sort(0).values, second.flatten(1).sort(0).values
    )  # the same images


def test_the_two_baselines_need_no_training():
    pixels = train(method=None, encoder="pixels", epochs=0, progress=False)
    untrained = train(method=None, epochs=0, progress=False)
    assert pixels.metrics["linear"] > 0.95 and untrained.metrics["steps"] == 0
    assert pixels.metrics["loss"] is None and pixels.record["configuration"]["method"] is None
    by_hand, _ = readouts.readouts(untrained.encoder, data.load("digits"))
    assert (
        by_hand["knn"] == untrained.metrics["knn"]
        and by_hand["linear"] == untrained.metrics["linear"]
    )


def test_training_improves_on_the_untrained_encoder():
    run = train(method="simclr", epochs=10, evaluate_every=0, progress=False, device="cpu")
    untrained = train(method=None, epochs=0, progress=False, device="cpu")
    assert run.metrics["knn"] > untrained.metrics["knn"] + 0.01
    assert run.metrics["linear"] > untrained.metrics["linear"] + 0.01
    assert run.history[-1]["uniformity"] < run.history[0]["uniformity"]
    assert [row["epoch"] for row in run.history] == [0, 10]


def test_max_steps_ends_within_an_epoch():
    run = train(method="simclr", **SMALL | dict(max_steps=4))
    assert run.metrics["steps"] == 4 and run.history[-1]["epoch"] == 2


def test_colour_images_another_encoder_and_mixed_precision(tmp_path):
    x = torch.randint(
        0, 256, (40, 32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    y = torch.arange(40) % 4
    colours = data.Dataset("colours", x, y, x[:20], y[:20], tuple("abcd"), "0")
    run = train(
        colours,
        "ot",
        encoder="resnet18",
        epochs=1,
        batch_size=8,
        max_steps=1,
        precision="bf16-mixed",
        progress=False,
    )
    hidden = train(
        colours,
        "unremix",
        epochs=1,
        batch_size=8,
        max_steps=1,
        precision="bf16-mixed",
        progress=False,
    )
    assert math.isfinite(run.metrics["loss"]) and math.isfinite(hidden.metrics["loss"])
    assert run.record["configuration"]["augmentation"]["flip"] == 0.5
    assert all(p.dtype == torch.float32 for p in run.encoder.parameters())


def test_save_and_load(whole, tmp_path):
    loaded = training.load(whole.save(tmp_path / "run.safetensors"))
    assert same(whole, loaded) and loaded.record == json.loads(json.dumps(whole.record))


def test_a_record_is_written_and_replaced(tmp_path):
    for _ in range(2):
        run = train(method="simclr", record_to=tmp_path, **ONE)
    (found,) = records.load_all(tmp_path)
    assert found["metrics"]["knn"] == run.metrics["knn"]


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(encoder="vgg"), "small-cnn"),
        (dict(method="moco"), "simclr"),
        (dict(method="hcl", gamma=1.0), "gamma"),
        (dict(batch_size=201), "at most the 200 training images, got 201"),
        (dict(train_size=10, batch_size=4), "no class has two of the 10 training images"),
        (dict(device="abacus"), "abacus"),
        (dict(method="unremix", queue=8), "unremix needs a contrast of two views"),
        (dict(method=nn.Identity(), queue=8), "queue=8"),
        (dict(schedule={"beta": (1, 0)}), "no option 'beta'; it has temp"),
        (dict(schedule={"temperature": (1, 0)}), "temperature must be positive"),
        (dict(admitted=0.5, method="scl"), "admitted=0.5 requires an unsupervised method"),
        (dict(separate_views=True, queue=64), "separate_views does not apply with queue=64"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_anything_is_written(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        train(**SMALL | change, checkpoint=tmp_path / "c", record_to=tmp_path / "r")
    assert not [path for path in tmp_path.iterdir() if not path.name.endswith(".lock")]


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(records, "default_folder", lambda: tmp_path / "results")
    short = [
        "--epochs",
        "1",
        "--train-size",
        "100",
        "--batch-size",
        "32",
        "--device",
        "cpu",
        "--method",
        "hcl",
    ]
    saved = tmp_path / "run.safetensors"
    assert cli.main(["train", "images", *short, "-o", "beta=0.5", "--save", str(saved)]) == 0
    assert "beta=0.5" in capsys.readouterr().out
    (record,) = records.load_all(tmp_path / "results")
    assert record["configuration"]["options"]["beta"] == 0.5
    assert training.load(saved).record["configuration"] == record["configuration"]
    stubborn = At(5, interrupt)
    monkeypatch.setattr(methods, "build", lambda name, **options: stubborn)
    places = ["--checkpoint", str(tmp_path / "c.pt"), "--epochs", "3"]
    assert cli.main(["train", "images", *short[2:], *places]) == 130
    assert "repeat the same call" in capsys.readouterr().err


class Plain(nn.Module):
    """An encoder whose embedding of an image does not depend on the rest of the batch."""

    feature_dim = 32

    def __init__(self, width=48):
        super().__init__()
        layers = nn.Flatten(), nn.Linear(64, width), nn.Tanh(), nn.Linear(width, 32)
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x)


class Head(nn.Module):
    """A projector without batch statistics."""

    def __init__(self, *sizes, **more):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 16))

    def forward(self, x):
        return self.layers(x)


def modules():
    torch.manual_seed(0)
    return dict(encoder=Plain())


def test_an_encoder_of_ones_own_is_copied_saved_and_loaded(tmp_path):
    own = modules()
    before = copy.deepcopy(own["encoder"].state_dict())
    run = train(method="unremix", **own, **ONE)
    assert all(torch.equal(v, before[k]) for k, v in own["encoder"].state_dict().items())
    assert run.record["configuration"]["encoder"].startswith("Plain-")
    run.save(tmp_path / "run.safetensors")
    assert same(run, training.load(tmp_path / "run.safetensors", **modules()))
    with pytest.raises(ValueError, match="Plain"):
        training.load(tmp_path / "run.safetensors")


def test_the_record_of_a_recipe(whole):
    given = train(recipe="adnce", method="adnce", temperature=0.3, lr=0.5, **STEP)
    chosen = given.record["configuration"]
    assert chosen["recipe"] == "adnce"
    assert chosen["augmentation"]["blur"] == 0.5
    assert (chosen["options"]["temperature"], chosen["lr"], chosen["batch_size"]) == (0.3, 0.5, 64)
    assert RECIPES["adnce"]["batch_size"] == 256
    assert "recipe" not in whole.record["configuration"]


def test_a_scheduled_option_moves_and_resumes(tmp_path):
    """Three plateaus of one epoch, then two of unequal length; the methods made by hand at those
    values agree."""
    moved = train(method="hcl", schedule={"beta": (3, 0)}, **SMALL)
    assert [row.get("beta") for row in moved.history] == [None, 3, 2, 1]
    with pytest.raises(training.Interrupted):
        train(method=At2("hcl", 5), schedule={"beta": (3, 0)}, checkpoint=tmp_path / "c", **SMALL)
    assert same(
        moved, train(method="hcl", schedule={"beta": (3, 0)}, checkpoint=tmp_path / "c", **SMALL)
    )
    assert not same(moved, train(method="hcl", beta=3.0, **SMALL))
    still = train(method="hcl", schedule={"beta": (3, 3)}, **SMALL)
    assert same(still, train(method="hcl", beta=3.0, **SMALL))
    steps = train(method="hcl", schedule={"beta": (4, 0, 2)}, **SMALL)
    assert [row.get("beta") for row in steps.history] == [None, 4, 4, 2]
    assert ImageRun.read(steps.record["configuration"]).schedule == {"beta": (4, 0, 2)}
    whole = train(method="hcl", schedule={"beta": (3, 0)}, reach_end=True, **SMALL)
    assert [row.get("beta") for row in whole.history] == [None, 3, 1.5, 0]
    assert whole.record["configuration"]["reach_end"] and not same(whole, moved)


class At2(methods.Method):
    """A method of the catalogue that is interrupted at its k-th call."""

    def __init__(self, name, call):
        built = methods.build(name)
        super().__init__(name, built.entry, built.options)
        self.left = call

    def forward(self, *args, **more):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt
        return super().forward(*args, **more)


def test_the_callers_method_stays_as_it_was():
    method = methods.build("hcl")
    first, second = (
        train(method=method, schedule={"beta": (3, 0)}, **SMALL | dict(epochs=2)) for _ in range(2)
    )
    assert (
        method.options["beta"] == 1.0
        and first.method.options["beta"] == 1.5
        and same(first, second)
    )
    assert records.name(first.record["configuration"]) == records.name(
        second.record["configuration"]
    )
    learned = methods.build("unremix", learn="minimise")
    losses = [train(method=learned, **ONE).record["losses"] for _ in range(2)]
    assert losses[0] == losses[1]


class Scaled(nn.Module):
    """A loss of one's own with a plain attribute, a parameter, or neither."""

    def __init__(self, temperature=0.5, learned=None):
        super().__init__()
        self.temperature = temperature
        if learned is not None:
            self.shift = nn.Parameter(torch.tensor(learned))

    def forward(self, z1, z2, labels=None):
        return ((z1 - z2) / self.temperature).square().mean()


def test_modules_that_differ_have_names_that_differ():
    several = [Scaled(), Scaled(0.1), Scaled(learned=0.1), Scaled(learned=0.2), nn.Linear(2, 2)]
    torch.manual_seed(0)
    several += [
        Plain(16),
        Plain(64),
        nn.Sequential(Plain(16), nn.Tanh()),
        nn.Sequential(Plain(16), nn.ReLU()),
    ]
    names = [training.fingerprint(module) for module in several]
    assert len(set(names)) == len(names) and names == [
        training.fingerprint(copy.deepcopy(m)) for m in several
    ]


def test_the_learning_rate_warms_up_and_falls_to_zero(monkeypatch):
    rates, step = [], torch.optim.Adam.step

    def spy(self, *args, **more):
        rates.append(self.param_groups[0]["lr"])
        return step(self, *args, **more)

    monkeypatch.setattr(torch.optim.Adam, "step", spy)
    train(lr_schedule="cosine", lr=0.01, **SMALL | dict(epochs=20, evaluate_every=0))
    assert (
        len(rates) == 60
        and rates[:3] == pytest.approx([0.01 / 3, 0.02 / 3, 0.01])
        and max(rates) == rates[2]
    )
    assert rates[2:] == sorted(rates[2:], reverse=True) and 0 < rates[-1] < 1e-4


def test_oracle_positives_are_images_of_the_class(monkeypatch):
    seen, two_views, digits = [], augment.two_views, data.subset(data.load("digits"), 200, seed=0)

    def spy(x, *args, other=None, **more):
        seen.append((x, other))
        return two_views(x, *args, other=other, **more)

    monkeypatch.setattr(augment, "two_views", spy)
    run = train(oracle_positives=True, **ONE)
    label = {x.numpy().tobytes(): int(y) for x, y in zip(digits.x_train, digits.y_train)}
    pairs = [
        (a.numpy().tobytes(), b.numpy().tobytes())
        for x, other in seen[1:]
        for a, b in zip(x, other)
    ]
    assert len(pairs) == 192 and all(label[a] == label[b] for a, b in pairs)
    assert 1 <= sum(a == b for a, b in pairs) < 40  # an image may meet itself: one time in twenty
    assert ImageRun.read(run.record["configuration"]).oracle_positives


def test_admitted_is_the_share_of_the_pairs_of_one_class_that_stay_negatives(monkeypatch):
    seen, without = [], task.Contrast.without

    def spy(contrast, dismissed):
        seen.append((contrast, dismissed))
        return without(contrast, dismissed)

    monkeypatch.setattr(task.Contrast, "without", spy)
    run = train(method="hcl", admitted=0.25, **ONE)
    assert ImageRun.read(run.record["configuration"]).admitted == 0.25
    assert all(torch.equal(d, d.T) and len(d) == len(c.similarity) for c, d in seen)
    labels = torch.tensor([0, 0, 1, 1, 1, 2] * 20)
    digits = data.subset(data.load("digits"), 200, seed=0)
    run = ImageRun(method="hcl", batch_size=32, admitted=0.25).resolved()
    images = task.Task(run, methods.build("hcl"), dataset=digits)
    images.labels, batch = labels, torch.arange(len(labels))
    dismissed = images._dismissed(batch, torch.Generator().manual_seed(0))
    same = (labels[:, None] == labels).repeat(2, 2)
    assert not dismissed[~same].any()
    off = ~torch.eye(len(labels), dtype=torch.bool).repeat(2, 2)
    assert float(dismissed[same & off].float().mean()) == pytest.approx(0.75, abs=0.02)


def test_without_any_classmates_the_negatives_are_those_of_other_classes():
    z1, z2 = torch.randn(2, 12, 5, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(12) % 4
    classes = task.Contrast.from_views(z1, z2, labels, positives="view")
    thinned = task.Contrast.from_views(z1, z2)
    thinned = thinned.without((labels[:, None] == labels).repeat(2, 2))
    assert torch.equal(thinned.admissible, classes.admissible)
    for name in ("simclr", "hcl", "ot"):
        method = methods.build(name)
        assert float(method.loss(thinned)) == pytest.approx(float(method.loss(classes)), rel=1e-6)


def test_classmates_are_uniform_over_the_class():
    labels = torch.tensor([2, 0, 1, 2, 2, 0, 2])
    mates, generator = task.Classmates(labels), torch.Generator().manual_seed(0)
    drawn = mates.draw(torch.zeros(8000, dtype=torch.long), generator)
    share = drawn.bincount(minlength=7) / 8000
    assert share.tolist() == pytest.approx([0.25, 0, 0, 0.25, 0.25, 0, 0.25], abs=0.02)


@pytest.mark.parametrize("method", ["hcl", "ot", "scl"])
def test_a_queue_is_filled_used_and_resumed(tmp_path, method):
    queued = dict(method=method, queue=100, momentum=0.9, **SMALL)
    whole = train(**queued)
    assert same(whole, train(**queued)) and not same(whole, train(**queued | dict(momentum=0.99)))
    assert whole.record["configuration"]["queue"] == 100 and math.isfinite(whole.metrics["loss"])
    path, save = tmp_path / "c", Checkpoint.save

    def stop(self, state):
        save(self, state)
        if state["epoch"] == 2:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(training.Interrupted):
        patch.setattr(Checkpoint, "save", stop)
        train(**queued, checkpoint=path)
    kept = torch.load(path, weights_only=True)["queue"]
    assert kept["z"].shape == (100, 128) and (method != "scl" or kept["y"].shape == (100,))
    assert same(whole, train(**queued, checkpoint=path))


def test_positives_of_a_queue_are_those_asked_for():
    losses = [
        train(method="h-scl", queue=100, positives=p, **ONE).record["losses"]
        for p in ("class", "view")
    ]
    assert losses[0] != losses[1]


def test_keys_follow_the_model_and_the_queue_keeps_the_newest():
    model = encoders.Model(Plain(48), Head())
    queue = loop.KeyQueue(model, ImageRun(queue=5, momentum=0.75))
    old = copy.deepcopy(queue.model)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1)
    x = torch.rand(4, 1, 8, 8)
    keys = queue.keys(x)
    assert not keys.requires_grad
    for a, b, c in zip(queue.model.parameters(), old.parameters(), model.parameters()):
        assert torch.allclose(a, 0.75 * b + 0.25 * c)
    queue.push(keys, None)
    queue.push(keys + 100, None)
    assert torch.equal(queue.z, torch.cat([keys + 100, keys[:1]]))


def test_compiling_changes_nothing_but_rounding(monkeypatch):
    calls, real = [], torch.compile

    def eager(model, **more):
        calls.append(model)
        return real(model, **more | {"backend": "eager"})

    monkeypatch.setattr(torch, "compile", eager)
    plain, compiled = (train(**ONE, compile=c) for c in (False, True))
    assert calls and compiled.record["configuration"]["compile"] is True
    a, b = weights(plain), weights(compiled)
    assert a.keys() == b.keys() and all(
        torch.allclose(a[k].float(), b[k].float(), atol=1e-5) for k in a
    )


def test_losses_of_every_epoch_are_kept(whole, tmp_path):
    seldom = train(method="hcl", **SMALL | dict(evaluate_every=0))
    assert [row["epoch"] for row in seldom.history] == [0, 3] and len(seldom.record["losses"]) == 3
    assert (
        seldom.record["losses"]
        == whole.record["losses"]
        == [row["loss"] for row in whole.history[1:]]
    )


def test_both_protocols_stand_side_by_side():
    run = train(**ONE, protocols=("paper",))
    assert {"knn", "linear", "linear_paper"} <= set(run.metrics) and 0 < run.metrics[
        "linear_paper"
    ] <= 1
    assert run.record["configuration"]["protocols"] == ["clean", "paper"]


def test_a_record_says_which_images_were_right_also_of_those_held_out(tmp_path):
    arguments = dict(
        dataset="digits", epochs=1, train_size=256, batch_size=64, evaluate_every=0, progress=False
    )
    run, usual = train(**arguments, validation=100), train(**arguments)
    assert (
        run.record["configuration"]["validation"] == 100
        and "validation" not in usual.record["configuration"]
    )
    for name, size in (
        ("knn", 360),
        ("linear", 360),
        ("knn_validation", 100),
        ("linear_validation", 100),
    ):
        right = records.unpack(run.record["correct"][name], size)
        assert right.mean() == pytest.approx(run.metrics[name])
    assert usual.record["correct"].keys() == {"knn", "linear"}


class Named(nn.Module):
    """An encoder or a method of one's own that calls itself by a name of ours."""

    feature_dim, name = 64, "resnet18"

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 64))

    def forward(self, x):
        return self.layers(x)


def test_a_module_of_ones_own_is_not_taken_for_one_of_ours(tmp_path):
    short = dict(epochs=1, train_size=64, batch_size=32, evaluate_every=0, progress=False)
    path = tmp_path / "run.pt"
    run = train("digits", "simclr", encoder=Named(0), checkpoint=path, **short)
    assert run.record["configuration"]["encoder"].startswith("Named-")
    with pytest.raises(ValueError, match="belongs to another run: encoder is 'Named-"):
        train("digits", "simclr", encoder=Named(1), checkpoint=path, **short)

    class Mean(nn.Module):
        name = "simclr"

        def forward(self, z1, z2, labels=None):
            return -(z1 * z2).mean()

    chosen = train("digits", Mean(), **short).record["configuration"]
    assert chosen["method"].startswith("Mean-") and chosen["options"] == {}


@pytest.mark.parametrize("name", ["hcl", "unremix"])
def test_separate_views_have_batch_statistics_of_their_own(name):
    digits, torch_model = data.load("digits"), encoders.model("small-cnn", None, (1, 8, 8)).train()
    run = ImageRun(batch_size=32).resolved()
    parts = {
        s: task.Task(dataclasses.replace(run, separate_views=s), dataset=digits)
        for s in (False, True)
    }
    views = parts[False].views(torch.arange(32), torch.Generator().manual_seed(0), slice(0, 32))
    method = methods.build(name)
    losses = [
        p.loss(copy.deepcopy(torch_model), method, views, None, lambda z: z) for p in parts.values()
    ]
    z, h = zip(*(torch_model(view, hidden=True) for view in views))
    alone = method(*z, features=h if name == "unremix" else None)
    assert float(losses[1]) == pytest.approx(float(alone), rel=1e-5)
    assert abs(float(losses[0] - alone)) > 1e-4
    run = train(method=name, separate_views=True, **ONE)
    assert ImageRun.read(run.record["configuration"]).separate_views
