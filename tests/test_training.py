import json
import math
import os
import signal
import subprocess
import sys

import pytest
import torch
from torch import nn

from hnlib import augment, data, encoders, evaluation, methods, records, training
from hnlib.training import train

SMALL = dict(epochs=3, batch_size=64, train_size=200, evaluate_every=1, evaluate_size=100, progress=False, device="cpu")


class At(nn.Module):
    """A method that does something at its k-th call; otherwise it is the one inside."""

    def __init__(self, call, action, inner="hcl", **options):
        super().__init__()
        self.inner, self.call, self.action, self.calls = methods.build(inner, **options), call, action, 0
        self.entry, self.name, self.options = self.inner.entry, self.inner.name, self.inner.options
        self.log_weights, self.observe = self.inner.log_weights, self.inner.observe

    def forward(self, z1, z2, labels=None, **more):
        self.calls += 1
        loss = self.inner(z1, z2, labels, **more)
        return self.action(loss) if self.calls == self.call else loss


def interrupt(loss):
    raise KeyboardInterrupt


def terminate(loss):
    os.kill(os.getpid(), signal.SIGTERM)
    return loss


def weights(run):
    return {**run.encoder.state_dict(), **{f"projector.{k}": v for k, v in run.projector.state_dict().items()}}


def same(a, b):
    a, b = weights(a), weights(b)
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def learning_curve(run):
    return [{k: v for k, v in row.items() if k != "images_per_second"} for row in run.history]


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
    train(method="simclr", **SMALL | dict(epochs=1))
    assert torch.equal(before, torch.get_rng_state())


def test_the_record_says_what_was_chosen_and_measured(whole):
    record = whole.record
    chosen = record["configuration"]
    assert chosen["method"] == "hcl" and chosen["options"]["beta"] == 1.0 and chosen["train_size"] == 200
    assert chosen["dataset_digest"] == data.subset(data.load("digits"), 200).digest
    assert chosen["augmentation"]["rotation"] == augment.RECIPES["digits"].rotation
    assert record["metrics"]["steps"] == 9 and 0 < record["metrics"]["linear"] <= 1
    assert record["environment"]["hnlib"] == records.source_digest()
    json.dumps(record, allow_nan=False)
    assert [row["epoch"] for row in whole.history] == [0, 1, 2, 3]
    assert whole.history[0]["loss"] is None and whole.history[-1]["knn"] == whole.metrics["knn"]
    for row in whole.history:
        assert {"collision", "alignment", "uniformity", "exp", "threshold", "knn"} <= row.keys()
        assert set(row["exp"]) == {"assumption", "UCL", "H-UCL", "SCL", "H-SCL", "violations", "undefined"}


def test_all_methods_start_from_the_same_encoder_and_are_watched_on_the_same_views(whole):
    other = train(method="scl", **SMALL | dict(epochs=1))
    first, second = whole.history[0], other.history[0]
    assert first["knn"] == second["knn"] and first["exp"] == second["exp"]
    assert first["collision"] > 0 and second["collision"] == 0  # scl never takes its own class for a negative


@pytest.mark.parametrize("stop, call", [(interrupt, 5), (interrupt, 1), (terminate, 8)])
def test_interrupted_and_resumed_equals_uninterrupted(whole, tmp_path, stop, call):
    path = tmp_path / "run.pt"
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(training.Interrupted) as stopped:
        train(method=At(call, stop), checkpoint=path, **SMALL)
    assert signal.getsignal(signal.SIGTERM) == before
    assert ("nothing was saved" in str(stopped.value)) == (call < 4)  # three steps are an epoch
    assert call < 4 or str(path) in str(stopped.value)
    resumed = train(method="hcl", checkpoint=path, **SMALL)
    assert same(whole, resumed) and learning_curve(whole) == learning_curve(resumed)
    assert resumed.metrics["steps"] == 9


