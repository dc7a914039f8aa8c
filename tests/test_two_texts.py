"""The two kinds of text: findings are quoted, keep our numbers, and leave captions."""

import ast
import random
import re
from pathlib import Path
from types import SimpleNamespace

import book_extension
import jupytext
import nbformat
import pytest
from scripts import ROOT

from builder import changed_pages
from hnlib.notebooks import plain_markdown, two_texts
from hnlib.notebooks.inline_values import EVAL

MARKED = [
    # a part of a paragraph
    (
        "The grid has six cells. <!-- finding -->It rises by\n2.<!-- end of finding --> Read it so.",
        "The grid has six cells.\n\n> *In the published runs:* It rises by\n> 2.\n\nRead it so.",
    ),
    # a paragraph, with lines of its own
    (
        "One.\n\n<!-- finding -->\nTwo,\nthree.\n<!-- end of finding -->\n\nFour.",
        "One.\n\n> *In the published runs:* Two,\n> three.\n\nFour.",
    ),
    # a part of an item of a list, and the next item
    (
        "- **A question.** <!-- finding -->Yes, by 2.<!-- end of finding -->\n- Another.",
        "- **A question.**\n\n  > *In the published runs:* Yes, by 2.\n\n- Another.",
    ),
    # the rest of an item
    (
        "- One. <!-- finding -->Two.<!-- end of finding --> Three.",
        "- One.\n\n  > *In the published runs:* Two.\n\n  Three.",
    ),
    # a whole list
    (
        "It is so:\n\n<!-- finding -->\n- one\n- two\n<!-- end of finding -->\n\nThen.",
        "It is so:\n\n> *In the published runs:*\n>\n> - one\n> - two\n\nThen.",
    ),
    ("Nothing was found.\n\n  code", "Nothing was found.\n\n  code"),
]


@pytest.mark.parametrize(("text", "shown"), MARKED)
def test_a_finding_is_quoted_where_it_stands(text, shown):
    assert two_texts.quoted(text) == shown
    assert two_texts.quoted(shown) == shown


def test_quoting_keeps_every_word_in_its_order():
    """Random sentences, of which some are findings; a quotation holds those, and nothing else."""
    rng = random.Random(0)
    for _ in range(200):
        text, found, rest = "", [], []
        for i in range(rng.randrange(1, 9)):
            words = " ".join(f"w{i}.{j}" for j in range(rng.randrange(1, 6)))
            words = words.replace(" ", "\n", rng.randrange(2))
            if rng.random() < 0.4:
                found.append(words)
                gap = rng.choice(["", "\n"])
                words = f"<!-- finding -->{gap}{words}{gap}<!-- end of finding -->"
            else:
                rest.append(words)
            text += rng.choice([" ", "\n", "\n\n"]) * bool(text) + words
        shown = two_texts.quoted(text)
        lines = shown.replace(two_texts.HEAD, "").splitlines()
        quotes = [line.removeprefix("> ") for line in lines if line.startswith(">")]
        plain = [line for line in lines if not line.startswith(">")]
        assert " ".join(quotes).split() == " ".join(found).split()
        assert " ".join(plain).split() == " ".join(rest).split()


@pytest.mark.parametrize(
    "text",
    [
        "<!-- finding -->one",
        "one<!-- end of finding -->",
        "<!-- finding -->a<!-- finding -->b<!-- end of finding --><!-- end of finding -->",
        "<!-- end of finding -->a<!-- finding -->",
    ],
)
def test_a_mark_without_its_other_half_is_refused(text):
    with pytest.raises(ValueError, match="needs a beginning and an end"):
        two_texts.check(text)


def test_a_caption_loses_what_we_saw():
    figure = {"caption": "<!-- finding -->It rises.<!-- end of finding --> Accuracy against γ."}
    cells = [SimpleNamespace(cell_type="code", source="", metadata={"mystnb": {"figure": figure}})]
    cells.append(SimpleNamespace(cell_type="markdown", source=MARKED[0][0], metadata={}))
    two_texts.as_notebook(SimpleNamespace(cells=cells))
    assert figure["caption"] == "Accuracy against γ."
    assert not re.search("<!--", cells[-1].source)


def test_the_book_shows_findings_as_prose():
    """Without the marks a caption begins with its words, and paragraphs stay apart."""
    text = "One.\n\n<!-- finding -->\nTwo.<!-- end of finding -->\n\nThree."
    assert plain_markdown.plain(text, "page") == "One.\n\nTwo.\n\nThree."
    caption = ["<!-- finding -->It rises.<!-- end of finding --> Dots."]
    book_extension.show_as_prose(None, "page", caption)
    assert caption == ["It rises. Dots."]


# The pages

COMPARISONS = {
    "effect",
    "effects",
    "lines",
    "outcome",
    "interval",
    "percent",
    "together",
    "between",
}
NUMBER = re.compile(
    r"(?<![\w.])[+−-]\d+\.\d|\d %|\b(?:\d|an?|half|one|two|three|four|five)(?: an?)? points?\b(?! for each)"
)
APART = re.compile(
    r"^ *(`{3,}).*?^ *\1`*$|\$\$.*?\$\$|\$[^$]+\$|95 % intervals?|`[^`\n]+`", re.M | re.S
)
NOT_QUOTED = re.compile(
    r"^ *(?:`{3}|:{3}|#+ |\(\S+\)=$|<!-- (?:end of )?(?:fold|checks|more))", re.M
)
DIRECTION = re.compile(
    r"\b(?:ris(?:e|es|ing)|fall(?:s|ing)?|gains?|los(?:e|es)|ahead|wins?|beats?|high(?:er|est)|lowest)\b"
)


