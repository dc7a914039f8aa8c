"""The check of a reader's line accepts the right one and says what is wrong with another."""

import pytest
import torch

from hnbook import exercises

INSTANCES = [(torch.tensor([1.0, 2.0]),), (torch.tensor([3.0, 4.0, 5.0]),)]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda x: 2 * x, "Right, on 2 instances."),
        (lambda x: None, "Not answered yet"),
        (lambda x: 2 * x + 1e-3, "off by 0.001"),
        (lambda x: x**2, "off by 15"),  # the worst instance, not the first
        (lambda x: 2 * x.where(x < 5, -torch.inf), "off by inf"),
        (lambda x: (2 * x).sum(), "the shape is [], it should be [2]"),
    ],
)
def test_check(capsys, answer, says):
    right = exercises.check(answer, lambda x: 2 * x, INSTANCES)
    printed = capsys.readouterr().out
    assert says in printed and right == printed.startswith("Right")


def test_infinite_entries_can_be_right_and_nothing_compared_is_not():
    assert exercises.check(torch.log, torch.log, [(torch.tensor([0.0, 1.0]),)])
    with pytest.raises(ValueError, match="instances must hold"):
        exercises.check(torch.log, torch.log, [])