def test_a_killed_process_resumes_to_the_same_weights(whole, tmp_path):
    path = tmp_path / "run.pt"
    code = (
        f"import os, signal, sys; sys.path[:0] = [{os.path.dirname(__file__)!r}, {str(records.project_root())!r}]\n"
        "from test_training import At, SMALL, train\n"
        f"train(method=At(8, lambda loss: os.kill(os.getpid(), signal.SIGKILL)), checkpoint={str(path)!r}, **SMALL)\n"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert finished.returncode == -signal.SIGKILL and path.exists()
    assert [p.name for p in tmp_path.iterdir()] == ["run.pt"]
    assert same(whole, train(method="hcl", checkpoint=path, **SMALL))


@pytest.mark.parametrize("name", ["unremix", "unremix-repaired"])
def test_a_learned_mixture_is_trained_seen_and_resumed(tmp_path, name):
    path, options = tmp_path / "run.pt", dict(inner=name, learn="minimise", mixture=[0.2, 0.3, 0.5])
    uninterrupted = At(0, None, **options)
    whole = train(method=uninterrupted, **SMALL | dict(lr=0.01))
    with pytest.raises(training.Interrupted):
        train(method=At(5, interrupt, **options), checkpoint=path, **SMALL | dict(lr=0.01))
    again = At(0, None, **options)
    resumed = train(method=again, checkpoint=path, **SMALL | dict(lr=0.01))
    assert same(whole, resumed) and learning_curve(whole) == learning_curve(resumed)
    assert torch.equal(uninterrupted.inner.logits, again.inner.logits)
    seen = [[row[k] for k in "usr"] for row in whole.history]
    assert seen[0] == pytest.approx([0.2, 0.3, 0.5]) and seen[-1] == again.inner.mixture.tolist()
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

    method = Idle()
    train(method=method, **SMALL | dict(epochs=1, weight_decay=0.5))
    assert method.logits.tolist() == [3, -2]


def test_a_method_whose_own_parameters_diverge_is_told():
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.logit, self.calls = nn.Parameter(torch.zeros(())), 0

        def forward(self, z1, z2, labels=None):
            self.calls += 1
            return (z1 - z2).square().mean() + (self.logit.sqrt() if self.calls == 3 else 0 * self.logit)

    with pytest.raises(training.Diverged, match=r"not finite at step 3 "):  # the last of the epoch
        train(method=Broken(), **SMALL | dict(epochs=1))


def test_a_finished_checkpoint_is_not_trained_again(whole, tmp_path):
    path = tmp_path / "run.pt"
    train(method="hcl", checkpoint=path, **SMALL)
    assert same(whole, train(method=At(1, interrupt), checkpoint=path, **SMALL))
    with pytest.raises(training.Interrupted):
        train(method=At(1, interrupt), checkpoint=path, resume=False, **SMALL)


@pytest.mark.parametrize("change, key", [
    (dict(seed=1), "seed is 0 there and 1 here"), (dict(lr=0.01), "lr is 0.001 there and 0.01 here"),
    (dict(experiment="corrections"), "experiment is 'images' there and 'corrections' here"),
    (dict(beta=2.0), r"options is .*'beta': 1.0"), (dict(train_size=199), "dataset_digest|train_size"),
])
def test_a_checkpoint_of_another_configuration_is_refused(tmp_path, change, key):
    path = tmp_path / "run.pt"
    train(method="hcl", checkpoint=path, **SMALL | dict(epochs=1))
    content = path.read_bytes()
    with pytest.raises(ValueError, match=key):
        train(method="hcl", checkpoint=path, **SMALL | dict(epochs=1) | change)
    assert path.read_bytes() == content


def test_a_corrupt_checkpoint_is_named(tmp_path):
    path = tmp_path / "run.pt"
    train(method="hcl", checkpoint=path, **SMALL | dict(epochs=1))
    content = path.read_bytes()
    middle = len(content) // 2
    for damaged in (content[:middle], content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1:], b"x"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"run\.pt is corrupt"):
            train(method="hcl", checkpoint=path, **SMALL | dict(epochs=1))


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
    """In mid-epoch the next step's embeddings show it; after an epoch's last step no bad checkpoint may be written."""
    with pytest.raises(training.Diverged, match=f"step {step} "):
        train(method=At(call, infinite_slope), checkpoint=tmp_path / "run.pt", **SMALL)
    assert not list(tmp_path.iterdir())


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

    train(method=Spy(), **SMALL | dict(epochs=1, max_steps=1))
    Spy.supervised = True
    run = train(method=Spy(), **SMALL | dict(epochs=1, max_steps=1))
    assert seen[0] is None and seen[1].shape == (64,)
    assert run.record["configuration"]["method"] == "Spy" and run.history[0]["collision"] is None


