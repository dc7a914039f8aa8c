import copy
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.svm import SVC
from torch import nn
from torch.nn import functional

from hnlib import augment, data, encoders, evaluation, negatives, records
from hnlib.contrast import Contrast

seeds = st.integers(0, 10**6)
quick = settings(deadline=None, max_examples=40)


def blobs(n=120, d=5, classes=3, seed=0, spread=1.0):
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, d, generator=generator, dtype=torch.float64)
    y = torch.arange(n) % classes
    return centres[y] + spread * torch.randn(n, d, generator=generator, dtype=torch.float64), y


def two_views(batch=6, d=3, classes=2, seed=0, agreement=1.0):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(batch) % classes
    z = torch.randn(2, batch, d, generator=generator, dtype=torch.float64)
    return z[0], agreement * z[0] + z[1], y


# --- readouts


def knn_one_at_a_time(train_x, train_y, test_x, test_y, k, t):
    unit = lambda v: v / np.linalg.norm(v)  # noqa: E731
    right = 0
    for x, y in zip(test_x.numpy(), test_y.tolist()):
        s = np.array([unit(x) @ unit(v) for v in train_x.numpy()])
        votes = {}
        for j in np.argsort(-s)[:k]:
            votes[int(train_y[j])] = votes.get(int(train_y[j]), 0) + math.exp(s[j] / t)
        right += max(votes, key=votes.get) == y
    return right / len(test_x)


@quick
@given(seeds, st.integers(1, 40), st.floats(0.05, 2))
def test_knn_against_one_image_at_a_time(seed, k, t):
    x, y = blobs(60, seed=seed)
    sets = x[:40], y[:40], x[40:], y[40:]
    expected = knn_one_at_a_time(*sets, k, t)
    assert evaluation.weighted_knn(*sets, k=k, temperature=t, num_classes=3, chunk=7) == pytest.approx(expected)


def test_knn_votes_are_weighted_and_cold_votes_do_not_overflow():
    train_x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    sets = train_x, torch.tensor([0, 1, 1]), torch.tensor([[1.0, 0.1]]), torch.tensor([0])
    assert evaluation.weighted_knn(*sets, k=3, temperature=1e-3) == 1.0
    assert evaluation.weighted_knn(*sets, k=3, temperature=1e3) == 0.0  # all votes alike: the majority is wrong


@pytest.mark.parametrize("change, message", [
    (dict(k=41), "k=41.*40"), (dict(k=0), "k=0"), (dict(temperature=0.0), "temperature"),
])
def test_knn_refuses(change, message):
    x, y = blobs(60)
    with pytest.raises(ValueError, match=message):
        evaluation.weighted_knn(x[:40], y[:40], x[40:], y[40:], **({"k": 5} | change))


@pytest.mark.parametrize("readout", [evaluation.weighted_knn, evaluation.linear_readout])
def test_readouts_refuse_what_does_not_fit(readout):
    x, y = blobs(60)
    with pytest.raises(ValueError, match="do not fit"):
        readout(x, y[:-1], x, y)
    with pytest.raises(ValueError, match="dimensions"):
        readout(x, y, x[:, 1:], y)


@pytest.mark.parametrize("penalty", [0.1, 1.0, 30.0])
def test_logistic_regression_equals_scikit_learns(penalty):
    x, y = blobs(150, seed=1, spread=2.0)
    x = (x - x.mean(0)) / x.std(0, unbiased=False)
    weight, bias = evaluation.fit_logistic(x, y, 3, penalty)
    theirs = LogisticRegression(C=1 / penalty, tol=1e-8, max_iter=5000).fit(x.numpy(), y.numpy())
    other = LogisticRegression(C=2 / penalty, tol=1e-8, max_iter=5000).fit(x.numpy(), y.numpy())
    ours = torch.softmax(torch.addmm(bias, x, weight.T), 1).numpy()
    assert np.abs(ours - theirs.predict_proba(x.numpy())).max() < 1e-4
    assert np.abs(ours - other.predict_proba(x.numpy())).max() > 3e-4  # another penalty would be noticed


def test_linear_readout_standardises_with_the_training_features_and_repeats():
    x, y = blobs(150, seed=2, spread=2.0)
    scale = torch.tensor([1e-3, 1.0, 1e3, 5.0, 1.0])
    constant = torch.full((150, 1), 7.0, dtype=x.dtype)
    accuracy = evaluation.linear_readout(x[:100], y[:100], x[100:], y[100:])
    moved = torch.cat([x * scale + 3, constant], 1)
    assert evaluation.linear_readout(moved[:100], y[:100], moved[100:], y[100:]) == pytest.approx(accuracy)
    assert evaluation.linear_readout(x[:100].float(), y[:100], x[100:].float(), y[100:]) == pytest.approx(accuracy)
    with pytest.raises(ValueError, match="penalty"):
        evaluation.linear_readout(x, y, x, y, penalty=-1)


