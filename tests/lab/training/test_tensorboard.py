"""Event files: one value per step also after a kill, settings and final metrics, several processes."""

import builtins
import sys

import pytest
import torch
from torch import nn

from elliptica.lab.data.splits import Dataset, Split
from elliptica.lab.experiments import registry
from elliptica.lab.experiments.records import record_file
from elliptica.lab.experiments.run import Options, finish_run
from elliptica.lab.experiments.specification import parse_specification, runs
from elliptica.lab.training import EpochEnd, TensorBoard, TrainingSettings, fit
from experiment_cases import TOY, load_toy
from experiment_cases import read_board as read

pytest.importorskip("tensorboard", reason="TensorBoard is not installed (extra lab)")

TAGS = {"train/loss", "train/lr", "validation/score", "validation/best", "cost/seconds", "cost/evaluations"}


def read_settings(folder):
    """Settings in the HParams tab."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import plugin_data_pb2

    found = EventAccumulator(str(folder))
    found.Reload()
    content = found.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    values = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    return {name: getattr(v, v.WhichOneof("kind")) for name, v in values.items()}


class Killed(BaseException):
    pass


def train(progress, checkpoint=None):
    """A linear model, its rate a tenth from the third epoch on."""
    x = torch.randn(32, 3, generator=torch.Generator().manual_seed(0))
    split = Split(x, x.sum(1, keepdim=True))
    data = Dataset("toy", split, split, split, task="regression")
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    settings = TrainingSettings(epochs=6, batch_size=16, lr=1e-2, milestones=(2,))

    def score(net, part):
        return -float((net(part.x) - part.y).detach().square().mean())

    def objective(net, batch):
        return nn.functional.mse_loss(net(batch.x), batch.y)

    return fit(
        model,
        objective,
        data,
        settings,
        score,
        name="toy",
        seed=0,
        checkpoint=checkpoint,
        progress=progress,
    )


def test_every_epoch_has_every_scalar(tmp_path):
    with TensorBoard(tmp_path / "run") as board:
        found = train(board)
    scalars = read(tmp_path / "run")
    assert set(scalars) == TAGS
    assert [step for step, _ in scalars["train/loss"]] == [1, 2, 3, 4, 5, 6]
    for tag, wanted in (("train/loss", found.losses), ("validation/score", found.scores)):
        assert [value for _, value in scalars[tag]] == pytest.approx(wanted, rel=1e-6)
    assert [value for _, value in scalars["train/lr"]] == pytest.approx([1e-2] * 2 + [1e-3] * 4)
    assert [value for _, value in scalars["cost/evaluations"]] == [32 * i for i in range(1, 7)]
    seconds = [value for _, value in scalars["cost/seconds"]]
    assert seconds == sorted(seconds)
    assert scalars["validation/best"][-1][1] == pytest.approx(max(found.scores))


def test_a_run_that_goes_on_has_no_step_twice(tmp_path):
    """The run is killed in its fourth epoch, after one that TensorBoard saw but no checkpoint did."""
    whole = TensorBoard(tmp_path / "whole")
    train(whole)
    whole.close()
    board = TensorBoard(tmp_path / "killed")

    def kill(end):
        board(end)
        if end.epoch == 3:
            board.write(4, {"train/loss": 1e6})  # a step that the next sitting does again
            raise Killed

    with pytest.raises(Killed):
        train(kill, tmp_path / "c.safetensors")
    board._writer.close()
    with TensorBoard(tmp_path / "killed") as again:
        train(again, tmp_path / "c.safetensors")
    one, two = read(tmp_path / "whole"), read(tmp_path / "killed")
    for tag in ("train/loss", "validation/score", "train/lr", "cost/evaluations"):
        assert one[tag] == two[tag]
    assert len(list((tmp_path / "killed").iterdir())) == 2


def test_without_purging_the_step_would_be_there_twice(tmp_path):
    """What the test above must be able to see."""
    from torch.utils.tensorboard import SummaryWriter

    for value in (1e6, 0.5):
        with SummaryWriter(str(tmp_path)) as writer:
            writer.add_scalar("train/loss", value, 4)
    assert len(read(tmp_path)["train/loss"]) == 2


def test_values_that_are_not_finite_are_left_out(tmp_path):
    with TensorBoard(tmp_path) as board:
        board(EpochEnd(1, 2, 0.5, 0.1, float("-inf"), 0.1, 1.0, 10))
    assert set(read(tmp_path)) == TAGS - {"validation/best"}


def test_runs_write_settings_and_final_metrics_to_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setitem(registry.DATASETS, "toy", load_toy)
    wanted = runs("toy", parse_specification(TOY, "toy"))
    options = Options(tmp_path / "runs", tensorboard=tmp_path / "board")
    for run in wanted:
        finish_run(run, options, lambda *_: None)
    folders = {path.parent for path in (tmp_path / "board").rglob("events.*")}
    assert len(folders) == len(wanted) == 4
    for run in wanted:
        place = record_file(tmp_path / "board", run).with_suffix("")
        assert place in folders
        scalars, settings = read(place), read_settings(place)
        assert [step for step, _ in scalars["train/loss"]] == [1, 2, 3]
        assert scalars["final/test_average"][0][1] > 0
        assert settings["row"] == run.row
        assert settings["training.lr"] == 1e-2
        assert settings["model.hidden"] == "[8]"


@pytest.mark.bad_input
def test_a_missing_package_is_named(tmp_path, monkeypatch):
    original = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.partition(".")[0] == "tensorboard":
            raise ModuleNotFoundError("No module named 'tensorboard'", name="tensorboard")
        return original(name, *args, **kwargs)

    for name in [n for n in sys.modules if n.partition(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr("importlib.import_module", refuse)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "elliptica\[lab\]"'):
        TensorBoard(tmp_path)