def test_only_methods_that_ask_see_the_inputs_of_the_last_layer(monkeypatch):
    seen, passes, forward = [], [], training.Model.forward

    def watched(model, x, hidden=False):
        passes.append(forward(model, x, hidden))
        return passes[-1]

    monkeypatch.setattr(training.Model, "forward", watched)

    class Spy(nn.Module):
        features = False

        def forward(self, z1, z2, labels=None, **more):
            seen.append((z1, z2, more))
            return (z1 - z2).square().mean()

    for Spy.features in (False, True):
        passes.clear()
        train(method=Spy(), **SMALL | dict(epochs=1, max_steps=1))
    (_, h), *_ = (both for both in passes if both[1].requires_grad)  # the others are looks at the learning curve
    (a1, a2, nothing), (b1, b2, more) = seen
    assert not nothing and list(more) == ["features"] and [h.shape for h in more["features"]] == [(64, 128)] * 2
    assert torch.equal(a1, b1) and torch.equal(a2, b2)  # the same step, seen or not
    assert torch.equal(torch.cat(more["features"]), h) and (h >= 0).all()  # after the ReLU, in the order of the views


def test_learning_curves_show_the_last_layer_to_the_method(monkeypatch):
    passes, contrasts, forward = [], [], training.Model.forward

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

    monkeypatch.setattr(training.Model, "forward", watched)
    run = train(method=Spy(), **SMALL | dict(epochs=1, max_steps=1))
    assert [row["seen"] for row in run.history] == [1.5, 1.5] and len(contrasts) == 4
    (z1, h1), (z2, h2) = passes[-2:]
    for contrast in contrasts[-2:]:
        assert torch.equal(contrast.features, torch.cat([h1, h2]))
        assert torch.allclose(contrast.norms[:, None] * contrast.candidates, torch.cat([z1, z2]), atol=1e-6)


def test_the_model_shows_what_its_last_layer_is_given():
    model = training.Model(encoders.build("small-cnn", 1, 8), encoders.Projector(128, hidden=32, out=16)).eval()
    x = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    z, h = model(x, hidden=True)
    assert torch.equal(z, model(x)) and h.shape == (5, 32)
    last = model.projector.layers[-1]
    assert torch.allclose(h @ last.weight.T + last.bias, z, atol=1e-6)


@pytest.mark.parametrize(("name", "options", "columns"), [
    ("hcl-exact", dict(beta=2.0), {"guarded"}), ("kl-budget", dict(eta=0.2), {"temperature_low", "temperature",
     "temperature_high"}), ("chi2-dro", {}, set()), ("unremix", {}, set()), ("centred-hcl", {}, set()),
])
def test_the_corrections_train_and_show_what_they_do(whole, name, options, columns):
    run = train(method=name, **SMALL | dict(epochs=2), **options)
    assert run.metrics["steps"] == 6 and math.isfinite(run.metrics["loss"])
    for row in run.history:
        assert row.keys() - whole.history[0].keys() == columns and row["collision"] > 0
        assert row.get("guarded", 0) <= 1 and row.get("temperature_low", 0) <= row.get("temperature", 0)
    assert run.history[0]["knn"] == whole.history[0]["knn"] and run.history[0]["exp"] == whole.history[0]["exp"]
    json.dumps(run.record, allow_nan=False)


def test_every_epoch_has_its_own_order_and_views(monkeypatch):
    batches, two_views = [], augment.two_views

    def spy(x, generator, recipe):
        views = two_views(x, generator, recipe)
        batches.append((x, views[0]))
        return views

    monkeypatch.setattr(augment, "two_views", spy)
    train(method="simclr", **SMALL | dict(epochs=2, batch_size=200))
    _, (first, view), (second, other) = batches  # before them the fixed views of the learning curves
    assert not torch.equal(first, second) and not torch.equal(view, other)
    assert torch.equal(first.flatten(1).sort(0).values, second.flatten(1).sort(0).values)  # the same images


