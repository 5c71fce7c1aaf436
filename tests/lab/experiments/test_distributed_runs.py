"""Runs of a table in real processes: records of one process, whatever the number of them, killed or not."""

import itertools
import json
import math
import signal
import subprocess
import time
import types
from pathlib import Path

import pytest
import torch
import torch.distributed
from rich.console import Console
from torch import nn
from typer.testing import CliRunner

import run_generated
from elliptica.cli import app
from elliptica.cli.run import run_table
from elliptica.cli.tune import run_tune
from elliptica.distributed import Ranks, current_ranks
from elliptica.lab.experiments import registry
from elliptica.lab.experiments import run as run_module
from elliptica.lab.experiments.choice import Choice
from elliptica.lab.experiments.run import Options, do_run
from elliptica.lab.training import TrainingSettings, fit
from elliptica.lab.training.checkpoint import Trained
from experiment_cases import CLASSIFIERS, load_groups, run_of
from processes import together, torchrun

SCRIPT = Path(__file__).parents[2] / "run_generated.py"
pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed"),
]


def assert_close(a, b, where=""):
    """Records agree to rounding, which training in single precision amplifies."""
    assert type(a) is type(b), where
    if isinstance(a, dict):
        assert set(a) == set(b), where
        for name in a:
            assert_close(a[name], b[name], f"{where}/{name}")
    elif isinstance(a, list):
        assert len(a) == len(b), where
        for one, other in zip(a, b, strict=True):
            assert_close(one, other, where)
    elif isinstance(a, float):
        assert math.isclose(a, b, rel_tol=2e-4, abs_tol=1e-6), f"{where}: {a} against {b}"
    else:
        assert a == b, where


def comparable(record):
    cost = {k: v for k, v in record["cost"].items() if k not in ("seconds", "first_stage", "world_size")}
    return {**record, "cost": cost, "versions": {}}


def method_records(_rank=0):
    """One short run of every method, with batch norm."""
    registry.DATASETS["groups"] = load_groups
    options = Options(Path("nowhere"), ranks=current_ranks())
    found = {}
    for method in CLASSIFIERS:
        if method == "smote" and not has_imblearn():
            continue
        training = {"epochs": 2, "batch_size": 13}  # parts of different sizes
        found[method] = do_run(run_of(method, training=training), options)
    return found


def has_imblearn():
    try:
        import imblearn  # noqa: F401 - is it there?
    except ImportError:
        return False
    return True


@pytest.mark.filterwarnings("ignore::elliptica.EllipticWarning")
def test_every_method_is_that_of_one_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(registry.DATASETS, "groups", load_groups)
    expected = method_records()
    assert len(expected) > 20
    for one in together(method_records, 2):
        for method, record in expected.items():
            assert one[method]["cost"]["world_size"] == 2
            assert_close(comparable(one[method]), comparable(record), method)


class Noisy(nn.Module):
    """Draws as dropout does, and remembers what."""

    def __init__(self):
        super().__init__()
        self.layer, self.drop, self.seen = nn.Linear(5, 2), nn.Dropout(0.5), []

    def forward(self, x):
        if self.training:
            self.seen.append(float(torch.rand(())))
        return self.layer(self.drop(x))


def noisy_fit(_rank=0):
    data, model = load_groups(), Noisy()
    torch.nn.init.ones_(model.layer.weight)
    torch.nn.init.zeros_(model.layer.bias)
    settings = TrainingSettings(epochs=3, batch_size=16, lr=1e-2)

    def objective(net, batch):
        return nn.functional.cross_entropy(net(batch.x), batch.y)

    found = fit(model, objective, data, settings, lambda *_: 0.0, name="toy", seed=0, ranks=current_ranks())
    return model.seen, found.losses, model.layer.weight.detach()


def noisy_fits(_rank):
    return noisy_fit(), noisy_fit()


def test_processes_drop_out_different_units_reproducibly():
    """Their weights agree all the same, or fit would say so."""
    (first, again), (second, second_again) = together(noisy_fits, 2)
    assert first[0][0] != second[0][0]
    assert first[1] == second[1]
    assert torch.equal(first[2], second[2])
    assert [again[0], second_again[0]] == [first[0], second[0]]
    assert torch.equal(again[2], first[2])


class Apart(Ranks):
    """Another process whose weights are a little larger, or no numbers any more."""

    def __init__(self, factor):
        super().__init__(1, 2)
        object.__setattr__(self, "factor", factor)

    def all(self, value):
        size, score = value
        return [(size * self.factor, score), value]


def test_processes_that_come_apart_are_told():
    made = types.SimpleNamespace(model=nn.Linear(2, 1))
    Trained.check_agreement(made, math.nan, Ranks())
    for factor in (1.001, math.nan):
        with pytest.raises(RuntimeError, match="no longer have the same weights"):
            Trained.check_agreement(made, 0.5, Apart(factor))


def command(out, *more):
    return ["run", "table3", "--dataset", "no2", "--seeds", "1", "--out", out, *more]


