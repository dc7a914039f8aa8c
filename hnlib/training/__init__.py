"""One run: its configuration, how it is trained, saved, resumed and evaluated, and its record."""

from importlib.util import find_spec

for _package in ("cyclopts", "pydantic", "pandas", "scipy"):
    if find_spec(_package) is None:
        raise ModuleNotFoundError(f"{_package} is missing; pip install 'hnlib[training]'")