def test_the_two_baselines_need_no_training():
    pixels = train(method=None, encoder="pixels", epochs=0, progress=False)
    untrained = train(method=None, epochs=0, progress=False)
    assert pixels.metrics["linear"] > 0.95 and untrained.metrics["steps"] == 0
    assert pixels.metrics["loss"] is None and pixels.record["configuration"]["method"] is None
    by_hand = evaluation.readouts(untrained.encoder, data.load("digits"))
    assert by_hand["knn"] == untrained.metrics["knn"] and by_hand["linear"] == untrained.metrics["linear"]


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
    x = torch.randint(0, 256, (40, 32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    y = torch.arange(40) % 4
    colours = data.Dataset("colours", x, y, x[:20], y[:20], tuple("abcd"), "0")
    run = train(colours, "ot", "resnet18", epochs=1, batch_size=8, max_steps=1, precision="bf16-mixed", progress=False)
    hidden = train(colours, "unremix", epochs=1, batch_size=8, max_steps=1, precision="bf16-mixed", progress=False)
    assert math.isfinite(run.metrics["loss"]) and math.isfinite(hidden.metrics["loss"])
    assert run.record["configuration"]["augmentation"]["flip"] == 0.5
    assert all(p.dtype == torch.float32 for p in run.encoder.parameters())


def test_save_load_export(whole, tmp_path):
    loaded = training.load(whole.save(tmp_path / "run.safetensors"))
    assert same(whole, loaded) and loaded.record == json.loads(json.dumps(whole.record))
    x = augment.plain(data.load("digits").x_test[:7])
    program = torch.export.load(loaded.export(tmp_path / "encoder.pt2")).module()
    with torch.no_grad():
        assert torch.allclose(program(x), loaded.encoder(x), atol=1e-5)
    (tmp_path / "half").write_bytes((tmp_path / "run.safetensors").read_bytes()[:500])
    for name in ("half", "absent"):
        with pytest.raises(ValueError, match=name):
            training.load(tmp_path / name)


def test_a_record_is_written_and_replaced(tmp_path):
    for _ in range(2):
        run = train(method="simclr", record_to=tmp_path, **SMALL | dict(epochs=1))
    (found,) = records.load_all(tmp_path)
    assert found["metrics"]["knn"] == run.metrics["knn"]


@pytest.mark.parametrize("change, message", [
    (dict(dataset="imagenet"), "digits"), (dict(encoder="vgg"), "small-cnn"), (dict(method="moco"), "simclr"),
    (dict(method="hcl", gamma=1.0), "gamma"), (dict(augmentation="mixup"), "digits"),
    (dict(batch_size=1), "batch_size=1"), (dict(batch_size=201), "batch_size=201.*200"),
    (dict(train_size=1438), "1438.*1437"), (dict(epochs=-1), "epochs=-1"), (dict(lr=0.0), "lr=0.0"),
    (dict(lr=math.nan), "lr=nan"), (dict(max_steps=0), "max_steps"), (dict(method=None), "epochs=0"),
    (dict(method=nn.Identity(), beta=1.0), "beta"), (dict(device="abacus"), "abacus"),
    (dict(seed=-1), "seed=-1"), (dict(weight_decay=-1.0), "weight_decay"),
    (dict(train_size=10, batch_size=4), "no class has two of the 10 training images"),
    (dict(precision="3-true"), "3-true"), (dict(evaluate_size=1), "evaluate_size"),
])
def test_bad_input_is_refused_before_anything_is_written(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        train(**SMALL | change, checkpoint=tmp_path / "c", record_to=tmp_path / "r")
    assert not list(tmp_path.iterdir())


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(records, "default_folder", lambda: tmp_path / "results")
    short = ["--epochs", "1", "--train-size", "100", "--batch-size", "32", "--device", "cpu"]
    saved = tmp_path / "run.safetensors"
    named = ["--experiment", "corrections"]
    assert training.main([*short, *named, "--method", "hcl", "-o", "beta=0.5", "--save", str(saved)]) == 0
    assert "knn" in capsys.readouterr().out
    (record,) = records.load_all(tmp_path / "results")
    assert record["configuration"]["options"]["beta"] == 0.5 and record["configuration"]["experiment"] == "corrections"
    assert training.load(saved).record["configuration"] == record["configuration"]
    for bad, message in ((["-o", "beta"], "KEY=VALUE"), (["-o", "seed=1"], "--seed"), (["-o", "kappa=1"], "kappa"),
                         (["-o", "experiment=x"], "--experiment")):
        with pytest.raises(ValueError, match=message):
            training.main([*short, "--method", "hcl", *bad])


def test_an_interrupted_command_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    stubborn = At(5, interrupt)
    monkeypatch.setattr(methods, "build", lambda name, **options: stubborn)
    arguments = ["--epochs", "3", "--train-size", "200", "--batch-size", "64", "--checkpoint", str(tmp_path / "c.pt")]
    assert training.main([*arguments, "--method", "hcl", "--evaluate-every", "0"]) == 130
    assert "repeat the same call" in capsys.readouterr().err
