"""Tables as text: Markdown, LaTeX, CSV."""

from __future__ import annotations

import csv
import io
import math
from typing import Literal

from elliptica.experiments.table import Cell, Table

Format = Literal["markdown", "latex", "csv"]


def render(table: Table, form: Format) -> str:
    """The table as text."""
    if form == "csv":
        return _csv(table)
    return _markdown(table) if form == "markdown" else _latex(table)


def _heads(table: Table) -> list[tuple[tuple[str, str], bool]]:
    """Columns: a data set and a number, ours, and the paper's after it where it has one."""
    found = []
    for head in table.heads:
        cells = [table.cells.get((row, *head)) for row in table.rows]
        found.append((head, False))
        if any(cell is not None and cell.paper is not None for cell in cells):
            found.append((head, True))
    return found


def _markdown(table: Table) -> str:
    heads = _heads(table)
    titles = ["paper" if is_paper else " ".join(head) for head, is_paper in heads]
    lines = [
        f"### {table.title} ({table.paper})",
        "",
        "| method | " + " | ".join(titles) + " | seeds |",
        "|---|" + "--:|" * len(heads) + "--:|",
    ]
    for row in table.rows:
        texts = []
        for head, is_paper in heads:
            mean, std, is_best = cell_texts(table, row, head, is_paper)
            text = f"{mean} ± {std}" if std else mean
            texts.append(f"**{text}**" if is_best else text)
        lines.append(f"| {row} | " + " | ".join(texts) + f" | {_seeds(table, row)} |")
    return "\n".join([*lines, "", *table.notes])


def _latex(table: Table) -> str:
    heads = _heads(table)
    titles = ["paper" if is_paper else _escape(" ".join(head)) for head, is_paper in heads]
    lines = [
        f"% {table.title} ({table.paper}), {table.part}",
        *(f"% {line}" for note in table.notes for line in note.splitlines()),
        rf"\begin{{tabular}}{{l{'r' * len(heads)}r}}",
        r"\toprule",
        "Method & " + " & ".join(titles) + r" & seeds \\ \midrule",
    ]
    for row in table.rows:
        texts = []
        for head, is_paper in heads:
            mean, std, is_best = cell_texts(table, row, head, is_paper)
            mean = rf"\textbf{{{mean}}}" if is_best else mean.replace("-", "--") if mean == "-" else mean
            texts.append(rf"{mean}$_{{\pm {std}}}$" if std else mean)
        lines.append(f"{_escape(row)} & " + " & ".join(texts) + rf" & {_seeds(table, row)} \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def cell_texts(table: Table, row: str, head: tuple[str, str], is_paper: bool) -> tuple[str, str, bool]:
    """Mean and deviation as text, and whether they are bold; empty where there is nothing."""
    cell = table.cells.get((row, *head))
    if cell is None:
        return "", "", False
    if is_paper:
        return _paper(cell, table.decimals[head[0]])
    if not cell.values:
        return "-", "", False
    decimals = table.decimals[head[0]]
    std = "" if math.isnan(cell.std) else f"{cell.std:.{decimals}f}"
    return f"{cell.mean:.{decimals}f}", std, cell.is_best


def _paper(cell: Cell, decimals: int) -> tuple[str, str, bool]:
    """As printed there, with as many decimals as ours if it has fewer."""
    if cell.paper is None:
        return "", "", False
    mean, std = cell.paper
    if decimals == 1:
        return f"{mean:.1f}", "" if std is None else f"{std:.1f}" if std >= 0.1 else f"{std:g}", False
    return f"{mean:g}", "" if std is None else f"{std:g}", False


def _seeds(table: Table, row: str) -> str:
    counts = sorted({len(c.values) for (r, _, _), c in table.cells.items() if r == row})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _escape(text: str) -> str:
    for character in "&%$#_{}":
        text = text.replace(character, "\\" + character)
    return text


def _csv(table: Table) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    names = ["method", "dataset", "column", "part", "mean", "std", "seeds", "paper_mean", "paper_std", "best"]
    writer.writerow(names)
    for (row, dataset, column), cell in table.cells.items():
        values = ["" if math.isnan(value) else value for value in (cell.mean, cell.std)]
        paper = ["" if value is None else value for value in cell.paper or ("", "")]
        writer.writerow([row, dataset, column, table.part, *values, len(cell.values), *paper, cell.is_best])
    return buffer.getvalue().rstrip("\n")
