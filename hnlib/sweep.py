"""``hnlib sweep``: one notebook over a grid of parameters, each trial a Ray task.

A trial is the notebook executed with one point of the grid by `hnlib.notebooks.execute`. Its notebook is stored under
``_build/sweeps/NOTEBOOK/TRIAL.ipynb``, where TRIAL is the hash of the parameters that ``hnlib run`` uses; the numbers
are the records that the notebook writes. Only the process that was started stores notebooks, each whole or not at all,
so a sweep may be stopped in any way: the same command executes what is missing. On a cluster the checkout travels to
the machines (Ray's ``working_dir``, without what ``.gitignore`` names) and a trial's records travel back with its
notebook.
"""

import argparse
import hashlib
import itertools
import json
import logging
import os
import signal
import socket
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hnlib import notebooks, records


@dataclass(frozen=True)
class Trial:
    """One point of the grid: its name, its parameters, and the fingerprint of what it depends on."""

    name: str
    parameters: dict
    fingerprint: str


# --------------------------------------------------------------------------------------------------------------- grid


def split(text: str) -> list[str]:
    """The items of ``text``: what its commas outside brackets separate. ValueError: an empty item, unclosed brackets.

    >>> split("[hcl],[ot,simclr]")
    ['[hcl]', '[ot,simclr]']
    """
    items, depth = [""], 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        if depth < 0:
            break
        if letter == "," and not depth:
            items.append("")
        else:
            items[-1] += letter
    if depth:
        raise ValueError(f"the brackets of {text!r} do not match.")
    items = [item.strip() for item in items]
    if "" in items:
        raise ValueError(f"{text!r} is an empty list." if len(items) == 1 else f"{text!r} has an empty value.")
    return items


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
            values[name] = split(items)
        except ValueError as error:
            raise ValueError(f"--grid {name}: {error}") from None
    return values


def trials(notebook: Path, values: dict[str, list], given: dict[str, str], seeds: int | None = None) -> list[Trial]:
    """All points of the grid ``values``, with the parameters ``given`` to each; ``seeds`` many seeds vary fastest.

    ValueError: nothing to vary, a parameter the notebook does not have, a value that does not parse, one given twice.
    """
    known = notebooks.parameters_of(notebooks.read(notebook))
    if seeds is not None:
        values = values | _seeds(known, seeds, values.keys() | given.keys())
    if not values:
        raise ValueError("there is nothing to vary; give --grid NAME=VALUE,VALUE,… or --seeds N.")
    if both := sorted(values.keys() & given.keys()):
        raise ValueError(f"{both[0]!r} is in the grid and given by -p; leave one of them out.")
    fixed, axes = notebooks.guard_parameters(known, given), {}
    for name, items in values.items():
        axes[name] = [notebooks.guard_parameters(known, {name: item})[name] for item in items]
        written = [repr(value) for value in axes[name]]
        if twice := next((value for value in written if written.count(value) > 1), None):
            raise ValueError(f"--grid {name} has the value {twice} twice; give it once.")
    points = [fixed | dict(zip(axes, point)) for point in itertools.product(*axes.values())]
    marks = (notebooks.fingerprint(notebook, point, ledgers=False) for point in points)  # trials extend the ledgers
    return [Trial(_hash(repr(sorted(p.items())))[:8], p, mark) for p, mark in zip(points, marks)]


def _seeds(known: dict, seeds: int, taken) -> dict[str, list]:
    if seeds < 1:
        raise ValueError(f"--seeds must be at least 1, not {seeds}.")
    if "seed" in known:
        name, items = "seed", list(range(seeds))
    elif isinstance(known.get("seeds"), list | tuple):
        name, items = "seeds", [[seed] for seed in range(seeds)]
    else:
        raise ValueError("--seeds needs a parameter `seed`, or a list `seeds`, and this notebook has neither.")
    if name in taken:
        raise ValueError(f"{name!r} is set by --seeds and given a second time; leave one of them out.")
    return {name: items}


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# -------------------------------------------------------------------------------------------------------- what is there


def _about(path: Path) -> dict:
    """What a stored notebook says of itself: parameters, fingerprint, seconds; empty when there is none."""
    stored = (notebooks._load(path) or {}).get("metadata", {})
    return stored.get("hnlib", {}) | stored.get("papermill", {})


def done(folder: Path, trial: Trial) -> bool:
    """Whether the executed notebook of ``trial`` is in ``folder`` and nothing it depends on has changed since."""
    return _about(folder / f"{trial.name}.ipynb").get("fingerprint") == trial.fingerprint


