"""``hnlib sweep``: one notebook over a grid of parameters, each trial a Ray task.

A trial is the notebook executed with one point of the grid by `execute.execute`. Its notebook is
stored under ``_build/sweeps/NOTEBOOK/TRIAL.ipynb``, where TRIAL is the hash of the parameters that
``hnlib run`` uses; the numbers are the records that the notebook writes. Only the process that was
started stores notebooks, each whole or not at all, so a sweep may be stopped in any way: the same
command executes what is missing. On a cluster the checkout travels to the machines (Ray's
``working_dir``, without what ``.gitignore`` names) and a trial's records travel back with its
notebook.
"""

import itertools
import json
import logging
import math
import os
import signal
import socket
import sys
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

from cyclopts import App, Parameter

from hnlib import _files
from hnlib.book import execute
from hnlib.training.config import any_number, whole_number

MOST = 10_000  # trials of a sweep, which are listed before the first


@dataclass(frozen=True)
class Trial:
    """One point of the grid: its name, its parameters, and the fingerprint of what it depends
    on."""

    name: str
    parameters: dict
    fingerprint: str


class Outcome(NamedTuple):
    """How a trial ended: done, failed or lost; the seconds it took; what there is to say."""

    status: str
    seconds: float | None
    text: str | None


def grid(texts: list[str]) -> dict[str, list[str]]:
    """``["beta=0.5,1", "method=hcl,ot"]`` as a dictionary of lists of texts.

    ValueError: no ``=``, a name given twice, an empty list or value.
    """
    values = {}
    for text in texts:
        name, equals, items = text.partition("=")
        name = name.strip()
        if not name or not equals:
            raise ValueError(f"--grid is written name=value,value,…, not {text!r}.")
        if name in values:
            raise ValueError(f"--grid names {name!r} twice; put all its values into one list.")
        try:
            values[name] = execute.split(items)
        except ValueError as error:
            raise ValueError(f"--grid {name}: {error}") from None
    return values


def trials(
    notebook: Path, values: dict[str, list], given: dict[str, str], seeds: int | None = None
) -> list[Trial]:
    """All points of the grid ``values``, with the parameters ``given`` to each; ``seeds`` many
    seeds vary fastest.

    ValueError: nothing to vary, a parameter the notebook does not have, a value that does not
    parse, one given twice.
    """
    known = execute.parameters_of(execute.read(notebook))
    if seeds is not None:
        values = values | _seeds(known, seeds, values.keys() | given.keys())
    if not values:
        raise ValueError("there is nothing to vary; give --grid NAME=VALUE,VALUE,… or --seeds N.")
    if both := sorted(values.keys() & given.keys()):
        raise ValueError(f"{both[0]!r} is in the grid and given by -p; leave one of them out.")
    fixed, axes = execute.guard_parameters(known, given), {}
    for name, items in values.items():
        axes[name] = [execute.guard_parameters(known, {name: item})[name] for item in items]
        written = [repr(value) for value in axes[name]]
        if twice := next((value for value in written if written.count(value) > 1), None):
            raise ValueError(f"--grid {name} has the value {twice} twice; give it once.")
    if (number := math.prod(map(len, axes.values()))) > MOST:
        raise ValueError(f"these are {number:,} trials; a sweep has at most {MOST:,}.")
    content = execute.content(notebook, ledgers=False)  # trials extend those
    points = [fixed | dict(zip(axes, point)) for point in itertools.product(*axes.values())]
    return [Trial(execute.mark(p), p, execute.with_parameters(content, p)) for p in points]


def _seeds(known: dict, seeds: int, taken) -> dict[str, list]:
    if not 1 <= seeds <= MOST:
        raise ValueError(f"--seeds must be at least 1 and at most {MOST:,}, not {seeds}.")
    if "seed" in known:
        name, items = "seed", list(range(seeds))
    elif isinstance(known.get("seeds"), list | tuple):
        name, items = "seeds", [[seed] for seed in range(seeds)]
    else:
        raise ValueError(
            "--seeds needs a parameter `seed`, or a list `seeds`, and this notebook has neither."
        )
    if name in taken:
        text = "is set by --seeds and given a second time; leave one of them out."
        raise ValueError(f"{name!r} {text}")
    return {name: items}


