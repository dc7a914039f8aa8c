"""The ``hnlib`` command: build the book, run one notebook or a sweep, train, prepare data, look at results."""

import argparse
import signal
import sys
from importlib import import_module

# Commands that parse their own arguments: name -> (room, help).
ROOMS = {
    "sweep": ("sweep", "execute one notebook over a grid of parameters"),
    "train": ("training", "train one encoder with one method"),
    "data": ("data", "list, download and verify the data sets"),
    "results": ("records", "list the recorded runs"),
}


def parser() -> argparse.ArgumentParser:
    """The command line; the commands of `ROOMS` are parsed by their own rooms."""
    top = argparse.ArgumentParser(prog="hnlib", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    book = commands.add_parser("book", help="execute the chapters that changed and write _build/html")
    book.add_argument("--only", metavar="PATTERN", help="a draft: execute only the chapters whose path matches, e.g. "
                      "'transport' or 'theory/*'; warnings are shown but do not stop the build")
    book.add_argument("--jobs", type=int, metavar="N", help="chapters executed at the same time (default: CPU count)")

    run = commands.add_parser("run", help="execute one notebook with other parameters")
    run.add_argument("notebook", metavar="NOTEBOOK", help="e.g. notebooks/experiments/images.md or experiments/images")
    run.add_argument("-p", dest="parameters", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"),
                     help="set a parameter of the notebook (repeatable)")
    run.add_argument("-o", dest="out", metavar="OUT", help="the executed notebook (default: below _build/runs)")
    run.add_argument("--timeout", type=int, metavar="SECONDS", help="limit for each cell (default: none)")

    for name, (_, text) in ROOMS.items():
        commands.add_parser(name, help=text, add_help=False)
    return top


def _terminate(*_):
    raise KeyboardInterrupt  # a polite kill tidies up like Ctrl-C


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit status. Bad input is one sentence on standard error and status 2."""
    argv = sys.argv[1:] if argv is None else list(argv)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        if argv and argv[0] in ROOMS:
            return import_module(f"hnlib.{ROOMS[argv[0]][0]}").main(argv[1:]) or 0
        arguments = parser().parse_args(argv)
        from hnlib import notebooks

        if arguments.command == "book":
            return notebooks.book(only=arguments.only, jobs=arguments.jobs)
        names = [name for name, _ in arguments.parameters]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"the parameter {twice!r} is given twice; give it once.")
        notebooks.run(arguments.notebook, dict(arguments.parameters), arguments.out, timeout=arguments.timeout)
        return 0
    except KeyboardInterrupt:
        print("hnlib: interrupted", file=sys.stderr)
        return 130
    except ModuleNotFoundError as error:
        print(f"hnlib: the package {error.name} is missing; pip install 'hnlib[book]' (to train only: [images])",
              file=sys.stderr)
        return 2
    except (ValueError, OSError) as error:
        print(f"hnlib: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
