"""`elliptica tune`: choose settings on the validation part, for all rows alike or by a search of one."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from elliptica._utils.files import read_json
from elliptica.cli import options as shared
from elliptica.cli.app import THE_PAPER, DataDir, app, one_of, require_extra
from elliptica.cli.options import load_own, make_choice, print_error, ray_settings

if TYPE_CHECKING:
    from elliptica.lab.experiments.choice import Choice
    from elliptica.lab.experiments.run import Options
    from elliptica.lab.experiments.search import Search
    from elliptica.lab.experiments.specification import Run

#: Trials below which importances would be noise.
ENOUGH = 8


#: How a search draws settings.
Sampler = Literal["tpe", "random"]

#: How a search stops trials early.
Pruner = Literal["median", "hyperband", "none"]


@app.command(rich_help_panel=THE_PAPER)
def tune(
    table: shared.TableName,
    plugin: shared.Plugins = None,
    dataset: shared.Dataset = None,
    methods: shared.Methods = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Of each row.", show_default="the table's")
    ] = None,
    search: Annotated[
        str | None,
        typer.Option(
            help="Search one row with Optuna: a space that the table names, or auto.", metavar="NAME"
        ),
    ] = None,
    sampler: Annotated[Sampler | None, one_of(Sampler, help="Of a search.", show_default="tpe")] = None,
    pruner: Annotated[Pruner | None, one_of(Pruner, help="Of a search.", show_default="median")] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            help="Trials of a search: a journal file (fit for clusters) or sqlite:///FILE. Workers share it.",
            show_default="searches.journal in the folder of the records",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**32 - 1, help="Of a search.", show_default="0")
    ] = None,
    epochs: shared.Epochs = None,
    precision: shared.Precision = None,
    match: shared.Match = None,
    select: shared.Select = None,
    jobs: shared.Jobs = None,
    engine: shared.Engine = "processes",
    address: shared.Address = None,
    cpus_per_run: shared.Cpus = None,
    gpus_per_run: shared.Gpus = None,
    retries: shared.Retries = None,
    data_dir: DataDir = None,
    device: shared.Device = "cpu",
    tensorboard: shared.Board = None,
    out: shared.Records = Path("runs"),
) -> None:
    """Tune every method of a table alike, on validation rows; then run it with --tuned.

    Without --search: learning rates and the like, with as many trials for every method. Example:
    elliptica tune table4 --dataset waterbirds-features

    With --search: all settings of one method, with pruning, as many workers as you start, and a storage from
    which a killed search resumes. Example: elliptica tune table4 --dataset waterbirds-features --methods
    marginal --search auto --trials 50 --jobs 2
    """
    given = {"--sampler": sampler, "--pruner": pruner, "--storage": storage, "--seed": seed}
    alone = [name for name, value in given.items() if value is not None]
    if search is None and alone:
        raise typer.BadParameter(f"{', '.join(alone)} belongs to a search: say --search auto, too.")
    if search is not None and engine == "ray":
        raise typer.BadParameter(
            "A search has workers of its own: start the same command on each machine, with one --storage for "
            "all, in place of --engine ray."
        )
    require_extra("lab", "pydantic", "safetensors", "sklearn", "optuna")
    if tensorboard is not None:
        if search is not None:
            raise typer.BadParameter("--tensorboard is for trials without --search.")
        require_extra("lab", "tensorboard")
    from elliptica.lab.experiments.run import Options

    choice = make_choice(table, dataset, methods, 1, epochs, precision, match, False, select, plugin)
    ray = ray_settings(engine, address, cpus_per_run, gpus_per_run, retries)
    options = Options(
        out=out,
        data_dir=data_dir,
        device=device,
        jobs=jobs,
        tensorboard=tensorboard,
        ray=ray,
        plugins=load_own(plugin),
    )
    if search is None:
        raise typer.Exit(run_tune(choice, trials, options, Console()))
    how = {
        "space": search,
        "trials": trials,
        "storage": storage,
        "sampler": sampler or "tpe",
        "pruner": pruner or "median",
        "seed": seed or 0,
    }
    raise typer.Exit(run_search(choice, options, Console(), **how))


def run_tune(choice: Choice, trials: int | None, options: Options, console: Console) -> int:
    """Choose settings of a table's rows by equal trials; returns the exit status."""
    from elliptica.lab.experiments.engines import EngineError, is_torchrun, open_engine
    from elliptica.lab.experiments.preflight import check_names
    from elliptica.lab.experiments.specification import SpecificationError
    from elliptica.lab.experiments.tune import rows_of, tune

    if is_torchrun():
        print_error("torchrun shares the work of one run, and tuning has many. Use --jobs alone.", console)
        return 2
    try:
        wanted = choice.runs(options.out)
        check_names(wanted)
        specification = choice.specification
        with open_engine(options) as engine:
            doable, problems = engine.check(wanted, options)
            for problem in problems:
                print_error(problem, console)
            if not doable:
                return 2
            rows = rows_of(doable, specification)
            with Progress(console=console) as progress:
                bar = progress.add_task("trials", total=None)

                def listen(label: str, kind: str, details: dict[str, Any]) -> None:
                    if kind in ("again", "lost", "failed"):
                        console.print(f"{label}: {kind}: {details['error']}", highlight=False, markup=False)
                    if kind in ("done", "skipped", "lost", "failed"):
                        progress.advance(bar)

                n_trials = trials or specification.trials
                progress.update(bar, total=n_trials * len(rows))
                found = tune(rows, n_trials, options, listen, engine)
    except (SpecificationError, EngineError) as error:
        print_error(error, console)
        return 2
    except KeyboardInterrupt:
        console.print("Interrupted: trials that are finished are recorded.")
        return 130
    for label, chosen in found.items():
        told = f"failed: {chosen}" if isinstance(chosen, str) else _describe(chosen)
        console.print(f"{label}: {told}", highlight=False, markup=False, soft_wrap=True)
    return int(bool(problems) or any(isinstance(chosen, str) for chosen in found.values()))


