"""The `hnlib` command: build the book, run one notebook or a sweep, train, prepare data, look at
results."""

import signal
import sys
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

try:
    from cyclopts import App, CycloptsError, Parameter
except ModuleNotFoundError as missing:
    print(
        f"hnlib: the package {missing.name} is missing; pip install 'hnlib[training]'",
        file=sys.stderr,
    )
    sys.exit(2)

from hnlib.training.config import any_number, whole_number  # needs no torch

WHOLE: dict[str, Any] = {"converter": whole_number}
NUMBER: dict[str, Any] = {"converter": any_number}
app = App(
    "hnlib",
    help=__doc__,
    version_flags=[],
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)
Rest = Annotated[str, Parameter(show=False, allow_leading_hyphen=True)]  # parsed elsewhere
Pairs = Annotated[
    list[tuple[str, str]],
    Parameter(
        "-p",
        help="set a parameter of the notebook (repeatable)",
        allow_leading_hyphen=True,
        negative=(),
        json_list=False,
    ),
]


def about(help: str, *names: str, **more) -> Parameter:
    """What `--help` says of a parameter, and its flags where they are not its name."""
    return Parameter(names or None, help=help, **more)


@app.command
def book(
    only: Annotated[
        str | None,
        about(
            "a draft: only chapters whose path matches, e.g. 'theory/*'; "
            "warnings are shown but do not stop it",
            "--only",
        ),
    ] = None,
    jobs: Annotated[
        int | None, about("chapters executed at once (default: CPU count)", "--jobs", **WHOLE)
    ] = None,
) -> int:
    """Execute the chapters that changed and write _build/html."""
    from hnlib.book import build

    return build.book(only=only, jobs=jobs)


@app.command
def run(
    notebook: Annotated[str, about("notebooks/experiments/images.md or experiments/images")],
    /,
    *,
    parameters: Pairs = [],  # noqa: B006
    out: Annotated[
        str | None, about("the executed notebook (default: below _build/runs)", "-o")
    ] = None,
    timeout: Annotated[int | None, about("seconds for each cell (default: none)", **WHOLE)] = None,
) -> int:
    """Execute one notebook with other parameters."""
    from hnlib.book import execute

    execute.run(notebook, execute.given_once(parameters), out, timeout=timeout)
    return 0


@app.command(help_flags=[])
def sweep(*tokens: Rest) -> int:
    """Execute one notebook over a grid of parameters."""
    from hnlib.book import sweep

    return sweep.main(list(tokens)) or 0


@app.command(help_flags=[])
def train(*tokens: Rest) -> int:
    """Train one encoder with one method."""
    from hnlib import commands as command

    return command.train(list(tokens))


@app.command
def data(
    name: Annotated[str | None, about("digits, cifar10, …; without: where each is")] = None,
    /,
    *,
    root: Annotated[Path | None, about("default: $HNLIB_DATA, else the user's cache")] = None,
) -> int:
    """List, download and verify the data sets."""
    from hnlib import commands as command

    return command.data(name, root)


@app.command
def results(
    *, folder: Annotated[Path | None, about("default: book/results/runs and _build/results")] = None
) -> int:
    """List the recorded runs."""
    from hnlib import commands as command

    return command.results(folder)


@app.command
def queue(
    *,
    run: Annotated[bool, about("work the queue off", "--run")] = False,
    minutes: Annotated[
        float, about("with --run: for so long; what is cut short goes on", **NUMBER)
    ] = 10,
    device: Annotated[str, about("auto, cpu, cuda")] = "auto",
    only: Annotated[
        str, about("a part of 'PAPER TABLE, DATASET, METHOD', or chapters…, or a pattern")
    ] = "*",
    seeds: Annotated[int, about("runs of each setting", **WHOLE)] = 1,
    root: Annotated[Path | None, about("of the data (default: $HNLIB_DATA)", "--data-root")] = None,
    dry_run: Annotated[bool, about("with --run: only list", "--dry-run")] = False,
) -> int:
    """List the runs that the papers' numbers wait for, best first, and work them off."""
    from hnlib import commands as command

    return command.queue(run and not dry_run, minutes, device, only, seeds, root)


def _refuse_empty(argv: list[str]) -> None:
    """ValueError: a flag or name without its value, which a path would take for this folder."""
    for before, word in pairwise(argv):
        if not word.strip() or (word.startswith("--") and word.endswith("=")):
            raise ValueError(f"{word.strip(' =') or before} is given an empty value; leave it out")


# a polite kill, and the end of a terminal, tidy up like Ctrl-C
SIGNALS = [getattr(signal, s) for s in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, s)]


def _stop(*_):
    for number in SIGNALS:  # who stops it again does not disturb the tidying up
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit status. Bad input is one sentence on standard error
    and status 2."""
    heard = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]  # nohup
    before = {number: signal.signal(number, _stop) for number in heard}
    if argv is None:  # a process of its own: what stops it while it ends needs no traceback
        argv, before = sys.argv[1:], dict.fromkeys(heard, signal.SIG_DFL)
    try:
        if not argv:  # a script whose command is empty is to stop
            app.help_print()
            return 2
        if argv[0] in ("train", "data", "results", "queue"):
            _refuse_empty(argv)
        return app(argv, print_error=False, exit_on_error=False) or 0
    except KeyboardInterrupt as stop:
        status, text = 130, str(stop) or "interrupted"
    except ModuleNotFoundError as error:
        status, text = (
            2,
            (
                f"the package {error.name} is missing; pip install 'hnlib[book]' ([runs] trains, "
                "[graphs] also on graphs)"
            ),
        )
    except (CycloptsError, ValueError, OSError) as error:
        status, text = 2, " ".join(str(error).split())
    finally:
        for number in before:
            if signal.getsignal(number) is _stop:  # else the process is about to end
                signal.signal(number, before[number])
    print(f"hnlib: {text}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
