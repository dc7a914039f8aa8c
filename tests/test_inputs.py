"""Whatever is passed to a loss is input: what comes back is a finite answer, or one sentence of our
own that says what is wrong; never a traceback from within, never an answer that is no number."""

import inspect
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hnlib
from hnlib import methods, negatives, objectives, robust, streaming, transport
from hnlib.contrast import Contrast

OURS = Path(hnlib.__file__).parent


def answer(call):
    """What the call returns; None where it is refused in a sentence that hnlib raises itself."""
    try:
        value = call()
    except ValueError as error:
        frame = error.__traceback__
        while frame.tb_next is not None:
            frame = frame.tb_next
        assert OURS in Path(frame.tb_frame.f_code.co_filename).parents, error
        assert len(str(error)) > 15 and "\n" not in str(error), error
        return None
    assert value.is_floating_point() and value.isfinite().all()
    return value


def view(seed=0, n=4, d=3, dtype=torch.float32):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed)).to(dtype)


def with_row(value):
    z = view()
    z[1] = value
    return z


Z1, Z2, Y = view(0), view(1), torch.tensor([0, 1, 2, 1])
EYE = torch.eye(4, dtype=torch.bool)
NUMBERS = [0, 1, -1, 2, 0.5, -0.5, 1e-3, 1e3, 1e-30, 1e30, 5e-324, 2**70, -(2**70), 10**400]
NUMBERS += [math.nan, math.inf, -math.inf]
WORDS = ["0.5", "class", "skip", "none", "pairs", "warn", "log", "fixed", "maximise", ""]
STRANGE = [True, None, 1j, [0.5], (0.5,), {}, b"", object(), len]
SHARES = [(1, 2, math.nan), (1, 2, "a"), [1, 1, 1], (0, 0, 0), torch.tensor([-1.0, 1, 1])]
TENSORS = [
    torch.tensor(0.5),
    torch.tensor(math.nan),
    torch.tensor(True),
    torch.tensor(0.5j),
    torch.full((8,), 0.5),
    torch.full((8,), 0.5j),
    torch.full((8, 1), 0.5),
    torch.tensor([0.5] * 7 + [math.inf]),
    torch.zeros(0),
    torch.ones(3),
]
VIEWS = [
    *(view(seed) for seed in range(4)),
    *(view(1, dtype=kind) for kind in (torch.float64, torch.bfloat16, torch.float16)),
    *(view(1, dtype=kind) for kind in (torch.complex64, torch.long, torch.bool)),
    *(view(1) * factor for factor in (1e30, 1e-30)),
    *(with_row(value) for value in (0.0, math.nan, math.inf)),
    *(view(0, *shape) for shape in ((3,), (1,), (0,), (4, 0))),
    torch.ones(4, 3),
    torch.eye(4),
    view()[0],
    view()[None],
    view().numpy(),
    view().tolist(),
]
LABELS = [
    Y,
    Y.int(),
    Y.tolist(),
    torch.tensor([0, 255, 2, 1], dtype=torch.uint8),
    torch.tensor([0, -1, 2**62, -(2**62)]),
    torch.tensor([True, False, True, True]),
    torch.zeros(4, dtype=torch.long),
    Y.float(),
    torch.tensor([0.0, math.nan, 1, 2]),
    torch.tensor([0, 1j, 1, 2]),
    Y[:3],
    Y[None],
    Y[0],
    ["cat", "dog", "cat", "cow"],
    [0, None, 1, 2],
    "0121",
]
anything = st.sampled_from(NUMBERS + WORDS + STRANGE + SHARES + TENSORS + VIEWS + LABELS)
options = st.sampled_from(NUMBERS + WORDS + STRANGE + SHARES + TENSORS)
embeddings = st.one_of(st.sampled_from(VIEWS), anything)
labels = st.one_of(st.sampled_from(LABELS), anything)
hidden = st.one_of(st.just((Z1, Z2)), embeddings, st.tuples(embeddings, embeddings))


@pytest.mark.parametrize("name", methods.CATALOGUE)
@settings(max_examples=20)
@given(data=st.data())
def test_a_method_answers_or_refuses(name, data):
    """A sound batch with one option changed, or sound options with a batch of anything."""
    entry = methods.CATALOGUE[name]
    features = (Z1, Z2) if entry.features else None
    if data.draw(st.booleans()):
        chosen = {data.draw(st.sampled_from(sorted(entry.options))): data.draw(options)}
        answer(lambda: methods.build(name, **chosen)(Z1, Z2, Y, features))
    else:
        sound = {"on_failure": "raise"} if "on_failure" in entry.defaults else {}
        batch = [data.draw(kind) for kind in (embeddings, embeddings, labels, hidden)]
        answer(lambda: methods.build(name, **sound)(*batch))


