"""The file of a task of your own."""

from __future__ import annotations

import functools
from pathlib import Path

from hnlib._files import data_folder, named
from hnlib.profile import run_file


@functools.cache
def load(name: str, root: Path | str | None = None) -> dict:
    """Run the file of a task, once in a process, and return its names.

    ``train(loss, options, lr, steps, seed)`` trains an encoder and returns the scores of the test
    queries, from 0 to 1, or NaN if it diverged; ``loss(a, b, **options)`` is a module, and its
    parameters are to be trained, too. ``RATES`` are the learning rates, ``STEPS`` is handed over,
    and ``MARGIN`` is the difference in points that would matter.

    Parameters
    ----------
    name
        Stem of the file and digest of its code, as `named` returns them.
    root
        The folder of the file, which ends in ``.py``.

    Raises
    ------
    ValueError
        If the file lacks one of the four names, or its code has another digest.
    OSError
        If there is no such file.
    """
    path = data_folder(root) / f"{name.rpartition('-')[0]}.py"
    if named(path) != name:
        raise ValueError(f"{path} was edited after its runs were planned; start again")
    names = run_file(str(path))
    for one in ("train", "RATES", "STEPS", "MARGIN"):
        if one not in names:
            raise ValueError(f"{path} must define {one}; see `hnlib null --help`")
    if not isinstance(names["RATES"], list | tuple) or not names["RATES"] or names["MARGIN"] <= 0:
        raise ValueError(f"{path} must define RATES as a list of numbers, and MARGIN above 0")
    return names
