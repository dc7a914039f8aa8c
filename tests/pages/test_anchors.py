"""The built book has an anchor for every statement and claim that is listed."""

import labels
import pytest


@pytest.mark.slow
def test_every_listed_label_is_in_its_built_page(html):
    assert labels.unbuilt(html) == []
