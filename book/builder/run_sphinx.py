"""Render the staged pages with Sphinx, in a process of its own."""

import gc
import io
import warnings
from contextlib import redirect_stderr


def main(folder: str, html: str, strict: bool) -> tuple[bool, str]:
    """Render `folder` into `html`; return whether it failed, and the warnings.

    Where it is `strict`, a warning is an error.
    """
    gc.disable()  # a third of the time: nearly all nodes of a book live until its end
    # the table of contents looks at all objects, deprecated ones of torch among them
    warnings.filterwarnings("ignore", category=FutureWarning, module="sphinx_external_toc")
    from jupyter_book.sphinx import build_sphinx

    with redirect_stderr(io.StringIO()) as said:
        failed = build_sphinx(
            folder,
            html,
            noconfig=True,
            path_config=f"{folder}/_config.yml",
            keep_going=True,
            quiet=True,
            confoverrides={"latex_individualpages": False},
            warningiserror=strict,
        )
    return bool(failed), said.getvalue()
