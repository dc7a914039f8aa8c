"""The extension of Sphinx that makes the pages: what is done to them, and in which order."""

import re
from pathlib import Path

import docstrings
import folds
import html_repairs
import page_metadata
import words
from pybtex.backends import plaintext
from pybtex.plugin import register_plugin

from hnlib.notebooks import two_texts

PAGE = re.compile(r"(?<=\]\()((?:\.\./)*[\w/-]+)\.md(?=\))")


def lead_to_executed(app, docname, source):
    """Let the links to chapters lead to what was executed: sources name their sources."""
    here = Path(app.srcdir, docname).parent
    source[0] = PAGE.sub(
        lambda link: link[0] if (here / link[0]).is_file() else f"{link[1]}.ipynb", source[0]
    )


def show_as_prose(app, docname, source):
    """Take out the marks of findings: at the head of a caption they would be a block of HTML."""
    source[0] = two_texts.without_marks(source[0])


def setup(app):
    """Called by Sphinx."""
    # pybtex looks through all installed packages for this at each citation
    register_plugin("pybtex.backends", "plaintext", plaintext.Backend, force=True)
    app.setup_extension("sphinx.ext.napoleon")
    app.connect("env-before-read-docs", html_repairs.read_in_parallel)
    app.connect("source-read", lead_to_executed)
    app.connect("source-read", show_as_prose)
    app.connect("autodoc-process-docstring", docstrings.process, priority=400)  # before napoleon
    app.connect("env-get-updated", html_repairs.number_figures, priority=900)  # after Sphinx
    app.connect("doctree-resolved", folds.link_codes)
    app.connect("html-page-context", page_metadata.show_foot)
    app.connect("html-page-context", html_repairs.offer_narrow)
    app.connect("html-page-context", words.show_cards)
    app.connect("html-page-context", folds.strips, priority=800)
    app.connect("html-page-context", html_repairs.fold_sidebar, priority=900)  # after the theme
    app.connect("html-page-context", html_repairs.repair, priority=900)
    app.connect("html-page-context", page_metadata.describe, priority=950)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
