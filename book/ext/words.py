"""Words that the tables use, each with its definition on a card that one can hover.

In the text such a word is a term of the glossary in *Notation*, in a table `tables.term`: both are links
to the glossary that carry the definition.
"""

import html
import re
from functools import cache

from docutils import nodes

GLOSSARY = "book/notation"
IN_TEXT = re.compile(r'<a class="reference internal" href="[^"]*#(term-[\w-]+)"')
IN_TABLE = re.compile(r'<a class="hn-term">(.*?)</a>')


@cache
def _glossary(env) -> dict[str, str]:
    return definitions(env.get_doctree(GLOSSARY))


def definitions(doctree) -> dict[str, str]:
    """The text of each definition, by the target of its term."""
    return {
        key: item.next_node(nodes.definition).astext().replace("\n", " ")
        for item in doctree.findall(nodes.definition_list_item)
        for term in item.findall(nodes.term)
        for key in term["ids"]
    }


def carded(body: str, cards: dict[str, str], glossary: str) -> str:
    """The page with a card on each of its words. KeyError: a table has a word without definition."""

    def link(key: str) -> str:
        card = html.escape(cards[key])
        return f'<a class="reference internal hn-term" href="{glossary}#{key}" data-card="{card}"'

    def in_table(found: re.Match) -> str:
        return f"{link(f'term-{nodes.make_id(found[1])}')}>{found[1]}</a>"

    return IN_TABLE.sub(in_table, IN_TEXT.sub(lambda found: link(found[1]), body))


def show_cards(app, pagename, templatename, context, doctree):
    if pagename != GLOSSARY and "term" in (body := context.get("body", "")):
        glossary = app.builder.get_relative_uri(pagename, GLOSSARY)
        context["body"] = carded(body, _glossary(app.env), glossary)
