"""Records, comparisons and pages for the tests of `elliptica report`."""

import json

from elliptica.lab.experiments.specification import Run
from elliptica.report.content import Grid, Measure, Parts, Report, Study
from elliptica.report.verdict import judge_rows

#: Names that would break out of HTML, scripts, plotly's labels, Markdown, LaTeX or a spreadsheet.
HOSTILE = [
    "<script>alert(1)</script>",
    '</script><script>document.title="broken"</script>',
    '<a href="javascript:alert(1)">x</a>',
    "=HYPERLINK(1)",
    "| _a_ | \\b{%$#&~^}",
]


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


def hostile_report():
    """A page on which every name is hostile."""
    methods = HOSTILE[:4]
    values = {"average": {m: {s: 50 + 10 * i + s for s in range(4)} for i, m in enumerate(methods)}}
    measure = Measure("average", HOSTILE[0], True, True)
    cells = {m: {name: [50.0 + i, 52.0, 54.0] for name in HOSTILE} for i, m in enumerate(methods)}
    parts = Parts(HOSTILE[0], HOSTILE, cells, dict.fromkeys(HOSTILE, 7))
    rows = [[(m, m, False), (f"{50 + 10 * i}.0 ± 1.0", 50.0 + 10 * i, i == 3)] for i, m in enumerate(methods)]
    study = Study(
        name="hostile",
        title=HOSTILE[1],
        subtitle=HOSTILE[2],
        measures=[measure],
        methods=methods,
        reference=methods[0],
        values=values,
        verdict=judge_rows(values, [measure], methods, methods[0]),
        table=Grid(HOSTILE[0], ["method", HOSTILE[4]], rows),
        parts=[parts],
        reliability={
            m: {"rows": [5, 0], "confidence": [0.5, None], "accuracy": [0.4, None]} for m in methods
        },
        uncertainty=parts,
        curves={m: [{"loss": [2.0, 1.0], "validation": [0.1, 0.2], "epoch": [1]}] for m in methods},
        cost={"evaluations": {m: {0: 1.0 + i} for i, m in enumerate(methods)}},
        settings=dict.fromkeys(methods, HOSTILE[1]),
        commands=[HOSTILE[1]],
        versions={HOSTILE[0]: HOSTILE[1]},
        missing={"rows": HOSTILE[0], "parts": HOSTILE[1]},
        notes=[HOSTILE[0]],
    )
    return Report(HOSTILE[1], HOSTILE[0], HOSTILE[1], [study], [(HOSTILE[0], HOSTILE[1])], [HOSTILE[2]])
