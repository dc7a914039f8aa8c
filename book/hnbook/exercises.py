"""Exercises that answer back: the reader writes a line, which is compared with the library."""

from __future__ import annotations

import torch


def check(answer, reference, instances, tolerance: float = 1e-6) -> bool:
    """Print how the function `answer` compares with `reference`; return whether it is right.

    If several instances are wrong, the worst is printed.

    Parameters
    ----------
    answer, reference : callable
        The reader's function, which returns None until it is written, and the library's.
    instances : list of tuple
        The arguments of each comparison.
    tolerance : float, default 1e-6
        The largest difference of an entry that is right.
    """
    worst = -1.0
    for arguments in instances:
        given = answer(*arguments)
        if given is None:
            print("Not answered yet: replace None by your line and run the cell again.")
            return False
        pair = given, reference(*arguments)
        given, expected = (torch.as_tensor(x).detach().double() for x in pair)
        if given.shape != expected.shape:
            print(f"Not yet: the shape is {[*given.shape]}, it should be {[*expected.shape]}.")
            return False
        gap = (given - expected).abs().nan_to_num(torch.inf, torch.inf)
        gap = float(gap.where(given != expected, 0.0).max())  # -inf is right where it is expected
        if gap > worst:
            worst, where = gap, f"For {arguments}\nyours is {given}\nhnlib has {expected}"
    if worst > tolerance:
        print(f"Not yet: an entry is off by {worst:.2g}.\n{where}")
        return False
    print(f"Right, on {len(instances)} instances.")
    return True