def pages() -> list[Path]:
    """Return the pages with parameters on which something is trained."""
    found = sorted((ROOT / "notebooks").glob("**/*.md"))
    text = {page: page.read_text("utf-8") for page in found}
    return [
        page
        for page in found
        if "tags: [parameters]" in text[page] and "experiments.train" in text[page]
    ]


def named(tree: ast.AST) -> set[str]:
    """Return all names and attributes in a piece of code, but for what is only counted."""
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == "len":
        return set()
    own = {getattr(tree, "id", None), getattr(tree, "attr", None)} - {None}
    return own.union(*map(named, ast.iter_child_nodes(tree)))


def set_by(target: ast.AST) -> set[str]:
    """Return the names that an assignment to `target` changes."""
    if isinstance(target, ast.Subscript):
        return set_by(target.value)
    return named(target)


def compared(node) -> set[str]:
    """Return the names that a page gives to comparisons, or to what is computed of them."""
    code = "\n".join(cell.source for cell in node.cells if cell.cell_type == "code")
    bound = []
    for one in ast.walk(ast.parse(code)):
        if isinstance(one, ast.Assign | ast.AugAssign):
            targets = one.targets if isinstance(one, ast.Assign) else [one.target]
            bound.append((set().union(*map(set_by, targets)), named(one.value)))
        elif isinstance(one, ast.FunctionDef):
            bound.append(({one.name}, set().union(*map(named, one.body))))
    found, before = set(COMPARISONS), None
    while found != before:
        before = set(found)
        for names, uses in bound:
            if uses & found:
                found |= names
    return found


def parts(page: Path) -> tuple[list[tuple[str, str]], set[str]]:
    """Return texts, captions and alternative texts of a page, and its names of comparisons."""
    node, found = jupytext.read(page, fmt="md:myst"), []
    for cell in node.cells:
        if cell.cell_type == "markdown":
            found.append(("text", cell.source))
        options = cell.metadata.get("mystnb", {})
        found += [("caption", one) for one in [options.get("figure", {}).get("caption")] if one]
        found += [("alt", one) for one in [options.get("image", {}).get("alt")] if one]
    return found, compared(node)


def wrong(shown: list[tuple[str, str]], known: set[str]) -> list[str]:
    """Return what a page shows at other parameters though it is a finding of ours."""
    found = []
    for kind, text in shown:
        try:
            two_texts.check(text)
        except ValueError as error:
            found.append(f"{error}: {text}")
            continue
        inside, rest = two_texts.FINDING.findall(text), two_texts.outside(text)
        found += [f"in a finding: {one}" for one in inside if NOT_QUOTED.search(one)]
        found += [f"the {kind} says only what we saw: {text}"] * (
            not rest.strip() and kind != "text"
        )
        for one in EVAL.findall(rest):
            if named(ast.parse(" ".join(one.split()), mode="eval")) & known:
                found.append(f"a comparison: {one}")
        for sentence in re.split(r"(?<=[.?!|])\s+", APART.sub("…", EVAL.sub("0", rest))):
            if NUMBER.search(sentence) and "{cite" not in sentence:
                found.append(f"a number: {sentence}")
        headings = re.findall(r"^#+ .*", text, re.M)
        told = {"text": headings, "caption": [rest], "alt": [text]}[kind]
        found += [f"a direction: {one}" for one in told if DIRECTION.search(one)]
    return found


def without(shown: list[tuple[str, str]], mark: str) -> list[tuple[str, str]]:
    """Return the texts of a page, one of which has lost a mark."""
    at = next(i for i, (_, text) in enumerate(shown) if mark in text)
    kind, text = shown[at]
    return [*shown[:at], (kind, text.replace(mark, "", 1)), *shown[at + 1 :]]


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_what_stands_outside_findings_is_true_at_any_parameters(page):
    """A control: the same page with one mark less, or with a number unmarked, is refused."""
    shown, known = parts(page)
    assert not wrong(shown, known)
    for mark in ("<!-- finding -->", "<!-- end of finding -->"):
        assert wrong(without(shown, mark), known)
    found = [one for kind, text in shown for one in two_texts.FINDING.findall(text)]
    measured = [one for one in found if "{eval}" in one or re.search(r"\d %", one)]
    assert not measured or any(wrong([("text", one)], known) for one in measured)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("text", "It gains {eval}`interval(gain)`."),
        ("text", "It gains {eval}`named_anew`."),
        ("text", "It differs by +0.3."),
        ("text", "A tenth, 10 %, is false."),
        ("text", "It gains half a point."),
        ("text", "## The tilt gains"),
        ("text", "<!-- finding -->One.\n\n## Two\n<!-- end of finding -->"),
        ("caption", "<!-- finding -->It gains.<!-- end of finding -->"),
        ("caption", "<!-- finding -->It gains.<!-- end of finding --> The upper line rises."),
        ("alt", "Two lines, of which one rises."),
    ],
)
def test_a_finding_outside_the_marks_is_refused(kind, text):
    code = "gain = experiments.effect(runs, *pair)\nnamed_anew = [gain]\ncount = len(gain.seeds)"
    known = compared(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)]))
    assert wrong([(kind, text)], known)
    fine = (
        "## Does it matter?\n\n{eval}`count` seeds, 95 % intervals, $+0.3$. {cite:t}`hcl` gain 2 %."
    )
    assert not wrong([("text", fine)], known)


def test_what_is_excused_from_change_stands_on_its_page():
    """An edit of a caption or a cell would leave its excuse behind."""
    for page, places in changed_pages.reasons().items():
        source = " ".join((ROOT / f"notebooks/{page}.md").read_text("utf-8").split())
        for place in places:
            assert " ".join(place.removeprefix("caption ").split()) in source, (page, place)
