"""Commands, tables and files that once gave a wrong number, hung, crashed, lost work or ended in a traceback.

A case is a command line or a file, and what must hold: a right number, or a refusal. Of a refusal only this
counts: its exit status, that it is said without a traceback, and that nothing is written or changed.
"""

import json
import os
import random
import signal
import zipfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from typer.testing import CliRunner

from elliptica.cli import app

PATIENCE = 60  # seconds after which a command hangs


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def stop(*_):
    raise GeneratorExit(f"no end in {PATIENCE} s")  # which no handler of a command catches


def run(*words):
    """Run a command; whatever it does, it ends in time, without a traceback."""
    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(PATIENCE)
    try:
        done = CliRunner().invoke(app, [str(word) for word in words])
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
    assert "Traceback" not in done.output, done.output
    return done


def snapshot():
    """Read all files but the traces that locks and imports leave."""
    files = (file for file in Path().rglob("*") if file.is_file() and file.suffix not in (".lock", ".pyc"))
    return {str(file): file.read_bytes() for file in files}


def refused(*words):
    """Run a command that must refuse, and leave everything as it was."""
    before = snapshot()
    done = run(*words)
    assert done.exit_code in (1, 2), done.output
    assert snapshot() == before


def strict(text):
    """Parse JSON without the constants that only Python knows: they raise."""
    return json.loads(text, parse_constant={}.__getitem__)


# Tables: a target that a linear model predicts well, in many notations.


def make_rows(n=72, seed=0):
    draws = random.Random(seed)
    size = [round(draws.gauss(10, 2), 3) for _ in range(n)]
    weight = [round(draws.gauss(0, 1), 4) for _ in range(n)]
    colour = [draws.choice(["red", "green", "blue"]) for _ in range(n)]
    rows = zip(size, weight, colour, strict=True)
    price = [round(1000 + 30 * a - 20 * b + 10 * (c == "red"), 3) for a, b, c in rows]
    return {"size": size, "weight": weight, "colour": colour, "price": price}


def to_csv(columns, separator=",", end="\n", missing="", cell=str):
    rows = [list(columns), *zip(*columns.values(), strict=True)]
    lines = (separator.join(missing if value is None else cell(value) for value in row) for row in rows)
    return "".join(line + end for line in lines)


QUICK = ["--quick", "--set", "folds=2", "--set", "trials=1", "--set", "epochs=1", "--set", "jobs=1"]


def compare(columns, *more, text=None):
    """Compare on a table of price; return the content of results.json."""
    Path("data.csv").write_bytes((to_csv(columns) if text is None else text).encode())
    done = run(
        "compare", "data.csv", "--target", "price", "--methods", "linear", *QUICK, *more, "--out", "out"
    )
    assert done.exit_code == 0, done.output
    assert Path("out/report.html").read_text().rstrip().endswith("</html>")
    return strict(Path("out/results.json").read_text())


def check_scores(results, price, good=0.2):
    """The mean is as bad as the targets vary, and a linear model much better: the units are right."""
    scores, price = results["summary"]["scores"], np.array(price, dtype=float)
    assert results["about"]["rows"] == len(price)
    assert scores["constant"]["rmse"] == pytest.approx(price.std(), rel=0.1)
    assert scores["linear"]["rmse"] < good * price.std()


NOTATIONS = {
    "plain": {},
    "semicolons": {"separator": ";"},
    "semicolons and decimal commas": {"separator": ";", "cell": lambda value: str(value).replace(".", ",")},
    "tabs": {"separator": "\t"},
    "pipes": {"separator": "|"},
    "Windows lines": {"end": "\r\n"},
    "quotes": {"cell": '"{}"'.format},
    "spaces": {"cell": " {} ".format},
}


@pytest.mark.parametrize("notation", ["Windows lines", "semicolons and decimal commas", "quotes"])
def test_scores_do_not_depend_on_the_notation(notation):
    columns = make_rows()
    check_scores(compare(columns, text=to_csv(columns, **NOTATIONS[notation])), columns["price"])


COLUMNS = {
    "constant": lambda i: 7,
    "empty": lambda i: None,
    "beyond int64": lambda i: 10**25 + i * i,
    "large": lambda i: [1e90, -1e90, float(i)][i % 3],
    "tiny": lambda i: [1e-310, -1e-300, 0.0][i % 3],
    "infinite": lambda i: ["inf", "-inf", "1.5", str(i)][i % 4],
    "nan": lambda i: "NaN" if i % 3 else i * 0.5,
    "spreadsheet errors": lambda i: "#DIV/0!" if i % 3 == 0 else i * 0.5,
    "mixed": lambda i: ["a", 1, 2.5, None, "2020-01-01"][i % 5],
    "markup": lambda i: f"<script>alert({i % 5})</script> [red]",
}