def test_embed_is_clean_and_leaves_the_encoder_as_it_was():
    x = torch.randint(0, 256, (10, 8, 8, 1), dtype=torch.uint8)
    encoder = encoders.build("small-cnn", 1, 8)
    before = {k: v.clone() for k, v in encoder.state_dict().items()}
    encoder.train()
    features = evaluation.embed(encoder, x, batch_size=3)
    assert encoder.training and all(torch.equal(v, before[k]) for k, v in encoder.state_dict().items())
    with torch.no_grad():
        assert torch.allclose(features, encoder.eval()(augment.plain(x)), atol=1e-5)


def test_readouts_of_raw_pixels():
    digits = data.load("digits")
    scores = evaluation.readouts(encoders.build("pixels", 1, 8), digits)
    assert scores["knn_k"] == 28 and 0.93 < scores["knn"] < 0.97 and 0.95 < scores["linear"] < 0.985
    assert evaluation.readouts(encoders.build("pixels", 1, 8), digits, k=1)["knn"] > scores["knn"]


# --- the readout as released


def coloured(n_train=60, n_test=30, size=4, noise=8, seed=0):
    """Three classes of grey images: dark, middle and bright, with noise."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(n_train + n_test) % 3
    x = 60 + 70 * y.view(-1, 1, 1, 1) + torch.randint(-noise, noise + 1, (len(y), size, size, 1), generator=draw)
    x = x.to(torch.uint8)
    names = "dark", "middle", "bright"
    return data.Dataset("coloured", x[:n_train], y[:n_train], x[n_train:], y[n_train:], names, "0")


class Normalised(nn.Module):
    """Batch-norm, then the mean brightness as five shifted features; `seen` tells how it was called."""

    def __init__(self, momentum=0.1, stale=0.0):
        super().__init__()
        self.norm = nn.BatchNorm2d(1, momentum=momentum)
        self.norm.running_mean.fill_(stale)
        self.seen = []

    def forward(self, x):
        self.seen.append((self.training, torch.is_grad_enabled(), len(x)))
        return torch.relu(self.norm(x).mean((2, 3)) - torch.linspace(-2, 2, 5))

    def __deepcopy__(self, memo):
        other = Normalised(self.norm.momentum)
        other.load_state_dict(self.state_dict())
        other.seen = self.seen  # shared, so that the test sees what the copy did
        return other


nothing = augment.Recipe()
fast = dict(recipe=nothing, epochs=60, batch_size=16, lr=0.05)


def test_paper_readout_reaches_the_clean_accuracy_on_separable_features():
    dataset, pixels = coloured(), encoders.build("pixels", 1, 4)
    assert evaluation.readouts(pixels, dataset, k=5)["linear"] == 1
    assert evaluation.paper_readout(pixels, dataset, **fast) == 1
    shuffled = replace(dataset, y_train=dataset.y_train.roll(1))  # control: labels of the neighbours
    assert evaluation.paper_readout(pixels, shuffled, **fast) == 0


def test_paper_readout_learns_in_train_mode_and_tests_in_eval_mode():
    dataset, encoder = coloured(), Normalised().eval()
    evaluation.paper_readout(encoder, dataset, **fast | dict(epochs=2))
    first, *learning, test = encoder.seen
    assert first == (False, False, 1) and test == (False, False, 30)
    assert learning == [(True, False, n) for n in (16, 16, 16, 12)] * 2  # the partial batch is kept


def test_paper_readout_tests_with_the_statistics_that_learning_moved():
    """Stale running means: the clean readout does not care, this one needs them to drift, which momentum 0 forbids."""
    dataset, drifting, fixed = coloured(), Normalised(stale=30.0), Normalised(momentum=0.0, stale=30.0)
    clean = [evaluation.readouts(encoder, dataset, k=5)["linear"] for encoder in (drifting, fixed)]
    paper = [evaluation.paper_readout(encoder, dataset, **fast) for encoder in (drifting, fixed)]
    assert paper[0] == 1 and paper[1] == pytest.approx(1 / 3)
    assert clean != paper


def released(encoder, dataset, recipe, epochs, batch_size, lr, weight_decay, seed):
    """The released script's net and loop, with gradients switched off per parameter; draws as ours."""
    net = nn.Sequential(copy.deepcopy(encoder), nn.Flatten())
    torch.manual_seed(seed)
    net.append(nn.Linear(128, dataset.num_classes))
    for p in net[0].parameters():
        p.requires_grad = False
    adam = torch.optim.Adam(net[2].parameters(), lr=lr, weight_decay=weight_decay)
    draw = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        net.train()
        order = torch.randperm(len(dataset.x_train), generator=draw)
        for start in range(0, len(order), batch_size):
            batch = order[start: start + batch_size]
            loss = functional.cross_entropy(net(augment.view(dataset.x_train[batch], draw, recipe)),
                                            dataset.y_train[batch])
            adam.zero_grad()
            loss.backward()
            adam.step()
        net.eval()
    with torch.no_grad():
        return float((net(augment.plain(dataset.x_test)).argmax(1) == dataset.y_test).double().mean())


