"""What a search found: the best setting for ``--tuned``, and as a line of Python."""

from __future__ import annotations

from typing import Any

from optuna.trial import TrialState

from elliptica.lab.experiments.problems import load_dataset
from elliptica.lab.experiments.records import write_record
from elliptica.lab.experiments.run import Options
from elliptica.lab.experiments.search.study import Search, counted
from elliptica.lab.experiments.specification import Run, SpecificationError
from elliptica.lab.experiments.tune import chosen_file, refuse_resplit, with_values


def check_search(search: Search, options: Options) -> None:
    """Refuse what could not end well, before the first trial.

    Raises:
        SpecificationError: If the choice would see test rows, or cannot be made on the validation part.
    """
    run = search.run
    try:
        refuse_resplit(run)
        data = load_dataset(run.load, run.seed, options.data_dir)
    except (RuntimeError, OSError, ValueError) as error:
        raise SpecificationError(str(error)) from error
    if run.select == "last":
        raise SpecificationError(
            f"{run.table} keeps the last epoch, whatever its score. Say by what to choose: "
            "--select average or worst."
        )
    if run.select == "worst" and data.validation.group is None and data.task != "classification":
        raise SpecificationError(
            f"The validation part of {run.dataset} has no groups, so there is no worst one. Use "
            "--select average."
        )


def choose(search: Search, study: Any, options: Options) -> dict[str, Any]:
    """Take the best finished trial and keep it where ``--tuned`` looks.

    Raises:
        RuntimeError: If no trial was finished.
    """
    trials = counted(study)
    done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    if not done:
        errors = [trial.user_attrs["error"] for trial in trials if "error" in trial.user_attrs]
        said = f" The first said: {errors[0]}" if errors else ""
        raise RuntimeError(
            f"None of {len(trials)} trials of {search.run.row} was finished.{said} Correct the table's "
            "settings or narrow its search."
        )
    best = max(done, key=lambda trial: (trial.value, -trial.number))
    chosen = {
        "values": in_order(best.params, search),
        "score": best.value,
        "search": search.ranges,
        "rule": f"best {search.run.select} on the validation part",
        "sampler": search.sampler,
        "trials": [_as_dict(trial, search) for trial in trials],
    }
    write_record(chosen_file(options.out, search.run), chosen)
    return chosen


def in_order(values: dict[str, Any], search: Search) -> dict[str, Any]:
    """Values in the order of the space: storages have orders of their own."""
    return {name: values[name] for name in search.ranges if name in values}


def _as_dict(trial: Any, search: Search) -> dict[str, Any]:
    found = {"values": in_order(trial.params, search), "score": trial.value}
    if trial.state != TrialState.COMPLETE:
        found["state"] = trial.state.name.lower()
    if "error" in trial.user_attrs:
        found["error"] = trial.user_attrs["error"]
    return found


def chosen_run(search: Search, chosen: dict[str, Any]) -> Run:
    """The run with the values that were chosen."""
    places = {
        (name.split(".", 1)[0], name.split(".", 1)[1]): value for name, value in chosen["values"].items()
    }
    return with_values(search.run, places, search.run.seed)


def python_line(run: Run, num_classes: int | None) -> str:
    """The objective of a run, to paste; empty for methods other than elliptic training.

    Example:
        >>> run = Run(table="t", dataset="d", row="r", method="elliptic", seed=0, metric="rmse", columns=(),
        ...           select="average", load={}, model={}, training={}, settings={"sigma": 0.12345, "xi": 2})
        >>> python_line(run, None)
        'Elliptic(model, nn.MSELoss(), sigma=0.1235)'
    """
    if run.method != "elliptic":
        return ""
    settings = {name: value for name, value in run.settings.items() if name != "partners"}
    if settings.get("weighting", "none") == "none":
        settings.pop("xi", None)  # without effect
    if isinstance(settings.get("sigma"), list):
        settings["sigma"] = tuple(settings["sigma"])
    loss = "nn.MSELoss()" if num_classes is None else f"nn.CrossEntropyLoss(), num_classes={num_classes}"
    shown = "".join(f", {name}={_short(value)}" for name, value in settings.items())
    line = f"Elliptic(model, {loss}{shown})"
    if "partners" in run.settings:
        line += f"  # and partners={run.settings['partners']!r}: pass end= of a PartnerTable"
    return line


def _short(value: object) -> str:
    return repr(float(f"{value:.4g}") if isinstance(value, float) else value)
