"""Who is whose positive, who may be a negative, and what a batch must not be."""

import copy
import dataclasses
import pickle

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hnlib import methods, negatives, objectives
from hnlib.contrast import Contrast

cases = settings(max_examples=20, deadline=None, derandomize=True)


def batch(seed, size=4, dimension=3, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(size, dimension, generator=g, dtype=dtype) for _ in range(2)]


@cases
@given(
    seed=st.integers(0, 999),
    size=st.integers(2, 6),
    labelled=st.booleans(),
    mode=st.sampled_from(["class", "view"]),
)
def test_two_views_match_the_reference(seed, size, labelled, mode):
    z1, z2 = batch(seed, size)
    y = (
        torch.randint(3, (size,), generator=torch.Generator().manual_seed(seed))
        if labelled
        else None
    )
    c = Contrast.from_views(z1, z2, y, positives=mode)
    Z, S, P, A = reference.views(z1, z2, None if y is None else y.tolist(), mode)
    assert np.abs(c.similarity.numpy() - S).max() < 1e-14
    assert np.abs(c.anchors.numpy() - Z).max() < 1e-14 and c.candidates is c.anchors
    assert (c.positives.numpy() == P).all()
    assert (c.admissible.numpy() == A).all()
    assert c.symmetric and c.scale == 2 * size - 2
    assert np.array_equal(c.positive_similarity, c.similarity.numpy()[P])
    assert np.abs(c.uniform_log_weights.exp().numpy() - reference.uniform(S, A)).max() < 1e-14
    assert ((c.uniform_log_weights == -torch.inf).numpy() == ~A).all()


def test_the_other_view_of_row_i_is_row_i_plus_or_minus_b():
    z1, z2 = batch(0, 5)
    positives = Contrast.from_views(z1, z2).positives
    assert positives.nonzero().tolist() == [[i, (i + 5) % 10] for i in range(10)]


@cases
@given(seed=st.integers(0, 999), factor=st.floats(1e-6, 1e6))
def test_the_length_of_an_embedding_does_not_matter(seed, factor):
    z1, z2 = batch(seed)
    a, b = Contrast.from_views(z1, z2).similarity, Contrast.from_views(factor * z1, z2).similarity
    assert (a - b).abs().max() < 1e-13


@cases
@given(seed=st.integers(0, 999))
def test_permuting_the_batch_permutes_everything(seed):
    z1, z2 = batch(seed, 5)
    y = torch.tensor([0, 1, 1, 2, 0])
    order = torch.randperm(5, generator=torch.Generator().manual_seed(seed))
    both = torch.cat([order, order + 5])
    a, b = Contrast.from_views(z1, z2, y), Contrast.from_views(z1[order], z2[order], y[order])
    for name in ("similarity", "positives", "admissible"):
        assert torch.allclose(
            getattr(a, name)[both][:, both].double(), getattr(b, name).double(), atol=1e-14
        )
    assert (a.same_class()[both][:, both] == b.same_class()).all()


@pytest.mark.parametrize(
    ("given_dtype", "kept"),
    [
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
    ],
)
def test_similarities_are_float32_or_better(given_dtype, kept):
    z1, z2 = (z.to(given_dtype) for z in batch(1))
    assert Contrast.from_views(z1, z2).similarity.dtype == kept


def test_autocast_does_not_reach_the_similarities():
    z1, z2 = batch(2, dtype=torch.float32)
    outside = Contrast.from_views(z1, z2).similarity
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = Contrast.from_views(z1, z2).similarity
    assert inside.dtype == torch.float32 and torch.equal(inside, outside)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_features_and_lengths_come_along(dtype):
    z1, z2 = batch(7, dtype=dtype)
    h1, h2 = batch(8, dimension=9, dtype=dtype)
    c = Contrast.from_views(3 * z1, z2, features=(h1, h2))
    assert torch.equal(c.features, torch.cat([h1, h2]))
    assert torch.allclose(
        c.norms, torch.cat([3 * z1, z2]).square().sum(1).sqrt()
    ) and c.norms.shape == (8,)
    assert torch.allclose(c.norms[:, None] * c.candidates, torch.cat([3 * z1, z2]))
    plain = Contrast.from_views(z1, z2, torch.tensor([0, 1, 0, 1]))
    assert plain.features is None and plain.norms.shape == (8,)
    labelled = Contrast.from_views(z1, z2, torch.tensor([0, 1, 0, 1]), features=[h1, h2])
    assert torch.equal(labelled.features, c.features)


