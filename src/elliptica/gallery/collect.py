"""What a folder of results holds: tables, comparisons and studies, each with a card and a page."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from elliptica._words import count
from elliptica.gallery.readmes import read_readme
from elliptica.gallery.thumbnails import draw_marks, study_marks
from elliptica.report.content import Report, ReportError, Study
from elliptica.report.page import anchor, render_page
from elliptica.report.records import read_folder
from elliptica.report.source import RESULTS, Request, headline, make_report
from elliptica.report.studies import studies_of

#: Names of files in the site.
INDEX, PLOTLY = "index.html", "plotly.min.js"
#: Headings of tables of runs.
PAPER, OWN = "Tables of the paper", "Tables of our own"


@dataclass(frozen=True)
class Card:
    """One entry of the index.

    Attributes:
        address: Its page.
        title: Heading.
        about: Data, in words.
        methods: Methods, in words.
        verdict: One sentence.
        thumbnail: A small chart as SVG, or nothing.
        measure: What the chart shows.
    """

    address: str
    title: str
    about: str
    methods: str
    verdict: str
    thumbnail: str
    measure: str


@dataclass
class Gallery:
    """Everything that will be written.

    Attributes:
        sections: Cards by heading.
        pages: HTML of reports, by name.
        texts: Title and HTML of README pages, by name.
        pictures: Files to copy, by name.
        guides: Address and title of pages that explain others and have no card.
        unusable: What could not be shown, with the reason.
    """

    sections: dict[str, list[Card]] = field(default_factory=dict)
    pages: dict[str, str] = field(default_factory=dict)
    texts: dict[str, tuple[str, str]] = field(default_factory=dict)
    pictures: dict[str, Path] = field(default_factory=dict)
    guides: list[tuple[str, str]] = field(default_factory=list)
    unusable: list[tuple[str, str]] = field(default_factory=list)

    def add_report(self, section: str, name: str, report: Report) -> None:
        """A page of the report package, and its card."""
        self.pages[name] = render_page(report, plotly=PLOTLY, home=INDEX)
        self.sections.setdefault(section, []).append(report_card(name, report))


def collect(results: Path) -> Gallery:
    """Look through a folder of results; what cannot be used is named, and the rest is shown.

    Raises:
        ReportError: If there is nothing to show.
    """
    found = Gallery()
    _tables(results, found)
    folders = sorted(path for path in results.glob("*") if path.is_dir() and path.name != "tables")
    for folder in folders:
        for each in [folder, *sorted(path for path in folder.glob("*") if path.is_dir())]:
            if (each / RESULTS).is_file():
                name = "-".join(each.relative_to(results).parts) + ".html"
                section = "Studies" if each == folder else "Comparisons on whole tables"
                try:
                    found.add_report(section, name, make_report(Request(str(each), landscape=False)))
                except ReportError as error:
                    found.unusable.append((str(each.relative_to(results)), str(error)))
    _readmes(results, found)
    if not found.pages and not found.texts:
        raise ReportError(
            f"{results} holds nothing to show. Pass a folder with records of elliptica run in its folder "
            "tables, or with folders of elliptica compare."
        )
    order = (PAPER, OWN, "Studies", "Comparisons on whole tables")
    found.sections = {name: found.sections[name] for name in order if name in found.sections}
    return found


def report_card(name: str, report: Report) -> Card:
    """The card of a report, its chart that of its first study."""
    first = report.studies[0]
    named = [
        study.title.rpartition(": ")[2] if ": " in study.title else study.subtitle for study in report.studies
    ]
    data = list(dict.fromkeys(named))
    methods = list(dict.fromkeys(m for study in report.studies for m in study.methods))
    own = report.title.rpartition(": ")[0] if len(report.studies) == 1 else report.title
    chart = draw_marks(study_marks(first), f"{data[0]}, {first.measures[0].label}")
    return Card(
        name,
        own or report.title,
        f"{_listed(data, 4)}; {report.kind}",
        _listed(methods, 5),
        report.headline,
        chart,
        f"{f'{data[0]}: ' if ': ' in first.title else ''}{first.measures[0].label}, mean and 95 % interval",
    )


def _listed(names: list[str], most: int) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _tables(results: Path, found: Gallery) -> None:
    """One page for each table, with all its data sets."""
    if not (results / "tables").is_dir():
        return
    try:
        folder = read_folder(results / "tables")
    except ReportError as error:
        found.unusable.append(("tables", str(error)))
        return
    by_table: dict[str, list[Study]] = {}
    for (table, _, _), study, _ in studies_of(folder)[0]:
        by_table.setdefault(table, []).append(study)
    found.unusable += folder.unusable
    for table, studies in sorted(by_table.items(), key=lambda item: not item[0].startswith("table")):
        title, paper = studies[0].title.rpartition(": ")[0], studies[0].subtitle.partition(";")[0]
        runs = sum(study.n_runs for study in studies)
        heading = title if paper.startswith("not") else f"{paper}. {title}"
        report = Report(heading, f"{count(runs, 'run')} of elliptica run", headline(studies), studies)
        section = PAPER if table.startswith("table") else OWN
        found.add_report(section, f"{anchor(table)}.html", report)


def _readmes(results: Path, found: Gallery) -> None:
    """Pages of Markdown: those of studies have a card, those beside reports are only linked."""
    files = [path for path in sorted(results.rglob("*.md")) if path.name != "report.md"]
    places = {path.resolve(): _page_name(path, results) for path in files}
    for folder in {path.parent for path in results.rglob(RESULTS)}:
        name = "-".join(folder.relative_to(results).parts) + ".html"
        if name in found.pages:  # the report takes the place of what compare wrote
            places[(folder / "report.md").resolve()] = name
            places[folder.resolve()] = name
    for path, name in list(places.items()):
        if path.name == "README.md":
            places.setdefault(path.parent, name)

    def address(path: Path) -> str | None:
        return places.get(path.resolve())

    answers = _answers(results)
    for file in files:
        name = places[file.resolve()]
        page = read_readme(file, address)
        found.texts[name] = (page.title, page.body)
        found.pictures.update(page.pictures)
        is_study = (file.parent / "records.jsonl").is_file()
        if is_study:
            question, answer = answers.get(file.parent.name, ("", page.first))
            chart = draw_marks(page.marks, page.measure)
            methods = _listed([mark.name for mark in page.marks], 5)
            found.sections.setdefault("Studies", []).append(
                Card(name, page.title, question, methods, answer, chart, page.measure)
            )
        else:
            found.guides.append((name, page.title))


def _page_name(path: Path, results: Path) -> str:
    """Name of a README's page: that of its folder, and of the file if it is another one."""
    parts = [*path.relative_to(results).parts[:-1]]
    return "about-" + "-".join([*parts, *([] if path.name == "README.md" else [path.stem])]) + ".html"


def _answers(results: Path) -> Mapping[str, tuple[str, str]]:
    """Question and answer of each study as the index of the documentation states them, if it is there."""
    page = results.parent / "docs" / "results.md"
    if not page.is_file():
        return {}
    row = re.compile(r"^\| \[[^\]]*\]\(\.\./results/([^/)]+)/README\.md\) \| (.*?) \| (.*?) \|", re.MULTILINE)
    clean: Callable[[str], str] = lambda text: text.replace("`", "").strip()  # noqa: E731
    return {
        name: (clean(question), f"{clean(answer)[:1].upper()}{clean(answer)[1:]}.")
        for name, question, answer in row.findall(page.read_text(encoding="utf-8"))
    }
