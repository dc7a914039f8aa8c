"""The examples in the docstrings of the entry points that users meet first."""

import doctest
import importlib

import pytest

MODULES = {
    "contrast": 2,
    "negatives": 2,
    "objectives": 1,
    "methods": 1,
    "streaming": 1,
    "transport": 1,
    "profile": 1,
    "failure_causes": 2,
    "experiments.comparisons": 1,
    "experiments.selection": 1,
    "notebooks.execute": 1,
    "integrations.sentence_transformers": 1,
    "training.train": 1,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    module = importlib.import_module(f"hnlib.{name}")
    examples = [test for test in doctest.DocTestFinder().find(module) if test.examples]
    assert len(examples) == MODULES[name]
    assert doctest.testmod(module).failed == 0
