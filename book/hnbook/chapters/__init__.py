"""Definitions that several chapters use; each is shown where it is first used."""

import inspect


def show(*functions) -> None:
    """Display the sources of functions as code."""
    from IPython.display import Markdown, display

    sources = "\n\n".join(map(inspect.getsource, functions))
    display(Markdown(f"```python\n{sources}```"))


def build(name: str, **options):
    """Build a method of the catalogue, or of an example."""
    from hnlib import methods

    if name in methods.EXAMPLES:
        return methods.example(name).build(**options)
    return methods.build(name, **options)
