"""Records for tests of tables and pages."""

from elliptica.lab.experiments.records import DRAWS, Record, records_of
from elliptica.lab.experiments.specification import Run

#: Entries of the metrics; others are the record's.
_SCORES = ("worst", "weighted", "by_class", "by_group", "uncertainty", "calibration", "auroc", "reliability")


def make_run(row, seed, *, table="own", dataset="some", metric="accuracy", **more):
    """A run as a table specifies it."""
    given = {"columns": ("average", "worst"), "select": "average", "load": {"name": dataset}}
    given |= {"model": {"name": "mlp", "hidden": [8]}, "training": {"epochs": 3, "lr": 0.01}, "settings": {}}
    names = {"table": table, "dataset": dataset, "row": row, "method": "erm", "seed": seed, "metric": metric}
    return Run(**{**given, **names, **more})


def write_records(folder, records):
    """Put records where `elliptica run` does."""
    for record in records:
        records_of(folder, record.run.table).append(record)
    return folder


def make_record(row, seed, average, *, run=None, **more):
    """A record with this score on the test part and the validation part."""
    scores = {name: more.pop(name) for name in _SCORES if name in more}
    content = {
        "run": run or make_run(row, seed),
        "draws": DRAWS,
        "metrics": {part: {"average": average, **scores} for part in ("test", "validation")},
        "epoch": 1,
        "cost": {"evaluations": 3000, "epochs": 3, "seconds": 1.5, "device": "cpu"},
        "versions": {"elliptica": "0.1.0"},
    }
    return Record.model_validate({**content, **more})