def _describe(chosen: dict[str, Any]) -> str:
    values = ", ".join(f"{name} {_shown(value)}" for name, value in chosen["values"].items())
    return f"{values or 'the setting of the table'} ({chosen['rule']}: {chosen['score']:.4g})"


def _shown(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def run_search(choice: Choice, options: Options, console: Console, **how: Any) -> int:
    """Search one row of a table, choose and report; returns the exit status. ``how``: see `make_search`."""
    from elliptica.lab.experiments.engines import is_torchrun
    from elliptica.lab.experiments.preflight import check_before, check_names
    from elliptica.lab.experiments.search import check_search, choose, do_search, note_plugins, open_study
    from elliptica.lab.experiments.specification import SpecificationError
    from elliptica.lab.experiments.tuned import chosen_file

    if is_torchrun():
        told = "torchrun shares the work of one run, and a search has many. Start workers with --jobs."
        print_error(told, console)
        return 2
    problems: list[str] = []

    def listen(label: str, kind: str, details: dict[str, Any]) -> None:
        if kind == "trial":
            console.print(_ending(search, details), highlight=False, markup=False, soft_wrap=True)
        elif kind == "failed":
            problems.append(f"{label}: {details['error']}")

    try:
        search = make_search(choice, options.out, **how)
        check_names([search.run])
        _, wrong = check_before([search.run], options)
        if wrong:
            raise SpecificationError(wrong[0])
        check_search(search, options)
        study = open_study(search)
        note_plugins(study, search)
        before = _score(chosen_file(options.out, search.run))
        name = f"{search.study_name} in {search.storage}"
        console.print(name, highlight=False, markup=False, soft_wrap=True)
        do_search(search, options, listen)
        for problem in problems:
            print_error(problem, console)
        chosen = choose(search, study, options)
    except KeyboardInterrupt:
        console.print("Interrupted: rerun the same command to resume; trials resume after their last epoch.")
        return 130
    except (RuntimeError, OSError, SpecificationError) as error:
        print_error(error, console)
        return 2
    _print_search(search, study, chosen, options, console)
    if before is not None:
        is_better = before > chosen["score"]
        console.print(
            f"The choice (score {chosen['score']:.4g}) replaces an earlier one ({before:.4g}"
            f"{', which was better: its command again brings it back' if is_better else ''}).",
            highlight=False,
            soft_wrap=True,
        )
    return int(bool(problems))


def make_search(
    choice: Choice,
    out: Path,
    *,
    space: str,
    trials: int | None = None,
    storage: str | None = None,
    **how: Any,
) -> Search:
    """Make the search of one row on one data set; raises `SpecificationError` if options mean several."""
    from elliptica.lab.experiments.search import Search
    from elliptica.lab.experiments.specification import SpecificationError
    from elliptica.lab.experiments.tune import named_space

    specification = choice.specification
    rows: dict[tuple[str, str], Run] = {(run.dataset, run.row): run for run in choice.runs(out)}
    if len(rows) != 1:
        names = ", ".join(f"{row} on {dataset}" for dataset, row in list(rows)[:4])
        raise SpecificationError(
            f"A search is of one row on one data set, but {len(rows)} are meant ({names}"
            f"{', ...' * (len(rows) > 4)}). Say --dataset and --methods. (Without --search every row is "
            "tuned alike.)"
        )
    (run,) = rows.values()
    return Search(
        run=run,
        space=named_space(specification, run, space),
        name=space,
        storage=storage or str(out / "searches.journal"),
        trials=trials or specification.trials,
        **how,
    )


def _score(file: Path) -> float | None:
    """Read the score of an earlier choice, if there is one."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return float(read_json(file)["score"])
    return None


def _ending(search: Search, trial: dict[str, Any]) -> str:
    """Say how a trial ended."""
    values = ", ".join(f"{name.partition('.')[2]} {_shown(value)}" for name, value in trial["values"].items())
    if trial["state"] == "COMPLETE":
        score = trial["score"] if search.run.metric == "accuracy" else -trial["score"]
        ended = f"{search.run.metric} {score:.4g}"
    elif trial["state"] == "PRUNED":
        ended = f"pruned after {trial['epochs']} epochs"
    else:
        ended = f"failed: {trial['error']}"
    return f"trial {trial['number']}: {ended} ({values})"


def _print_search(
    search: Search, study: Any, chosen: dict[str, Any], options: Options, console: Console
) -> None:
    """Print how trials ended, the best ones, what mattered, and how to use the choice."""
    from elliptica.lab.experiments.registry import load_dataset
    from elliptica.lab.experiments.search import chosen_run, counted, importances

    console.print(summary(study), highlight=False)
    console.print(best_trials(search, study))
    shares = importances(study, ENOUGH)
    if shares:
        table = Table(title="What mattered", box=None)
        table.add_column("setting")
        table.add_column("share of variance", justify="right")
        for name, share in sorted(shares.items(), key=lambda item: -item[1]):
            table.add_row(name.partition(".")[2], f"{100 * share:.0f} %")
        console.print(table)
    else:
        console.print(f"Which settings mattered is told from {ENOUGH} finished trials on.", highlight=False)
    values = ", ".join(f"{name} {_shown(value)}" for name, value in chosen["values"].items())
    console.print(f"Chosen ({chosen['rule']}): {values}", highlight=False, soft_wrap=True)
    data = load_dataset(search.run.load, search.run.seed, options.data_dir)
    classes = int(data.train.y.max()) + 1 if data.task == "classification" else None
    line = python_line(chosen_run(search, chosen), classes)
    if line:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    console.print("elliptica run with --tuned and the same options takes it.", highlight=False)
    left = sum(trial.state.name == "RUNNING" for trial in counted(study))
    if left:
        console.print(
            f"Under way elsewhere: {left} more; the worker that ends last chooses among all.",
            highlight=False,
        )


def summary(study: Any) -> str:
    """Say in a line how the trials ended."""
    from elliptica.lab.experiments.search import counted

    words = {"COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "under way"}
    numbers = Counter(trial.state.name for trial in counted(study))
    told = ", ".join(f"{numbers[state]} {word}" for state, word in words.items() if numbers[state])
    return f"{numbers.total()} trials: {told}"


def best_trials(search: Search, study: Any, n: int = 5) -> Table:
    """Tabulate the best finished trials, with the metric as the tables show it."""
    from elliptica.lab.experiments.search import counted

    done = [trial for trial in counted(study) if trial.state.name == "COMPLETE"]
    done = sorted(done, key=lambda trial: (-trial.value, trial.number))[:n]
    sign = 1 if search.run.metric == "accuracy" else -1
    table = Table(title=f"Best trials by {search.run.select} {search.run.metric} (validation)", box=None)
    table.add_column("trial")
    for trial in done:
        table.add_column(str(trial.number), justify="right")
    table.add_row(search.run.metric, *(f"{sign * trial.value:.4g}" for trial in done))
    for name in search.ranges:
        table.add_row(name.partition(".")[2], *(_shown(trial.params[name]) for trial in done))
    table.add_row("epoch", *(str(trial.user_attrs["epoch"] + 1) for trial in done))
    table.add_row("seconds", *(f"{trial.user_attrs['seconds']:.1f}" for trial in done))
    return table


def python_line(run: Run, num_classes: int | None) -> str:
    """Write the objective of a run as Python, to paste; empty for methods other than elliptic training.

    Example:
        >>> from elliptica.lab.experiments.specification import Run
        >>> run = Run(table="t", dataset="d", row="r", method="elliptic", seed=0, metric="rmse", columns=(),
        ...           select="average", load={}, model={}, training={}, settings={"sigma": 0.12345, "xi": 2})
        >>> python_line(run, None)
        'Elliptic(model, nn.MSELoss(), sigma=0.1235, sigma_y=0.1235)'
    """
    if run.method != "elliptic":
        return ""
    from elliptica.core.partners import Permutation
    from elliptica.lab.experiments.methods.objectives import elliptic_settings

    given = {k: _rounded(v) for k, v in run.settings.items() if k != "partners"}
    shown = {k: _rounded(v) for k, v in elliptic_settings(given).items() if v not in (None, Permutation())}
    loss = "nn.MSELoss()" if num_classes is None else f"nn.CrossEntropyLoss(), num_classes={num_classes}"
    line = f"Elliptic(model, {loss}{''.join(f', {name}={value!r}' for name, value in shown.items())})"
    if "partners" in run.settings:
        line += f"  # and partners={run.settings['partners']!r}: pass end= of a PartnerTable"
    return line


def _rounded(value: Any) -> Any:
    """Keep four digits of a number."""
    return float(f"{value:.4g}") if isinstance(value, float) else value
