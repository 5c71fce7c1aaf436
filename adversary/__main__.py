"""Run the adversary: ``python -m adversary --help`` lists its parts."""

from __future__ import annotations

import json
import shlex
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from adversary.cases import (
    FAILURES,
    HANG,
    TARGETS,
    Outcome,
    as_table,
    combinations,
    each_choice,
    shrink,
)
from adversary.workers import judge_all, judge_one, load_targets
from elliptica._utils.text import did_you_mean
from elliptica.lab.experiments.records import versions

#: Cases that failed once, shrunk: they are judged again in every run.
KEPT = Path(__file__).resolve().parent / "regressions.json"

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def options() -> None:
    """Attack the product and record what came of it."""


@app.command()
def cases(
    library: Annotated[
        int, typer.Option(min=0, help="Combinations of choices for the library; 0 skips it.")
    ] = 2000,
    commands: Annotated[
        int, typer.Option(min=0, help="Combinations of choices for the commands; 0 skips them.")
    ] = 400,
    each: Annotated[bool, typer.Option(help="Also try every choice alone.")] = True,
    seed: Annotated[int, typer.Option(help="Another seed, other parameters and combinations.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Processes at a time.")] = 2,
    only: Annotated[str, typer.Option(help="Only targets whose name contains this.")] = "",
    shrinking: Annotated[bool, typer.Option(help="Shrink failures.")] = True,
    keep: Annotated[bool, typer.Option(help="Add shrunk failures to the regression cases.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the record to this file.")] = None,
) -> None:
    """Try hostile input on the library and the commands."""
    load_targets()
    chosen = [target for target in TARGETS.values() if only in target.name]
    if not chosen:
        hint = did_you_mean(only, TARGETS) or f"Known: {', '.join(sorted(TARGETS))}."
        raise typer.BadParameter(f"no target contains {only!r}. {hint}", param_hint="--only")
    made: list[Mapping[str, Any]] = []
    n_combined = 0
    for kind, number in (("library", library), ("commands", commands)):
        if number and (fitting := [target for target in chosen if target.kind == kind]):
            made += each_choice(fitting, seed) if each else []
            combined = combinations(fitting, number, seed)
            n_combined += len(combined)
            made += combined
    made += (kept := [case for case in read_kept() if only in case["target"]])
    typer.echo(f"seed {seed}: {len(made)} cases, {len(kept)} of them regression cases")
    counts: dict[str, Counter[str]] = {}
    failures: dict[str, tuple[Mapping[str, Any], Outcome]] = {}
    times: Counter[str] = Counter()
    start = time.monotonic()
    for number, (case, outcome) in enumerate(judge_all(made, jobs), 1):
        counts.setdefault(case["target"], Counter())[outcome.outcome] += 1
        if outcome.outcome in FAILURES:
            name = f"{case['target']} {outcome.signature()}"
            failures.setdefault(name, (case, outcome))
            times[name] += 1
        if number % 1000 == 0:
            typer.echo(f"  {number} of {len(made)} in {time.monotonic() - start:.0f} s")
    seconds = time.monotonic() - start
    typer.echo(as_table({name: counts[name] for name in sorted(counts) if counts[name].keys() & FAILURES}))
    typer.echo(as_table({"all": sum(counts.values(), Counter())}))
    typer.echo(f"{len(made)} cases in {seconds / 60:.1f} minutes, {len(failures)} different failures")
    shrunk = []
    for name, (case, outcome) in failures.items():
        case, outcome = _shrunk(case, outcome, shrinking)
        shrunk.append((case, outcome))
        typer.echo(
            f"\n{case['target']}, {times[name]} times {outcome.outcome}: {outcome.detail}\n"
            f"python -m adversary case {shlex.quote(json.dumps(case))}"
        )
    if keep:
        write_kept([*read_kept(), *({**case, "was": f"{o.outcome}: {o.detail}"[:300]} for case, o in shrunk)])
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        record = {
            "seed": seed,
            "minutes": round(seconds / 60, 1),
            "versions": versions(),
            "each_choice": each,
            "combinations": n_combined,
            "regression_cases": len(kept),
            "targets": {
                name: {
                    "kind": TARGETS[name].kind,
                    "module": TARGETS[name].module.rpartition(".")[2],
                    "choices": sum(len(axis) for axis in TARGETS[name].axes.values()),
                    "counts": dict(counts[name]),
                }
                for name in sorted(counts)
            },
            "failures": [{"case": case, "outcome": o.outcome, "detail": o.detail} for case, o in shrunk],
        }
        out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if failures:
        raise typer.Exit(1)


