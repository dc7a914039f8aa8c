"""Conditions on tensors of an accelerator, kept until they are asked for."""

import pytest
import torch

from hnlib import _checks


def test_deferred_conditions_name_the_first_row_ever_met_and_are_then_forgotten():
    conditions, norm = _checks.Deferred(), torch.tensor([1.0, 0.5, 0.25])
    for bad in ([False] * 3, [False, False, True], [True, True, False]):
        conditions.add(torch.tensor(bad), "row {row} has norm {value:g}", norm)
    with pytest.raises(ValueError, match=r"^row 2 has norm 0\.25$"):
        conditions.raise_if_any()
    conditions.raise_if_any()