def test_gradients_reach_both_views():
    z1, z2 = (z.requires_grad_() for z in batch(3))
    Contrast.from_views(z1, z2).similarity[0].square().sum().backward()
    assert z1.grad.abs().sum() > 0 and z2.grad.abs().sum() > 0


def test_masks_made_in_inference_mode_serve_training_afterwards():
    z1, z2 = batch(4, size=17)  # a size no other test uses: its masks are made here
    with torch.inference_mode():
        Contrast.from_views(z1, z2)
    z1.requires_grad_()
    c = Contrast.from_views(z1, z2)
    objectives.info_nce(c, negatives.tilted()(c)).backward()
    assert z1.grad.isfinite().all()


@pytest.mark.parametrize("make", [Contrast.from_views, Contrast.from_pairs])
def test_masks_of_two_sizes_are_shared_and_those_before_are_forgotten(make):
    z1, z2 = batch(4, size=5)
    first, last = make(z1, z2), make(z1[:4], z2[:4])
    assert make(z2, z1).positives is first.positives
    assert make(z2[:4], z1[:4]).positives is last.positives
    make(z1[:3], z2[:3])
    again = make(z1, z2)
    assert again.positives is not first.positives and torch.equal(again.positives, first.positives)


@pytest.mark.parametrize("classes", [1, 3, 40])  # many are compared in another way
def test_the_same_class_is_the_same_number(classes):
    y = torch.randint(-1, classes - 1, (26,), generator=torch.Generator().manual_seed(classes))
    contrast = Contrast.from_views(*batch(4, size=26), y)
    expected = [[a == b for b in y.repeat(2).tolist()] for a in y.repeat(2).tolist()]
    assert contrast.same_class().tolist() == expected
    assert (~contrast.admissible).tolist() == expected


def test_a_contrast_is_a_value_that_pickles_and_copies():
    y = torch.tensor([0, 1, 0, 1])
    contrast = Contrast.from_views(*batch(4), y)
    counts = contrast.negative_counts
    for twin in (pickle.loads(pickle.dumps(contrast)), copy.deepcopy(contrast)):
        assert torch.equal(twin.similarity, contrast.similarity)
        assert torch.equal(twin.negative_counts, counts)
    fewer = dataclasses.replace(contrast, admissible=contrast.admissible[:, :0], _facts={})
    assert fewer.negative_counts.sum() == 0 and counts is contrast.negative_counts


def test_a_contrast_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Contrast.from_views(*batch(5)).scale = 3


