"""`train`: a run repeats, resumes, records what was chosen, and does what its options say."""

import copy
import math

import pytest
import torch
from drawn import seeded
from one_call import same_weights, train
from torch import nn

from hnlib import _checks, methods
from hnlib.images import data, encoders, task
from hnlib.images.config import ImageRun
from hnlib.training import loop, records
from hnlib.training import train as training

# three steps are an epoch
SMALL = dict(epochs=3, batch_size=32, train_size=100, evaluate_every=1, evaluate_size=50)
SMALL |= dict(progress=False, device="cpu")
ONE = SMALL | dict(epochs=1)
STEP = ONE | dict(max_steps=1)
DIGITS = data.subset(data.load("digits"), 100)


class At(methods.Method):
    """HCL that does something at its k-th call."""

    def __init__(self, call, action):
        super().__init__("hcl", methods.CATALOGUE["hcl"], {})
        self.call, self.action, self.calls = call, action, 0

    def forward(self, *views, **more):
        self.calls += 1
        loss = super().forward(*views, **more)
        return self.action(loss) if self.calls == self.call else loss


def interrupt(loss):
    raise KeyboardInterrupt


def too_large(loss):
    return torch.empty(10**15)


def out_of_memory(loss):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")


@pytest.mark.parametrize("action", [too_large, out_of_memory])
def test_too_little_memory_names_the_batch_size(action):
    words = "cpu has too little memory for batch_size=32; give a smaller one"
    with pytest.raises(MemoryError, match=words):
        train(method=At(1, action), **STEP)


@pytest.fixture(scope="module")
def whole():
    """The uninterrupted run that others are compared with."""
    return train(method="hcl", **SMALL)


def test_a_run_repeats_bitwise_depends_on_its_seed_and_leaves_the_callers_state(whole):
    torch.manual_seed(123)
    before = torch.get_rng_state()
    assert same_weights(whole, train(method="hcl", **SMALL))
    assert torch.equal(before, torch.get_rng_state())
    assert not same_weights(whole, train(method="hcl", **SMALL, seed=1))


def test_the_record_says_what_was_chosen_and_measured(whole):
    record = whole.record
    assert record["configuration"]["dataset_digest"] == DIGITS.digest
    assert record["environment"]["hnlib"] == records.source_digest()
    assert [row["epoch"] for row in whole.history] == [0, 1, 2, 3]
    assert {"collision", "alignment", "uniformity"} <= whole.history[0].keys()
    assert record["losses"] == [row["loss"] for row in whole.history[1:]]
    assert whole.history[-1]["knn"] == whole.metrics["knn"] and whole.metrics["steps"] == 9


def test_a_learned_mixture_is_trained_and_seen():
    start = [0.2, 0.3, 0.5]
    given = methods.build("unremix", learn="minimise", mixture=start)
    run = train(method=given, **SMALL | dict(lr=0.01))
    assert given.mixture.tolist() == pytest.approx(start)  # the caller's is not trained
    seen = [[row[k] for k in "usr"] for row in run.history]
    assert seen[0] == pytest.approx(start)
    assert seen[-1] == run.method.mixture.tolist()
    assert max(abs(a - b) for a, b in zip(seen[0], seen[-1])) > 1e-3
    assert run.record["configuration"]["options"]["mixture"] == start


def infinite_slope(loss):
    return loss + (loss - loss.detach()).abs().sqrt()


class Decomposed(nn.Module):
    """A loss that fails as decompositions do where embeddings are not finite."""

    def forward(self, a, b, labels=None):
        if not a.isfinite().all():
            raise RuntimeError("failed to converge")
        return (a - b).square().sum()


@pytest.mark.parametrize(
    ("method", "more", "words"),
    [
        (At(5, lambda loss: loss * math.nan), {}, r"step 5 \(epoch 2, lr=0.001.*run\.pt"),
        (At(3, infinite_slope), {}, "step 3 .*no checkpoint"),  # an epoch's last step
        ("simclr", dict(lr=1e20), "step 2 .*lower lr"),  # its weights are finite
        (Decomposed(), dict(lr=1e39), "step 2 .*lower lr"),
    ],
)
def test_divergence_names_step_rate_and_the_last_good_checkpoint(tmp_path, method, more, words):
    with pytest.raises(training.Diverged, match=words):
        train(method=method, checkpoint=tmp_path / "run.pt", **SMALL | more)
    assert (tmp_path / "run.pt").exists() == ("run" in words)


