"""The formatter of the chapters' cells: it changes code alone, once, and knows notebooks."""

import ast

import jupytext
from scripts import script

cells = script(".ci/format_cells.py")

CHAPTER = """---
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---

# A title,   with spaces

```python
left = as_it_is  ( )
```

```{code-cell} ipython3
---
tags: [hide-input]
mystnb:
  image:
    alt: What there is to see,
      on two lines.
---
%matplotlib inline
x = {'a':1,  "b" : f(1111111111111111, 2222222222222222, 3333333333333333, 4444444444444444, 5)}
def g(): return   x
g()  ;

```

Prose   between.

```{code-cell} ipython3
:tags: [parameters]

left   = 1
```
"""


def test_code_alone_is_changed_and_only_once():
    tidy = cells.formatted({"a": CHAPTER})["a"]
    assert cells.formatted({"a": tidy, "b": CHAPTER}) == {"a": tidy, "b": tidy}
    old, new = (jupytext.reads(text, fmt="md:myst") for text in (CHAPTER, tidy))
    for before, after in zip(old.cells, new.cells, strict=True):
        assert before.metadata == after.metadata
        assert before.cell_type == "code" or before.source == after.source
    first, second = cells.code(new)
    assert first.startswith("%matplotlib inline\nx = {\n") and first.endswith("\ng();")
    assert max(map(len, first.splitlines())) <= 88 and second == "left = 1"
    body = first.removeprefix("%matplotlib inline\n")
    was = cells.code(old)[0].removeprefix("%matplotlib inline\n")
    assert ast.dump(ast.parse(body)) == ast.dump(ast.parse(was))
    for kept in ("# A title,   with spaces", "as_it_is  ( )", "see,\n      on two", "Prose   b"):
        assert kept in tidy


def test_the_command_names_what_it_would_change_and_changes_it(tmp_path, capsys):
    path = tmp_path / "chapter.md"
    path.write_text(CHAPTER)
    assert cells.main(["--check", str(path)]) == 1 and path.read_text() == CHAPTER
    assert f"would reformat {path}" in capsys.readouterr().out
    assert cells.main([str(path)]) == 0 and cells.main(["--check", str(path)]) == 0