def test_from_similarity_keeps_what_it_is_given_and_sees_symmetry():
    s = torch.rand(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    positives = torch.zeros(3, 4, dtype=torch.bool)
    positives[[0, 0, 1, 2], [0, 3, 1, 2]] = True
    c = Contrast.from_similarity(s, positives, ~positives, scale=7)
    assert c.scale == 7 and not c.symmetric and c.similarity is s
    assert torch.equal(c.positive_similarity, s[[0, 0, 1, 2], [0, 3, 1, 2]])
    square, eye = s[:, :3] + s[:, :3].T, torch.eye(3, dtype=torch.bool)
    assert Contrast.from_similarity(square, eye, ~eye).symmetric
    lopsided = ~eye
    lopsided[0, 1] = False
    assert not Contrast.from_similarity(square, eye, lopsided).symmetric
    assert not Contrast.from_similarity(s[:, :3], eye, ~eye).symmetric


def test_same_class_takes_labels_of_the_batch_or_of_both_views():
    z1, z2 = batch(6)
    y = torch.tensor([0, 1, 0, 2])
    expected = y.repeat(2)[:, None] == y.repeat(2)
    assert torch.equal(Contrast.from_views(z1, z2, y).same_class(), expected)
    plain = Contrast.from_views(z1, z2)
    assert torch.equal(plain.same_class(y), expected) and torch.equal(
        plain.same_class(y.repeat(2)), expected
    )
    with pytest.raises(ValueError, match="no labels; pass labels="):
        plain.same_class()
    wide = Contrast.from_similarity(
        torch.ones(2, 3), torch.eye(2, 3).bool(), ~torch.eye(2, 3).bool()
    )
    with pytest.raises(ValueError, match="2 anchors and 3 candidates need labels each"):
        wide.same_class(torch.zeros(2))
    with pytest.raises(ValueError, match=r"labels .*3"):
        plain.same_class(y[:3])


def broken(value, row=2):
    z = torch.ones(4, 3)
    z[row] = value
    return z


good, eye3 = torch.ones(4, 3), torch.eye(3, dtype=torch.bool)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((good, good[:3]), {}, r"one shape .*\(4, 3\) and \(3, 3\)"),
        ((good, good[:, :2]), {}, r"one shape .*\(4, 3\) and \(4, 2\)"),
        ((good[0], good[0]), {}, r"\[batch, dimension\]; got \(3,\)"),
        ((good[None], good[None]), {}, r"\[batch, dimension\]; got \(1, 4, 3\)"),
        ((good[:1], good[:1]), {}, "batch of 1 .* at least 2"),
        ((good[:0], good[:0]), {}, "batch of 0 .* at least 2"),
        ((broken(torch.nan), good), {}, "row 2 of view 1 has norm .*check the encoder"),
        ((good, broken(torch.inf)), {}, "row 2 of view 2 has norm .*check the encoder"),
        ((broken(0.0), good), {}, "row 2 of view 1 has norm .*check the encoder"),
        (
            (good, good, torch.arange(3)),
            {},
            r"labels have shape \(3,\); 4 images need labels of shape \(4,\)",
        ),
        ((good, good, torch.eye(4)), {}, r"labels have shape \(4, 4\)"),
        (
            (good, good),
            {"features": (good, good[:3])},
            r"features must be one \[4, k\] .*got \(4, 3\) and \(3, 3\)",
        ),
        (
            (good, good),
            {"features": (good[:3], broken(1.0)[[0, 1, 2, 3, 0]])},
            r"got \(3, 3\) and \(5, 3\)",
        ),
        ((good, good), {"features": (good, good[:, :2])}, r"got \(4, 3\) and \(4, 2\)"),
        ((good, good), {"features": (good[:, 0], good[:, 0])}, r"got \(4,\) and \(4,\)"),
        (
            (good, good),
            {"features": (good,)},
            r"features must be one \[4, k\] for each view; got \(4, 3\)",
        ),
        ((good, good), {"features": good}, r"features must be one \[4, k\] for each view"),
        ((good, good), {"features": (good, None)}, r"got \(4, 3\) and \(\)"),
        (
            (good, good),
            {"positives": "klass"},
            'positives=.klass. is unknown; use "class" or "view"',
        ),
    ],
)
def test_bad_views_are_refused_with_the_value_and_the_remedy(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        Contrast.from_views(*arguments, **options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (torch.ones(3, 3), eye3[:2], ~eye3),
            r"positives must be a boolean mask of shape \(3, 3\); got .*\(2, 3\)",
        ),
        (
            (torch.ones(3, 3), eye3, (~eye3).float()),
            "admissible must be a boolean mask .*got torch.float32",
        ),
        (
            (torch.tensor([[1.0, 2, 3], [1, torch.nan, 3], [1, 2, 3]]), eye3, ~eye3),
            "row 1 are not finite",
        ),
        (
            (torch.ones(3, 3), torch.tensor([[1, 0, 0], [0, 0, 0], [0, 0, 1]]).bool(), ~eye3),
            "anchor 1 has no positive",
        ),
        ((torch.ones(3, 3).half(), eye3, ~eye3), "float32 or float64; got torch.float16"),
        ((torch.ones(0, 3), eye3[:0], ~eye3[:0]), r"got torch.float32 of shape \(0, 3\)"),
        (
            (torch.ones(3, 3), eye3, ~eye3, torch.zeros(2)),
            r"labels have shape \(2,\); 3 anchors need",
        ),
    ],
)
def test_bad_finite_spaces_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Contrast.from_similarity(*arguments)


