"""The check of a reader's line accepts the right one and says what is wrong with another."""

import pytest
import torch

from hnbook import exercises

INSTANCES = [(torch.tensor([1.0, 2.0]),), (torch.tensor([3.0, 4.0, torch.inf]),)]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda x: 2 * x, "Right, on 2 instances."),
        (lambda x: None, "Not answered yet"),
        (lambda x: 2 * x.where(x < 4, -torch.inf), "off by inf"),  # the worst instance
        (lambda x: (2 * x).sum(), "the shape is [], it should be [2]"),
    ],
)
def test_check(capsys, answer, says):
    right = exercises.check(answer, lambda x: 2 * x, INSTANCES)
    printed = capsys.readouterr().out
    assert says in printed and right == printed.startswith("Right")