def contrast(labelled=False):
    return Contrast.from_views(Z1, Z2, Y if labelled else None, features=(Z1, Z2))


def weigh(make):
    return lambda **chosen: make(**chosen)(contrast()).exp().sum(1)


def score(objective):
    def call(**chosen):
        log_w = negatives.tilted(1.0, 0.5)(contrast())
        return objective(contrast(), **{"log_w": log_w} | chosen).float()

    return call


def space(build, **sound):
    return lambda **chosen: build(**sound | chosen).similarity


def value(solve, **sound):
    def call(**chosen):
        found = solve(**sound | chosen)
        return getattr(found, "value", found)

    return call


def couple(**chosen):
    return transport.sinkhorn(**dict(cost=Z1 @ Z2.T, tol=1e-4) | chosen).plan


WEIGHTINGS = [
    *(negatives.uniform, negatives.tilted, negatives.thresholded, negatives.semi_relaxed_ot),
    *(negatives.entropic_ot, negatives.centred_tilt, negatives.gaussian, negatives.unremix),
    *(negatives.unremix_repaired, negatives.chi2_ball),
]
OBJECTIVES = [
    *(objectives.info_nce, objectives.exact_debiased, objectives.guarded, objectives.kl_budget),
    *(objectives.budget_temperature, objectives.basic, objectives.mean_variance),
    objectives.jensen_shannon,
]
BALLS = [robust.kl_ball, robust.shared_kl_ball, robust.kl_penalised, robust.kl_temperature]
TARGETS = {
    **{f.__name__: (weigh(f), f) for f in WEIGHTINGS},
    **{f.__name__: (score(f), f) for f in OBJECTIVES},
    **{f.__name__: (value(f, values=Z1), f) for f in [*BALLS, robust.chi2_ball]},
    "sinkhorn": (couple, transport.sinkhorn),
    "streamed": (value(streaming.info_nce, z1=Z1, z2=Z2), streaming.info_nce),
    "from_views": (space(Contrast.from_views, z1=Z1, z2=Z2, labels=Y), Contrast.from_views),
    "from_queue": (
        space(Contrast.from_queue, queries=Z1, keys=Z2, queue=Z1, labels=Y, queue_labels=Y),
        Contrast.from_queue,
    ),
    "from_pairs": (
        space(Contrast.from_pairs, queries=Z1, keys=Z2, positives=EYE, labels=Y),
        Contrast.from_pairs,
    ),
    "without": (
        space(Contrast.without, self=Contrast.from_pairs(Z1, Z2), candidates=EYE),
        Contrast.without,
    ),
    "from_nodes": (
        space(Contrast.from_nodes, nodes=Z1, graphs=Z2, batch=Y, labels=Y),
        Contrast.from_nodes,
    ),
    "from_similarity": (
        space(Contrast.from_similarity, similarity=Z1 @ Z2.T, positives=EYE, admissible=~EYE),
        Contrast.from_similarity,
    ),
}
TRUSTED = ("contrast", "self", "log_reference")  # made by the constructors, or internal


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=30)
@given(data=st.data())
def test_every_argument_of_the_rest_is_answered_or_refused(name, data):
    call, signature = TARGETS[name]
    known = [p for p in inspect.signature(signature).parameters if p not in TRUSTED]
    chosen = {data.draw(st.sampled_from(known)): data.draw(anything)}
    answer(lambda: call(**chosen))


def tilt(**options):
    return negatives.tilted(**options)(contrast())