def done(folder: Path, trial: Trial) -> bool:
    """Whether the executed notebook of ``trial`` is in ``folder`` and nothing it depends on has
    changed since."""
    stored = execute.about(folder / f"{trial.name}.ipynb")
    return stored.get("fingerprint") == trial.fingerprint


def expected(notebook: Path, folder: Path, todo: list[Trial]) -> tuple[list[float | None], str]:
    """Seconds that each trial will take, and where they come from.

    A trial takes the mean of those executed before that share the most parameters with it; where
    there are none, what the chapter took in the default build; else None.
    """
    stored = [execute.about(path) for path in sorted(folder.glob("*.ipynb"))]
    before = [about for about in stored if {"seconds", "parameters"} <= about.keys()]

    def nearest(trial):
        wanted = trial.parameters.items()
        alike = [sum(about["parameters"].get(k) == v for k, v in wanted) for about in before]
        near = [about["seconds"] for about, n in zip(before, alike) if n == max(alike)]
        return sum(near) / len(near)

    if before:
        those = f"the {len(before)} executed before"
        source = f"from {those}, by those with the most parameters in common"
        return [nearest(trial) for trial in todo], source
    chapter = notebook.is_relative_to(execute.root() / "notebooks")
    stored = execute.about(execute.executed_path(notebook)) if chapter else {}
    source = "from the chapter's default build; other parameters may cost more or less"
    if "seconds" not in stored:
        source = "unknown: neither a trial nor the chapter has been executed yet"
    return [stored.get("seconds")] * len(todo), source


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def table(rows: list[tuple[Trial, str, float | None]]) -> str:
    """Name, parameters, status and seconds of the trials, one line each, under a heading."""
    lines = [["trial", *rows[0][0].parameters, "status", "time"]]
    for trial, status, seconds in rows:
        values = [v if isinstance(v, str) else repr(v) for v in trial.parameters.values()]
        lines.append([trial.name, *values, status, "" if seconds is None else _duration(seconds)])
    widths = [max(map(len, column)) for column in zip(*lines)]
    padded = [[cell.ljust(width) for cell, width in zip(line, widths)] for line in lines]
    return "\n".join("  ".join(line).rstrip() for line in padded)


def _execute(root: str | None, notebook: str, parameters: dict, cpus: float, gpus: float) -> dict:
    """What a Ray worker does: execute one trial; returns its notebook's text, the seconds, its
    error if it failed.

    ``root`` is the checkout, or None on a cluster: there the worker stands in a copy of it, and the
    records that the trial wrote into that copy are returned too.
    """
    import nbformat

    if root:
        os.chdir(root)
    if not gpus:  # those it asked for, Ray lets it see; none is meant to be none
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    before, error, clock = {} if root else _records(), None, time.monotonic()
    path, threads = execute.root() / notebook, max(1, int(cpus))
    try:
        text = nbformat.writes(execute.executed(path, parameters, threads=threads))
    except execute.NotebookError as caught:
        text, error = caught.notebook, str(caught)
    written = {} if root else dict(_records().items() - before.items())
    return {
        "text": text,
        "error": error,
        "seconds": time.monotonic() - clock,
        "records": {name: Path(name).read_bytes() for name in written},
    }


def _records() -> dict[str, int]:
    """Records below the working directory, with the time of their last change."""
    folders = map(Path, ("_build/results", "book/results/runs"))
    paths = itertools.chain.from_iterable(folder.glob("[!.]*.json") for folder in folders)
    return {str(path): path.stat().st_mtime_ns for path in paths}


