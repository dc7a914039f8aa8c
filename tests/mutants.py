"""Put the mutants of `mutants.toml` to the tests that must notice them.

    python tests/mutants.py [WORD …] [--jobs N] [--passed] [--minutes N] [--survivors COMMIT]

Each row is a text of the sources, its wrong version, and the tests of which one must fail. A row's file is not
named: its text is found wherever it stands, once. With words only rows are tried whose area, meaning or text contains
one. A mutant that no test notices is a fault of the tests, unless the row says why it `survives`. The tests are run
once without any mutant, unless they have just `--passed`. After `--minutes` no further row is tried; which rows come
first then depends on the commit, so that all have their turn.

`--survivors` applies the rows that say `survived = true` to an earlier commit, in four groups, and
runs that commit's own tests: as long as these pass, they did not notice. A quarter of an hour a
group, on an idle machine.
"""

import argparse
import contextlib
import importlib
import json
import math
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROWS = tomllib.loads((ROOT / "tests/mutants.toml").read_text(encoding="utf-8"))["mutant"]
WHERE = ("hnlib", "book", "notebooks", "examples")
FEW = 0.05  # share of mutants that may go unnoticed before the command fails
GROUPS = 4  # in which the survivors of an earlier commit are tried
HEAVY = """torch numpy pandas scipy.stats sklearn.linear_model sklearn.svm pydantic cyclopts pytest
    hypothesis.strategies lightning_fabric matplotlib.pyplot seaborn IPython nbformat jupytext ot
    statsmodels.api"""


@cache
def sources(root: Path) -> dict[Path, str]:
    """Return the texts that rows may name, by file."""
    listed = subprocess.check_output(["git", "ls-files", "-z", *WHERE], cwd=root, text=True)
    files = (root / name for name in listed.split("\0") if name.endswith((".py", ".md", ".toml")))
    return {file: file.read_text(encoding="utf-8") for file in files if file.exists()}


def places(row: dict, root: Path = ROOT) -> list[Path]:
    """Return the file of a row's text, once for each time that it stands there."""
    return [file for file, text in sources(root).items() for _ in range(text.count(row["text"]))]


@contextlib.contextmanager
def applied(row: dict, file: Path):
    """Put the wrong version into a file, and afterwards what stood there."""
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace(row["text"], row["wrong"]), encoding="utf-8")
    try:
        yield
    finally:
        file.write_text(text, encoding="utf-8")


def in_copy(copy: Path, row: dict, file: Path, tests: list[str], output: Path) -> None:
    """Run tests of a row in a copy of a checkout, in this forked process; exit as pytest does."""
    os.chdir(copy)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(copy), str(copy / "book")])
    sys.path[:0] = [str(copy), str(copy / "book")]
    sys.dont_write_bytecode = True
    with output.open("w") as stream, applied(row, copy / file):
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
        import pytest

        code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests])
    os._exit(code)


def copied(root: Path, folder: Path) -> Path:
    """Copy what git tracks or would track into a folder of its own."""
    copy = Path(tempfile.mkdtemp(dir=folder))
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.check_output(listing, cwd=root)
    pack = ["tar", "--null", "--ignore-failed-read", "-T", "-", "-c"]
    packed = subprocess.run(pack, cwd=root, input=names, stdout=subprocess.PIPE, check=True).stdout
    subprocess.run(["tar", "-x"], cwd=copy, input=packed, check=True)
    return copy


def tried(
    rows: list[dict],
    jobs: int,
    root: Path = ROOT,
    tests: list[str] | None = None,
    until: float = math.inf,
):
    """Try rows one by one in forked processes, so that torch is imported once.

    Yields each row with what came of it, its seconds and what its tests printed. The tests are
    the row's own if none are given. None starts after the time ``until``, of `time.monotonic`.
    """
    for name in HEAVY.split():
        importlib.import_module(name)
    sys.modules["torch"].set_num_threads(1)
    context, running, waiting = multiprocessing.get_context("fork"), {}, [*rows]
    with tempfile.TemporaryDirectory() as folder:
        free = [copied(root, Path(folder)) for _ in range(jobs)]
        while waiting or running:
            while waiting and free:
                row, copy = waiting.pop(0), free.pop()
                output = copy.with_suffix(".txt")
                file = places(row, root)[0].relative_to(root)
                asked = copy, row, file, tests or row["tests"], output
                process = context.Process(target=in_copy, args=asked)
                process.start()
                running[process] = row, copy, output, time.monotonic()
            multiprocessing.connection.wait([process.sentinel for process in running])
            for process in [one for one in running if not one.is_alive()]:
                row, copy, output, start = running.pop(process)
                word = {0: "SURVIVED", 1: "noticed"}.get(process.exitcode, "BROKEN")
                yield row, word, time.monotonic() - start, output.read_text()
                free.append(copy)
            if time.monotonic() > until:
                waiting.clear()


