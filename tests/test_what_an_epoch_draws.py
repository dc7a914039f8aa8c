"""What a training draws and does: its weights, batches and views, and each step of the optimiser."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from one_call import same_weights, train
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from hnlib import _files, methods
from hnlib.graphs import task as graphs
from hnlib.images import data, encoders, task
from hnlib.images.config import Augmentation
from hnlib.training import kinds, loop
from hnlib.training import train as training

DIGITS = data.subset(data.load("digits"), 80)
IMAGES = ((DIGITS.x_train / 255 - 0.5) / 0.25).flatten(1)
# four steps are an epoch; an image can be told from its noisy view
QUICK = dict(dataset=DIGITS, epochs=2, batch_size=20, augmentation=Augmentation(noise=0.02))
QUICK |= dict(evaluate_every=0, evaluate_size=20, progress=False, device="cpu")
SEEN, KEYS = [], []


class Watched(nn.Module):
    """An encoder that keeps what it is trained on, and what its copy makes keys of."""

    feature_dim = 16

    def __init__(self, *more):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), *more)

    def forward(self, x):
        if self.training or torch.is_grad_enabled():
            (SEEN if torch.is_grad_enabled() else KEYS).append(x.detach())
        return self.layers(x)


def watched(*more):
    torch.manual_seed(0)
    SEEN.clear()
    KEYS.clear()
    return Watched(*more)


def told_apart(views):
    """Which images these are, and the noise of each view."""
    which = torch.cdist(views.flatten(1), IMAGES).argmin(1)
    return which, views.flatten(1) - IMAGES[which]


def drawn(**chosen):
    """The images of each epoch in their order, and the noise of their views."""
    train(encoder=watched(), **dict(method="simclr") | QUICK | chosen)
    both = torch.stack(SEEN).unflatten(1, (2, 20))
    (order, noise), (again, other) = (told_apart(both[:, k].flatten(0, 1)) for k in (0, 1))
    assert torch.equal(order, again), "two views of each image"
    return order.view(2, 80), torch.cat([noise, other], 1).view(2, 80, 128)


def shared(noise, other):
    """Whether any view of these is one of those."""
    halves = (part.unflatten(1, (2, 64)).flatten(0, 1) for part in (noise, other))
    return bool(torch.cdist(*halves).min() < 0.1)


def test_every_epoch_has_its_own_order_and_views():
    order, noise = drawn()
    assert torch.equal(order.sort(1).values, torch.arange(80).expand(2, 80))
    assert not torch.equal(*order) and not shared(*noise)
    assert shared(noise[0], noise[0].flip(0)), "negative control"


def test_another_seed_draws_another_order_and_other_views():
    (order, noise), (again, same), (other, its) = drawn(), drawn(), drawn(seed=1)
    assert torch.equal(order, again) and torch.equal(noise, same)
    assert not any(map(torch.equal, order, other))
    assert not shared(noise.flatten(0, 1), its.flatten(0, 1))


@pytest.fixture
def steps():
    """What Adam is about to do at each step: its rates, the weights and their gradients."""
    seen = []

    def look(optimiser, *_):
        if isinstance(optimiser, torch.optim.Adam):  # not that of the probe
            first, *_ = groups = optimiser.param_groups
            weights, slopes = zip(*((p.detach().clone(), p.grad.clone()) for p in first["params"]))
            rates = [group["lr"] for group in groups]
            seen.append(SimpleNamespace(rates=rates, weights=weights, slopes=slopes))

    hook = register_optimizer_step_pre_hook(look)
    yield seen
    hook.remove()


ONE = QUICK | dict(max_steps=1)


def test_another_seed_draws_other_weights(steps):
    for seed in (0, 0, 1):
        train(method="simclr", encoder="small-cnn", seed=seed, **ONE)
    first, again, other = ([w for w in step.weights if w.ndim > 1] for step in steps)
    assert len(first) == 5 and all(map(torch.equal, first, again))
    assert not any(map(torch.equal, first, other))


PAIRED = [dict(method="hcl"), dict(method="scl"), dict(method="mochi"), dict(method="unremix")]


@pytest.mark.parametrize("other", PAIRED, ids=lambda other: other["method"])
def test_all_methods_start_from_the_same_weights_and_see_the_same_views(steps, other):
    """Differences of one seed are differences of the methods: intervals rest on it."""
    seen = []
    for method in (dict(method="simclr"), other):
        train(encoder=watched(), **QUICK | method)
        seen.append(torch.stack(SEEN))
    assert torch.equal(*seen)
    first, second = steps[0], steps[8]
    assert all(map(torch.equal, first.weights, second.weights))
    assert not all(map(torch.equal, first.slopes, second.slopes)), "control"


def test_learning_curves_of_all_methods_watch_the_same_views():
    rows = [train(method=method, **ONE | dict(seed=0)).history[0] for method in ("hcl", "scl")]
    assert rows[0]["alignment"] == rows[1]["alignment"]
    assert rows[0]["collision"] > 0 == rows[1]["collision"]  # scl never takes its own class


# Steps


class Idle(nn.Module):
    """A loss with parameters that it does not use."""

    def __init__(self):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor([3.0, -2.0]))

    def forward(self, z1, z2, labels=None):
        return (z1 - z2).square().mean() + 0 * self.logits.sum()


def risen_and_fallen(steps):
    """A twentieth of the steps up in a line, the rest down by half a cosine."""
    rise = steps // 20
    down = np.arange(steps - rise) / (steps - rise)
    return [*np.linspace(0, 1, rise + 1)[1:], *(1 + np.cos(np.pi * down)) / 2]


@pytest.mark.parametrize(
    ("schedule", "more", "expected"),
    [
        ("cosine", {}, risen_and_fallen(80)),
        ("cosine", dict(max_steps=60), risen_and_fallen(60)),
        ("warm-up", {}, [*np.linspace(0.1, 1, 10), *np.ones(70)]),
        ("constant", {}, np.ones(80)),
    ],
)
def test_the_rate_of_each_step_of_two_epochs(steps, schedule, more, expected):
    """Of the weights and of what a loss learns."""
    chosen = QUICK | dict(batch_size=2, lr=0.01, lr_schedule=schedule) | more
    train(method=Idle(), encoder=watched(), **chosen)
    for rates in zip(*(step.rates for step in steps), strict=True):
        assert rates == pytest.approx(0.01 * np.array(expected))
    assert len(steps[0].rates) == 2


def test_each_step_is_adams_on_the_gradient_of_its_batch_alone(steps):
    """In training mode, also after the learning curves were measured in eval mode."""
    chosen = dict(lr=0.01, weight_decay=0.1, beta2=0.9, evaluate_every=1)
    run = train(method="hcl", encoder=watched(), **QUICK | chosen)
    twin, loss, losses = encoders.model(Watched(), (1, 8, 8)), methods.build("hcl"), []
    for step, x in zip(steps, [*SEEN], strict=True):
        with torch.no_grad():
            for mine, weights in zip(twin.parameters(), step.weights, strict=True):
                mine.copy_(weights)
        losses.append(loss(*twin(x).chunk(2)))
        slopes = torch.autograd.grad(losses[-1], [*twin.parameters()])
        torch.testing.assert_close([*slopes], [*step.slopes], rtol=1e-3, atol=1e-6)
    means = torch.stack(losses).detach().view(2, 4).mean(1)
    assert run.record["losses"] == pytest.approx(means.tolist(), rel=1e-5)

    m, v = 0.0, 0.0
    weights, slopes = (
        torch.stack([torch.cat([w.flatten() for w in of]) for of in both])
        for both in ([s.weights for s in steps], [s.slopes for s in steps])
    )
    for k, (w, slope) in enumerate(zip(weights[:-1], slopes), 1):
        slope = slope + 0.1 * w
        m, v = 0.9 * m + 0.1 * slope, 0.9 * v + 0.1 * slope**2
        moved = w - 0.01 * m / (1 - 0.9**k) / ((v / (1 - 0.9**k)).sqrt() + 1e-8)
        torch.testing.assert_close(weights[k], moved, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("decoupled", [False, True])
def test_what_a_loss_learns_does_not_decay(decoupled, monkeypatch):
    """Decay would be all the gradient where a loss does not ask for other parameters."""
    monkeypatch.setattr(task.Task, "decoupled", decoupled)  # Adam, or AdamW with its own default
    run = train(method=Idle(), encoder=watched(), **QUICK | dict(weight_decay=0.5))
    assert run.method.logits.tolist() == [3, -2]


def test_a_schedule_reaches_the_method():
    runs = [
        train(method="hcl", encoder=watched(), **QUICK | dict(options={"beta": beta}) | more)
        for beta, more in ((1.0, dict(schedule={"beta": (4, 4)})), (4.0, {}), (1.0, {}))
    ]
    assert same_weights(runs[0], runs[1]) and not same_weights(runs[0], runs[2])


def test_keys_of_a_queue_are_of_the_second_views():
    train(method="simclr", encoder=watched(), **QUICK | dict(queue=30))
    (order, noise), (keys, its) = (told_apart(torch.cat(views)) for views in (SEEN, KEYS))
    assert torch.equal(order, keys) and len(order) == 160
    assert (noise - its).norm(dim=1).min() > 0.1


def test_oracle_positives_are_images_of_the_class():
    train(method="simclr", encoder=watched(), **QUICK | dict(oracle_positives=True))
    both = torch.stack(SEEN).unflatten(1, (2, 20))
    (first, _), (second, _) = (told_apart(both[:, k].flatten(0, 1)) for k in (0, 1))
    assert torch.equal(DIGITS.y_train[first], DIGITS.y_train[second])
    met = int((first == second).sum())  # itself, one time in eight
    assert 160 / 8 / 2 < met < 160 / 8 * 2
    assert len(second.unique()) > 40


def test_the_loss_of_an_epoch_of_graphs_is_the_mean_of_its_graphs():
    parts = torch.arange(5).tensor_split([3])
    whole = type("Five", (), {"__len__": lambda self: 5})()
    mean = graphs.Task.mean_loss(whole, torch.tensor([1.0, 2.0]), parts)
    assert mean == pytest.approx(7 / 5)


def test_an_epoch_draws_what_it_drew_when_the_records_were_made():
    expected = {"images": 2968811710, "sentences": 2968811710, "retrieval": 2968811710}
    expected |= {"graphs": 3964924996}
    for kind, seed in expected.items():
        assert loop.epoch_generator(kinds.task_class(kind), 0, 0).initial_seed() == seed


# Resuming


def test_an_encoder_that_draws_itself_resumes_to_the_same_weights(tmp_path):
    chosen = dict(method="simclr", **QUICK)
    whole = train(encoder=watched(nn.Dropout(0.5)), **chosen)
    path = dict(checkpoint=tmp_path / "c.pt")
    with pytest.raises(training.Interrupted):
        train(encoder=watched(nn.Dropout(0.5)), **chosen, **path, minutes=1e-9)
    assert same_weights(whole, train(encoder=watched(nn.Dropout(0.5)), **chosen, **path))
    assert not same_weights(whole, train(encoder=watched(nn.Dropout(0.1)), **chosen))


def test_a_finished_run_is_not_measured_again(tmp_path, monkeypatch):
    places = dict(checkpoint=tmp_path / "c.pt", record_to=tmp_path / "records")
    chosen = dict(method="simclr", encoder="small-cnn", **ONE, **places)
    first = train(**chosen)
    files = {path: path.read_text() for path in places["record_to"].glob("[!.]*")}
    for path in places["record_to"].iterdir():  # the index, too, which has the time of a file
        path.unlink()  # as if the process had been killed before it wrote the record

    def again(*_):
        raise AssertionError("it is measured again")

    monkeypatch.setattr(task.Task, "measure", again)
    second = train(**chosen)
    assert all(path.read_text() == text for path, text in files.items())
    assert second.record == first.record
    with pytest.raises(AssertionError, match="measured again"):
        train(**chosen, resume=False)


def test_a_checkpoint_that_another_process_uses_is_refused(tmp_path):
    path = tmp_path / "c.pt"
    with _files.lock(path), pytest.raises(ValueError, match="another process is"):
        train(method="simclr", **ONE, checkpoint=path)
    train(method="simclr", **ONE, checkpoint=path)