def unconverged(loss):
    raise ValueError("failed to converge")


def no_negative(loss):
    """Do what a check does on an accelerator: keep the condition and give the loss no value."""
    _checks._deferred[-1].add(torch.tensor([False, True]), "anchor {row} has no negative")
    return loss * math.nan


@pytest.mark.parametrize(
    ("step", "action", "message"),
    [
        (2, unconverged, "failed to converge"),
        (6, no_negative, "anchor 1 has no negative"),  # found after the epoch
    ],
)
def test_an_error_of_a_loss_at_sound_weights_is_its_own(step, action, message):
    with pytest.raises(ValueError, match=message) as error:
        train(method=At(step, action), **SMALL)
    assert not isinstance(error.value, training.Diverged)


class Spy(nn.Module):
    """A custom method that records the arguments of its last call."""

    name = "simclr"

    def forward(self, *views, **more):
        type(self).seen = views, more
        return (views[0] - views[1]).square().mean()


def test_a_method_sees_labels_and_inputs_of_the_last_layer_only_if_it_asks():
    train(method=Spy(), **STEP)
    (*_, nothing), more = Spy.seen
    assert nothing is None and not more
    asking = Spy()
    asking.supervised = asking.features = True
    run = train(method=asking, **STEP)
    (*views, labels), more = Spy.seen
    assert labels.shape == (32,)
    for z, h in zip(views, more["features"], strict=True):
        assert z.shape == h.shape == (32, 128) and (h >= 0).all(), "after the ReLU"
    assert run.record["configuration"]["method"].startswith("Spy-")
    assert run.history[0]["collision"] is None


def test_classmates_are_uniform_over_the_class():
    labels = torch.tensor([2, 0, 1, 2, 2, 0, 2])
    drawn = task.Classmates(labels).draw(torch.zeros(8000, dtype=torch.long), seeded())
    share = drawn.bincount(minlength=7) / 8000
    assert share.tolist() == pytest.approx([0.25, 0, 0, 0.25, 0.25, 0, 0.25], abs=0.02)


def test_admitted_is_the_share_of_the_pairs_of_one_class_that_stay_negatives():
    run = ImageRun(method="hcl", batch_size=32, admitted=0.25).resolved()
    images = task.Task(run, methods.build("hcl"), dataset=DIGITS)
    images.labels = labels = torch.tensor([0, 0, 1, 1, 1, 2] * 20)
    dismissed = images._false_negatives_kept_out(torch.arange(120), seeded())
    same = (labels[:, None] == labels).repeat(2, 2)
    assert torch.equal(dismissed, dismissed.T) and not dismissed[~same].any()
    off = ~torch.eye(120, dtype=torch.bool).repeat(2, 2)
    assert float(dismissed[same & off].float().mean()) == pytest.approx(0.75, abs=0.02)


def test_max_steps_end_a_run():
    run = train(**SMALL | dict(method="simclr", max_steps=4, evaluate_every=0))
    assert (run.metrics["steps"], run.history[-1]["epoch"]) == (4, 2)


def plain(seed=0):
    """An encoder of one's own, which calls itself by the name of one of ours."""
    torch.manual_seed(seed)
    own = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 32))
    own.feature_dim, own.name = 32, "resnet18"
    return own


def test_an_encoder_of_ones_own_is_copied_saved_and_loaded(tmp_path):
    own, path = plain(), tmp_path / "run.pt"
    before = copy.deepcopy(own.state_dict())
    run = train(method="unremix", encoder=own, checkpoint=path, **ONE)
    assert all(torch.equal(v, before[k]) for k, v in own.state_dict().items())
    assert run.record["configuration"]["encoder"].startswith("Sequential-")
    run.save(tmp_path / "run.safetensors")
    assert same_weights(run, training.load(tmp_path / "run.safetensors", encoder=plain()))
    with pytest.raises(ValueError, match="Sequential"):
        training.load(tmp_path / "run.safetensors")
    with pytest.raises(ValueError, match="belongs to another run: encoder is 'Sequential-"):
        train(method="unremix", encoder=plain(seed=1), checkpoint=path, **ONE)