def expected(notebook: Path, folder: Path, todo: list[Trial]) -> tuple[list[float | None], str]:
    """Seconds that each trial will take, and where they come from.

    A trial takes the mean of those executed before that share the most parameters with it; where there are none, what
    the chapter took in the default build; else None.
    """
    stored = [_about(path) for path in sorted(folder.glob("*.ipynb"))]
    before = [about for about in stored if {"seconds", "parameters"} <= about.keys()]
    if before:
        seconds = []
        for trial in todo:
            alike = [sum(about["parameters"].get(k) == v for k, v in trial.parameters.items()) for about in before]
            near = [about["seconds"] for about, score in zip(before, alike) if score == max(alike)]
            seconds.append(sum(near) / len(near))
        return seconds, f"from the {len(before)} executed before, by those with the most parameters in common"
    if notebook.is_relative_to(notebooks.root() / "notebooks"):
        default = _about(notebooks.executed_path(notebook)).get("seconds")
        if default is not None:
            return [default] * len(todo), "from the chapter's default build; other parameters may cost more or less"
    return [None] * len(todo), "unknown: neither a trial nor the chapter has been executed yet"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def table(rows: list[tuple[Trial, str, float | None]]) -> str:
    """Name, parameters, status and seconds of the trials, one line each, under a heading."""
    names = list(rows[0][0].parameters)
    lines = [["trial", *names, "status", "time"]]
    for trial, status, seconds in rows:
        values = [v if isinstance(v, str) else repr(v) for v in trial.parameters.values()]
        lines.append([trial.name, *values, status, "" if seconds is None else _duration(seconds)])
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


# ------------------------------------------------------------------------------------------------------------- a trial


def _execute(root: str | None, notebook: str, parameters: dict, cpus: float, gpus: float) -> dict:
    """What a Ray worker does: execute one trial; returns its notebook's text, the seconds, its error if it failed.

    ``root`` is the checkout, or None on a cluster: there the worker stands in a copy of it, and the records that the
    trial wrote into that copy are returned too.
    """
    if root:
        os.chdir(root)
    if not gpus:  # those it asked for, Ray lets it see; none is meant to be none
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    before = {} if root else _records()
    clock = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        out, failed, error = Path(folder, "trial.ipynb"), Path(folder, "failed.ipynb"), None
        try:
            notebooks.execute(notebooks.root() / notebook, out, parameters, threads=max(1, int(cpus)),
                              failed=failed)
        except notebooks.NotebookError as caught:
            error = str(caught).partition("\nThe executed notebook is kept")[0]  # that place is about to disappear
        kept = failed if error else out
        text = kept.read_text(encoding="utf-8") if kept.is_file() else None
    written = {} if root else dict(_records().items() - before.items())
    return {"text": text, "error": error, "seconds": time.monotonic() - clock,
            "records": {name: Path(name).read_bytes() for name in written}}


def _records() -> dict[str, int]:
    """Records below the working directory, with the time of their last change."""
    folders = ("_build/results", "book/results/runs")
    return {str(path): path.stat().st_mtime_ns for folder in folders for path in Path(folder).glob("[!.]*.json")}


def _store(folder: Path, trial: Trial, reply: dict) -> Path:
    """Put the records and the notebook of a finished trial where they belong; returns the notebook's path."""
    for name, content in reply["records"].items():
        records.write_atomically(notebooks.root() / name, content)
    good, failed = folder / f"{trial.name}.ipynb", folder / f"{trial.name}.failed.ipynb"
    if reply["error"]:
        if reply["text"]:
            records.write_atomically(failed, reply["text"].encode())
        return failed
    node = json.loads(reply["text"])
    node["metadata"]["hnlib"]["fingerprint"] = trial.fingerprint
    records.write_atomically(good, f"{json.dumps(node, indent=1, ensure_ascii=False)}\n".encode())
    failed.unlink(missing_ok=True)
    return good


# ---------------------------------------------------------------------------------------------------------------- Ray


@contextmanager
def _cluster(address: str | None):
    """Ray, connected: of this machine's own for as long as the sweep lasts, or the cluster at ``address``."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address not in (None, "auto"):
        _answers(address)
    try:
        import ray
    except ModuleNotFoundError as error:
        raise ValueError(f"a sweep needs Ray (missing: {error.name}); pip install 'hnlib[sweep]'") from None
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    handler = signal.getsignal(signal.SIGTERM)
    try:
        if address is None:
            # "local", else Ray would join a cluster that happens to run here; trials move kilobytes, so little memory
            ray.init("local", include_dashboard=False, object_store_memory=100 * 2**20, **quiet)
        else:
            ship = {"working_dir": str(notebooks.root()), "excludes": ["/.git", "/.venv", "/_build"]}
            ray.init(address, runtime_env=ship, **quiet)
    except Exception as error:  # Ray raises bare ones, for instance after 30 s on an overloaded machine
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        if address is None:
            raise ValueError(f"Ray could not be started here ({reason}); is the machine overloaded?") from None
        hint = "if the cluster asks for a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
        raise ValueError(f"Ray cannot be used at {address!r} ({reason}); {hint}.") from None
    finally:
        signal.signal(signal.SIGTERM, handler)  # Ray takes it; a polite kill is to end in the same words as Ctrl-C
    try:
        yield ray
    finally:
        ray.shutdown()


def _answers(address: str) -> None:
    """ValueError unless something listens at ``address``: Ray itself would try for minutes, deaf to Ctrl-C."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except (OSError, ValueError, OverflowError) as error:
        text = f"nothing answers at --address {address!r} ({error}); it is HOST:PORT of a cluster's head, or 'auto'."
        raise ValueError(text) from None


