"""`hnlib sweep`: execute one notebook at every point of a grid, with Ray.

The executed notebook of a trial is stored as `_build/sweeps/NOTEBOOK/TRIAL.ipynb` when the trial
ends; its numbers are the records that the notebook writes. The same command executes what is not
stored yet, and again what has changed since. On a cluster, Ray copies the checkout to the machines,
and a trial sends back its notebook and its records.
"""

import itertools
import logging
import os
from pathlib import Path
from typing import Annotated, NamedTuple

from cyclopts import Parameter
from cyclopts.types import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from hnlib import _files
from hnlib.notebooks import execute
from hnlib.training import config, records, store


class Trial(NamedTuple):
    """One point of the grid; its name is a hash of its parameters, as in `hnlib run`."""

    name: str
    parameters: dict


def grid(texts: list[str]) -> list[tuple[str, list[str]]]:
    """Parse `["beta=0.5,1", "method=hcl,ot"]` into names with a list of texts each."""
    values = []
    for text in texts:
        name, _, items = text.partition("=")
        if not name or not items:
            raise ValueError(f"--grid must be NAME=VALUE,VALUE,…, got {text!r}")
        values.append((name, execute.split(items)))
    return values


def trials(
    notebook: Path, values: list[tuple[str, list]], given: list[tuple], seeds: int | None = None
) -> list[Trial]:
    """Return the points of the grid `values`, each with the parameters `given`.

    The `seeds`, for a parameter `seed` or a list `seeds`, vary fastest.
    """
    defaults = execute.parameters_of(execute.read(notebook))
    if seeds:
        one = "seed" in defaults
        values = [*values, ("seed" if one else "seeds", [k if one else [k] for k in range(seeds)])]
    if not values:
        raise ValueError("nothing to vary: give --grid NAME=VALUE,VALUE,… or --seeds N")
    axes = config.reject_duplicates([*values, *((name, [text]) for name, text in given)])
    every = {}
    for point in itertools.product(*axes.values()):
        parameters = execute.guard_parameters(defaults, dict(zip(axes, point)))
        name = execute.parameter_hash(parameters)
        every[name] = {key: _named(value, name) for key, value in parameters.items()}
    return list(itertools.starmap(Trial, every.items()))


def _named(value, trial: str):
    return value.replace("{trial}", trial) if isinstance(value, str) else value


def sweep(
    notebook: str,
    /,
    *,
    values: Annotated[list[str], Parameter("--grid")] = [],  # noqa: B006
    seeds: PositiveInt | None = None,
    given: Annotated[
        list[tuple[str, str]], Parameter("-p", allow_leading_hyphen=True, json_list=False)
    ] = [],  # noqa: B006
    address: str | None = None,
    cpus: PositiveFloat = 1,
    gpus: NonNegativeFloat = 0,
    retries: NonNegativeInt = 1,
    dry_run: bool = False,
    folder: Annotated[Path | None, Parameter("-o")] = None,
) -> int:
    """Execute one notebook over a grid of parameters.

    Parameters
    ----------
    notebook
        For example experiments/images.
    values
        NAME=VALUE,VALUE,… (repeatable: all combinations).
    seeds
        Seeds 0…N−1 for each combination.
    given
        Set a parameter in every trial; {trial} stands for the trial's name.
    address
        Of a Ray cluster, or 'auto' (default: this machine alone).
    cpus
        Cores for each trial.
    gpus
        GPUs for each trial, e.g. 0.5.
    retries
        Of a failed or lost trial.
    dry_run
        List the trials and what they will cost.
    folder
        Executed notebooks (default: below _build/sweeps).
    """
    path = execute.find(notebook)
    every = trials(path, grid(values), given, seeds)
    default = execute.root() / "_build/sweeps" / execute.name(path).removesuffix(".md")
    folder = default if folder is None else folder.resolve()
    todo = [trial for trial in every if not _is_done(folder, path, trial)]
    if dry_run:
        _print(every, todo, {})
        print(f"{len(every)} trials, {len(todo)} to do{_cost(path, folder)}")
        return 0
    errors = {}
    if todo:
        print(f"{len(todo)} of {len(every)} trials to execute", flush=True)
        errors = _run(path, folder, todo, address, cpus, gpus, retries)
    todo = [trial for trial in todo if not _is_done(folder, path, trial)]
    _print(every, todo, errors)
    print(
        f"{len(every) - len(todo)} of {len(every)} trials are done: {execute.relative_path(folder)}"
    )
    return 1 if todo else 0


