"""The `hnlib` command."""

import io
import os
import signal
import sys

try:
    from cyclopts import CycloptsError
except ModuleNotFoundError as missing:
    print(f"hnlib: {missing.name} is missing; pip install 'hnlib[training]'", file=sys.stderr)
    sys.exit(2)

#: The extra that brings a package, where it is not [book]
EXTRAS = {"networkx": "graphs", "tokenizers": "sentences", "bm25s": "retrieval"}
EXTRAS["torchvision"] = "images"
#: Commands that keep what they have done
RESUMED = ("run", "queue", "null")


def _stop(*_):
    raise KeyboardInterrupt


def main(argv: list[str] | None = None, app=None) -> int:
    """Run a command line, by default `hnlib`, and return the exit status; errors are one line."""
    argv = sys.argv[1:] if argv is None else argv
    for name in ("SIGTERM", "SIGHUP"):  # clean up as on Ctrl-C
        number = getattr(signal, name, None)  # SIGHUP does not exist on Windows
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:  # nohup ignores it
            signal.signal(number, _stop)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # ± where there is none
    try:
        if app is None:
            from hnlib.commands import app
        if not argv:
            app.help_print()
            return 2
        status = app(argv, print_error=False, exit_on_error=False) or 0
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # whoever read the output, such as head, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt as stop:
        status, text = 130, str(stop) or "interrupted"
        if not str(stop) and argv and argv[0] in RESUMED:
            text += "; the same command goes on from there"
    except ModuleNotFoundError as error:
        status, text = 2, str(error)
        if "pip install" not in text:  # not a sentence of ours
            extra = EXTRAS.get(str(error.name), "book")
            text = f"{error.name} is missing; pip install 'hnlib[{extra}]'"
    except (CycloptsError, ValueError, OSError, MemoryError) as error:
        status, text = 2, _sentence(error)
    print(f"hnlib: {text}", file=sys.stderr)
    return status


def _sentence(error: Exception) -> str:
    """Format an error on one line; list each invalid option with its rule and the value given."""
    from pydantic import ValidationError

    cause = error.__cause__ if isinstance(error, CycloptsError) else error
    if isinstance(cause, FileNotFoundError) and cause.filename:
        return f"{cause.filename} does not exist"
    if not isinstance(cause, ValidationError):
        return " ".join(str(error).split())
    from hnlib.training.config import sentence

    return sentence(cause)


if __name__ == "__main__":
    sys.exit(main())
