"""Options out of range, and embeddings of mixed precision."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hnlib import methods
from hnlib.contrast import Contrast


def view(seed=0, n=4, d=3, dtype=torch.float32):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed)).to(dtype)


Z1, Z2, Y = view(0), view(1), torch.tensor([0, 1, 2, 1])
NUMBERS = [0, 1, -1, 2, 0.5, -0.5, 1e-3, 1e3, 1e-30, 1e30, math.nan, math.inf, -math.inf]
TENSORS = [torch.tensor(0.5), torch.tensor(math.nan), torch.full((8,), 0.5), torch.ones(3)]
OPTIONS = [(name, option) for name, e in methods.CATALOGUE.items() for option in e.defaults]


@settings(max_examples=150)
@given(chosen=st.sampled_from(OPTIONS), value=st.sampled_from([*NUMBERS, *TENSORS, "word", None]))
def test_a_method_gives_a_finite_loss_or_an_error(chosen, value):
    name, option = chosen
    features = (Z1, Z2) if methods.CATALOGUE[name].features else None
    try:
        loss = methods.build(name, **{option: value})(Z1, Z2, Y, features)
    except (RuntimeError, TypeError, ValueError):  # torch refuses shapes by RuntimeError
        return
    assert loss.isfinite().all()


def test_a_queue_of_another_precision_is_promoted():
    exact = Contrast.from_queue(Z1.double(), Z2.double(), Z1.double()).similarity
    for i in range(3):
        z = [Z1, Z2, Z1]
        z[i] = z[i].double()
        similarity = Contrast.from_queue(*z).similarity
        assert similarity.dtype == torch.float64 and torch.allclose(similarity, exact)
        assert torch.allclose(
            Contrast.from_pairs(*z[:2]).similarity.double(), exact[:, :4], atol=1e-6
        )
