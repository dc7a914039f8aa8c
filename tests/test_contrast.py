"""Who is whose positive, who may be a negative, and what a batch must not be."""

import functools
from dataclasses import replace
from functools import partial

import drawn
import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hnlib import _checks, objectives
from hnlib.contrast import Contrast

cases = settings(max_examples=12)
batch = functools.partial(drawn.views, size=4)


@cases
@given(
    seed=st.integers(0, 999),
    size=st.integers(2, 6),
    mode=st.sampled_from([None, "class", "view"]),
    factor=st.floats(1e-6, 1e6),
)
def test_two_views_match_the_reference(seed, size, mode, factor):
    z1, z2 = batch(seed, size=size)
    y = torch.randint(3, (size,), generator=drawn.seeded(seed)) if mode else None
    c = Contrast.from_views(factor * z1, z2, y, positives=mode or "class")
    Z, S, P, A = reference.views(z1, z2, y if y is None else y.numpy(), mode)
    assert np.abs(c.similarity.numpy() - S).max() < 1e-13
    assert np.abs(c.anchors.numpy() - Z).max() < 1e-13 and c.candidates is c.anchors
    assert (c.positives.numpy() == P).all() and (c.admissible.numpy() == A).all()
    assert c.symmetric and c.scale == 2 * size - 2
    assert np.abs(c.uniform_log_weights.exp().numpy() - reference.uniform(S, A)).max() < 1e-14
    assert torch.allclose(c.norms[:, None] * c.candidates, torch.cat([factor * z1, z2]))


@pytest.mark.parametrize("classes", [3, 40])  # many are compared in another way
def test_the_same_class_is_the_same_number(classes):
    y = torch.randint(-1, classes - 1, (26,), generator=drawn.seeded(classes))
    contrast = Contrast.from_views(*batch(4, size=26), y)
    expected = [[a == b for b in y.repeat(2).tolist()] for a in y.repeat(2).tolist()]
    assert contrast.same_class().tolist() == (~contrast.admissible).tolist() == expected


def test_from_similarity_keeps_what_it_is_given_and_sees_symmetry():
    s = torch.rand(3, 3, dtype=torch.float64, generator=drawn.seeded())
    positives = torch.eye(3, dtype=torch.bool)
    positives[0, 2] = True
    c = Contrast.from_similarity(s, positives, ~positives, scale=7)
    assert c.scale == 7 and not c.symmetric and c.similarity is s
    assert torch.equal(c.positive_similarity, s[[0, 0, 1, 2], [0, 2, 1, 2]])
    positives[2, 0] = True
    assert Contrast.from_similarity(s + s.T, positives, ~positives).symmetric
    assert not Contrast.from_similarity(s, positives, ~positives).symmetric


def test_pairs_are_queries_against_keys():
    k, q = batch(0, size=6)
    q = q[:4]
    contrast = Contrast.from_pairs(q, k)
    cosine = torch.nn.functional.cosine_similarity(q[:, None], k[None], dim=2)
    assert torch.allclose(contrast.similarity, cosine) and contrast.scale == 5
    assert contrast.positives.nonzero().tolist() == [[i, i] for i in range(4)]
    duplicate = torch.zeros(4, 6, dtype=torch.bool)
    duplicate[0, 5] = True
    told = Contrast.from_pairs(q, k, duplicate)
    assert torch.equal(told.positives, contrast.positives | duplicate)
    assert torch.equal(told.admissible, ~told.positives)
    y = torch.tensor([0, 1, 0, 2, 1, 2])
    known = Contrast.from_pairs(q, k, labels=y)
    assert torch.equal(known.positives, y[:4, None] == y)
    assert [told.scale.tolist(), known.scale.tolist()] == [[4, 5, 5, 5], [4, 4, 4, 4]]
    assert Contrast.from_pairs(q, k[:4], duplicate[:, 2:]).reversed().scale.tolist() == [3, 3, 3, 2]


def test_reversed_pairs_have_the_scores_that_a_teacher_gave_each_of_them():
    q, k = batch(3, size=5)
    teacher = torch.randn(5, 5, generator=torch.Generator().manual_seed(1))
    other = replace(Contrast.from_pairs(k, q), teacher=teacher.T)
    turned = replace(Contrast.from_pairs(q, k), teacher=teacher).reversed()
    loss = partial(objectives.soft_targets, log_w=other.uniform_log_weights)
    expected, found = loss(other), loss(turned)
    torch.testing.assert_close(found, expected)
    wrong = loss(replace(turned, teacher=teacher))
    assert abs(float(wrong - expected)) > 1e-2


def test_deferred_conditions_name_the_first_row_ever_met_and_are_then_forgotten():
    conditions, norm = _checks.Deferred(), torch.tensor([1.0, 0.5, 0.25])
    for bad in ([False] * 3, [False, False, True], [True, True, False]):
        conditions.add(torch.tensor(bad), "row {row} has norm {value:g}", norm)
    with pytest.raises(ValueError, match=r"^row 2 has norm 0\.25$"):
        conditions.raise_if_any()
    conditions.raise_if_any()
