"""Run the adversary: ``python -m adversary --help`` lists its parts."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from adversary.cases import (
    BROKEN,
    CRASH,
    DEEP,
    FAILURES,
    HANG,
    OUTCOMES,
    TARGETS,
    WRONG,
    Outcome,
    generate,
    shrink,
)
from adversary.workers import judge_all, judge_one, load_targets

#: Cases that failed once, shrunk: they are judged again in every run.
KEPT = Path(__file__).resolve().parent / "regressions.json"

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def options() -> None:
    """Attack the product and record what came of it."""


@app.command()
def cases(
    library: Annotated[int, typer.Option(help="Cases of the library.")] = 3000,
    commands: Annotated[int, typer.Option(help="Cases of the commands.")] = 1050,
    seed: Annotated[int, typer.Option(help="Another seed, other cases.")] = 0,
    jobs: Annotated[int, typer.Option(help="Processes at a time.")] = 2,
    only: Annotated[str, typer.Option(help="Only targets whose name contains this.")] = "",
    shrinking: Annotated[bool, typer.Option(help="Shrink failures.")] = True,
    keep: Annotated[bool, typer.Option(help="Add shrunk failures to the regression cases.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the record to this file.")] = None,
) -> None:
    """Try hostile input on the library and the commands."""
    load_targets()
    chosen = [each for each in TARGETS.values() if only in each.name]
    made: list[Mapping[str, Any]] = []
    for kind, number in (("library", library), ("commands", commands)):
        if number and (fitting := [each for each in chosen if each.kind == kind]):
            made += generate(fitting, number, seed)
    made += [case for case in read_kept() if only in case["target"]]
    typer.echo(f"seed {seed}: {len(made)} cases")
    counts: dict[str, Counter[str]] = {}
    failures: dict[str, tuple[Mapping[str, Any], Outcome]] = {}
    start = time.monotonic()
    for number, (case, outcome) in enumerate(judge_all(made, jobs), 1):
        counts.setdefault(case["target"], Counter())[outcome.outcome] += 1
        if outcome.outcome in FAILURES:
            failures.setdefault(f"{case['target']} {outcome.signature()}", (case, outcome))
        if number % 250 == 0:
            typer.echo(f"  {number} of {len(made)} in {time.monotonic() - start:.0f} s")
    seconds = time.monotonic() - start
    typer.echo(as_table(counts))
    typer.echo(f"{len(made)} cases in {seconds / 60:.1f} minutes, {len(failures)} different failures")
    shrunk = [_shrunk(case, outcome, shrinking) for case, outcome in failures.values()]
    for case, outcome in shrunk:
        typer.echo(f"\n{outcome.outcome}: {outcome.detail}\n  {json.dumps(case)}")
    if keep:
        write_kept([*read_kept(), *({**case, "was": f"{o.outcome}: {o.detail}"[:300]} for case, o in shrunk)])
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        record = {
            "seed": seed,
            "minutes": round(seconds / 60, 1),
            "kinds": {name: TARGETS[name].kind for name in sorted(counts)},
            "counts": {name: dict(counts[name]) for name in sorted(counts)},
            "failures": [{"case": case, "outcome": o.outcome, "detail": o.detail} for case, o in shrunk],
        }
        out.write_text(json.dumps(record, indent=1) + "\n")
    total = sum(counts.values(), Counter())
    if any(total[name] for name in (WRONG, CRASH, HANG, BROKEN)) or total[DEEP] > 10:
        raise typer.Exit(1)


@app.command()
def kills(
    seed: Annotated[int, typer.Option(help="Seed of the random moments.")] = 0,
    number: Annotated[int, typer.Option(help="Kills of run, and of compare.")] = 20,
    only: Annotated[str | None, typer.Option(help="Only scenarios whose name contains this.")] = None,
) -> None:
    """Kill and starve running commands, and compare what is left with an undisturbed run."""
    from adversary import kills as part

    part.main(seed, number, only)


@app.command()
def seeds(shifts: Annotated[int, typer.Option(help="Number of shifted seeds.")] = 10) -> None:
    """Run all statistical tests under other seeds."""
    from adversary import seeds as part

    if not part.main(shifts):
        raise typer.Exit(1)


@app.command()
def determinism() -> None:
    """Measure what changes a result: threads, processes, Ray, resuming."""
    from adversary import determinism as part

    part.main()


@app.command()
def mutants(
    seed: Annotated[int, typer.Option(help="Another seed, other mutants.")] = 0,
    number: Annotated[int, typer.Option(help="How many.")] = 150,
    only: Annotated[str | None, typer.Option(help="A package or file, such as core/bridge.py.")] = None,
) -> None:
    """Change the code in many places, and see whether its tests notice."""
    from adversary import mutants as part

    if not part.main(seed, number, only):
        raise typer.Exit(1)


@app.command()
def teeth(
    seed: Annotated[int, typer.Option(help="Another seed, other cases.")] = 0,
    number: Annotated[int, typer.Option(help="Cases for each defect.")] = 200,
    only: Annotated[str, typer.Option(help="Only defects whose target or name contains this.")] = "",
) -> None:
    """Plant known defects in a copy of the library, and see whether hostile input notices them."""
    from adversary import teeth as part

    if not part.main(seed, number, only):
        raise typer.Exit(1)


@app.command("page")
def write_page() -> None:
    """Write results/adversary/README.md from the records."""
    from adversary.page import RESULTS, page

    (RESULTS / "README.md").write_text(page(), encoding="utf-8")


def _shrunk(case: Mapping[str, Any], outcome: Outcome, shrinking: bool) -> tuple[Mapping[str, Any], Outcome]:
    """Return the simplest case with the same outcome, and how that one ends."""
    if not shrinking:
        return case, outcome
    found = {json.dumps(case): outcome}

    def same(other: Mapping[str, Any]) -> bool:
        result = judge_one(other)
        found[json.dumps(other)] = result
        return result.signature() == outcome.signature()

    best = shrink(case, same, most=5 if outcome.outcome == HANG else 40)
    return best, found.get(json.dumps(best), outcome)


def as_table(counts: Mapping[str, Counter[str]]) -> str:
    """Format outcomes by target as Markdown, with a last row for all."""
    rows = {**{name: counts[name] for name in sorted(counts)}, "all": sum(counts.values(), Counter())}
    lines = [f"| target | cases | {' | '.join(OUTCOMES)} |", "|---|--:|" + "--:|" * len(OUTCOMES)]
    for name, row in rows.items():
        lines.append(f"| {name} | {sum(row.values())} | " + " | ".join(str(row[o]) for o in OUTCOMES) + " |")
    return "\n".join(lines)


def read_kept() -> list[dict[str, Any]]:
    """Read the regression cases."""
    return json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else []


def write_kept(kept: list[dict[str, Any]]) -> None:
    """Write the regression cases, one line each, without repetitions."""
    lines = {
        json.dumps({k: case[k] for k in ("target", "seed", "choices")}): json.dumps(case) for case in kept
    }
    KEPT.write_text("[\n" + ",\n".join(lines.values()) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    app()