def test_columns_of_all_kinds_do_not_spoil_the_others():
    columns = make_rows()
    for name, make in COLUMNS.items():
        columns[name] = [make(i) for i in range(72)]
    check_scores(compare(columns), columns["price"], good=0.6)
    assert "<script>alert(1)" not in Path("out/report.html").read_text()
    done = run("predict", "out/model.elliptica", "data.csv", "--out", "p.csv")
    assert done.exit_code == 0, done.output
    assert pl.read_csv("p.csv")["prediction"].is_finite().all()


TARGETS = {
    "money": lambda y: [f'"${v:,.2f}"' for v in y],
    "thousands": lambda y: [f'"{v:,.3f}"' for v in y],
    "exponents": lambda y: [f"{v:.9e}" for v in y],
}


@pytest.mark.parametrize("name", TARGETS)
def test_targets_in_other_words(name):
    columns = make_rows()
    check_scores(compare({**columns, "price": TARGETS[name](columns["price"])}), columns["price"])


@pytest.mark.parametrize("unit", [1e-30, 1e30, -1.0])
def test_targets_in_other_units(unit):
    columns = make_rows()
    price = [value * unit for value in columns["price"]]
    check_scores(compare({**columns, "price": price}), price)


def test_rows_without_a_target_are_left_out():
    columns = make_rows()
    price = [None if i % 9 == 1 else value for i, value in enumerate(columns["price"])]
    check_scores(
        compare({**columns, "price": price}), [value for value in price if value is not None], good=0.25
    )


NO_TARGETS = {
    "constant": lambda y: [5.5] * len(y),
    "all missing": lambda y: [None] * len(y),
    "one class": lambda y: ["rose"] * len(y),
}


@pytest.mark.parametrize("name", NO_TARGETS)
def test_targets_that_cannot_be_predicted(name):
    columns = make_rows()
    Path("data.csv").write_text(to_csv({**columns, "price": NO_TARGETS[name](columns["price"])}))
    refused("compare", "data.csv", "--target", "price", "--methods", "linear", *QUICK, "--out", "out")


BROKEN = {
    "empty": lambda text: b"",
    "blank": lambda text: b"\n \n",
    "header only": lambda text: text.partition("\n")[0].encode(),
    "ragged": lambda text: text.replace("\n", ",surplus\n", 5).replace(",surplus", "", 1).encode(),
    "noise": lambda text: random.Random(0).randbytes(3000),
    "name twice": lambda text: text.replace("weight", "size", 1).encode(),
    "a title": lambda text: b"Report 2021\n" + text.encode(),
}


@pytest.mark.parametrize("command", ["compare", "predict"])
@pytest.mark.parametrize("name", BROKEN)
def test_files_that_are_no_tables(name, command, model):
    Path("data.csv").write_bytes(BROKEN[name](to_csv(make_rows())))
    if command == "compare":
        refused("compare", "data.csv", "--target", "price", "--methods", "linear", *QUICK, "--out", "out")
    else:
        refused("predict", model, "data.csv", "--out", "p.csv")


def test_files_without_an_end_and_files_that_wait(model):
    """An endless file, and a pipe that nobody writes to."""
    os.mkfifo("pipe.csv")
    for source in ("/dev/zero", "/dev/null", "pipe.csv", ".", "x" * 5000 + ".csv"):
        refused("compare", source, "--target", "price", *QUICK, "--out", "out")
        refused("predict", model, source, "--out", "p.csv")
        refused("diagnose", source)


