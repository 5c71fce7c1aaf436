"""The tables of the results pages are what the committed records give."""

import re

import pytest

import reproduction
from elliptica.lab.experiments.choice import read_folder
from record_cases import runs_of


@pytest.mark.slow
def test_tables_follow_from_the_records():
    text = reproduction.PAGE.read_text(encoding="utf-8")
    assert reproduction.page() == text
    for unfinished in ("not recorded yet", "TODO"):
        assert unfinished not in text
    assert not re.search(r"^[A-Z]{4,}$", text, flags=re.MULTILINE), "a placeholder"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::elliptica.EllipticWarning")
def test_make_results_has_the_command_of_every_record():
    lines = (reproduction.ROOT / "Makefile").read_text(encoding="utf-8").replace("$(RUN)", "elliptica run")
    for name, value in re.findall(r"^([A-Z]+) := (.*)$", lines, flags=re.MULTILINE):
        lines = lines.replace(f"$({name})", value)
    commands = re.findall(r"^\t(elliptica run .*)$", lines, flags=re.MULTILINE)
    made = {(run.key, run.seed) for command in commands for run in runs_of(command, reproduction.RECORDS)}
    records = read_folder(reproduction.RECORDS)
    assert {r.run.label for r in records if (r.run.key, r.run.seed) not in made} == set()


VERDICTS = r"(reproduced|reproduced under this protocol|not reproduced|not run here, because .+)"


def test_every_table_and_figure_has_a_verdict():
    text = reproduction.PAGE.read_text(encoding="utf-8")
    glance = text.split("## At a glance")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in glance.splitlines() if line.startswith("| [")]
    for cells in rows:
        assert re.fullmatch(VERDICTS, cells[1].strip()), cells
    named = " ".join(re.findall(r"\[((?:Table|Figure)[^]]*)\]", " ".join(cells[0] for cells in rows)))
    for kind, numbers in (("Table", range(1, 13)), ("Figure", range(1, 5))):
        for number in numbers:
            assert re.search(rf"{kind}s?[^TF]*\b{number}\b", named), f"{kind} {number} has no verdict"


def section(text, anchor):
    """What stands below a heading, up to the next one of its level."""
    parts = re.split(r"^## ", text, flags=re.MULTILINE)
    named = {re.sub(r"[^\w -]", "", part.split("\n")[0]).lower().replace(" ", "-"): part for part in parts}
    return named[anchor]


def test_every_number_of_the_readme_is_where_it_links_to():
    """Numbers of its tables stand in the linked section, each row once; nothing else in it is a result."""
    readme = re.sub(
        r"```.*?```", "", (reproduction.ROOT / "README.md").read_text(encoding="utf-8"), flags=re.S
    )
    page = reproduction.PAGE.read_text(encoding="utf-8")
    benchmarks = (reproduction.ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    rows = [line for line in readme.splitlines() if line.startswith("|") and re.search(r"\d\.\d|\| \d", line)]
    assert len(rows) >= 6
    seen = set()
    for row in rows:
        target = re.search(r"\]\(([^)]+)\)", row)
        assert target, f"no link in {row}"
        file, _, anchor = target[1].partition("#")
        text = section(page, anchor) if file == "docs/reproduction.md" else benchmarks
        assert file in ("docs/reproduction.md", "benchmarks/README.md")
        assert target[1] not in seen, f"{target[1]} is quoted twice"
        seen.add(target[1])
        for number in re.findall(r"(?<![\w.-])\d+(?:\.\d+)?(?![\w.-])", re.sub(r"\[.*", "", row)):
            assert re.search(rf"(?<![\d.]){re.escape(number)}(?![\d.]*\d)", text), f"{number} in {row}"
    rest = "\n".join(line for line in readme.splitlines() if line not in rows)
    assert not re.search(r"\d+\.\d+ ?%|\d+ of \d+|RMSE of|\d %", rest), "a result outside the tables"


def test_variants_of_two_moons_follow_from_the_records():
    """What the page says of its table, and the small print of the demo."""
    import two_moons
    from elliptica.lab.demo.moons import SMALL_PRINT

    found = {record["variant"]: record for record in two_moons.STUDY.read()}

    def kept(variant, *methods):
        runs = found[variant]["methods"]
        return [sum(map(two_moons.keeps, runs[method])) for method in methods or runs]

    assert {len(runs) for row in found.values() for runs in row["methods"].values()} == {24}
    assert kept("short") == [24] * 4
    right = [run["accuracy"] for runs in found["short"]["methods"].values() for run in runs]
    assert f"{100 * sum(right) / len(right):.0f} %" == "85 %"
    closed = ("tube", "thin-tube", "band", "thin-band", "shell", "wide-shell")
    assert min(min(kept(region)) for region in closed) >= 22
    assert max(max(kept(region)) for region in ("outer-arc", "hull", "curve")) < 12
    assert f"keeps it in {kept('by-distance', 'elliptic')[0]} of 24" in SMALL_PRINT
    for words, variant in (("keep it in", "two-hidden"), ("ReLU in", "relu")):
        erm, mixup, elliptic = kept(variant, "erm", "mixup", "elliptic")
        assert f"{words} {erm}, {mixup} and {elliptic}" in SMALL_PRINT
    assert SMALL_PRINT.endswith(f"in {kept('half-disc', 'noise')[0]}.")
    runs = found["half-disc"]["methods"]
    bounds = {method: [*map(two_moons.keeps, runs[method])] for method in ("mixup", "elliptic")}
    assert all(bounds["elliptic"])
    assert bounds["mixup"].count(False) == 3  # the two-sided exact test has p = 2 / 2**3, as the page says
