"""`elliptica landscape` end to end on small data, with the user's own model, and on wrong input."""

import json

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from elliptica.cli import app
from elliptica.diagnostics.reports import QUESTIONS, Inspector, run_reports
from elliptica.diagnostics.source import Samples, SourceError, load_model, load_samples
from elliptica.diagnostics.subject import Options
from elliptica.diagnostics.train import train_network

runner = CliRunner()
QUICK = ["--steps", "50", "--probes", "40", "--walks", "20"]


def table(path, n=40, d=3, classes=None, seed=0, **extra):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    y = (x.sum(1) > 0).astype(np.int64) if classes else x @ np.arange(1.0, d + 1)
    np.savez(path, x=x, y=y, x_test=x[:15] + 0.3, y_test=y[:15], **extra)
    return path


def run(*arguments):
    return runner.invoke(app, ["landscape", *map(str, arguments)])


@pytest.fixture
def own_model(tmp_path, monkeypatch):
    """A file with a user's model, in the folder where the command is started."""
    (tmp_path / "my_model_file.py").write_text(
        "from torch import nn\n"
        "def make():\n    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))\n"
        "number = 3\n"
        "def needs_more(width):\n    return nn.Linear(3, width)\n"
        "def broken():\n    return 'no model'\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.bad_input  # typer cannot read signatures that the shape checker has wrapped
def test_two_moons_from_nothing(tmp_path):
    done = run("two-moons", *QUICK, "--train", "erm", "--out", tmp_path)
    assert done.exit_code == 0, done.output
    record = json.loads((tmp_path / "landscape.json").read_text())
    assert set(record["reports"]) == set(QUESTIONS)
    computed = {name for name, report in record["reports"].items() if report["numbers"] is not None}
    assert computed == set(QUESTIONS) - {"shift", "ordering"}  # for regression; for rare classes
    values = record["reports"]["landscape"]["numbers"]["value"]
    assert len(values) == 200
    assert (tmp_path / "landscape.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.bad_input  # typer cannot read signatures that the shape checker has wrapped
def test_own_regression_model_with_weights(own_model):
    table(own_model / "data.npz", group_test=np.arange(15) % 2)
    torch.manual_seed(0)
    torch.save(
        nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)).state_dict(), own_model / "weights.pt"
    )
    arguments = ["--model", "my_model_file:make", "--weights", own_model / "weights.pt", "--out", own_model]
    done = run(own_model / "data.npz", *arguments, "--probes", "40", "--walks", "20")
    assert done.exit_code == 0, done.output
    record = json.loads((own_model / "landscape.json").read_text())
    assert record["model"] == "my_model_file:make"
    computed = {name for name, report in record["reports"].items() if report["numbers"] is not None}
    assert computed == set(QUESTIONS) - {"ordering"}
    groups = record["reports"]["test"]["numbers"]["by_group"]
    assert [g["name"] for g in groups] == ["0", "1"]


def test_the_numbers_are_those_of_the_library(tmp_path):
    """One report, against a direct call."""
    from elliptica.diagnostics import maximum_principle_report

    samples = load_samples(str(table(tmp_path / "data.npz", classes=2)))
    model = train_network(samples, "erm", n_steps=20)
    inspector = Inspector(model, samples, Options(n_probes=50))
    (section,) = run_reports(inspector, ("test",))
    direct = maximum_principle_report(
        inspector.field, (samples.x, samples.y), (samples.test_x, samples.test_y)
    )
    assert section.numbers["overall"]["count"] == direct.overall.count
    assert section.text == str(direct)


def test_rare_class_is_compared(tmp_path):
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    y = (torch.arange(60) < 10).long()
    samples = Samples("imbalanced", x, y, x + 0.5, y)
    inspector = Inspector(train_network(samples, "mixup", n_steps=20), samples, Options(n_walks=20))
    (section,) = run_reports(inspector, ("ordering",))
    assert section.numbers is not None, section.text


@pytest.mark.parametrize("method", ["erm", "mixup", "elliptic"])
def test_trained_network_takes_raw_inputs(method, tmp_path):
    samples = load_samples(str(table(tmp_path / "data.npz", n=200)))
    shifted = Samples("raw", 100 + 7 * samples.x, samples.y)
    model = train_network(shifted, method, n_steps=600)
    error = (model(shifted.x) - shifted.y).detach().square().mean()
    assert float(error) < 0.2 * float(shifted.y.var())


@pytest.mark.bad_input  # typer cannot read signatures that the shape checker has wrapped
def test_same_seed_same_file(tmp_path):
    table(tmp_path / "data.npz", classes=2)
    outputs = []
    for name in ("a", "b"):
        run(tmp_path / "data.npz", *QUICK, "--report", "landscape", "--out", tmp_path / name)
        outputs.append((tmp_path / name / "landscape.json").read_text())
    assert outputs[0] == outputs[1]


