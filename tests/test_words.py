"""A word of the glossary carries its definition, in the text and in a table."""

import pytest
from scripts import script

from hnlib.book.tables import term

words = script("book/ext/words.py")
CARDS = {"term-by-p-alone": 'p < 0.05, "0" inside'}


def test_a_word_links_to_its_definition():
    card = 'data-card="p &lt; 0.05, &quot;0&quot; inside"'
    text = '<a class="reference internal" href="x.html#term-by-p-alone"><span>p</span></a>'
    for body in (text, f"<td>{term('by p alone')}</td>"):
        page = words.carded(body, CARDS, "g.html")
        assert card in page and 'href="g.html#term-by-p-alone"' in page
    other = '<a class="reference internal" href="x.html#unresolved">a heading</a>'
    assert words.carded(other, CARDS, "g.html") == other


def test_a_word_without_definition_is_refused():
    with pytest.raises(KeyError, match="term-unheard"):
        words.carded(term("unheard"), CARDS, "g.html")