@pytest.mark.parametrize(
    ("course", "more", "values"),
    [
        ((3, 0), {}, [3, 2, 1]),
        ((4, 0, 2), {}, [4, 4, 2]),
        ((4, 0, "cosine", 2), dict(epochs=4), [4, 0, 4, 0]),
        ((3, 0), dict(reach_end=True), [3, 1.5, 0]),
    ],
)
def test_a_scheduled_option_moves_by_line_steps_or_waves(course, more, values):
    run = train(method="hcl", schedule={"beta": course}, **SMALL | more)
    assert [row.get("beta") for row in run.history[1:]] == pytest.approx(values)
    assert ImageRun.read(run.record["configuration"]).schedule == {"beta": course}


def test_the_learning_rate_warms_up_and_falls_to_zero():
    rates = [loop.cosine(step, 60) for step in range(60)]
    assert rates[:3] == pytest.approx([1 / 3, 2 / 3, 1])
    assert rates[2:] == sorted(rates[2:], reverse=True) and 0 < rates[-1] < 1e-2


def test_the_stem_of_a_resnet_keeps_the_resolution_of_small_images():
    encoder, x = encoders.build("resnet18", 3, 32), torch.zeros(2, 3, 32, 32)
    assert nn.Sequential(encoder.conv1, encoder.maxpool)(x).shape == (2, 64, 32, 32)
    assert encoder(x).shape == (2, encoder.feature_dim)


def test_keys_follow_the_model_and_the_queue_keeps_the_newest():
    model = encoders.Model(plain(), nn.Linear(32, 16))
    queue = loop.KeyQueue(model, ImageRun(queue=5, momentum=0.75))
    old = copy.deepcopy(queue.model)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1)
    keys = queue.keys(torch.rand(4, 1, 8, 8))
    assert not keys.requires_grad
    for a, b, c in zip(queue.model.parameters(), old.parameters(), model.parameters()):
        assert torch.allclose(a, 0.75 * b + 0.25 * c)
    queue.contrast(keys, keys, None, None)
    queue.contrast(keys, keys + 100, None, None)
    assert torch.equal(queue.z, torch.cat([keys + 100, keys[:1]]))


@pytest.mark.parametrize("positives", ["class", "view"])
def test_a_queue_with_labels_takes_the_class_from_the_negatives(positives):
    z, y = torch.eye(4).repeat(2, 1) + 0.1, torch.tensor([0, 1, 0, 2, 1, 1, 2, 0])
    queue = loop.KeyQueue(nn.Identity(), ImageRun(queue=5))
    for half in (slice(0, 4), slice(4, 8)):
        contrast = queue.contrast(z[half], z[half], y[half], positives)
    same = y[4:, None] == y.roll(4)
    expected = same if positives == "class" else torch.eye(8, dtype=torch.bool)[:4]
    assert torch.equal(contrast.positives, expected)
    assert torch.equal(contrast.admissible, ~same) and contrast.scale == 7


@pytest.mark.slow
def test_held_out_images_are_read_out_beside_the_test_images():
    with pytest.raises(ValueError, match="protocols must be clean"):
        train(**STEP, protocols=("paper",))
    run = train(**STEP, validation=40)
    for name, size in {"knn": 50, "linear_validation": 40}.items():
        right = records.unpack(run.record["correct"][name], size)
        assert right.mean() == pytest.approx(run.metrics[name])


def test_separate_views_have_batch_statistics_of_their_own():
    model, method = encoders.model("small-cnn", (1, 8, 8)).train(), methods.build("unremix")

    def loss(apart):
        run = ImageRun(batch_size=32, separate_views=apart).resolved()
        images = task.Task(run, dataset=DIGITS)
        views = images.views(torch.arange(32), seeded(), slice(0, 32))
        return images.loss(model, method, views, None, lambda z: z).item(), views

    (together, views), (apart, _) = loss(False), loss(True)
    z, h = zip(*(model(view, hidden=True) for view in (views.first, views.second)))
    expected = pytest.approx(method(*z, features=h).item(), rel=1e-5)
    assert apart == expected != together
