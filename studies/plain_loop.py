"""Study: why a first plain loop on SkillCraft misses the recorded numbers, one difference at a time.

Trains as someone would who has the settings of Table 5 and the public names, then changes one thing after the
other until the loop is the runner's (examples/reproduce_one_row.py). Writes records to
results/plain_loop, where what is recorded is not repeated, and the table of its README::

    python studies/plain_loop.py run        # needs ELLIPTICA_DATA
    python studies/plain_loop.py            # the table alone
"""

from __future__ import annotations

import argparse
import math
import statistics
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from elliptica import Elliptic, EllipticWarning
from elliptica.lab.data import Split, load_skillcraft
from elliptica.lab.experiments.choice import Choice
from elliptica.lab.experiments.records import append_lines, read_lines, read_records
from elliptica.lab.experiments.table import dagger_of
from elliptica.lab.models import mlp

ROOT = Path(__file__).resolve().parent.parent
HERE = ROOT / "results" / "plain_loop"
RECORDS = HERE / "records.jsonl.gz"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
EPOCHS = 100

#: Rows of Table 5, with the seeds that are trained here (whole paths take long).
ROWS: dict[str, tuple[int, dict[str, Any]]] = {
    "marginal": (5, {"sampling": "marginal", "sigma": 0.05}),
}
#: Loops by name: which rows scale the inputs, and whether an incomplete batch is dropped.
LOOPS = {"train, kept": ("train", False), "all, kept": ("all", False), "all, dropped": ("all", True)}
#: From the plain loop to the runner's: what is changed, the loop, and which epoch counts.
STEPS = (
    ("plain loop, last epoch", "train, kept", "last"),
    ('+ inputs scaled over all rows (`scale="all"`)', "all, kept", "last"),
    ("+ incomplete last batch dropped", "all, dropped", "last"),
    ("+ epoch chosen on the validation league", "all, dropped", "chosen"),
)
#: Single changes of the plain loop.
ALONE = (("plain loop, epoch chosen on the validation league", "train, kept", "chosen"),)


def rmse(model: nn.Module, part: Split) -> list[float]:
    """Over all rows, and of the worst league."""
    assert part.group is not None
    with torch.no_grad():
        errors = (model(part.x) - part.y).square().mean(1).double()
    leagues = [float(errors[part.group == league].mean()) for league in part.group.unique()]
    return [math.sqrt(errors.mean()), math.sqrt(max(leagues))]


def train(row: str, loop: str, seed: int, epochs: int = EPOCHS) -> dict[str, Any]:
    """Train once; returns the test errors of the last epoch, and of the one that validation chooses."""
    scale, drop_last = LOOPS[loop]
    data = load_skillcraft(seed, scale=scale)  # type: ignore[arg-type]
    torch.manual_seed(seed)
    rows = TensorDataset(data.train.x, data.train.y)
    loader = DataLoader(rows, batch_size=32, shuffle=True, drop_last=drop_last)
    model = mlp(data.n_features, 1, hidden=(128, 128))
    objective = Elliptic(model, nn.MSELoss(), **ROWS[row][1])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    best, found = math.inf, {"row": row, "loop": loop, "seed": seed}
    for epoch in range(epochs):
        objective.train()
        for x, y in loader:
            loss = objective(x, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        objective.eval()
        found["last"] = rmse(model, data.test)
        error = rmse(model, data.validation)[0]
        if error <= best:
            best = error
            found |= {"epoch": epoch, "chosen": found["last"]}
    return found


def read() -> list[dict[str, Any]]:
    """The records so far."""
    return read_lines(RECORDS)


def run() -> None:
    """Train what is not recorded."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", EllipticWarning)  # of noise that is small for these targets
    for row, (seeds, _) in ROWS.items():
        for seed in range(seeds):
            for loop in LOOPS:
                if any((r["row"], r["loop"], r["seed"]) == (row, loop, seed) for r in read()):
                    continue
                record = train(row, loop, seed)
                append_lines(RECORDS, [record])
                print(record, flush=True)


def _errors(pairs: list[list[float]]) -> str:
    """Mean and sample deviation of the average and the worst league."""
    columns = zip(*pairs, strict=True)
    return " | ".join(f"{statistics.mean(c):.2f} ± {statistics.stdev(c):.2f}" for c in columns)


def table(records: list[dict[str, Any]]) -> str:
    """The steps from the plain loop to the runner, as Markdown."""
    lines = ["| row | loop | seeds | average | worst league |", "|---|---|--:|--:|--:|"]
    for row, (seeds, _) in ROWS.items():
        for name, loop, epoch in (*STEPS, *ALONE):
            pairs = [r[epoch] for r in records if (r["row"], r["loop"]) == (row, loop)]
            if len(pairs) == seeds:
                lines.append(f"| {row} | {name} | {seeds} | {_errors(pairs)} |")
        tables = ROOT / "results" / "tables"
        for n_seeds in sorted({seeds, 10}):
            runs = Choice("table5", ["skillcraft"], [row], n_seeds).runs(tables)
            records_of_runner = read_records(tables, runs)
            tests = [record.metrics["test"] for record in records_of_runner]
            pairs = [[test.average, test.worst or 0.0] for test in tests]
            name = f"the runner (its seeds, fused Adam){dagger_of(records_of_runner)}"
            lines.append(f"| {row} | {name} | {len(pairs)} | {_errors(pairs)} |")
    return "\n".join(lines)


def page() -> str:
    """The page with its table made anew from the records."""
    text = (HERE / "README.md").read_text()
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{table(read())}\n{END}{rest.partition(END)[2]}"


def main() -> None:
    """Train if asked to, and rewrite the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("command", nargs="?", choices=["run"], help="train what is not recorded")
    if parser.parse_args().command == "run":
        run()
    (HERE / "README.md").write_text(page())


if __name__ == "__main__":
    main()