@pytest.fixture
def alone(monkeypatch):
    """The command in this process, without torchrun; on generated rows unless there is a folder of data."""

    def invoke(*arguments, generated=True, **env):
        with monkeypatch.context() as patch:
            if generated:
                patch.setitem(registry.DATASETS, "no2", run_generated.load)
                patch.setattr(run_module, "do_run", run_generated.do_run_or_fail)
            for name, value in env.items():
                patch.setenv(name, str(value))
            found = CliRunner().invoke(app, [str(each) for each in arguments])
        return found.exit_code, found.output

    return invoke


def record_of(out, row):
    (file,) = (out / "table3" / "no2" / row).glob("*-seed0.json")
    return json.loads(file.read_text())


def finished(settings, timeout=300):
    process = subprocess.Popen(**settings)
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


def test_torchrun_records_and_prints_once(tmp_path, alone):
    """A run that fails everywhere is a failed run; the others are done, and equal those of one process."""
    options = ["--methods", "erm,mixup,c-mixup,elliptic,marginal", "--epochs", "3"]
    status, out, err = finished(torchrun(SCRIPT, *command(tmp_path / "two", *options), env={"FAIL": "all"}))
    assert status == 1, err
    assert out.count("FloatingPointError") == 1
    assert out.count("1 of 5 runs are not recorded yet") == 1
    status, said = alone(*command(tmp_path / "one", *options))
    assert status == 0, said
    for row in ("erm", "c-mixup", "elliptic", "marginal"):
        one, two = (record_of(tmp_path / name, row) for name in ("one", "two"))
        assert (one["cost"]["world_size"], two["cost"]["world_size"]) == (1, 2)
        assert_close(comparable(one), comparable(two), row)
    locks = list((tmp_path / "two" / ".locks").iterdir())
    assert len(locks) == 5
    assert not list(tmp_path.rglob("*.safetensors"))


def epochs_in(seen):
    """Numbers of processes and of epochs, in the order in which they were done."""
    return [tuple(map(int, line.split())) for line in seen.read_text().splitlines()]


def interrupted(settings, seen, sent):
    """Stop a command after two more epochs; returns its status and what it said."""
    process, before = subprocess.Popen(**settings), len(epochs_in(seen))
    deadline = time.monotonic() + 240
    while len(epochs_in(seen)) < before + 2 and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(sent)
    output, errors = process.communicate(timeout=240)
    return process.returncode, output + errors


def test_a_run_goes_on_in_another_number_of_processes(tmp_path, alone):
    """One process, two that get Ctrl-C, two that are terminated, and one again: no epoch is done twice."""
    options = ["--methods", "marginal", "--epochs", "24"]
    status, said = alone(*command(tmp_path / "whole", *options))
    assert status == 0, said
    out, seen = tmp_path / "out", tmp_path / "seen"
    status, said = alone(*command(out, *options), SEEN=seen, STOP=2)
    assert status == 130, said
    for sent in (signal.SIGINT, signal.SIGTERM):
        env = {"SEEN": seen, "PAUSE": 0.5}
        status, said = interrupted(torchrun(SCRIPT, *command(out, *options), env=env), seen, sent)
        assert status != 0, said
        assert not list(out.rglob("*-seed0.json"))
        assert len(list(out.rglob("*.safetensors"))) == 1, said
    status, said = alone(*command(out, *options), SEEN=seen)
    assert status == 0, said
    sizes, epochs = zip(*epochs_in(seen), strict=True)
    assert all(a < b for a, b in itertools.pairwise(epochs)), epochs
    assert (sizes[:2], sizes.count(2) >= 4, sizes[-1]) == ((1, 1), True, 1), sizes
    found, whole = (comparable(record_of(folder, "marginal")) for folder in (out, tmp_path / "whole"))
    assert_close(found, whole)


def test_a_process_that_fails_alone_ends_all(tmp_path):
    """Within `finished`'s five minutes, not the half hour of a collective that waits."""
    arguments = command(tmp_path, "--methods", "erm", "--epochs", "50")
    status, _, err = finished(torchrun(SCRIPT, *arguments, env={"FAIL": "one"}))
    assert status != 0
    assert "failed in process 1 of 2, which ends all of them: MemoryError: no memory left here" in err
    assert not list(tmp_path.rglob("*-seed0.json"))


@pytest.mark.needs_data
def test_the_command_itself(data_dir, tmp_path, alone):
    options = ["--methods", "elliptic", "--epochs", "2", "--data-dir", data_dir]
    status, _, err = finished(torchrun("-m", "elliptica", *command(tmp_path / "two", *options)))
    assert status == 0, err
    status, said = alone(*command(tmp_path / "one", *options), generated=False)
    assert status == 0, said
    one, two = (comparable(record_of(tmp_path / name, "elliptic")) for name in ("one", "two"))
    assert_close(one, two)


def test_what_torchrun_is_not_for(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")
    monkeypatch.setenv("WORLD_SIZE", "2")
    choice = Choice("table3", ["no2"])
    assert run_table(choice, Options(tmp_path, jobs=2), Console()) == 2
    assert "--jobs 2 cannot" in capsys.readouterr().out
    assert run_tune(choice, 1, Options(tmp_path), Console(width=200)) == 2
    assert "Use --jobs alone" in capsys.readouterr().out
