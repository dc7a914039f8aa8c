"""`hnlib run --grid`: execute a notebook at every point of a grid of parameters.

The same command executes what is not stored yet, and again what has changed since.
"""

from __future__ import annotations

import itertools
import os
from functools import partial
from pathlib import Path

from hnlib import _files
from hnlib.experiments.runner import spread
from hnlib.notebooks import execute
from hnlib.training import config, records, store
from hnlib.training.config import Engine


def points(notebook: Path, values: list[tuple[str, str]], given: list[tuple]) -> list[dict]:
    """Return the parameters of each point: all combinations of the texts, such as "0.5,1"."""
    defaults = execute.parameters_of(execute.read(notebook))
    axes = [(name, execute.split(text)) for name, text in values]
    if empty := [name for name, texts in axes if not texts]:
        raise ValueError(f"--grid {empty[0]}= has no value; give {empty[0]}=VALUE,VALUE,…")
    axes = config.reject_duplicates([*axes, *((name, [text]) for name, text in given)])
    every = [
        execute.guard_parameters(defaults, dict(zip(axes, point)))
        for point in itertools.product(*axes.values())
    ]
    return [*{execute.parameter_hash(one): one for one in every}.values()]


def run(
    notebook: str,
    values: list[tuple[str, str]],
    given: list[tuple[str, str]],
    out: Path | None,
    engine: Engine,
    dry_run: bool,
) -> int:
    """Execute a notebook at every point; return 1 if one failed."""
    path = execute.find(notebook)
    default = execute.root() / "_build/runs" / execute.name(path).removesuffix(".md")
    folder = default if out is None else out.resolve()
    every = {
        folder / f"{execute.parameter_hash(one)}.ipynb": one for one in points(path, values, given)
    }
    todo = [file for file, one in every.items() if not execute.is_current(file, path, one)]
    execute.refuse(path, [every[file] for file in todo])
    for file, one in every.items():
        words = " ".join(f"{name}={value}" for name, value in one.items())
        print("to do" if file in todo else "done ", execute.relative_path(file), words)
    if dry_run:
        return 0
    root = execute.root()
    work = partial(
        _execute,
        notebook=os.path.relpath(path, root),
        elsewhere=engine.engine == "ray",
        threads=max(1, int(engine.cpus)),
    )
    jobs = [(os.path.relpath(file, root), every[file]) for file in todo]
    failed = 0
    for (file, _), outcome in spread(work, jobs, engine):
        if isinstance(outcome, Exception):
            failed += 1
            print(f"failed {file}: {outcome}")
            continue
        content, made = outcome
        if content:
            _files.write_atomically(root / file, content)
        for record in made:
            records.append(record, records.default_folder())
        print(f"done  {file}", flush=True)
    return int(failed > 0)


def _execute(job: tuple[str, dict], notebook: str, elsewhere: bool, threads: int):
    """Execute a point; from a copy of the checkout, return the notebook and its records."""
    file, parameters = job
    own, here = records.default_folder(), execute.root()
    before = {one["digest"] for one in store.read(own)} if own.is_dir() else set()
    execute.execute(here / notebook, here / file, parameters, threads=threads)
    if not elsewhere:
        return b"", []
    made = [one for one in store.read(own) if one["digest"] not in before]
    return (here / file).read_bytes(), store.complete(made)
