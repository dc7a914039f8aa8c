"""The two kinds of text: findings are quoted, keep our numbers, and leave captions."""

import random
import re
from types import SimpleNamespace

import pytest

from hnlib.notebooks import two_texts

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