def test_paper_readout_equals_the_released_loop_and_leaves_no_trace():
    dataset = data.subset(data.load("digits"), 300, seed=0)
    torch.manual_seed(0)
    encoder = encoders.build("small-cnn", 1, 8).train()
    before = {k: v.clone() for k, v in encoder.state_dict().items()}
    options = dict(recipe="digits", epochs=6, batch_size=64, lr=1e-2, weight_decay=1e-6, seed=3)
    torch.manual_seed(1)
    expected_next = torch.rand(1)
    torch.manual_seed(1)
    with torch.no_grad():
        accuracy = evaluation.paper_readout(encoder, dataset, **options)
    assert torch.equal(torch.rand(1), expected_next)
    assert encoder.training and all(torch.equal(v, before[k]) for k, v in encoder.state_dict().items())
    assert all(p.requires_grad and p.grad is None for p in encoder.parameters())
    assert 0.4 < accuracy == evaluation.paper_readout(encoder, dataset, **options)
    assert accuracy == pytest.approx(released(encoder, dataset, **options), abs=2 / len(dataset.x_test))
    # control: the encoder in eval mode throughout, as in the clean protocol
    still = evaluation.paper_readout(Still(encoder), dataset, **options)
    assert abs(accuracy - still) > 4 / len(dataset.x_test)


class Still(nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, x):
        return self.encoder.eval()(x)


@pytest.mark.parametrize("change, message", [
    (dict(epochs=0), "epochs=0"), (dict(batch_size=0), "batch_size=0"), (dict(lr=0.0), "lr=0"),
    (dict(lr=math.nan), "lr=nan"), (dict(weight_decay=-1.0), "weight_decay=-1"), (dict(recipe="mixup"), "mixup"),
])
def test_paper_readout_refuses(change, message):
    with pytest.raises(ValueError, match=message):
        evaluation.paper_readout(encoders.build("pixels", 1, 4), coloured(), **change)


def test_readouts_say_which_images_were_right():
    dataset, pixels = coloured(), encoders.build("pixels", 1, 4)
    correct = {}
    scores = evaluation.readouts(pixels, data.hold_out(dataset, 12), k=5, correct=correct)
    assert correct.keys() == scores.keys() - {"knn_k"} == {"knn", "linear", "knn_validation", "linear_validation"}
    for name, bits in correct.items():
        assert len(bits) == (12 if "validation" in name else len(dataset.x_test))
        assert float(bits.double().mean()) == pytest.approx(scores[name])
        assert (records.unpack(records.pack(bits), len(bits)) == bits.numpy()).all()
    with pytest.raises(ValueError, match="reduction='sum'"):
        evaluation.weighted_knn(*(torch.eye(3), torch.arange(3)) * 2, k=1, reduction="sum")


def test_readouts_by_protocol():
    dataset, pixels = coloured(), encoders.build("pixels", 1, 4)
    clean = evaluation.readouts(pixels, dataset, k=5)
    paper = evaluation.readouts(pixels, dataset, protocols=("paper",), readout_epochs=2)
    both = evaluation.readouts(pixels, dataset, k=5, protocols=("paper", "clean"), readout_epochs=2)
    assert clean.keys() == {"knn", "knn_k", "linear"} and both == clean | paper
    assert paper == {"linear_paper": evaluation.paper_readout(pixels, dataset, "digits", epochs=2)}
    still = evaluation.readouts(pixels, dataset, protocols="paper", recipe=nothing, readout_epochs=2)
    assert still == {"linear_paper": evaluation.paper_readout(pixels, dataset, nothing, epochs=2)}
    with pytest.raises(ValueError, match=r"'dirty'.*clean, paper"):
        evaluation.readouts(pixels, dataset, protocols=("clean", "dirty"))
    with pytest.raises(ValueError, match="no readout protocol"):
        evaluation.readouts(pixels, dataset, protocols=())