def _slots(ray, address: str | None, cpus: float, gpus: float) -> int:
    """How many trials can run at the same time; ValueError when not even one can."""
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    asked = [(kind, amount) for kind, amount in (("CPU", cpus), ("GPU", gpus)) if amount]
    places = [min(int(m.get(kind, 0) / amount + 1e-9) for kind, amount in asked) for m in machines]
    if not any(places):
        most = ", ".join(f"{m.get('CPU', 0):g} cores and {m.get('GPU', 0):g} GPUs" for m in machines)
        text = f"a trial asks for {cpus:g} cores and {gpus:g} GPUs, and there are machines with {most}"
        if address is None:
            raise ValueError(f"{text}; lower --cpus or --gpus, or give the --address of a cluster.")
        print(f"{text}; waiting until the cluster has grown.", file=sys.stderr)
    elif not gpus and any(m.get("GPU") for m in machines):
        print("the trials will not see the GPUs that are there; --gpus 1 gives one to each.", file=sys.stderr)
    return sum(places)


def _run(notebook: Path, folder: Path, todo: list[Trial], address, cpus, gpus, retries, before: int) -> dict:
    """Execute ``todo``; returns for each name the status, the seconds and, if it failed, what there is to say."""
    from tqdm import tqdm

    with _cluster(address) as ray:
        slots = _slots(ray, address, cpus, gpus)
        print(f"{len(todo)} trials to execute, {before} done before; {slots} at a time, each with --cpus {cpus:g} "
              f"--gpus {gpus:g}", flush=True)
        # One way to try again, for a trial that failed and for one whose process was lost; so none of Ray's own.
        task = ray.remote(_execute).options(num_cpus=cpus, num_gpus=gpus, max_retries=0)
        root = None if address else str(notebooks.root())
        name = os.path.relpath(notebook, notebooks.root())

        def submit(trial):
            # A folder of checkpoints must not be shared; on a cluster the name of the trial serves as well.
            parameters = {k: v.replace("{trial}", trial.name) if isinstance(v, str) else v
                          for k, v in trial.parameters.items()}
            return task.remote(root, name, parameters, cpus, gpus)

        tries, outcome = dict.fromkeys((trial.name for trial in todo), 0), {}
        with tqdm(total=before + len(todo), initial=before, unit="trial", disable=not sys.stderr.isatty()) as bar:
            running = {submit(trial): trial for trial in todo}
            while running:
                failures = sum(status != "done" for status, *_ in outcome.values())
                bar.set_postfix(running=min(len(running), slots), failed=failures)
                for future in ray.wait(list(running), timeout=1)[0]:
                    trial = running.pop(future)
                    tries[trial.name] += 1
                    seconds = None
                    try:
                        reply = ray.get(future)
                        status, seconds, text = "failed" if reply["error"] else "done", reply["seconds"], reply["error"]
                        path = _store(folder, trial, reply)
                        if text and reply["text"]:
                            text += f"\nThe executed notebook is kept at {notebooks._shown(path)}."
                    except ray.exceptions.RayTaskError as error:  # not of the notebook: a full disk, say
                        status, text = "failed", str(error.cause)
                    except ray.exceptions.RayError as error:  # its process or its machine is gone
                        status, text = "lost", f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
                    if status != "done" and tries[trial.name] <= retries:
                        running[submit(trial)] = trial
                        continue
                    outcome[trial.name] = (status, seconds, text)
                    bar.update()
                    if bar.disable:  # no terminal: a line for each trial
                        print(f"  [{before + len(outcome)}/{before + len(todo)}] {trial.name}: {status}", flush=True)
    return outcome


