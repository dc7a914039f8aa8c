"""Definitions that several chapters use; each is shown where it is first used."""

import inspect


def show(*functions) -> None:
    """Display the sources of functions as code."""
    from IPython.display import Markdown, display

    sources = "\n\n".join(map(inspect.getsource, functions))
    display(Markdown(f"```python\n{sources}```"))