# Predictions: those of the model for the cells, however they are written.


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A linear model of price, made by the command."""
    folder = tmp_path_factory.mktemp("model")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        compare(make_rows(120))
    return folder / "out" / "model.elliptica"


def predictions(model, content, *more):
    """Predict a table by the command; None if it refuses."""
    Path("new.csv").write_bytes(content.encode() if isinstance(content, str) else content)
    Path("p.csv").unlink(missing_ok=True)
    done = run("predict", model, "new.csv", "--out", "p.csv", *more)
    if done.exit_code:
        assert not Path("p.csv").exists()
        return None
    table = pl.read_csv("p.csv")
    assert table["row"].to_list() == list(range(1, len(table) + 1))
    found = table["prediction"].to_numpy()
    assert np.isfinite(found).all()
    return found


def test_predictions_do_not_depend_on_the_notation(model):
    columns = make_rows(20, seed=1)
    expected = predictions(model, to_csv(columns))
    assert np.abs(expected - columns["price"]).max() < 20
    written = {name: to_csv(columns, **options) for name, options in NOTATIONS.items()}
    written["byte order mark"] = "\ufeff" + to_csv(columns)
    written["blank lines"] = "\n\n" + to_csv(columns) + "\n\n"
    written["no last line end"] = to_csv(columns)[:-1]
    written["other order"] = to_csv(dict(reversed(columns.items())))
    written["no target"] = to_csv({name: columns[name] for name in ("size", "weight", "colour")})
    assert predictions(model, to_csv({name: columns[name] for name in ("weight", "colour")})) is None
    written["more columns"] = to_csv({"id": range(20), **columns, "<b>": [None] * 20})
    assert predictions(model, written.pop("semicolons and decimal commas")) is None  # training had points
    for name, content in written.items():
        np.testing.assert_allclose(predictions(model, content), expected, rtol=1e-12, err_msg=name)


def test_a_prediction_does_not_depend_on_other_rows(model):
    columns = make_rows(6, seed=2)
    columns["size"][3] = columns["colour"][4] = None
    expected = predictions(model, to_csv(columns))
    backwards = {name: values[::-1] for name, values in columns.items()}
    np.testing.assert_allclose(predictions(model, to_csv(backwards)), expected[::-1], rtol=1e-12)
    for i in range(6):
        alone = {name: [values[i]] for name, values in columns.items()}
        np.testing.assert_allclose(predictions(model, to_csv(alone)), expected[i : i + 1], rtol=1e-12)


def test_gaps_are_gaps_in_every_word(model):
    columns = make_rows(9, seed=3)
    columns["weight"] = [None if i % 3 == 0 else value for i, value in enumerate(columns["weight"])]
    expected = predictions(model, to_csv(columns))
    for word in ("NA", "NaN", "nan", "null", "n/a"):
        np.testing.assert_allclose(predictions(model, to_csv(columns, missing=word)), expected, err_msg=word)


@pytest.mark.parametrize(
    ("column", "cell"),
    [("size", 1e9), ("size", 1e300), ("size", "inf"), ("size", "large"), ("colour", "mauve"), ("colour", 3)],
)
def test_cells_that_training_never_saw(model, column, cell):
    """They are refused, or their row is predicted finitely and the others as before."""
    columns = make_rows(10, seed=4)
    expected = predictions(model, to_csv(columns))
    columns[column][7] = cell
    found = predictions(model, to_csv(columns))
    if found is not None:
        np.testing.assert_allclose(np.delete(found, 7), np.delete(expected, 7), rtol=1e-12)


def test_results_do_not_replace_what_they_are_made_from(model):
    Path("data.csv").write_text(to_csv(make_rows(5)))
    own = Path("model.elliptica")
    own.write_bytes(model.read_bytes())
    refused("predict", own, "data.csv", "--out", "data.csv")
    refused("predict", own, "data.csv", "--out", "model.elliptica")


# Damaged files.


def damage(content, how, draws):
    """Return the bytes of a damaged file."""
    place = draws.randrange(1, len(content))
    return {
        "empty": lambda: b"",
        "cut": lambda: content[:place],
        "flipped": lambda: content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :],
        "zeros": lambda: content[:place] + bytes(len(content) - place),
        "twice": lambda: content + content,
        "noise": lambda: draws.randbytes(200),
    }[how]()


HOW = ["empty", "cut", "flipped", "zeros", "twice", "noise"]


@pytest.mark.parametrize("how", HOW)
def test_a_damaged_model_predicts_the_same_or_not_at_all(model, how):
    rows, draws = to_csv(make_rows(5)), random.Random(how)
    expected = predictions(model, rows)
    for _ in range(4):
        Path("bad.elliptica").write_bytes(damage(model.read_bytes(), how, draws))
        found = predictions("bad.elliptica", rows)
        assert found is None or np.array_equal(found, expected)


def test_files_that_are_no_models():
    Path("data.csv").write_text(to_csv(make_rows(5)))
    torch.save({"w": 1}, "m.pt")
    with zipfile.ZipFile("m.zip", "w") as archive:
        archive.writestr("model.json", "{}")
    for name in ("data.csv", "m.pt", "m.zip", "missing", "."):
        refused("predict", name, "data.csv", "--out", "p.csv")


# Experiments.

TABLE = """
title = "Moons"
metric = "accuracy"
seeds = 1
search = { lr = { low = 1e-4, high = 1e-1, log = true } }
[methods.erm]
[methods.elliptic]
sigma = 0.1
[datasets.two_moons]
load = { n_boundary = 20, n_interior = 20 }
model = { name = "mlp", hidden = [8] }
training = { epochs = 2, batch_size = 20, lr = 1e-2 }
"""


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Records of a run."""
    folder = tmp_path_factory.mktemp("records")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("mine.toml").write_text(TABLE)
        assert run("run", "mine.toml", "--out", "out").exit_code == 0
    return folder