def test_neighbours():
    assert [evaluation.neighbours(n) for n in (10, 1437, 10_000, 50_000)] == [1, 28, 200, 200]


# --- geometry


@quick
@given(seeds)
def test_alignment_and_uniformity_against_their_definitions(seed):
    z1, z2, _ = two_views(5, seed=seed)
    u, v = functional.normalize(z1), functional.normalize(z2)
    assert evaluation.alignment(3 * z1, z2) == pytest.approx(float(sum((a - b) @ (a - b) for a, b in zip(u, v)) / 5))
    pairs = [math.exp(-2 * float((u[i] - u[j]) @ (u[i] - u[j]))) for i in range(5) for j in range(5) if i != j]
    assert evaluation.uniformity(z1) == pytest.approx(math.log(sum(pairs) / len(pairs)))
    with pytest.raises(ValueError, match="2 embeddings"):
        evaluation.uniformity(z1[:1])


# --- weights and losses


def test_collision_mass_of_uniform_weights_is_the_share_of_the_class():
    z1, z2, y = two_views(6, classes=2)
    contrast = Contrast.from_views(z1, z2)
    mass = evaluation.collision_mass(contrast, negatives.uniform()(contrast), y)
    assert mass == pytest.approx(4 / 10)  # of 12 rows less anchor and own view, 2 images of the class, twice
    supervised = Contrast.from_views(z1, z2, y)
    assert evaluation.collision_mass(supervised, negatives.uniform()(supervised)) == 0
    skipped = negatives.uniform()(contrast).clone()
    skipped[0] = -torch.inf
    assert evaluation.collision_mass(contrast, skipped, y) == pytest.approx(4 / 10)


def losses_one_anchor_at_a_time(z1, z2, y, eta, gamma):
    """The definitions in plain sums of probabilities, without logarithms or masks. Also both sides of Assumption 1."""
    z = torch.cat([functional.normalize(z1), functional.normalize(z2)]).numpy()
    y, batch = y.repeat(2).tolist(), len(z1)
    rows, sides = [], []
    for i in range(2 * batch):
        g = z @ z[i] / gamma
        pool = [j for j in range(2 * batch) if j % batch != i % batch]
        positives = [j for j in range(2 * batch) if j != i and y[j] == y[i]]

        def mean(select, weight, g=g, pool=pool):
            chosen = [(weight(g[j]), math.exp(g[j])) for j in pool if select(j)]
            total = sum(w for w, _ in chosen)
            return sum(w * e for w, e in chosen) / total if total > 0 else math.nan

        other, same = (lambda j, i=i: y[j] != y[i]), (lambda j, i=i: y[j] == y[i])
        expectations = [mean(lambda j: True, lambda g: 1), mean(lambda j: True, eta),
                        mean(other, lambda g: 1), mean(other, eta)]
        rows.append([sum(math.log(1 + (2 * batch - 2) * math.exp(-g[p]) * e) for p in positives) / len(positives)
                     for e in expectations])
        sides.append((mean(same, eta), mean(other, eta)))
    return np.array(rows).T, np.array(sides)


@quick
@given(seeds, st.floats(0, 3), st.floats(0.1, 2), st.sampled_from(["exp", "threshold"]), st.floats(0.5, 1.5))
def test_four_losses_and_assumption_against_one_anchor_at_a_time(seed, beta, gamma, hardening, tau):
    z1, z2, y = two_views(6, classes=3, seed=seed)
    contrast = Contrast.from_views(z1, z2)
    options = dict(beta=beta, temperature=gamma, hardening=hardening, tau=tau, reduction="none")
    ours = evaluation.four_losses(contrast, y, **options)
    holds = evaluation.assumption_fraction(contrast, y, **options).numpy()
    eta = (lambda g: math.exp(beta * g)) if hardening == "exp" else (lambda g: float(g >= math.log(tau)))
    expected, sides = losses_one_anchor_at_a_time(z1, z2, y, eta, gamma)
    assert list(ours) == ["UCL", "H-UCL", "SCL", "H-SCL"]
    for row, loss in zip(expected, ours.values()):
        assert np.allclose(loss.numpy(), row, rtol=1e-9, equal_nan=True)
    clear = np.abs(sides[:, 0] - sides[:, 1]) > 1e-9
    assert np.array_equal(np.isnan(holds), np.isnan(sides).any(1))
    assert np.array_equal(holds[clear], (sides[clear, 0] > sides[clear, 1]).astype(float))