def judge(rows: list[dict], jobs: int, passed: bool = False, minutes: float = math.inf) -> float:
    """Put rows to their tests, for so many minutes; return the share that surprises.

    A row surprises if no test notices it though it says no reason why it survives, or if it breaks.
    One whose tests fail without it, too, is broken.
    """
    if minutes < math.inf:
        commit = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT)
        rows = random.Random(commit).sample(rows, len(rows))
    found, tests = [], sorted({test for row in rows for test in row["tests"]})
    with tempfile.TemporaryDirectory() as folder:
        failed = [] if passed else _failed(copied(ROOT, Path(folder)), [], tests)
    failing = {one.partition("[")[0] for one in failed}
    until = time.monotonic() + 60 * minutes
    for row, word, seconds, printed in tried(rows, jobs, until=until):
        if word == "noticed" and failing & {one.partition("[")[0] for one in row["tests"]}:
            word, printed = "BROKEN", "its tests fail without it, too"
        known = f" ({row['survives']})" if "survives" in row else ""
        print(f"{word}{known} {seconds:4.1f} s  {row['area']}: {row['means']}", flush=True)
        if word == "BROKEN":
            print("\n".join(printed.splitlines()[-25:]))
        found.append((row, word))
    noticed = Counter(row["area"] for row, word in found if word == "noticed")
    for area, count in Counter(row["area"] for row, _ in found).items():
        print(f"{area:12} {noticed[area]:3} of {count}")
    print(f"{'all':12} {noticed.total():3} of {len(found)}")
    if len(found) < len(rows):
        print(f"{len(rows) - len(found)} rows were not tried within {minutes:g} minutes")
    wrong = sum(word != ("SURVIVED" if "survives" in row else "noticed") for row, word in found)
    return wrong / len(found)


def survivors(commit: str, rows: list[dict], jobs: int) -> int:
    """Put survivors to an earlier commit's own tests; return how many it noticed or does not have.

    They are tried together; a test that fails is then put to each row of its group alone.
    """
    with tempfile.TemporaryDirectory() as folder:
        old = Path(folder) / "old"
        subprocess.run(["git", "worktree", "add", "-q", old, commit], cwd=ROOT, check=True)
        missing = [row for row in rows if len(places(row, old)) != 1]
        groups, seen, noticed, tries = defaultdict(list), Counter(), [], 0
        for row in [row for row in rows if row not in missing]:
            (file,) = places(row, old)
            groups[seen[file] % GROUPS].append(row)  # texts of one file may overlap
            seen[file] += 1
        for row in missing:
            print(f"not in {commit}: {row['area']}: {row['means']}")
        for group in sorted(groups.values(), key=len):  # what is small is known soon
            noticed += _noticed(old, group, jobs)
            tries += len(group)
            print(f"{tries} rows tried, {len(noticed)} noticed in all", flush=True)
        subprocess.run(["git", "worktree", "remove", "--force", old], cwd=ROOT, check=True)
    unseen = [row for row in rows if row not in missing and row not in noticed]
    for area, count in Counter(row["area"] for row in unseen).items():
        print(f"{area:12} {count:3}")
    print(f"{len(unseen)} of {len(rows)} were not noticed at {commit}")
    return len(missing) + len(noticed)


def _noticed(old: Path, group: list[dict], jobs: int) -> list[dict]:
    """Return the rows of a group that tests of an earlier commit notice alone."""
    noticed, failed = [], _failed(old, group, [])
    broken = _failed(old, [], failed) if failed else []  # without any row, on this machine
    failed = [test for test in failed if test not in broken]
    while failed:
        test, *others = failed
        print(f"{len(failed)} tests fail, such as {test}", flush=True)
        rest = [row for row in group if row not in noticed]
        for row, word, _, _ in tried(rest, jobs, old, [test]):
            if word != "SURVIVED":
                noticed.append(row)
                print(f"noticed: {row['area']}: {row['means']}", flush=True)
        rest = [row for row in group if row not in noticed]
        failed = [one for one in _failed(old, rest, others) if one != test] if others else []
    return noticed


def _failed(old: Path, rows: list[dict], tests: list[str]) -> list[str]:
    """Return which tests of an earlier commit, by default of all, fail with these rows together."""
    cache = old / ".tried"
    shutil.rmtree(cache, ignore_errors=True)
    with contextlib.ExitStack() as stack:
        for row in rows:
            stack.enter_context(applied(row, places(row, old)[0]))
        environment = os.environ | {"PYTHONPATH": f"{old}{os.pathsep}{old / 'book'}"}
        command = [sys.executable, "-m", "pytest", "-q", "-n", "logical", "--dist=loadfile"]
        command += ["--ignore=tests/pages", "-o", f"cache_dir={cache}", *tests]
        subprocess.run(command, cwd=old, env=environment, capture_output=True)
    found = cache / "v/cache/lastfailed"
    return [*json.loads(found.read_text())] if found.exists() else []


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--passed", action="store_true")
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--survivors", metavar="COMMIT")
    asked = parser.parse_args()
    several = [
        row
        for row in ROWS
        if not asked.words or any(word in " ".join(map(str, row.values())) for word in asked.words)
    ]
    if asked.survivors:
        known = [row for row in several if row.get("survived")]
        sys.exit(survivors(asked.survivors, known, asked.jobs) > 0)
    sys.exit(judge(several, asked.jobs, asked.passed, asked.minutes) > FEW)