def _store(folder: Path, trial: Trial, reply: dict) -> Path:
    """Put the records and the notebook of a finished trial where they belong; returns the
    notebook's path."""
    for name, content in reply["records"].items():
        _files.write_atomically(execute.root() / name, content)
    good, failed = folder / f"{trial.name}.ipynb", folder / f"{trial.name}.failed.ipynb"
    if reply["error"]:
        _files.write_atomically(failed, reply["text"].encode())
        return failed
    node = json.loads(reply["text"])
    node["metadata"]["hnlib"]["fingerprint"] = trial.fingerprint
    _files.write_atomically(good, f"{json.dumps(node, indent=1, ensure_ascii=False)}\n".encode())
    failed.unlink(missing_ok=True)
    return good


@contextmanager
def _cluster(address: str | None):
    """Ray, connected: of this machine's own for as long as the sweep lasts, or the cluster at
    ``address``."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address not in (None, "auto"):
        _answers(address)
    try:
        import ray
    except ModuleNotFoundError as error:
        raise ValueError(
            f"a sweep needs Ray (missing: {error.name}); pip install 'hnlib[sweep]'"
        ) from None
    options = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:  # trials move kilobytes, so little memory
        options |= {"include_dashboard": False, "object_store_memory": 100 * 2**20}
    else:
        ship = {"working_dir": str(execute.root()), "excludes": ["/.git", "/.venv", "/_build"]}
        options["runtime_env"] = ship
    handler = signal.getsignal(signal.SIGTERM)
    try:
        # "local", else Ray would join a cluster that happens to run here
        ray.init(address or "local", **options)
    except SystemExit:  # of Ray's own handler, on a polite kill
        raise KeyboardInterrupt from None
    except Exception as error:  # bare ones, for instance after 30 s on an overloaded machine
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        text = f"Ray could not be started here ({reason}); is the machine overloaded?"
        if address is not None:
            hint = "if the cluster asks for a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
            text = f"Ray cannot be used at {address!r} ({reason}); {hint}."
        raise ValueError(text) from None
    finally:
        # Ray takes it; a polite kill is to end in the same words as Ctrl-C
        signal.signal(signal.SIGTERM, handler)
    try:
        yield ray
    finally:
        ray.shutdown()


def _answers(address: str) -> None:
    """ValueError unless something listens at ``address``: Ray itself would try for minutes, deaf to
    Ctrl-C."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except (OSError, ValueError, OverflowError) as error:
        raise ValueError(
            f"nothing answers at --address {address!r} ({error}); "
            "it is HOST:PORT of a cluster's head, or 'auto'."
        ) from None


def _slots(ray, address: str | None, cpus: float, gpus: float) -> int:
    """How many trials can run at the same time; ValueError when not even one can."""
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    asked = [(kind, amount) for kind, amount in (("CPU", cpus), ("GPU", gpus)) if amount]
    places = [min(int(m.get(kind, 0) / amount + 1e-9) for kind, amount in asked) for m in machines]
    if not any(places):
        have = [f"{m.get('CPU', 0):g} cores and {m.get('GPU', 0):g} GPUs" for m in machines]
        wish = f"a trial asks for {cpus:g} cores and {gpus:g} GPUs"
        text = f"{wish}, and there are machines with {', '.join(have)}"
        if address is None:
            raise ValueError(f"{text}; lower --cpus or --gpus, or give the --address of a cluster.")
        print(f"{text}; waiting until the cluster has grown.", file=sys.stderr)
    elif not gpus and any(m.get("GPU") for m in machines):
        hint = "the trials will not see the GPUs that are there; --gpus 1 gives one to each."
        print(hint, file=sys.stderr)
    return sum(places)


def _outcome(ray, future, folder: Path, trial: Trial) -> Outcome:
    """Store what the worker sent, and say how its trial ended."""
    try:
        reply = ray.get(future)
        path = _store(folder, trial, reply)
    except ray.exceptions.RayTaskError as error:  # not of the notebook: a full disk, say
        return Outcome("failed", None, str(error.cause))
    except ray.exceptions.RayError as error:  # its process or its machine is gone
        first = str(error).strip().splitlines()[0]
        return Outcome("lost", None, f"{type(error).__name__}: {first}")
    if reply["error"]:
        text = f"{reply['error']}\nThe executed notebook is kept at {execute.shown(path)}."
        return Outcome("failed", reply["seconds"], text)
    return Outcome("done", reply["seconds"], None)