def test_a_queue_adds_candidates():
    g = torch.Generator().manual_seed(0)
    q, k, queue = (torch.randn(n, 4, generator=g, dtype=torch.float64) for n in (3, 3, 5))
    contrast = Contrast.from_queue(q, k, queue)
    cosine = torch.nn.functional.cosine_similarity(q[:, None], torch.cat([k, queue])[None], dim=2)
    assert (
        torch.allclose(contrast.similarity, cosine)
        and contrast.scale == 7
        and not contrast.symmetric
    )
    assert contrast.positives.nonzero().tolist() == [[0, 0], [1, 1], [2, 2]]
    assert torch.equal(contrast.admissible, ~contrast.positives)
    assert torch.allclose(contrast.positive_similarity, cosine.diagonal())
    y, older = torch.tensor([0, 1, 0]), torch.tensor([1, 1, 2, 0, 2])
    told = Contrast.from_queue(q, k, queue, y, older)
    same = y[:, None] == torch.cat([y, older])
    assert torch.equal(told.positives, same) and torch.equal(told.admissible, ~same)
    own = Contrast.from_queue(q, k, queue, y, older, positives="view")
    assert torch.equal(own.positives, contrast.positives) and torch.equal(own.admissible, ~same)
    with pytest.raises(ValueError, match="positives='both' is unknown"):
        Contrast.from_queue(q, k, queue, positives="both")


def pairs(n=4, m=6, d=5, seed=0):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(k, d, generator=g, dtype=torch.float64) for k in (n, m)]


def test_pairs_are_queries_against_keys():
    q, k = pairs()
    contrast = Contrast.from_pairs(q, k)
    cosine = torch.nn.functional.cosine_similarity(q[:, None], k[None], dim=2)
    assert torch.allclose(contrast.similarity, cosine) and contrast.scale == 5
    assert contrast.positives.nonzero().tolist() == [[i, i] for i in range(4)]
    assert torch.equal(contrast.admissible, ~contrast.positives)
    duplicate = torch.zeros(4, 6, dtype=torch.bool)
    duplicate[0, 5] = True
    told = Contrast.from_pairs(q, k, duplicate)
    assert torch.equal(told.positives, contrast.positives | duplicate)
    assert torch.equal(told.admissible, ~told.positives)
    y = torch.tensor([0, 1, 0, 2, 1, 2])
    known = Contrast.from_pairs(q, k, labels=y)
    assert torch.equal(known.positives, y[:4, None] == y)
    assert torch.equal(known.admissible, ~known.positives)


@pytest.mark.parametrize("name", ["simclr", "hcl", "hcl-exact", "ot", "adnce", "bcl", "kl-budget"])
def test_losses_of_pairs_do_not_ask_for_their_order(name):
    q, k = pairs(5, 5)
    method, order = methods.build(name), torch.tensor([3, 0, 4, 1, 2])
    loss = float(method.pairs(q, k, both=True))
    assert float(method.pairs(q[order], k[order], both=True)) == pytest.approx(loss, rel=1e-5)
    assert float(method.pairs(k, q, both=True)) == pytest.approx(loss, rel=1e-9)
    more = torch.cat([k, pairs(2, 2, seed=1)[0]])
    alone = float(method.pairs(q, more))
    shuffled = torch.cat([more[:5], more[5:].flip(0)])
    assert float(method.pairs(q, shuffled)) == pytest.approx(alone, rel=1e-5)