HOLES = {
    "z1 must be .* got torch.complex64": lambda: contrast_of(Z1 + 0j),
    "z1 must be .* got torch.int64": lambda: contrast_of(Y[:, None] + 1),
    "z1 must be .* got ndarray": lambda: contrast_of(Z1.numpy()),
    "features must be .*got torch.complex64": lambda: Contrast.from_views(
        Z1, Z2, features=(Z1 + 0j, Z1 + 0j)
    ),
    "labels are torch.float32; give whole numbers": lambda: contrast_of(Z1, Y.float()),
    "labels must be .* real numbers; got torch.complex64": lambda: contrast_of(Z1, Y + 0j),
    "labels='0121' must be": lambda: contrast_of(Z1, "0121"),
    "graph 2 has label -2; -1 is an unknown": lambda: from_nodes(Y, torch.tensor([0, 1, -2, 1])),
    "batch is torch.float32; it must say": lambda: from_nodes(Y.float()),
    "candidates have shape .*; give": lambda: Contrast.from_similarity(
        Z1 @ Z2.T, EYE, ~EYE, candidates=Z1[0]
    ),
    "temperature=True must be positive": lambda: tilt(temperature=True),
    "temperature=0.5j must be positive": lambda: tilt(temperature=0.5j),
    "temperature=.* must be positive .*; pass a number": lambda: tilt(
        temperature=torch.full((8,), 0.5j)
    ),
    "temperature=1e-30 must be": lambda: tilt(temperature=1e-30),
    "beta=1e.40 is too large": lambda: tilt(beta=1e40),
    "weights_gradient=1 must be True or False": lambda: tilt(weights_gradient=1),
    "tau has shape": lambda: negatives.thresholded(torch.ones(8)),
    "mixture has shape": lambda: negatives.unremix(mixture=0.5),
    "mixture=nan must be three finite": lambda: negatives.unremix(
        mixture=torch.tensor([1.0, math.nan, 1])
    ),
    "tol=-1 must be at least 0": lambda: negatives.entropic_ot(tol=-1),
    "tol=inf must be": lambda: negatives.entropic_ot(tol=math.inf),
    "tol=nan must be": lambda: negatives.entropic_ot(tol=math.nan),
    "max_iterations=1.5 must be a whole number": lambda: negatives.entropic_ot(max_iterations=1.5),
    "epsilon has shape": lambda: negatives.entropic_ot(torch.ones(8))(contrast()),
    "p must be a tensor of real": lambda: transport.sinkhorn(Z1 @ Z2.T, p=torch.ones(4) / 4 + 0j),
    "values must be a tensor of real": lambda: robust.kl_ball(Z1 + 0j),
    "reference must be a tensor of real": lambda: robust.kl_ball(Z1, torch.ones(3) / 3 + 0j),
    "order=True is unknown": lambda: robust.kl_temperature(Z1, order=True),
    "order=1.0 is unknown": lambda: robust.kl_temperature(Z1, order=1.0),
    "eta=True must be positive": lambda: robust.chi2_ball(Z1, eta=True),
    "eta=1e-30 must be positive": lambda: robust.chi2_ball(Z1, eta=1e-30),
    "log_w must be .*got torch.complex64": lambda: objectives.basic(contrast(), tilt() + 0j),
    "weigh nan: log_w must hold": lambda: objectives.basic(contrast(), tilt() * math.nan),
    "weigh inf: log_w must hold": lambda: objectives.basic(contrast(), tilt().abs()),
    "tau_plus has shape": lambda: objectives.jensen_shannon(
        contrast(), tilt(), tau_plus=torch.ones(8) / 9
    ),
    "block=1.5 must be a whole number": lambda: streaming.info_nce(Z1, Z2, block=1.5),
    "accumulator=1 must be a class": lambda: streaming.info_nce(Z1, Z2, accumulator=1),
    "queries and keys must be": lambda: streaming.info_nce(Z1, Z2, queue=torch.tensor(1.0)),
}


def contrast_of(z, y=None):
    return Contrast.from_views(z, z, y)


def from_nodes(batch, y=None):
    return Contrast.from_nodes(Z1, Z2, batch, y)


@pytest.mark.parametrize("message", HOLES)
def test_what_was_once_let_in_or_broke_is_refused(message):
    with pytest.raises(ValueError, match=message):
        HOLES[message]()


def test_a_queue_of_another_precision_is_promoted():
    """It used to break in the product."""
    exact = Contrast.from_queue(Z1.double(), Z2.double(), Z1.double()).similarity
    for i in range(3):
        z = [Z1, Z2, Z1]
        z[i] = z[i].double()
        found = Contrast.from_queue(*z).similarity
        assert found.dtype == torch.float64 and torch.allclose(found, exact)
        assert torch.allclose(
            Contrast.from_pairs(*z[:2]).similarity.double(), exact[:, :4], atol=1e-6
        )
        loss = streaming.info_nce(z[0], z[1], queue=z[2])
        dense = methods.build("simclr").loss(Contrast.from_queue(*z))
        assert loss.item() == pytest.approx(dense.item(), rel=1e-12)