def _is_done(folder: Path, notebook: Path, trial: Trial) -> bool:
    return execute.is_current(folder / f"{trial.name}.ipynb", notebook, trial.parameters)


def _print(every: list[Trial], todo: list[Trial], errors: dict[str, str]) -> None:
    for trial in every:
        status = "failed" if trial.name in errors else "to do" if trial in todo else "done"
        print(f"{trial.name}  {status:6}", *(f"{k}={v}" for k, v in trial.parameters.items()))


def _cost(notebook: Path, folder: Path) -> str:
    """Return the seconds of a trial executed earlier, or else those of the chapter's build."""
    stored = [*folder.glob("*.ipynb")]
    if not stored and notebook.is_relative_to(execute.root() / "notebooks"):
        stored = [execute.executed_path(notebook)]
    seconds = execute.execution_metadata(stored[0]).get("seconds") if stored else None
    if not seconds:
        return "; the cost is unknown until one is executed here"
    return f", about {seconds:.0f} s each, as executed before"


def _run(
    notebook: Path,
    folder: Path,
    todo: list[Trial],
    address: str | None,
    cpus: float,
    gpus: float,
    retries: int,
) -> dict[str, str]:
    """Execute the trials with Ray; return the errors by the name of the trial."""
    # Ray reads it when it is imported
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    from ray.exceptions import RayError

    root = execute.root()
    if address is None:  # "local", else Ray joins a cluster that happens to run here
        where = dict(address="local", include_dashboard=False, object_store_memory=100 * 2**20)
    else:
        copied = {"working_dir": str(root), "excludes": ["/.git", "/.venv", "/_build"]}
        where = dict(address=address, runtime_env=copied)
    ray.init(**where, log_to_driver=False, logging_level=logging.ERROR)
    try:
        resources = ray.cluster_resources()
        if address is None and not (cpus <= resources["CPU"] and gpus <= resources.get("GPU", 0)):
            raise ValueError(
                f"a trial needs {cpus:g} cores and {gpus:g} GPUs; this machine has "
                f"{resources['CPU']:g} and {resources.get('GPU', 0):g}"
            )
        # one worker a trial, as if each had been started by hand
        options = dict(num_cpus=cpus, num_gpus=gpus, max_retries=retries, max_calls=1)
        task = ray.remote(retry_exceptions=True, **options)(_execute)
        paths = [os.path.relpath(path, root) for path in (notebook, folder)]
        place = [*paths, None if address else str(root), cpus, gpus]
        pending, errors = {task.remote(trial, *place): trial for trial in todo}, {}
        while pending:
            (ended,), _ = ray.wait([*pending])
            trial = pending.pop(ended)
            try:
                files = ray.get(ended)
            except RayError as error:
                errors[trial.name] = str(error)
                print(f"\n{trial.name} failed: {trial.parameters}\n{error}", flush=True)
                continue
            content, made = files
            if content:
                _files.write_atomically(folder / f"{trial.name}.ipynb", content)
            for record in made:
                store.append(record, records.default_folder())
            print(f"  {trial.name}: done", flush=True)
        return errors
    finally:
        ray.shutdown()


def _execute(trial: Trial, notebook, folder, root, cpus, gpus) -> tuple[bytes, list[dict]]:
    """Execute a trial on a Ray worker; from a copy of the checkout, return notebook and records."""
    if root is not None:
        os.chdir(root)
    if not gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    own, here = records.default_folder(), execute.root()
    before = {one["digest"] for one in store.read(own)}
    path = here / folder / f"{trial.name}.ipynb"
    execute.execute(here / notebook, path, trial.parameters, threads=max(1, int(cpus)))
    if root is not None:
        return b"", []
    made = [one for one in store.read(own) if one["digest"] not in before]
    return path.read_bytes(), store.complete(made)
