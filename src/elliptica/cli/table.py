"""`elliptica table`: a table from its records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from elliptica.cli import options as shared
from elliptica.cli.app import THE_PAPER, app, one_of, require_extra
from elliptica.cli.options import load_own, make_choice

if TYPE_CHECKING:
    from elliptica.lab.experiments.choice import Choice
    from elliptica.lab.experiments.specification import Run

Part = Literal["test", "validation", "cost"]
Epoch = Literal["chosen", "last", "late", "best"]
Form = Literal["markdown", "latex", "csv"]

_PART = "validation is for choices among methods; cost: rows and seconds to the chosen epoch."
_EPOCH = (
    "chosen on validation; last; late: mean of the last tenth; best on the part itself. All but chosen need "
    "elliptica run --every-epoch."
)


@app.command(rich_help_panel=THE_PAPER)
def table(
    table: shared.TableName,
    plugin: shared.Plugins = None,
    dataset: shared.Dataset = None,
    methods: shared.Methods = None,
    seeds: shared.Seeds = None,
    epochs: shared.Epochs = None,
    precision: shared.Precision = None,
    match: shared.Match = None,
    select: shared.Select = None,
    tuned: shared.Tuned = False,
    part: Annotated[Part, one_of(Part, help=_PART)] = "test",
    epoch: Annotated[Epoch, one_of(Epoch, help=_EPOCH)] = "chosen",
    form: Annotated[Form, one_of(Form, "--format", help="How to print it.")] = "markdown",
    out: shared.Records = Path("runs"),
) -> None:
    """Print a table from its records, the paper's values beside ours."""
    require_extra("lab", "pydantic", "safetensors", "sklearn")
    load_own(plugin)
    choice = make_choice(table, dataset, methods, seeds, epochs, precision, match, tuned, select)
    typer.echo(make_text(choice, choice.runs(out), out, form, part, epoch))


def make_text(
    choice: Choice, wanted: list[Run], out: Path, form: Form, part: Part = "test", epoch: Epoch = "chosen"
) -> str:
    """The table of the records in a folder as text."""
    from elliptica.lab.experiments.records import read_records
    from elliptica.lab.experiments.table import make_table, render

    records, remarks = read_records(out, wanted), choice.remarks()
    if not records:
        remarks += (f"Nothing is recorded in {out}: elliptica run with the same options does these runs.",)
    return render(make_table(choice.name, choice.specification, wanted, records, part, remarks, epoch), form)