def test_digits_need_scikit_learn():
    pytest.importorskip("sklearn")
    samples = load_samples("digits")
    assert samples.x.shape == (1000, 64)
    assert samples.n_outputs == 10


@pytest.mark.bad_input
def test_wrong_files(tmp_path):
    with pytest.raises(SourceError, match=r"no file nowhere\.npz.*two-moons, digits"):
        load_samples("nowhere.npz")
    (tmp_path / "text.npz").write_text("x,y")
    with pytest.raises(SourceError, match=r"is not an \.npz file"):
        load_samples(str(tmp_path / "text.npz"))
    np.savez(tmp_path / "objects.npz", x=np.array([object()]), y=np.zeros(1))
    with pytest.raises(SourceError, match="without objects"):
        load_samples(str(tmp_path / "objects.npz"))
    np.savez(tmp_path / "names.npz", inputs=np.zeros((3, 2)))
    with pytest.raises(SourceError, match="must hold arrays x and y, but holds inputs"):
        load_samples(str(tmp_path / "names.npz"))
    np.savez(tmp_path / "nan.npz", x=np.full((3, 2), np.nan), y=np.zeros(3))
    with pytest.raises(SourceError, match="x holds NaN"):
        load_samples(str(tmp_path / "nan.npz"))
    np.savez(tmp_path / "rows.npz", x=np.zeros((3, 2)), y=np.zeros(4))
    with pytest.raises(SourceError, match="for each of the 3 rows"):
        load_samples(str(tmp_path / "rows.npz"))
    np.savez(tmp_path / "labels.npz", x=np.zeros((3, 2)), y=np.array([-1, 0, 1]))
    with pytest.raises(SourceError, match="must count from 0, but the least is -1"):
        load_samples(str(tmp_path / "labels.npz"))
    np.savez(tmp_path / "half.npz", x=np.zeros((3, 2)), y=np.zeros(3), x_test=np.zeros((3, 2)))
    with pytest.raises(SourceError, match="only one of x_test and y_test"):
        load_samples(str(tmp_path / "half.npz"))


