"""Tables and their groups as functions of records, against hand-worked cases and SciPy."""

import re

import pytest
import torch
from scipy import stats

from elliptica.lab.experiments.choice import (
    MATCHED,
    TUNED,
    Choice,
    group_records,
    keep_choice,
    known_tables,
    read_folder,
    with_values,
)
from elliptica.lab.experiments.records import DRAWS, records_of
from elliptica.lab.experiments.specification import load_specification, parse_specification, runs
from elliptica.lab.experiments.table import _paired_p, make_table, render
from experiment_cases import TOY
from record_cases import make_record, make_run

TABLE = parse_specification(TOY, "toy")
HOSTILE = "a|b <script> \\input{x} %$_"


def table_of(values, specification=TABLE, **more):
    """A table with these values by row and seed; a pair is a value and its draws."""
    wanted = runs("toy", specification, seeds=max(map(len, values.values())))
    records = []
    for run in wanted:
        if run.seed < len(values[run.row]):
            value = values[run.row][run.seed]
            value, draws = value if isinstance(value, tuple) else (value, DRAWS)
            records.append(make_record(run.row, run.seed, value, run=run, draws=draws))
    return make_table("toy", specification, wanted, records, **more)


def test_a_table_by_hand():
    table = table_of({"erm": [1.0, 2.0], "elliptic": [1.25]})
    cell = table.cells["erm", "toy", "average"]
    assert (cell.mean, cell.std, cell.paper) == (1.5, pytest.approx(0.5**0.5), (1.5, 0.1))
    lines = render(table).splitlines()
    assert lines[2:6] == [
        "| method | toy average | paper | seeds |",
        "|---|--:|--:|--:|",
        "| erm | 1.50 ± 0.71 | 1.5 ± 0.1 | 2 |",
        "| elliptic | 1.25 |  | 1 |",
    ]
    assert "1 of 4 runs" in lines[-1]
    empty = render(table_of({"erm": [1.0], "elliptic": []}))
    assert "| elliptic | - |  | 0 |" in empty
    assert "nan" not in empty


def test_old_draws_are_only_counted():
    old = DRAWS - 1
    table = table_of({"erm": [1.0, (3.0, old)], "elliptic": [(2.0, old)]})
    assert [cell.values for cell in table.cells.values()] == [{0: 1.0}, {}]
    assert table.notes[-2].startswith("2 runs")
    assert "(erm, elliptic)" in table.notes[-2]
    assert table.notes[-1].startswith("1 of 4 runs")


def test_the_papers_values_stand_beside_its_schedule_only():
    def papers(**options):
        wanted = runs("toy", TABLE, **options)
        return [cell.paper for cell in make_table("toy", TABLE, wanted, []).cells.values()]

    assert papers() == [(1.5, 0.1), None]
    assert papers(training={"lr": 1.0}) == [(1.5, 0.1), None]  # settings were tuned there, too
    assert papers(training={"epochs": 2}) == papers(match_evaluations=True) == [None, None]
    wanted = runs("toy", TABLE)
    validation = make_table("toy", TABLE, wanted, [], "validation")
    assert not any(cell.paper for cell in validation.cells.values())


def test_best_is_marked_only_when_significant():
    noise = torch.randn(10, 2, generator=torch.Generator().manual_seed(0)).tolist()
    for gap, is_best in ((0.05, True), (0.0, False)):
        ours = [1 + 0.1 * common - gap + 0.02 * own for common, own in noise]
        table = table_of({"erm": [1 + 0.1 * common for common, _ in noise], "elliptic": ours})
        assert table.cells["elliptic", "toy", "average"].is_best == is_best
        assert not table.cells["erm", "toy", "average"].is_best  # errors: less is better


def test_paired_test_against_scipy():
    a, b = torch.randn(2, 8, generator=torch.Generator().manual_seed(0)).tolist()
    expected = stats.ttest_rel(a, b).pvalue
    assert _paired_p(dict(enumerate(a)), dict(enumerate(b))) == pytest.approx(expected, rel=1e-6)