@app.command("case")
def one_case(
    line: Annotated[str, typer.Argument(help="A case as `cases` prints it: one line of JSON.")],
) -> None:
    """Judge one case again; with an error, show where it came from."""
    load_targets()
    try:
        case = json.loads(line)
        target = TARGETS[case["target"]]
        for axis, (name, *_) in case["choices"].items():
            target.choice(axis, name)
    except (ValueError, TypeError, KeyError) as error:
        message = f"not a case ({type(error).__name__}: {error}). Pass a line that `cases` printed."
        raise typer.BadParameter(message) from None
    outcome = judge_one(case)
    typer.echo(f"{outcome.outcome}: {outcome.detail}".rstrip(": "))
    if outcome.trace:
        typer.echo(outcome.trace)
    raise typer.Exit(outcome.outcome in FAILURES)


@app.command()
def kills(
    seed: Annotated[int, typer.Option(help="Seed of the random moments.")] = 0,
    number: Annotated[int, typer.Option(min=1, help="Kills of run, and of compare.")] = 20,
    only: Annotated[
        str | None, typer.Option(help="Only scenarios whose name contains this; writes no record.")
    ] = None,
) -> None:
    """Kill and starve running commands, and compare what is left with an undisturbed run."""
    from adversary import kills as part

    _reported(part.main, seed, number, only)


@app.command()
def seeds(
    shifts: Annotated[
        int, typer.Option(min=1, help="Number of shifted seeds; fewer than ten write no record.")
    ] = 10,
) -> None:
    """Run all statistical tests under other seeds."""
    from adversary import seeds as part

    if not part.main(shifts, part.RECORD if shifts >= 10 else None):
        raise typer.Exit(1)


@app.command()
def determinism() -> None:
    """Measure what changes a result: threads, processes, Ray, resuming. Updates docs/scale.md."""
    from adversary import determinism as part

    part.main()


@app.command()
def mutants(
    seed: Annotated[int, typer.Option(help="Another seed, other mutants.")] = 0,
    number: Annotated[int, typer.Option(min=1, help="How many.")] = 150,
    only: Annotated[str | None, typer.Option(help="A package or file, such as core/bridge.py.")] = None,
    out: Annotated[Path | None, typer.Option(help="Record of another sample than the committed one.")] = None,
) -> None:
    """Change the code in many places, and see whether its tests notice. Rerun to resume."""
    from adversary import mutants as part

    if not _reported(part.main, seed, number, only, out or part.RECORD):
        raise typer.Exit(1)


@app.command()
def teeth(
    seed: Annotated[int, typer.Option(help="Another seed, other cases.")] = 0,
    number: Annotated[int, typer.Option(min=1, help="Combinations for each defect.")] = 100,
    only: Annotated[str, typer.Option(help="Only defects whose target or name contains this.")] = "",
) -> None:
    """Plant known defects in a copy of the library, and see whether hostile input notices them."""
    from adversary import teeth as part

    if not part.main(seed, number, only):
        raise typer.Exit(1)


def _reported(work: Callable[..., Any], *arguments: Any) -> Any:
    """Run a part; show what is wrong with its arguments."""
    try:
        return work(*arguments)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


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
