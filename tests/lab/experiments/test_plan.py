"""What a run would cost, and that each network of the paper trains, stops, goes on and is measured."""

import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from elliptica.cli import app
from elliptica.lab.data.splits import Dataset, Split
from elliptica.lab.experiments import plan, registry
from elliptica.lab.experiments.records import read_lines, write_lines
from elliptica.lab.experiments.run import Options, do_run
from elliptica.lab.experiments.specification import load_specification, runs
from experiment_cases import numbers

#: Data of each table that are images.
IMAGES = {
    "table1": None,
    "table2": None,
    "table4": ["waterbirds", "celeba", "camelyon17"],
    "table5": ["rcf_mnist"],
    "table7": ["waterbirds"],
    "table8": ["waterbirds-noise0_0", "waterbirds-noise0_1", "waterbirds-noise0_5"],
    "table11": ["waterbirds", "celeba", "camelyon17"],
}


def first_runs(table, **chosen):
    chosen = {"datasets": IMAGES[table], **chosen}
    return runs(table, load_specification(table), seeds=1, **chosen)


def need_packages(run):
    if run.model["name"] == "backbone":
        pytest.importorskip("torchvision", exc_type=Exception)


@pytest.mark.parametrize("table", IMAGES)
def test_every_network_is_built_and_counted(table):
    need_packages(first_runs(table)[-1])
    head, *lines = plan.grid(first_runs(table))
    assert len(lines) == len(first_runs(table))
    assert head[-2:] == ["hours", "GB"]
    assert all(float(line[-1]) > 0 < float(line[-2]) for line in lines)


def test_a_step_costs_what_the_network_is_known_to_cost():
    """PreActResNet-18 on CIFAR: 0.56 G multiplications and additions, and backward twice that."""
    erm, path = first_runs("table1", datasets=["cifar10-preactresnet18"], methods=["erm", "elliptic"])
    step = plan.step_of(erm)
    assert step.flops == pytest.approx(2 * 3 * 0.5567e9, rel=0.01)
    assert (step.n_rows, step.weights) == (45000, 11171146)
    assert plan.flops_of(erm, step) == 200 * 45000 * step.flops
    assert plan.flops_of(path, step) == 5 * plan.flops_of(erm, step)
    assert plan.flops_of(path.model_copy(update={"match_evaluations": True}), step) == plan.flops_of(
        erm, step
    )
    own = 12 * step.weights
    assert plan.bytes_of(path, step) - own == 5 * (plan.bytes_of(erm, step) - own)


def test_the_page_on_scale_says_what_a_dry_run_prints():
    page = (Path(__file__).parents[3] / "docs" / "scale.md").read_text(encoding="utf-8")
    lines = re.findall(
        r"`elliptica run (table[12]) --dataset (\S+)`.*\| (.+) \| (.+) \| (.+) \| (.+) \|", page
    )
    assert len(lines) == 5
    for table, dataset, *shown in lines:
        every = runs(table, load_specification(table), datasets=[dataset])
        step = plan.step_of(every[0])
        hours = {(r.row, r.seed): plan.flops_of(r, step) / plan.SPEED / 3600 for r in every}
        memory = max(plan.bytes_of(run, step) for run in every) / 1e9
        found = [hours["erm", 0], hours["elliptic", 0], sum(hours.values()), memory]
        assert [float(text) for text in shown] == pytest.approx(found, rel=0.05)


def test_a_first_stage_counts():
    jtt, umix, elliptic = (
        runs("table4", load_specification("table4"), datasets=["camelyon17"], methods=[row], seeds=1)[0]
        for row in ("jtt", "umix", "elliptic")
    )
    step = plan.Step(100, 10, 0, 0)
    assert [plan.flops_of(run, step) / 5000 for run in (jtt, umix, elliptic)] == pytest.approx([1.4, 2, 5])


def test_a_dry_run_trains_nothing(tmp_path):
    arguments = ["run", "table1", "--dataset", "cifar10-preactresnet18", "--seeds", "2", "--dry-run"]
    done = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "mine")])
    assert done.exit_code == 0
    assert "| cifar10-preactresnet18 | erm | 2 | 200 | 30 | 0.83 | 0.58 |" in done.output
    assert not (tmp_path / "mine").exists()
    missing = ["run", "table3", "--dataset", "no2", "--dry-run", "--data-dir", str(tmp_path)]
    assert CliRunner().invoke(app, missing).exit_code == 2


class Killed(BaseException):
    pass


#: One data set for each network, with its table.
NETWORKS = {
    "cifar10-preactresnet18": "table1",
    "cifar10-preactresnet50": "table1",
    "cifar10-wrn28": "table1",
    "tiny_imagenet-preactresnet34": "table2",
    "waterbirds": "table4",
    "camelyon17": "table4",
    "rcf_mnist": "table5",
}


@pytest.mark.slow
@pytest.mark.parametrize("row", ["erm", "elliptic"])
@pytest.mark.parametrize("dataset", NETWORKS)
def test_two_epochs_on_a_hundred_images(monkeypatch, tmp_path, dataset, row):
    """A run that is killed after its first epoch goes on and ends as if it had not been."""
    table = NETWORKS[dataset]
    (run,) = first_runs(table, datasets=[dataset], methods=[row], training={"epochs": 2})
    need_packages(run)
    if run.model["name"] == "backbone":
        run = run.model_copy(update={"model": {**run.model, "pretrained": False}})
    size, is_real = (32 if run.model["name"] == "backbone" else 8), run.metric == "rmse"

    def load(seed, *, data_dir=None):
        generator = torch.Generator().manual_seed(seed)
        x, y = torch.randn(140, 3, size, size, generator=generator), torch.arange(140) % 2
        group = None if is_real else 2 * y + torch.arange(140) // 2 % 2
        y = y[:, None].float() if is_real else y
        rows = slice(100), slice(100, 120), slice(120, None)
        parts = [Split(x[r], y[r], None if is_real else group[r]) for r in rows]
        return Dataset("made up", *parts, task="regression" if is_real else "classification")

    monkeypatch.setitem(registry.DATASETS, run.load["name"], load)

    def kill(end):
        if end.epoch == 1:
            raise Killed

    whole = do_run(run, Options(tmp_path / "whole"))
    with pytest.raises(Killed):
        do_run(run, Options(tmp_path / "killed"), kill)
    assert numbers(do_run(run, Options(tmp_path / "killed"))) == numbers(whole)
    n_rows = 64 if run.training.get("drop_last") else 100
    assert whole.cost.evaluations == 2 * n_rows * plan.rows_per_sample(run)


def test_files_of_records_are_merged_by_joining_them(tmp_path):
    one, two, both = (tmp_path / name for name in ("one", "two", "both"))
    write_lines(one, [{"a": 1}])
    write_lines(two, [{"a": 2}])
    both.write_bytes(one.read_bytes() + two.read_bytes())
    assert read_lines(both) == [{"a": 1}, {"a": 2}]