def sweep(
    notebook: str, values: dict[str, list[str]], given: dict[str, str], *, seeds: int | None = None,
    folder: str | None = None, address: str | None = None, cpus: float = 1, gpus: float = 0, retries: int = 1,
    dry_run: bool = False,
) -> int:
    """Execute ``notebook`` at every point of the grid ``values`` that is not done yet; 0 when all trials are done.

    Everything is checked before anything starts: ValueError as in `trials`, and for a request that cannot be met.
    """
    for flag, value, right in (("--cpus", cpus, cpus > 0), ("--gpus", gpus, gpus >= 0)):
        if not right or (value > 1 and not float(value).is_integer()):
            raise ValueError(f"{flag} must be a whole number or a fraction of 1, not {value:g}.")
    if retries < 0:
        raise ValueError(f"--retries must be at least 0, not {retries}.")
    path = notebooks.find(notebook)
    name = notebooks._name(path)
    try:
        every = trials(path, values, given, seeds)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    target = Path(folder).resolve() if folder else notebooks.root() / "_build/sweeps" / name.removesuffix(".md")
    if target.exists() and not target.is_dir():
        raise ValueError(f"{target} is a file; name a folder for the executed notebooks.")
    if address and not path.is_relative_to(notebooks.root()):
        raise ValueError(f"{path} is outside the checkout, which is all that travels to a cluster; move it there.")
    if dry_run:
        return _plan(path, target, every, address, cpus, gpus)
    with records.alone(target):
        todo = [trial for trial in every if not done(target, trial)]
        try:
            outcome = _run(path, target, todo, address, cpus, gpus, retries, len(every) - len(todo)) if todo else {}
        except KeyboardInterrupt:
            stored = sum(done(target, trial) for trial in every)
            print(f"\n{stored} of {len(every)} trials are stored; the same command goes on.", file=sys.stderr)
            raise
        unchanged = ("done before", None, None)
        rows = [(trial, *outcome.get(trial.name, unchanged)[:2]) for trial in every]
    print(table(rows))
    failures = [(trial, *outcome[trial.name]) for trial in todo if outcome[trial.name][0] != "done"]
    for trial, status, _, text in failures:
        print(f"\n{trial.name} {status}: {trial.parameters}\n{text}", file=sys.stderr)
    print(f"{len(every) - len(failures)} of {len(every)} trials are done: {notebooks._shown(target)}")
    return 1 if failures else 0


def _plan(notebook: Path, folder: Path, every: list[Trial], address, cpus, gpus) -> int:
    todo = [trial for trial in every if not done(folder, trial)]
    seconds, source = expected(notebook, folder, todo)
    costs = dict(zip((trial.name for trial in todo), seconds))
    print(table([(t, "to do", costs[t.name]) if t.name in costs else (t, "done", None) for t in every]))
    text = f"{len(every)} trials, {len(todo)} to do"
    if todo and None not in seconds:
        text += f", about {_duration(sum(seconds))} of work"
        if not address and not gpus and (slots := int((os.cpu_count() or 1) // cpus)):
            text += f", {slots} at a time on this machine"
    print(f"{text}\nexpected times: {source}" if todo else text)
    return 0


def main(argv: list[str] | None = None) -> int:
    """``hnlib sweep NOTEBOOK --grid NAME=VALUE,VALUE …``: see ``--help``."""
    parser = argparse.ArgumentParser(prog="hnlib sweep", description="Execute one notebook over a grid of parameters.")
    parser.add_argument("notebook", metavar="NOTEBOOK", help="e.g. experiments/images")
    parser.add_argument("--grid", action="append", default=[], metavar="NAME=VALUE,…",
                        help="values of a parameter (repeatable: all combinations); a list in brackets: a=[1],[2,3]")
    parser.add_argument("--seeds", type=int, metavar="N", help="seeds 0…N−1 for each combination")
    parser.add_argument("-p", dest="parameters", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"),
                        help="set a parameter in every trial; {trial} in it stands for the trial's name")
    parser.add_argument("--address", help="of a Ray cluster, or 'auto' (default: this machine alone)")
    parser.add_argument("--cpus", type=float, default=1, metavar="F", help="cores for each trial (default: 1)")
    parser.add_argument("--gpus", type=float, default=0, metavar="F", help="GPUs for each trial, e.g. 0.5 (default: 0)")
    parser.add_argument("--retries", type=int, default=1, metavar="N", help="of a failed or lost trial (default: 1)")
    parser.add_argument("--dry-run", action="store_true", help="print the trials and what they will cost")
    parser.add_argument("-o", dest="folder", metavar="FOLDER", help="executed notebooks (default: below _build/sweeps)")
    arguments = vars(parser.parse_args(argv))
    values, pairs = grid(arguments.pop("grid")), arguments.pop("parameters")
    names = [name for name, _ in pairs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"the parameter {twice!r} is given twice; give it once.")
    return sweep(arguments.pop("notebook"), values, dict(pairs), **arguments)
