"""What a report can be made from, and which of it was given."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from elliptica._utils.files import write_atomically
from elliptica._utils.text import count
from elliptica.report.content import Report, ReportError, Study
from elliptica.report.page import render_page

#: File that `elliptica compare` and `elliptica demo` write.
RESULTS = "results.json"
_TABLES = (".csv", ".tsv", ".parquet")


@dataclass(frozen=True)
class Request:
    """What a report is asked for.

    Attributes:
        source: Folder of records, folder of a comparison, a saved model, or data (an .npz file,
            ``"two-moons"``, ``"digits"``) for ``model``.
        data: Table (CSV or Parquet) for a saved model.
        target: Its column of targets.
        group: Its column of groups.
        model: Model of your own, ``package.module:name``.
        weights: Its state dict.
        train: How to train a small network if there is no model.
        steps: Of that training.
        loss: Of the model.
        data_dir: Where the data of the tables are, for models that `elliptica run` has kept.
        landscape: Whether to look at the loss between the data where a model is there.
        seed: Of everything that is drawn.
        title: Of the page; None: what it is about.
    """

    source: str
    data: Path | None = None
    target: str | None = None
    group: str | None = None
    model: str | None = None
    weights: Path | None = None
    train: str = "erm"
    steps: int = 2000
    loss: str = "auto"
    data_dir: Path | None = None
    landscape: bool = True
    seed: int = 0
    title: str | None = None


def make_report(request: Request) -> Report:
    """Collect what a page shows.

    Raises:
        ReportError: If nothing can be made of the source; the message says what was expected.
    """
    path = Path(request.source)
    if path.is_dir():
        _refuse_model_options(request)
        return _of_folder(path, request)
    if path.is_file() and path.suffix.lower() in _TABLES:
        raise ReportError(
            f"{path} is a table. First elliptica compare {path} --target COLUMN, which makes a page, too. "
            f"Or, with a saved model, elliptica report model.elliptica --data {path} --target COLUMN."
        )
    if request.source.endswith(".elliptica") or (path.is_file() and request.target is not None):
        from elliptica.compare.saved import saved_model_report

        return saved_model_report(path, request)
    if path.is_file() and path.suffix == ".json":
        raise ReportError(f"{path} is one file. Pass the folder it is in: {path.parent or '.'}.")
    if path.is_file() or request.source in ("two-moons", "digits"):
        from elliptica.diagnostics.own_model import own_model_report

        return own_model_report(request)
    raise ReportError(
        f"There is no {request.source}. Pass the folder that elliptica run wrote to (--out, runs by "
        "default), the folder of elliptica compare, model.elliptica with --data and --target, or an .npz "
        "file with --model."
    )


def write_report(request: Request, out: Path) -> Report:
    """Make a report and write its page."""
    _check_out(out, request)
    report = make_report(request)
    write_atomically(out, render_page(report))
    return report


def _check_out(out: Path, request: Request) -> None:
    """Refuse before the work is done."""
    if out.is_dir():
        raise ReportError(f"{out} is a folder. Pass the name of a file to -o, e.g. {out / 'report.html'}.")
    given = [Path(request.source), request.data, request.weights]
    if any(each is not None and out.exists() and each.exists() and out.samefile(each) for each in given):
        raise ReportError(f"The page would overwrite {out}, which it is made from. Choose another -o.")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ReportError(f"The folder {out.parent} cannot be made ({error}). Choose another -o.") from error
    if not os.access(out.parent, os.W_OK):
        raise ReportError(f"Nothing can be written to {out.parent}. Choose another -o.")


def _refuse_model_options(request: Request) -> None:
    for name in ("model", "weights"):
        if getattr(request, name) is not None:
            raise ReportError(f"--{name} belongs to data (an .npz file), but {request.source} is a folder.")


def _of_folder(path: Path, request: Request) -> Report:
    kind = _kind_of_results(path / RESULTS)
    if kind == "compare":
        from elliptica.compare.page import comparison_report

        return comparison_report(path, request)
    if request.data is not None:
        raise ReportError(
            f"--data belongs to model.elliptica or to a folder of elliptica compare, but {path} is neither."
        )
    if kind == "demo":
        from elliptica.lab.demo.report import demo_report

        return demo_report(path / RESULTS, request.title)
    return _records_report(path, request)


def _kind_of_results(file: Path) -> str | None:
    """Who wrote a results.json; None if there is none, or if nobody can say."""
    if not file.is_file():
        return None
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise ReportError(
            f"{file} cannot be read ({str(error)[:200]}). It was damaged; if it is of elliptica compare, "
            "move it away and run the comparison again."
        ) from error
    if isinstance(content, dict) and "about" in content and "records" in content:
        return "compare"
    return "demo" if isinstance(content, dict) and "experiment" in content and "runs" in content else None


def _records_report(path: Path, request: Request) -> Report:
    try:
        from elliptica.lab.experiments.report_records import read_folder
        from elliptica.lab.experiments.report_studies import studies_of
    except ModuleNotFoundError as error:
        raise ReportError(f'Records need {error.name}: pip install "elliptica[experiments]"') from error
    folder = read_folder(path)
    found, notes = studies_of(folder)
    if not found:
        reasons = "; ".join(f"{name} {reason}" for name, reason in folder.unusable[:5])
        raise ReportError(f"No table can be made of the records in {path}: {reasons}.")
    studies = [study for _, study, _ in found]
    if request.landscape:
        from elliptica.lab.experiments.report_kept import add_landscapes

        studies, more = add_landscapes(found, request)
        notes += more
    title = request.title or (studies[0].title if len(studies) == 1 else f"Runs in {path.resolve().name}")
    return Report(
        title=title,
        kind=f"{count(sum(s.n_runs for s in studies), 'run')} of elliptica run",
        headline=headline(studies),
        studies=studies,
        unusable=folder.unusable,
        notes=notes,
    )


def headline(studies: list[Study]) -> str:
    """What all studies together say."""
    if len(studies) == 1:
        return studies[0].verdict.headline
    judged = [s for s in studies if s.verdict.best is not None]
    better = [s for s in judged if s.verdict.best != s.reference]
    if better:
        ours = sum(_is_ours(s, "better") for s in better)
        text = f"In {len(better)} of {len(judged)} tables a method is shown to be better than the reference, "
        text += f"in {ours or 'none'} of them elliptic training over another method."
    else:
        text = f"In none of {count(len(judged), 'table')} is a method shown to be better than the reference."
    worse = sum(_is_ours(s, "worse") for s in judged)
    if worse:
        text += f" In {worse}, elliptic training is shown to be worse than it."
    silent = len(studies) - len(judged)
    return text + (
        f" {silent} more {'have' if silent > 1 else 'has'} too few runs for a verdict." if silent else ""
    )


def _is_ours(study: Study, result: str) -> bool:
    """Whether elliptic training is shown to be better or worse than a reference that is something else."""
    first = study.measures[0].name
    found = {d.method for d in study.verdict.differences if d.measure == first and d.result == result}
    return study.reference not in study.own and any(method in study.own for method in found)
