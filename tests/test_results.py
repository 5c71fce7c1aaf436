"""The tables of the results pages are what the committed records give."""

import pytest

import tables


@pytest.mark.parametrize("name", tables.SHOWN)
def test_tables_follow_from_the_records(name):
    text = (tables.HERE / name).read_text()
    assert tables.page(name) == text
    assert "not recorded yet" not in text