def _run(
    notebook: Path, folder: Path, todo: list[Trial], address, cpus, gpus, retries, before: int
) -> dict[str, Outcome]:
    """Execute ``todo``, ``before`` trials being done before; the outcome of each by its name."""
    from tqdm import tqdm

    every, tries, outcomes = before + len(todo), Counter(), {}
    quiet = not sys.stderr.isatty()
    with _cluster(address) as ray:
        slots = _slots(ray, address, cpus, gpus)
        head = f"{len(todo)} trials to execute, {before} done before; {slots} at a time"
        print(f"{head}, each with --cpus {cpus:g} --gpus {gpus:g}", flush=True)
        # One way to try again, for a trial that failed and for one whose process was lost; so none
        # of Ray's own.
        task = ray.remote(_execute).options(num_cpus=cpus, num_gpus=gpus, max_retries=0)
        place = None if address else str(execute.root()), os.path.relpath(notebook, execute.root())

        def submit(trial):
            own = dict(trial.parameters)  # a folder of checkpoints, say, that must not be shared
            for key, value in trial.parameters.items():
                own[key] = value.replace("{trial}", trial.name) if isinstance(value, str) else value
            return task.remote(*place, own, cpus, gpus)

        with tqdm(total=every, initial=before, unit="trial", disable=quiet) as bar:
            running = {submit(trial): trial for trial in todo}
            while running:
                failed = sum(outcome.status != "done" for outcome in outcomes.values())
                bar.set_postfix(running=min(len(running), slots), failed=failed)
                for future in ray.wait(list(running), timeout=1)[0]:
                    trial = running.pop(future)
                    tries[trial.name] += 1
                    outcome = _outcome(ray, future, folder, trial)
                    if outcome.status != "done" and tries[trial.name] <= retries:
                        running[submit(trial)] = trial
                        continue
                    outcomes[trial.name] = outcome
                    bar.update()
                    if quiet:  # no terminal: a line for each trial
                        count = f"[{before + len(outcomes)}/{every}]"
                        print(f"  {count} {trial.name}: {outcome.status}", flush=True)
    return outcomes


def _check(cpus: float, gpus: float, retries: int) -> None:
    for flag, value, right in (("--cpus", cpus, cpus > 0), ("--gpus", gpus, gpus >= 0)):
        if not right or (value > 1 and not float(value).is_integer()):
            raise ValueError(f"{flag} must be a whole number or a fraction of 1, not {value:g}.")
    if retries < 0:
        raise ValueError(f"--retries must be at least 0, not {retries}.")


def _flag(help: str, *names: str, read=None) -> Parameter:
    """What ``--help`` says of an option of `sweep`, its flags where they are not its name, and how
    its number is ``read``."""
    plain = dict(negative=(), allow_leading_hyphen=True, json_list=False)
    return Parameter(names or None, help=help, converter=read, **plain)