@pytest.mark.bad_input
def test_wrong_test_parts(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(6, 2)), np.array([0, 1, 0, 1, 0, 1])
    np.savez(tmp_path / "width.npz", x=x, y=y, x_test=x[:, :1], y_test=y)
    with pytest.raises(SourceError, match=r"rows of shape \(2,\) as x has, but has \(1,\)"):
        load_samples(str(tmp_path / "width.npz"))
    np.savez(tmp_path / "kind.npz", x=x, y=y, x_test=x, y_test=y.astype(float))
    with pytest.raises(SourceError, match="the other does not"):
        load_samples(str(tmp_path / "kind.npz"))
    np.savez(tmp_path / "group.npz", x=x, y=y, group_test=y)
    with pytest.raises(SourceError, match="group_test but no x_test"):
        load_samples(str(tmp_path / "group.npz"))
    np.savez(tmp_path / "short.npz", x=x, y=y, x_test=x, y_test=y, group_test=y[:2])
    with pytest.raises(SourceError, match="one entry for each of the 6 rows"):
        load_samples(str(tmp_path / "short.npz"))
    np.savez(tmp_path / "words.npz", x=x, y=y, x_test=x, y_test=y, group_test=np.array(list("aabbcc")))
    assert load_samples(str(tmp_path / "words.npz")).group == list("aabbcc")
    whole = (tmp_path / "words.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    np.save(tmp_path / "single.npy", x)
    for name in ("cut.npz", "single.npy"):
        with pytest.raises(SourceError, match=r"is not an \.npz file"):
            load_samples(str(tmp_path / name))


@pytest.mark.bad_input
def test_models_that_do_not_fit_the_data():
    x, y = torch.randn(10, 3), torch.arange(10) % 2

    class Pair(nn.Module):
        def forward(self, x):
            return x, x

    with pytest.raises(SourceError, match="it returns tuple, not a tensor"):
        Inspector(Pair(), Samples("two", x, y), Options())
    unseen = Samples("unseen", x, y, x[:3] + 0.1, torch.tensor([0, 1, 4]))
    with pytest.raises(SourceError, match=r"labels go up to 4, but the model returns \(2,\)"):
        Inspector(nn.Linear(3, 2), unseen, Options())
    Inspector(nn.Linear(3, 5), unseen, Options())
    with pytest.raises(SourceError, match=r"targets are \(1,\) \(real numbers: a regression\)"):
        Inspector(nn.Linear(3, 2), Samples("float", x, y[:, None].float()), Options())


def test_without_test_points_nothing_is_called_a_test():
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    inspector = Inspector(nn.Linear(3, 2), Samples("own", x, torch.arange(40) % 2), Options(n_walks=20))
    assert "the file has no x_test" in inspector.preface()
    (section,) = run_reports(inspector, ("test",))
    assert section.numbers is None
    assert "no test points" in section.text


def test_a_region_that_grew_for_the_test_points_is_named():
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    y = torch.arange(40) % 2
    inspector = Inspector(nn.Linear(6, 2), Samples("far", x, y, x[:7] + 100, y[:7]), Options())
    assert "7 queries lie outside the region of the training points" in inspector.preface()


@pytest.mark.parametrize("domain", ["auto", "ball", "box", "reflecting_box", "hull"])
def test_every_region_gives_a_landscape(domain):
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    inspector = Inspector(
        nn.Linear(3, 2), Samples("own", x, torch.arange(40) % 2), Options(domain=domain, n_walks=20)
    )
    (section,) = run_reports(inspector, ("landscape",))
    assert section.numbers is not None, section.text
    ends_on_data = min(section.numbers["hit_share"])
    assert (ends_on_data == 1) == (domain in ("auto", "reflecting_box"))


def test_rare_class_in_a_reflecting_box():
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    y = (torch.arange(60) < 10).long()
    inspector = Inspector(nn.Linear(2, 2), Samples("flat", x, y, x + 0.3, y), Options(n_walks=20))
    (section,) = run_reports(inspector, ("ordering",))
    assert section.numbers is not None, section.text


@pytest.mark.bad_input
def test_wrong_models(own_model):
    with pytest.raises(SourceError, match=r"given as package\.module:name"):
        load_model("model.pt")
    with pytest.raises(SourceError, match="No module 'no_such_file'"):
        load_model("no_such_file:make")
    with pytest.raises(SourceError, match="my_model_file has no 'absent'"):
        load_model("my_model_file:absent")
    with pytest.raises(SourceError, match=r"gave str, not a torch\.nn\.Module"):
        load_model("my_model_file:broken")
    with pytest.raises(SourceError, match=r"needs_more\(\) failed: TypeError.*without arguments"):
        load_model("my_model_file:needs_more")
    (own_model / "bad_syntax_file.py").write_text("def (")
    with pytest.raises(SourceError, match="cannot be imported: SyntaxError"):
        load_model("bad_syntax_file:make")
    with pytest.raises(SourceError, match="is int"):
        load_model("my_model_file:number")
    torch.save(nn.Linear(2, 2).state_dict(), own_model / "other.pt")
    with pytest.raises(SourceError, match="do not fit the model"):
        load_model("my_model_file:make", own_model / "other.pt")
    with pytest.raises(SourceError, match="There is no file"):
        load_model("my_model_file:make", own_model / "absent.pt")
    torch.save(nn.Linear(2, 2), own_model / "pickled.pt")
    with pytest.raises(SourceError, match="cannot be read safely"):
        load_model("my_model_file:make", own_model / "pickled.pt")


@pytest.mark.bad_input
def test_the_command_says_what_is_wrong(own_model):
    table(own_model / "data.npz", d=5)
    done = run("data.npz", "--model", "my_model_file:make")
    assert done.exit_code == 2
    assert "cannot be evaluated on the data" in done.output
    done = run("data.npz", "--report", "everything")
    assert done.exit_code == 2
    assert "no report 'everything'" in done.output
    done = run("data.npz", "--weights", "weights.pt")
    assert done.exit_code == 2
    assert "--weights needs --model" in done.output
    assert not (own_model / "landscape").exists()


@pytest.mark.bad_input
def test_a_report_that_fails_does_not_stop_the_others(own_model):
    """A hull in ten dimensions is refused before the reports; a model that turns NaN is named."""
    table(own_model / "data.npz", d=10)
    done = run("data.npz", *QUICK, "--domain", "hull")
    assert done.exit_code == 2
    assert "out of reach" in done.output

    class Late(nn.Module):
        def forward(self, x):
            return torch.where(x[:, :1] > 1.04, torch.nan, x[:, :1])

    x = torch.linspace(0, 1, 40)[:, None] * torch.tensor([[1.0, 0.5, 0.2]]) + 0.01 * torch.rand(40, 3)
    middle = (x[1:] + x[:-1]) / 2
    samples = Samples("late", x, x[:, :1], middle, middle[:, :1])
    sections = list(run_reports(Inspector(Late(), samples, Options(domain="ball", n_walks=20))))
    assert len(sections) == len(QUESTIONS)
    failed = [s for s in sections if s.text.startswith("Not computed")]
    assert failed
    assert all("NaN" in s.text for s in failed)
