"""A plain loop gets the runner's numbers, to the last digit."""

import runpy
from pathlib import Path

import pytest
import torch

from elliptica.lab.data.splits import Dataset, Split
from elliptica.lab.experiments import registry
from elliptica.lab.experiments.choice import Choice
from elliptica.lab.experiments.run import Options, do_run

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "reproduce_one_row.py"


def load_leagues(seed, *, data_dir=None, scale="train"):
    """Parts with groups; targets of the validation part are noise, so that an early epoch is chosen."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(200, 17, generator=generator)
    y = 40 + 10 * x[:, :3].sum(1, keepdim=True)
    y[100:140] = 60 * torch.rand(40, 1, generator=generator)
    league = torch.cat([torch.arange(100) % 4 + 1, torch.full((40,), 5), torch.arange(60) % 3 + 6])
    cuts = (slice(100), slice(100, 140), slice(140, 200))  # 100 rows: the last batch is incomplete
    return Dataset("skillcraft", *[Split(x[c], y[c], league[c]) for c in cuts], task="regression")


@pytest.mark.filterwarnings("ignore::elliptica.EllipticWarning")  # of the scale of the noise
@pytest.mark.parametrize("row", ["marginal", "elliptic"])
def test_the_example_equals_the_runner(row, monkeypatch, tmp_path):
    monkeypatch.setitem(registry.DATASETS, "skillcraft", load_leagues)
    choice = Choice("table5", ["skillcraft"], [row], 2, training={"epochs": 15})
    train = runpy.run_path(str(EXAMPLE))["train"]
    for run in choice.runs(tmp_path):
        record = do_run(run, Options(tmp_path))
        test = record.metrics["test"]
        assert train(row, run.seed, 15, load_leagues) == (record.epoch, test.average, test.worst)
        assert record.epoch < 14  # the choice of the epoch matters


@pytest.mark.usefixtures("results")
@pytest.mark.parametrize("row", ["marginal", "elliptic"])
def test_the_example_finds_the_committed_records(row):
    recorded = runpy.run_path(str(EXAMPLE))["recorded"]
    epoch, average, worst = recorded(row, 0)
    assert 0 <= epoch < 100
    assert average < worst
    assert recorded(row, 1000) is None