def test_pairs_in_both_directions_are_open_clips_loss():
    q, k = pairs(6, 6)
    a, b = (torch.nn.functional.normalize(z) for z in (q, k))
    logits, target = a @ b.T / 0.07, torch.arange(6)
    cross = torch.nn.functional.cross_entropy
    theirs = (cross(logits, target) + cross(logits.T, target)) / 2
    ours = methods.build("simclr", temperature=0.07).pairs(q, k, both=True)
    assert float(ours) == pytest.approx(float(theirs), rel=1e-9)
    one_way = methods.build("simclr", temperature=0.07).pairs(q, k)
    assert float(one_way) != pytest.approx(float(theirs), rel=1e-3)


def test_equal_towers_are_views_without_the_mask_of_views():
    q, _ = pairs(6, 6)
    contrast = Contrast.from_pairs(q, q)
    square = Contrast.from_views(q, q).similarity[:6, :6]
    assert torch.allclose(contrast.similarity, square)


@pytest.mark.parametrize(
    ("shapes", "more", "message"),
    [
        (((3, 4), (3, 5)), {}, r"got \(3, 4\) and \(3, 5\)"),
        (((3, 4), (2, 4)), {}, "3 queries and 2 keys are no pairs"),
        (((1, 4), (1, 4)), {}, "1 queries and 1 keys are no pairs"),
        (((2, 4), (3, 4)), dict(positives=torch.ones(2, 3)), r"boolean mask of shape \(2, 3\)"),
        (((2, 4), (3, 4)), dict(labels=torch.zeros(2)), "3 keys need labels"),
    ],
)
def test_bad_pairs_are_refused(shapes, more, message):
    queries, keys = (torch.ones(shape) for shape in shapes)
    with pytest.raises(ValueError, match=message):
        Contrast.from_pairs(queries, keys, **more)
    with pytest.raises(ValueError, match="2 queries and 3 keys cannot be exchanged"):
        Contrast.from_pairs(torch.eye(3)[:2], torch.eye(3)).reversed()


def test_a_batch_against_its_own_keys_is_a_contrast_of_views():
    """Without a queue, the anchors of the first view and the candidates of the second are a block
    of the square."""
    g = torch.Generator().manual_seed(1)
    q, k = (torch.randn(4, 5, generator=g, dtype=torch.float64) for _ in range(2))
    square = Contrast.from_views(q, k).similarity
    assert torch.allclose(Contrast.from_queue(q, k, k[:0]).similarity, square[:4, 4:])


@pytest.mark.parametrize(
    ("shapes", "labels", "message"),
    [
        (((3, 4), (2, 4), (5, 4)), (), r"got \(3, 4\), \(2, 4\), \(5, 4\)"),
        (((3, 4), (3, 4), (5, 3)), (), r"\(5, 3\)"),
        (((1, 4), (1, 4), (0, 4)), (), "no negative"),
        (((3, 4), (3, 4), (5, 4)), (3,), "give both or neither"),
        (((3, 4), (3, 4), (5, 4)), (3, 4), r"5 keys of the queue need labels of shape \(5,\)"),
    ],
)
def test_queues_that_do_not_fit_are_refused(shapes, labels, message):
    with pytest.raises(ValueError, match=message):
        Contrast.from_queue(
            *map(torch.ones, shapes), *(torch.zeros(n, dtype=torch.long) for n in labels)
        )
    with pytest.raises(ValueError, match="row 1 of the queries has norm 0"):
        Contrast.from_queue(
            torch.eye(3)[[0, 0]] * torch.tensor([[1], [0]]), torch.ones(2, 3), torch.ones(1, 3)
        )