@quick
@given(seeds, st.floats(0, 3), st.floats(0.1, 2))
def test_the_order_holds_at_exactly_the_anchors_that_satisfy_the_assumption(seed, beta, gamma):
    z1, z2, y = two_views(8, classes=2, seed=seed, agreement=0.3)
    contrast = Contrast.from_views(z1, z2)
    losses = evaluation.four_losses(contrast, y, beta, gamma, reduction="none")
    holds = evaluation.assumption_fraction(contrast, y, beta, gamma, reduction="none").bool()
    gap = losses["H-UCL"] - losses["H-SCL"]
    clear = gap.abs() > 1e-9
    assert torch.equal(gap[clear] > 0, holds[clear])
    ucl = losses["UCL"] - losses["H-UCL"]
    assert (ucl <= 1e-12).all()  # hardening only raises the loss


def test_ucl_does_not_follow_the_assumption():
    """Negative control of the test above: with UCL in H-UCL's place the equivalence is false."""
    different = 0
    for seed in range(20):
        z1, z2, y = two_views(8, classes=2, seed=seed, agreement=0.3)
        contrast = Contrast.from_views(z1, z2)
        losses = evaluation.four_losses(contrast, y, reduction="none")
        holds = evaluation.assumption_fraction(contrast, y, reduction="none").bool()
        different += int(((losses["UCL"] >= losses["H-SCL"]) != holds).sum())
    assert different > 20


def test_the_four_losses_at_neural_collapse():
    """Ten classes on a simplex, one point each standing for its whole class, M=1, γ=.5, β=1: .180, .445, .103, .103."""
    classes = 10
    s = torch.full((classes, classes), -1 / (classes - 1), dtype=torch.float64).fill_diagonal_(1)
    eye, everyone = torch.eye(classes, dtype=torch.bool), torch.ones(classes, classes, dtype=torch.bool)
    labels = torch.arange(classes)
    contrast = Contrast.from_similarity(s, eye, everyone, labels=labels, candidate_labels=labels)
    losses = evaluation.four_losses(contrast)
    assert [round(float(v), 3) for v in losses.values()] == [0.180, 0.445, 0.103, 0.103]
    assert evaluation.assumption_fraction(contrast) == 1.0
    threshold = evaluation.four_losses(contrast, hardening="threshold", tau=1.0, reduction="none")
    assert threshold["H-SCL"].isnan().all() and threshold["H-UCL"].isfinite().all()  # no other class is left
    assert math.isnan(evaluation.assumption_fraction(contrast, hardening="threshold", tau=1.0))


def test_any_hardening_function_and_its_faults():
    z1, z2, y = two_views()
    contrast = Contrast.from_views(z1, z2)
    by_name = evaluation.four_losses(contrast, y, beta=2.0)
    by_function = evaluation.four_losses(contrast, y, hardening=lambda g: 2 * g)
    assert all(torch.allclose(by_name[k], by_function[k]) for k in by_name)
    with pytest.raises(ValueError, match=r"'cubic'.*exp"):
        evaluation.four_losses(contrast, y, hardening="cubic")
    with pytest.raises(ValueError, match="temperature"):
        evaluation.assumption_fraction(contrast, y, temperature=0)
    with pytest.raises(ValueError, match="tau=0 must be positive"):
        evaluation.assumption_fraction(contrast, y, hardening="threshold", tau=0)
    with pytest.raises(ValueError, match="labels"):
        evaluation.four_losses(contrast)
    with pytest.raises(ValueError, match="repeated classes"):
        evaluation.four_losses(contrast, torch.arange(6))
    with pytest.raises(ValueError, match="from_views"):
        evaluation.assumption_fraction(Contrast.from_views(z1, z2, y))


def test_diagnostics():
    z1, z2, y = two_views(32, d=8, classes=4)
    z1, z2 = z1 + 2 * functional.one_hot(y, 8), z2 + 2 * functional.one_hot(y, 8)
    row = evaluation.diagnostics(z1, z2, y, negatives.tilted(beta=1.0))
    uniform = evaluation.diagnostics(z1, z2, y, negatives.uniform())
    assert row["collision"] > uniform["collision"] == pytest.approx(14 / 62)
    assert evaluation.diagnostics(z1, z2, y, negatives.uniform(), supervised=True)["collision"] == 0
    assert evaluation.diagnostics(z1, z2, y)["collision"] is None
    for hardening in evaluation.HARDENINGS:
        part = row[hardening]
        assert 0 <= part["assumption"] <= 1 and part["H-UCL"] >= part["UCL"]
    defined = 64 - row["exp"]["undefined"]
    assert row["exp"]["violations"] == round(defined * (1 - row["exp"]["assumption"]))


