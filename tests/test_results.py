"""The pages of results are what the committed records give, and quote nothing else."""

import re
import statistics
from functools import partial

import pytest
from scipy import stats

import reproduction
from elliptica.lab.experiments.choice import read_folder
from elliptica.lab.experiments.records import DRAWS, records_of

pytestmark = [
    pytest.mark.usefixtures("results"),
    pytest.mark.filterwarnings("ignore::elliptica.EllipticWarning"),  # tuned with earlier draws
]


def glance(text):
    rows = (line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ["))
    return [cells for cells in rows if len(cells) == 5]


PAGE = reproduction.PAGE.read_text(encoding="utf-8")
GLANCE = glance(PAGE)


@pytest.mark.slow
def test_tables_follow_from_the_records():
    assert reproduction.page() == PAGE
    assert reproduction.numbers() == reproduction.NUMBERS.read_text(encoding="utf-8")
    assert len(PAGE.splitlines()) <= 200


@pytest.mark.slow
def test_make_results_has_the_command_of_every_record():
    lines = (reproduction.ROOT / "Makefile").read_text(encoding="utf-8").replace("$(RUN)", "elliptica run")
    for name, value in re.findall(r"^([A-Z]+) := (.*)$", lines, flags=re.MULTILINE):
        lines = lines.replace(f"$({name})", value)
    choices = map(reproduction.parse, re.findall(r"^\t(elliptica run .*)$", lines, flags=re.MULTILINE))
    made = {(run.key, run.seed) for choice in choices for run in choice.runs(reproduction.RECORDS)}
    records = read_folder(reproduction.RECORDS)
    assert {r.run.label for r in records if (r.run.key, r.run.seed) not in made} == set()


def test_every_table_and_figure_has_two_verdicts():
    for _, _, number, claim, _ in GLANCE:
        assert re.match(r"\*\*(agrees|differs|not run|none printed)\*\*", number)
        assert re.match(r"\*\*(holds|does not hold|open|none made)\*\*", claim)
        assert not re.search(r"\d", claim.partition("Earlier run:")[2]), "no command gives these digits"
    for kind, last in (("Table", 12), ("Figure", 4)):
        names = " ".join(cells[0].partition("]")[0] for cells in GLANCE if kind in cells[0])
        assert {*map(int, re.findall(r"\b\d+", names))} == {*range(1, last + 1)}


def test_verdicts_of_no2_by_hand():
    """Read from the file, judged by other functions of scipy."""
    (cells,) = (cells for cells in GLANCE if cells[0].startswith("[Table 3, NO2]"))
    records = records_of(reproduction.RECORDS, "table3").read()
    runs = [r for r in records if r.run.dataset == "no2" and r.draws == DRAWS]
    values = {(r.run.row, r.run.seed): r.metrics["test"].average for r in runs}
    ours, theirs = ([values[row, seed] for seed in range(10)] for row in ("elliptic", "c-mixup"))
    assert f"{statistics.mean(ours):.4f} ± {statistics.stdev(ours):.4f} (paper 0.523" in cells[2]
    paper = [0.523 + 0.008 * 3 / 10**0.5 * sign for sign in (1, -1) * 5]  # ten values, deviation 0.008
    assert ("agrees" in cells[2]) == (stats.ttest_ind(ours, paper, equal_var=False).pvalue > 0.05)
    gap = stats.ttest_rel(ours, theirs)
    assert f"{statistics.mean(ours) - statistics.mean(theirs):+.4f}" in cells[3]
    assert ("**holds**" in cells[3]) == (gap.pvalue > 0.05 or gap.statistic < 0)


def test_fate_of_a_claim():
    level, gain = (partial(reproduction.fate, is_gain) for is_gain in (False, True))
    assert (level([(-1, 2, 0)]), level([(3, 2, 0), (-3, 2, 0)])) == ("holds", "does not hold")
    assert gain([(3, 2, 9), (3, 2, 1)]) == "holds"
    assert (gain([(1, 2, 2)]), gain([(1, 2, 4)])) == ("open", "does not hold")


@pytest.mark.slow
def test_records_of_other_draws_give_no_digit(monkeypatch):
    monkeypatch.setattr(reproduction.tables, "DRAWS", DRAWS + 1)
    for *_, number, claim, command in glance(reproduction.page()):
        if command.startswith("`elliptica run"):
            assert number.startswith("**not run**")
            assert claim.startswith("**open**: to be run again.")
            assert not re.search(r"\d\.\d\d|±|s\.e\.", number + claim)


def section(target):
    """What stands below the heading that a link leads to, up to the next one of its level."""
    file, _, anchor = target.partition("#")
    text = (reproduction.ROOT / file).read_text(encoding="utf-8")
    parts = re.split(r"^## ", text, flags=re.MULTILINE)
    named = {re.sub(r"[^\w -]", "", part.split("\n")[0]).lower().replace(" ", "-"): part for part in parts}
    return named[anchor] if anchor else text


def test_every_number_of_the_readme_is_where_it_links_to():
    """Numbers of its tables stand in the linked section, each row once; nothing else in it is a result."""
    text = (reproduction.ROOT / "README.md").read_text(encoding="utf-8")
    lines = re.sub(r"```.*?```", "", text, flags=re.S).splitlines()
    rows = [line for line in lines if line.startswith("|") and re.search(r"\d\.\d|\| \d", line)]
    targets = [re.search(r"\]\(([^)]+)\)", row)[1] for row in rows]
    assert len(set(targets)) == len(rows) >= 5
    for row, target in zip(rows, targets, strict=True):
        for number in re.findall(r"(?<![\w.-])\d+(?:\.\d+)?(?![\w.-])", re.sub(r"\[.*", "", row)):
            pattern = rf"(?<![\d.]){re.escape(number)}(?![\d.]*\d)"
            assert re.search(pattern, section(target)), f"{number} in {row}"
    rest = "\n".join(line for line in lines if line not in rows)
    assert not re.search(r"\d+\.\d+ ?%|\d+ of \d+|RMSE of|\d %", rest), "a result outside the tables"


def test_variants_of_two_moons_follow_from_the_records():
    """What the page says of its table, and the small print of the demo."""
    import two_moons
    from elliptica.lab.demo.moons import SMALL_PRINT

    found = {record["variant"]: record for record in two_moons.STUDY.read() if record.get("draws") == DRAWS}

    def kept(variant, *methods):
        runs = found[variant]["methods"]
        return [sum(map(two_moons.keeps, runs[method])) for method in methods or runs]

    assert kept("short") == [24] * 4
    assert f"keeps it in {kept('by-distance', 'elliptic')[0]} of 24" in SMALL_PRINT
    for words, variant in (("keep it in", "two-hidden"), ("ReLU in", "relu")):
        erm, mixup, elliptic = kept(variant, "erm", "mixup", "elliptic")
        assert f"{words} {erm}, {mixup} and {elliptic}" in SMALL_PRINT
    assert SMALL_PRINT.endswith(f"in {kept('half-disc', 'noise')[0]}.")
    assert kept("half-disc", "elliptic", "mixup") == [
        24,
        21,
    ]  # as its page says: p = 2 / 2**3
    assert f"24 of 24 seeds, mixup 21, ordinary training {kept('half-disc', 'erm')[0]};" in GLANCE[0][3]
