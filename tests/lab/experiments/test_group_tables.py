"""The robust-classification tables on tiny photographs in the published layouts, end to end."""

import pytest
import torch
from torch import nn

from elliptica.lab.experiments.registry import split_head
from elliptica.lab.experiments.run import Options, do_run
from elliptica.lab.experiments.specification import load_specification, runs
from elliptica.lab.experiments.table import make_table, render
from group_fixtures import make_camelyon17, make_celeba, make_waterbirds

MAKERS = {"waterbirds": make_waterbirds, "celeba": make_celeba, "camelyon17": make_camelyon17}


def tiny(run):
    """The run with small images, a small network and one epoch; all else as in the table."""
    settings = {k: v for k, v in run.settings.items() if k != "at"}
    if "at" in run.settings:
        settings["at"] = "flatten"  # what lies before the last layer
    return run.model_copy(
        update={
            "load": {**run.load, "size": 16},
            "model": {"name": "preact_resnet", "depth": 18, "width": 2},
            "training": {**run.training, "epochs": 1, "batch_size": 8},
            "settings": settings,
        }
    )


@pytest.mark.slow
@pytest.mark.parametrize("dataset", MAKERS)
@pytest.mark.parametrize("table", ["table4", "table11"])
@pytest.mark.filterwarnings("ignore::elliptica.EllipticWarning")
def test_every_row_runs_on_photographs(table, dataset, tmp_path):
    MAKERS[dataset](tmp_path / "data")
    specification = load_specification(table)
    wanted = [tiny(run) for run in runs(table, specification, datasets=[dataset], seeds=1)]
    options = Options(tmp_path / "out", data_dir=tmp_path / "data")
    epochs = []
    records = [do_run(run, options, epochs.append) for run in wanted]
    for record in records:
        assert 0 <= record.metrics["test"].worst <= record.metrics["test"].average <= 1
    assert len({end.loss for end in epochs}) == len(records)  # no row is another one under a big name
    text = render(make_table(table, specification, wanted, records))
    assert "The paper's values are left out" in text  # fewer epochs than there


@pytest.mark.slow
@pytest.mark.parametrize("table", ["table7", "table8"])
@pytest.mark.filterwarnings("ignore::elliptica.EllipticWarning")
def test_ablation_and_noise_run_on_photographs(table, tmp_path):
    make_waterbirds(tmp_path / "data")
    specification = load_specification(table)
    datasets = [
        name for name in specification.datasets if name.startswith("waterbirds") and "features" not in name
    ]
    wanted = [tiny(run) for run in runs(table, specification, datasets=datasets, seeds=1)]
    options = Options(tmp_path / "out", data_dir=tmp_path / "data")
    for run in wanted:
        assert do_run(run, options).run == run


def test_a_backbone_is_split_before_its_last_layer():
    network = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Sequential(nn.Linear(3, 2)))
    x = torch.randn(5, 4)
    expected, hidden = network(x), network[:2](x)
    split = split_head(network)
    assert torch.equal(split(x), expected)
    assert torch.equal(split.features(x), hidden)
    assert [name for name, _ in split.named_children()] == ["features", "head"]
