"""Render the staged pages with Sphinx: `python -m builder.run_sphinx FOLDER HTML STRICT`."""

import gc
import sys


def main(folder: str, html: str, strict: str) -> int:
    """Render `folder` into `html`; where it is strict ("True"), a warning is an error."""
    gc.disable()  # a third of the time: nearly all nodes of a book live until its end
    from jupyter_book.sphinx import build_sphinx

    failed = build_sphinx(
        folder,
        html,
        noconfig=True,
        path_config=f"{folder}/_config.yml",
        keep_going=True,
        quiet=True,
        confoverrides={
            "nitpicky": True,
            "external_toc_path": f"{folder}/_toc.yml",
            "latex_individualpages": False,
        },
        warningiserror=strict == "True",
    )
    gc.freeze()  # else the end of the process collects them, for seconds
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
