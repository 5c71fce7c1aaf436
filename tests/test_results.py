"""The tables of the results page are what the committed records give."""

import tables


def test_tables_follow_from_the_records():
    text = (tables.HERE / "README.md").read_text()
    assert tables.page(text) == text
    assert "not recorded yet" not in text