def test_diagnostics_of_weights_that_need_features():
    z1, z2, y = two_views(8, d=4, classes=2)
    h = torch.cat([z1, z2]).square()
    features = h[:8], h[8:]
    row = evaluation.diagnostics(z1, z2, y, negatives.unremix(), features=features)
    contrast = Contrast.from_views(z1.float(), z2.float(), features=features)
    expected = evaluation.collision_mass(contrast, negatives.unremix()(contrast), y)
    assert row["collision"] == expected and 0 < expected < 1
    assert row | {"collision": None} == evaluation.diagnostics(z1, z2, y)  # the rest does not ask for them
    with pytest.raises(ValueError, match="unremix needs the inputs of the last layer"):
        evaluation.diagnostics(z1, z2, y, negatives.unremix())


def test_diagnostics_leave_no_trace_that_breaks_a_later_training_step():
    z1, z2, y = (v.float() if v.is_floating_point() else v for v in two_views(7))
    evaluation.diagnostics(z1, z2, y)
    w = nn.Parameter(z1)
    contrast = Contrast.from_views(w, z2)
    (negatives.uniform()(contrast).exp() * contrast.similarity).sum().backward()
    assert w.grad.isfinite().all()


# --- folds, the support vector machine, comparisons


@quick
@given(st.lists(st.integers(5, 30), min_size=2, max_size=4), st.integers(2, 5), seeds)
def test_folds_partition_the_rows_and_spread_every_class(sizes, folds, seed):
    y = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    y = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))]
    parts = evaluation.stratified_folds(y, folds, seed)
    assert len(parts) == folds and all(part.dtype == torch.long for pair in parts for part in pair)
    assert torch.cat([test for _, test in parts]).sort().values.equal(torch.arange(len(y)))
    for train, test in parts:
        assert torch.cat([train, test]).sort().values.equal(torch.arange(len(y)))
        assert all(n // folds <= int((y[test] == c).sum()) <= -(-n // folds) for c, n in enumerate(sizes))


def test_folds_depend_on_the_seed_alone():
    y = torch.arange(60) % 3
    one, again, other = (torch.cat([t for _, t in evaluation.stratified_folds(y, 5, seed)]) for seed in (1, 1, 2))
    assert one.equal(again) and not one.equal(other)
    assert one.equal(torch.cat([t for _, t in evaluation.stratified_folds(y.numpy(), 5, 1)]))  # an array will do


@pytest.mark.parametrize("labels, folds, message", [
    ([0] * 9 + [4] * 3, 5, "class 4 has 3 members, fewer than the 5 folds; take at most 3 folds or leave the"),
    ([0] * 9 + [4], 5, "class 4 has 1 member, fewer than the 5 folds; leave the class out"),
    ([0, 1] * 9, 1, "folds=1 must be a whole number, at least 2"),
    ([0, 1] * 9, 2.5, "folds=2.5 must be a whole number, at least 2"),
    ([3] * 9, 5, "all 9 labels are 3; stratified folds need at least 2 classes"),
    ([[0, 1]] * 9, 5, r"labels of shape \(9, 2\) and type torch.int64 must be a non-empty vector of integers"),
    ([0.0, 1.0] * 9, 5, r"labels of shape \(18,\) and type torch.float32 must be"),
    ([], 5, r"labels of shape \(0,\)"),
    ([0, 1, -1] * 9, 5, r"9 of 27 labels are unknown \(negative\); leave these out of the evaluation"),
])
def test_folds_refuse(labels, folds, message):
    with pytest.raises(ValueError, match=message):
        evaluation.stratified_folds(torch.tensor(labels), folds)


def heavy_tailed(n, classes, seed, d=8):
    """Sums over graphs of very different sizes: float32, positive, some entries far above the rest."""
    x, y = blobs(n, d, classes, seed, spread=1.5)
    size = torch.randn(n, 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return ((0.6 * x + size).exp() * 10).float(), y


@pytest.mark.parametrize("n, classes, seed", [(90, 2, 0), (120, 3, 1), (150, 3, 2), (100, 2, 3), (120, 6, 4)])
def test_svm_is_scikit_learns_grid_search(n, classes, seed):
    x, y = heavy_tailed(n, classes, seed)
    for train, test in evaluation.stratified_folds(y, 5, seed)[:2]:
        search = GridSearchCV(SVC(), {"C": [1e-3, 1e-2, 0.1, 1, 10, 100, 1000]},
                              cv=StratifiedKFold(5, shuffle=True, random_state=seed)).fit(x[train], y[train])
        score = evaluation.svm(x, y, train, test, seed)
        assert score == evaluation.svm(x.numpy(), y.numpy(), train.numpy(), test.numpy(), seed)
        mean = search.cv_results_["mean_test_score"].round(12)  # scikit-learn breaks ties by the last digit
        assert search.param_grid["C"][mean.argmax()] == score.C
        assert score.inner == pytest.approx(search.best_score_, abs=1e-12)
        expected = SVC(C=score.C).fit(x[train], y[train]).score(x[test], y[test])
        assert score.test == expected
        # a machine on standardised features is another machine: the comparison can fail
        z = (x - x[train].mean(0)) / x[train].std(0)
        other = evaluation.svm(z, y, train, test, seed)
        assert (other.inner, other.C) != (score.inner, score.C)


def test_svm_takes_the_smallest_of_equal_penalties_and_never_sees_the_test_labels():
    x, y = blobs(75, spread=1e-3)
    (train, test), *_ = evaluation.stratified_folds(y, 5)
    score = evaluation.svm(x, y, train, test)
    assert score == evaluation.SvmScore(1.0, 1.0, min(evaluation.SVM_PENALTIES))
    wrong = y.clone()
    wrong[test] = (y[test] + 1) % 3
    assert evaluation.svm(x, wrong, train, test) == replace(score, test=0.0)


def test_svm_of_constant_features_answers_one_class():
    y = torch.arange(40) // 16  # 16, 16, 8
    (train, test), *_ = evaluation.stratified_folds(y, 4)
    score = evaluation.svm(torch.ones(40, 3), y, train, test, inner=2)
    assert score.test == 0.4 and score.inner == pytest.approx(0.4) and score.C == 1e-3


@pytest.mark.parametrize("change, message", [
    (dict(x=torch.ones(30)), "training features of shape .* do not fit"),
    (dict(train=torch.arange(21)), "1 of the 10 test rows are training rows; the parts must not overlap"),
    (dict(train=torch.ones(30, dtype=torch.bool)), r"train \(torch.bool, shape \(30,\)\).*vectors of row numbers"),
    (dict(test=torch.arange(0)), "test features of shape .* do not fit"),
    (dict(x=torch.ones(30, 2).index_fill(0, torch.tensor([3, 25]), torch.nan)),
     "2 of the 30 embeddings are not finite; the encoder has diverged: train it with a smaller learning rate"),
    (dict(y=-torch.ones(30, dtype=torch.long)), "20 of 20 labels are unknown"),
    (dict(y=(torch.arange(30) > 16).long()), "inner folds of the training part: class 1 has 3 members, .*5 folds"),
    (dict(inner=1), "inner folds of the training part: folds=1"),
])
def test_svm_refuses(change, message):
    sets = dict(x=torch.randn(30, 2), y=torch.arange(30) % 2, train=torch.arange(20), test=torch.arange(20, 30))
    with pytest.raises(ValueError, match=message):
        evaluation.svm(**(sets | change))


tables = st.tuples(st.integers(1, 4), st.integers(2, 10), seeds)


def two_tables(seeds_, folds, seed):
    rng = np.random.default_rng(seed)
    return rng.normal(70, 3, (2, seeds_, folds)) + np.array([1, 0])[:, None, None]


@quick
@given(tables, st.floats(0.02, 0.9))
def test_paired_is_the_t_test_with_a_wider_error(shape, share):
    ours, base = two_tables(*shape)
    found, count = evaluation.paired(ours, base, share), ours.size
    plain = stats.ttest_rel(ours.ravel(), base.ravel())
    widening = math.sqrt(1 + count * share / (1 - share))  # of the standard error
    assert found.difference == pytest.approx(plain.statistic * found.error / widening)
    assert found.p == pytest.approx(2 * stats.t.sf(abs(plain.statistic) / widening, count - 1))
    low, high = plain.confidence_interval(0.95)
    assert found.high - found.low == pytest.approx(widening * (high - low))
    assert (found.low + found.high) / 2 == pytest.approx(found.difference)
    assert (found.p < 0.05) == (not found.low <= 0 <= found.high)
    assert found.p > plain.pvalue  # the plain test would be refused here


@quick
@given(tables)
def test_paired_does_not_depend_on_unit_order_or_a_common_shift(shape):
    ours, base = two_tables(*shape)
    found = evaluation.paired(ours, base)
    assert found == evaluation.paired(torch.tensor(ours), base.tolist(), 1 / shape[1])  # default: all folds are there
    shares, swapped = evaluation.paired(ours / 100 + 0.1, base / 100 + 0.1), evaluation.paired(base, ours)
    assert (shares.p, swapped.p) == pytest.approx((found.p, found.p), rel=1e-6)
    assert 100 * shares.error == pytest.approx(found.error) and 100 * shares.low == pytest.approx(found.low)
    assert (swapped.low, swapped.high) == pytest.approx((-found.high, -found.low))


def test_paired_knows_a_clear_difference_and_repetitions_alone_do_not_make_one():
    ours, base = two_tables(5, 10, 0)
    assert evaluation.paired(ours + 5, base).p < 1e-3
    one_sample = np.tile([[1.0, 0, 1, -1, 1, 0, 0, 1, -1, 1]], (100, 1))
    for repeats in (5, 100):  # the same ten differences again and again
        assert 0.2 < evaluation.paired(one_sample[:repeats], 0 * one_sample[:repeats]).p < 0.5
    assert stats.ttest_1samp(one_sample.ravel(), 0).pvalue < 1e-10  # the plain test believes them


def test_paired_of_equal_differences():
    base = two_tables(2, 5, 1)[0]
    assert evaluation.paired(base, base) == evaluation.Paired(0.0, 0.0, 0.0, 0.0, 1.0)
    found = evaluation.paired(base + 0.3, base)  # equal but for rounding
    assert (found.error, found.p) == (0, 0) and found.low == found.high == pytest.approx(0.3)
    assert evaluation.paired([[0.1 + 0.2, 0.3]], [[0.3, 0.3]]).p == 1.0


@pytest.mark.parametrize("ours, base, share, message", [
    (np.zeros((2, 3)), np.zeros((3, 2)), None, r"ours of shape \(2, 3\) and base of shape \(3, 2\) cannot be paired"),
    (np.zeros(4), np.zeros(4), None, r"both are \[seeds, folds\]"),
    ([[1.0]], [[0.0]], 0.1, "at least 2 values of each method; got 1"),
    ([[1.0, np.nan]], [[0.0, np.inf]], None, "1 of the 2 pairs are not finite numbers; leave out the seeds"),
    ([[1.0, 2.0]], [[0.0, 0.0]], 0.0, "test_share=0 must lie between 0 and 1: it is the share of the data in a test"),
    ([[1.0, 2.0]], [[0.0, 0.0]], 10, "test_share=10 must lie between 0 and 1"),
    ([[1.0], [2.0]], [[0.0], [0.0]], None, "test_share=1 .*; with a single fold it has to be given"),
])
def test_paired_refuses(ours, base, share, message):
    with pytest.raises(ValueError, match=message):
        evaluation.paired(ours, base, share)


p_values = st.lists(st.floats(0, 1), min_size=1, max_size=5)


def closed_testing(p):
    """Adjusted p by definition: the largest Bonferroni p among all intersections of hypotheses that contain one."""
    m = len(p)
    subsets = [s for size in range(1, m + 1) for s in itertools.combinations(range(m), size)]
    local = {s: min(1.0, len(s) * min(p[i] for i in s)) for s in subsets}
    return [max(value for s, value in local.items() if i in s) for i in range(m)]


@settings(deadline=None, max_examples=200)
@given(p_values)
def test_holm_is_closed_testing_with_bonferroni(p):
    assert evaluation.holm(p) == pytest.approx(closed_testing(p))


@quick
@given(p_values)
def test_holm_lies_between_p_and_bonferroni(p):
    adjusted, m = evaluation.holm(p), len(p)
    assert (adjusted >= p).all() and (adjusted <= np.minimum(1, m * np.array(p))).all()
    assert (np.diff(adjusted[np.argsort(p)]) >= 0).all()
    assert adjusted.min() == min(1, m * min(p))
    assert adjusted[::-1] == pytest.approx(evaluation.holm(p[::-1]))  # whatever their order


def test_holm_by_hand():
    assert evaluation.holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])  # Bonferroni: .12, .03, .09
    assert closed_testing([0.04, 0.01, 0.03]) != pytest.approx([0.12, 0.03, 0.09])
    assert len(evaluation.holm([])) == 0


@pytest.mark.parametrize("p, message", [
    ([0.1, 1.2], "p-value 1.2 must lie between 0 and 1"), ([np.nan], "p-value nan must"), ([-1e-9], "p-value -1e-09"),
    ([[0.1]], r"p-values of shape \(1, 1\) must be a vector"), (0.1, r"shape \(\)"),
])
def test_holm_refuses(p, message):
    with pytest.raises(ValueError, match=message):
        evaluation.holm(p)