def sweep(
    notebook: Annotated[str, Parameter(help="e.g. experiments/images")],
    /,
    *,
    values: Annotated[
        list[str],
        _flag(
            "NAME=VALUE,… (repeatable: all combinations); a list in brackets: a=[1],[2,3]", "--grid"
        ),
    ] = [],  # noqa: B006
    seeds: Annotated[
        int | None, _flag("seeds 0…N−1 for each combination", read=whole_number)
    ] = None,
    given: Annotated[
        list[tuple[str, str]],
        _flag("set a parameter in every trial; {trial} in it stands for the trial's name", "-p"),
    ] = [],  # noqa: B006
    address: Annotated[
        str | None, _flag("of a Ray cluster, or 'auto' (default: this machine alone)")
    ] = None,
    cpus: Annotated[float, _flag("cores for each trial", read=any_number)] = 1,
    gpus: Annotated[float, _flag("GPUs for each trial, e.g. 0.5", read=any_number)] = 0,
    retries: Annotated[int, _flag("of a failed or lost trial", read=whole_number)] = 1,
    dry_run: Annotated[bool, _flag("print the trials and what they will cost")] = False,
    folder: Annotated[
        str | None, _flag("executed notebooks (default: below _build/sweeps)", "-o")
    ] = None,
) -> int:
    """Execute ``notebook`` at every point of the grid ``values`` that is not done yet; 0 when all
    trials are done.

    Everything is checked before anything starts: ValueError as in `trials`, and for a request that
    cannot be met.
    """
    _check(cpus, gpus, retries)
    path = execute.find(notebook)
    name = execute.name(path)
    try:
        every = trials(path, grid(values), execute.given_once(given), seeds)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    default = execute.root() / "_build/sweeps" / name.removesuffix(".md")
    target = Path(folder).resolve() if folder else default
    if target.exists() and not target.is_dir():
        raise ValueError(f"{target} is a file; name a folder for the executed notebooks.")
    if address and not path.is_relative_to(execute.root()):
        text = "is outside the checkout, which is all that travels to a cluster; move it there."
        raise ValueError(f"{path} {text}")
    if dry_run:
        return _plan(path, target, every, address, cpus, gpus)
    outcomes = {}
    with _files.only_process(target):
        todo = [trial for trial in every if not done(target, trial)]
        before = len(every) - len(todo)
        try:
            if todo:
                outcomes = _run(path, target, todo, address, cpus, gpus, retries, before)
        except KeyboardInterrupt:
            stored = sum(done(target, trial) for trial in every)
            words = "trials are stored; the same command goes on."
            print(f"\n{stored} of {len(every)} {words}", file=sys.stderr)
            raise
    return _report(every, outcomes, target)


def _report(every: list[Trial], outcomes: dict[str, Outcome], folder: Path) -> int:
    """Print how all trials ended; 1 if one of them did not end well."""
    unchanged = Outcome("done before", None, None)
    ends = [(trial, outcomes.get(trial.name, unchanged)) for trial in every]
    print(table([(trial, end.status, end.seconds) for trial, end in ends]))
    failures = [(trial, end) for trial, end in ends if not end.status.startswith("done")]
    for trial, end in failures:
        print(f"\n{trial.name} {end.status}: {trial.parameters}\n{end.text}", file=sys.stderr)
    good = len(every) - len(failures)
    print(f"{good} of {len(every)} trials are done: {execute.shown(folder)}")
    return 1 if failures else 0


def _plan(notebook: Path, folder: Path, every: list[Trial], address, cpus, gpus) -> int:
    """Print what a sweep would do, and its cost."""
    todo = [trial for trial in every if not done(folder, trial)]
    seconds, source = expected(notebook, folder, todo)
    costs = dict(zip((trial.name for trial in todo), seconds))
    print(table([(t, "to do" if t.name in costs else "done", costs.get(t.name)) for t in every]))
    text = f"{len(every)} trials, {len(todo)} to do"
    known = [cost for cost in seconds if cost is not None]
    if todo and len(known) == len(todo):
        text += f", about {_duration(sum(known))} of work"
        if not address and not gpus and (slots := int((os.cpu_count() or 1) // cpus)):
            text += f", {slots} at a time on this machine"
    print(f"{text}\nexpected times: {source}" if todo else text)
    return 0


def main(tokens: list[str]) -> int:
    """``hnlib sweep NOTEBOOK --grid NAME=VALUE,VALUE …``: see ``--help``."""
    about = "Execute one notebook over a grid of parameters."
    app = App("hnlib sweep", about, version_flags=[], default_command=sweep)
    app.result_action, app.suppress_keyboard_interrupt = "return_value", False
    return app(tokens, print_error=False, exit_on_error=False) or 0
