"""Names from files are harmless where they are shown."""

from elliptica.lab.experiments.table import inert_cell, inert_markdown


def test_names_do_nothing_in_markdown_and_in_a_spreadsheet():
    assert inert_markdown("<img src=x onerror=alert(1)>|\n# a") == "&lt;img src=x onerror=alert(1)>\\| # a"
    assert inert_markdown("elliptic, n_t = 5") == "elliptic, n_t = 5"
    for text in ("=1+1", "@SUM(A1)", "-cmd|' /C calc'!A0", "+1+2", "\t=1"):
        assert inert_cell(text) == f"'{text}"
    for text in ("-5", "+1e3", "mixup", "", "a=b"):
        assert inert_cell(text) == text
