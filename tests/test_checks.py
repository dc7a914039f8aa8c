"""Conditions on tensors: at once on the CPU, kept on an accelerator until they are asked for."""

import pytest
import torch

from hnlib import _checks

MESSAGE = "row {row} has norm {value:g}"


def test_a_condition_on_the_cpu_is_an_error_at_once():
    bad, norm = torch.tensor([False, True, True]), torch.tensor([1.0, 0.5, 0.0])
    with pytest.raises(ValueError, match=r"^row 1 has norm 0\.5$"):
        _checks.raise_if(bad, MESSAGE, norm)
    _checks.raise_if(~bad[1:], MESSAGE)
    _checks.raise_if(bad.to("meta"), MESSAGE)  # its values cannot be read
    assert not _checks.on_cpu(torch.ones(2, device="meta"))


def test_deferred_conditions_name_the_first_row_ever_met_and_are_then_forgotten():
    conditions, norm = _checks.Deferred(), torch.tensor([1.0, 0.5, 0.25])
    for rows in ([], [2], [0, 1]):
        conditions.add(torch.tensor([i in rows for i in range(3)]), MESSAGE, norm)
    with pytest.raises(ValueError, match=r"^row 2 has norm 0\.25$"):
        conditions.raise_if_any()
    conditions.raise_if_any()