#: A run does not search, and a search may find a rate that works.
MENDED = [("run", "high = inf"), ("tune", "lr = 1e30")]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("epochs = 2", "epochs = 0"),
        ("seeds = 1", "seeds = 0"),
        ("hidden = [8]", "hidden = [0]"),
        ("sigma = 0.1", "sigma = -1.0"),
        ("sigma = 0.1", "sigma = nan"),
        ("lr = 1e-2", "lr = 1e30"),
        ('"accuracy"', '"rmse"'),
        ('"accuracy"', '"nothing"'),
        ("[datasets.two_moons]", "[datasets.two_moon]"),
        ("high = 1e-1", "high = inf"),
        ("title", "[[["),
    ],
)
@pytest.mark.parametrize("command", ["run", "tune"])
def test_tables_that_cannot_be_trained(command, old, new):
    """At least one row fails, and the status says so; what is written is whole."""
    Path("mine.toml").write_text(TABLE.replace(old, new))
    done = run(command, "mine.toml", *(["--trials", "2"] if command == "tune" else []), "--out", "out")
    if (command, new) not in MENDED:
        assert done.exit_code in (1, 2), done.output
    for file in Path("out").rglob("*.json"):
        strict(file.read_text())


@pytest.mark.parametrize("how", HOW)
def test_damaged_records(records, how):
    """A table and a page are made without the damaged record, or refused; the mean is never a wrong one."""
    draws = random.Random(how)
    Path("mine.toml").write_text(TABLE)
    Path("out").mkdir()
    for file in (records / "out").glob("*.jsonl.gz"):
        (Path("out") / file.name).write_bytes(damage(file.read_bytes(), how, draws))
    for words in (
        ["table", "mine.toml", "--out", "out"],
        ["report", "out", "--table", "mine.toml", "-o", "p.html"],
    ):
        before = snapshot()
        run(*words)
        assert {name: content for name, content in snapshot().items() if name != "p.html"} == before


@pytest.mark.parametrize(
    "code",
    ["raise RuntimeError('not today')", "raise SystemExit(0)", "def broken(:", "import nothing_of_that_name"],
)
def test_plugins_that_cannot_be_imported(code):
    Path("mine.toml").write_text(TABLE)
    Path("my_code.py").write_text(code)
    refused("run", "mine.toml", "--plugin", "my_code.py", "--out", "out")


# Arguments.

NOWHERE = "/proc/nothing/out"


@pytest.mark.parametrize(
    "line",
    [
        f"demo --seeds 1 --steps 1 --out {NOWHERE}",
        f"diagnose data.csv --model model.elliptica --out {NOWHERE}.txt",
        f"run mine.toml --out {NOWHERE}",
        f"tune mine.toml --trials 1 --out {NOWHERE}",
        f"compare data.csv --target price --out {NOWHERE}",
        f"report out -o {NOWHERE}.html",
        "compare data.csv --target price --methods ,",
        "compare data.csv --target price --folds 1",
        "compare data.csv --target prise",
        "compare data.csv --target price --budget nan",
        "diagnose data.csv --model data.csv",
        "run mine.toml --epochs 0",
        "run mine.toml --methods ,",
        "table mine.toml --out data.csv",
        "list \udcff",
        "list pipe.toml",
        "[/red]",
        "--version=1",
    ],
)
def test_arguments_that_are_refused_before_the_work(line):
    Path("data.csv").write_text(to_csv(make_rows()))
    Path("mine.toml").write_text(TABLE)
    os.mkfifo("pipe.toml")
    refused(*line.split(" "))