def test_few_or_equal_gaps_are_not_significant():
    assert _paired_p({0: 1.0, 1: 2.0}, {0: 0.0, 1: 1.5}) == 1
    assert _paired_p({0: 1.0, 1: 2.0, 2: 3.0}, {0: 0.0, 1: 1.0, 2: 2.0}) == 0.25
    a, b = ({s: 100 * (share + s / 100) for s in range(3)} for share in (0.57, 0.56))
    assert len({a[s] - b[s] for s in range(3)}) > 1  # equal but for rounding
    assert _paired_p(a, b) == 0.25
    assert _paired_p({0: 1.0, 1: 2.0, 2: 3.0}, {0: 1.0, 1: 2.0, 2: 3.0}) == 1


@pytest.mark.bad_input
def test_names_are_text():
    text = TOY.replace('title = "Toy"', 'title = "a\\n\\\\input{x} | <b> $x_1$"')
    text = text.replace("[methods.elliptic]", f"[methods.'{HOSTILE}']\nmethod = \"elliptic\"")
    text = text.replace("methods = { elliptic", f"methods = {{ '{HOSTILE}'")
    table = table_of({"erm": [1.0], HOSTILE: [2.0]}, parse_specification(text, "toy"))
    markdown = render(table).splitlines()
    assert markdown[0] == r"### a \\input{x} \| &lt;b&gt; \$x\_1\$ (nowhere)"
    assert render(table, escaped=False).splitlines()[0] == r"### a \input{x} | <b> $x_1$ (nowhere)"
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in markdown[2:6]}) == 1


def test_records_are_grouped_as_their_options_say(tmp_path):
    """Plain, tuned, matched, fewer epochs; a row whose tuned settings are the table's own is in both."""
    data, rows = ["waterbirds-features"], ["erm", "jtt"]
    plain = Choice("table4", data, rows, 1).runs(tmp_path)
    keep_choice(tmp_path, plain[0], {"values": {}, "trials": []})
    keep_choice(tmp_path, plain[1], {"values": {"training.lr": 0.5}, "trials": []})
    tuned = Choice("table4", data, rows, 1, tuned=True).runs(tmp_path)
    assert tuned == [plain[0], with_values(plain[1], {"training.lr": 0.5}, 0)]
    few = Choice("table4", data, rows, 2, training={"epochs": 2}).runs(tmp_path)
    matched = Choice("table4", data, rows, 1, match_evaluations=True).runs(tmp_path)
    unknown = make_run("erm", 0)
    for run in [plain[0], *tuned, *few, *matched, unknown]:
        records_of(tmp_path, run.table).append(make_record(run.row, run.seed, 0.5, run=run))
    groups = group_records(read_folder(tmp_path), tmp_path, known_tables())
    found = {place: [record.run for record in members] for place, members in groups.items()}
    place = ("table4", *data)
    assert found == {
        (*place, (TUNED,)): tuned,
        (*place, (MATCHED,)): matched,
        (*place, (("epochs", "2"),)): few,
        ("own", "some", None): [unknown],
    }
    assert list(groups)[-1] == ("own", "some", None)
    records_of(tmp_path, "table4").append(make_record("jtt", 0, 0.5, run=plain[1]))
    groups = group_records(read_folder(tmp_path), tmp_path, known_tables())
    assert [record.run for record in groups[(*place, ())]] == plain  # no longer within the tuned one


def test_a_table_gets_rows_that_it_takes_from_another_one(tmp_path):
    own, shared = (
        runs("table10", load_specification("table10"), datasets=["breastmnist"], methods=[row], seeds=1)
        for row in ("elliptic by distance", "elliptic")
    )
    assert shared[0].table != "table10"
    for run in (*own, *shared):
        records_of(tmp_path, run.table).append(make_record(run.row, 0, 0.5, run=run))
    groups = group_records(read_folder(tmp_path), tmp_path, known_tables())
    assert {r.run.row for r in groups["table10", "breastmnist", ()]} == {"elliptic", "elliptic by distance"}
    assert len(groups) == 2


def test_a_table_says_what_was_changed():
    choice = Choice("table3", ["no2"], ["erm"], 2, True, {"epochs": 3})
    assert all(word in choice.remarks()[0] for word in ("epochs = 3", "evaluations"))
    assert Choice("table3").remarks() == ()
