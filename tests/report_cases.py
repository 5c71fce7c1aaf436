"""Records for the tests of `elliptica report`."""

import json

from elliptica.lab.experiments.specification import Run


def make_record(row, seed, average, *, table="own", dataset="some", worst=None, groups=("0", "1"), **more):
    """A record as `elliptica run` writes it; accuracies in [0, 1]."""
    worst = average - 0.1 if worst is None else worst
    test = {
        "average": average,
        "worst": worst,
        "balanced": average,
        "by_class": dict.fromkeys(groups, average),
        "by_group": dict(zip(groups, [worst, *[average] * (len(groups) - 1)], strict=True)),
        "uncertainty": dict.fromkeys(groups, 0.3),
        "calibration": 0.1,
    }
    run = Run(
        table=table,
        dataset=dataset,
        row=row,
        method="erm",
        seed=seed,
        metric="accuracy",
        columns=("average", "worst"),
        select="average",
        load={"name": dataset},
        model={"name": "mlp", "hidden": [8]},
        training={"epochs": 3, "lr": 0.01},
        settings={},
    )
    return {
        "run": run.model_dump(mode="json"),
        "metrics": {"test": test, "validation": test},
        "method": {},
        "epoch": 1,
        "curves": {"loss": [1.0, 0.5, 0.25], "validation": [0.5, 0.6, 0.55]},
        "cost": {"evaluations": 3000, "epochs": 3, "seconds": 1.5, "rows_per_sample": 1},
        "versions": {"elliptica": "0.1.0", "torch": "2"},
        **more,
    }


def write_records(folder, records):
    """Lay records out as `elliptica run` does."""
    for number, record in enumerate(records):
        run = Run.model_validate(record["run"])
        file = folder / run.table / run.dataset / f"row{number:03}" / f"{run.key}-seed{run.seed}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(record))
    return folder
