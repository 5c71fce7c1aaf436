"""The tables of the results pages are what the committed records give."""

import pytest

import tables


@pytest.mark.parametrize("name", tables.SHOWN)
def test_tables_follow_from_the_records(name):
    text = (tables.HERE / name).read_text()
    assert tables.page(name) == text
    assert "not recorded yet" not in text


def test_verdicts_follow_from_the_records():
    compare_tables = pytest.importorskip("compare_tables")
    folder = compare_tables.ROOT / "results" / "compare"
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert compare_tables.page(folder) in text
    records = sorted(folder.glob("*/*.json"))
    for record in records:
        assert f"| {record.parent.name} | {record.stem.replace('-', ' ')} |" in text
