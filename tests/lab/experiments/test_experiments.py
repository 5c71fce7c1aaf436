"""Tables as commands: specifications, records, killed and concurrent runs, tables from records."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import torch
from scipy import stats
from typer.testing import CliRunner

from elliptica import EllipticWarning
from elliptica.cli import app
from elliptica.lab.data.splits import Dataset, Split
from elliptica.lab.experiments import registry
from elliptica.lab.experiments.choice import Choice
from elliptica.lab.experiments.engines import in_processes
from elliptica.lab.experiments.methods import METHODS
from elliptica.lab.experiments.metrics import measure, score_of
from elliptica.lab.experiments.preflight import check_before, folder_problem
from elliptica.lab.experiments.records import (
    as_text,
    claimed,
    read_record,
    read_records,
    record_file,
    write_record,
)
from elliptica.lab.experiments.registry import RegistryError, load_dataset, make_model
from elliptica.lab.experiments.run import Options, finish_run
from elliptica.lab.experiments.specification import (
    SpecificationError,
    load_specification,
    parse_specification,
    preset_names,
    runs,
)
from elliptica.lab.experiments.table import _paired_p, make_table, render
from elliptica.lab.models import mlp
from elliptica.lab.training import TrainingSettings
from experiment_cases import TOY, do_all, load_toy, make_ready, silent
from processes import is_running
from report_cases import make_record

runner = CliRunner()


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setitem(registry.DATASETS, "toy", load_toy)
    return parse_specification(TOY, "toy")


def load_classes():
    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    y = torch.arange(12) % 3
    return Dataset("classes", *[Split(x, y, y % 2)] * 3, task="classification")


def without_times(record):
    cost = {k: v for k, v in record["cost"].items() if k not in ("seconds", "first_stage")}
    return {**record, "cost": cost}


@pytest.mark.parametrize("name", preset_names())
def test_presets_are_valid(name):
    specification = load_specification(name)
    for run in runs(name, specification, seeds=1):
        assert run.method in METHODS
        assert run.load["name"] in registry.DATASETS
        assert run.model["name"] in registry.MODELS
        TrainingSettings(**{k: tuple(v) if isinstance(v, list) else v for k, v in run.training.items()})
        data = load_toy(0) if run.metric == "rmse" else load_classes()
        if run.method not in ("jtt", "umix") and run.model["name"] != "backbone":
            make_ready(run.method, run.settings, data, mlp(3, 3))


def test_presets_state_the_papers_values():
    table5 = load_specification("table5")
    worst = table5.datasets["crime"].paper["elliptic"]["worst"]
    assert (worst.mean, worst.std) == (0.164, 0.01)


def test_settings_of_a_data_set_override_the_tables(toy):
    found = {run.row: run for run in runs("toy", toy, seeds=1)}
    assert found["elliptic"].settings == {"sampling": "path", "n_times": 3, "sigma": 0.1}


def test_the_key_depends_on_settings_and_not_on_the_seed(toy):
    first, second = runs("toy", toy, methods=["erm"])
    assert first.key == second.key
    other = parse_specification(TOY.replace("lr = 1e-2", "lr = 1e-3"), "toy")
    assert runs("toy", other, methods=["erm"])[0].key != first.key


def test_finished_runs_are_not_repeated(toy, tmp_path):
    options, events = Options(tmp_path), []
    wanted = runs("toy", toy)
    assert set(do_all(wanted, options, silent).values()) == {"done"}
    before = {f: f.read_text() for f in tmp_path.rglob("*.json")}
    assert set(do_all(wanted, options, lambda *e: events.append(e)).values()) == {"skipped"}
    assert before == {f: f.read_text() for f in tmp_path.rglob("*.json")}
    assert not list(tmp_path.rglob("*.safetensors"))


def test_records_hold_what_is_needed_to_repeat_them(toy, tmp_path):
    (run,) = runs("toy", toy, methods=["elliptic"], seeds=1)
    finish_run(run, Options(tmp_path), silent)
    record = read_record(record_file(tmp_path, run))
    assert record["run"] == run.model_dump(mode="json")
    assert record["cost"]["evaluations"] == 3 * 20 * 3  # epochs, rows, points on a path
    assert record["cost"]["rows_per_sample"] == 3
    assert {"torch", "elliptica", "python"} <= set(record["versions"])
    assert len(record["curves"]["validation"]) == 3


def test_labels_shuffled_in_every_batch_are_drawn_anew():
    y, generator = torch.arange(40), torch.Generator().manual_seed(0)
    relabel = registry.label_noise({"shuffled_per_batch": 0.5})
    seen = [relabel(y, generator) for _ in range(2)]
    assert not torch.equal(seen[0], seen[1])
    for labels in seen:
        assert torch.equal(labels.sort().values, y)
        assert 10 <= (labels != y).sum() <= 20
    assert registry.label_noise({}) is None


def test_equal_evaluations(toy, tmp_path):
    wanted = runs("toy", toy, seeds=1, match_evaluations=True)
    do_all(wanted, Options(tmp_path), silent)
    found = {run.row: read_record(record_file(tmp_path, run))["cost"] for run in wanted}
    assert found["erm"]["evaluations"] == found["elliptic"]["evaluations"] == 60
    assert found["elliptic"]["epochs"] == 1


def test_a_schedule_of_its_own_is_stretched_with_the_others(toy):
    text = TOY.replace("n_times = 3", "n_times = 3\nepochs = 1")
    specification = parse_specification(text, "toy")

    def epochs(**options):
        return {run.row: run.training["epochs"] for run in runs("toy", specification, seeds=1, **options)}

    assert epochs() == {"erm": 3, "elliptic": 1}
    assert epochs(training={"epochs": 30}) == {"erm": 30, "elliptic": 10}
    assert epochs(match_evaluations=True) == {"erm": 3, "elliptic": 3}  # the budget does the rest


def test_training_settings_can_be_overridden(toy):
    (run,) = runs("toy", toy, methods=["erm"], seeds=1, training={"epochs": 2})
    assert run.training == {"epochs": 2, "batch_size": 8, "lr": 1e-2}


def test_a_data_set_may_choose_the_epoch_by_another_column(toy):
    other = parse_specification(TOY.replace("[datasets.toy]", '[datasets.toy]\nselect = "worst"'), "toy")
    assert {run.select for run in runs("toy", other)} == {"worst"}
    assert {run.select for run in runs("toy", toy)} == {"average"}


def test_defaults_of_a_data_set_are_for_elliptic_rows_and_weaker_than_a_rows(toy):
    text = TOY.replace("[datasets.toy]", "[datasets.toy]\ndefaults = { n_times = 9, xi = 2.0 }")
    found = {run.row: run.settings for run in runs("toy", parse_specification(text, "toy"), seeds=1)}
    assert found["erm"] == {}
    assert found["elliptic"] == {"n_times": 3, "xi": 2.0, "sampling": "path", "sigma": 0.1}


def test_a_table_of_the_validation_part(toy, tmp_path):
    wanted = runs("toy", toy, seeds=2)
    do_all(wanted, Options(tmp_path), silent)
    records = [read_record(record_file(tmp_path, run)) for run in wanted]
    table = make_table("toy", toy, wanted, records, "validation")
    cell = table.cells[("erm", "toy", "average")]
    assert cell.values == {r["run"]["seed"]: r["metrics"]["validation"]["average"] for r in records[:2]}
    assert cell.paper is None
    assert "| paper |" not in render(table, "markdown")
    assert "validation" in render(table, "markdown")


def test_a_table_of_costs_counts_up_to_the_chosen_epoch(toy, tmp_path):
    wanted = runs("toy", toy, methods=["elliptic"], seeds=1)
    do_all(wanted, Options(tmp_path), silent)
    record = read_record(record_file(tmp_path, wanted[0]))
    table = make_table("toy", toy, wanted, [record], "cost")
    (evaluations,) = table.cells[("elliptic", "toy", "evaluations")].values.values()
    assert evaluations == pytest.approx((record["epoch"] + 1) * 60 / 1000)
    two_stages = {**record, "epoch": 0, "cost": {**record["cost"], "evaluations": 280, "epochs": 3}}
    two_stages["cost"]["first_stage"] = {"evaluations": 100, "seconds": 1.0}
    table = make_table("toy", toy, wanted, [two_stages], "cost")
    assert table.cells[("elliptic", "toy", "evaluations")].mean == pytest.approx(0.16)
    assert "Seconds" in render(table, "markdown")


def test_errors_are_one_minus_accuracies():
    x = torch.eye(6)[[0, 1, 2, 3, 4, 5]]
    split = Split(x, torch.tensor([0, 1, 2, 3, 0, 0]), None)
    accuracy, error = (
        measure(torch.nn.Identity(), split, metric, torch.device("cpu")) for metric in ("accuracy", "error")
    )
    assert accuracy["average"] == pytest.approx(4 / 6)
    assert accuracy["balanced"] == pytest.approx(10 / 12)
    assert accuracy["worst"] == pytest.approx(1 / 3)
    assert error["worst"] == pytest.approx(2 / 3)
    for column in ("average", "balanced", "top5"):
        assert accuracy[column] + error[column] == pytest.approx(1)


def test_a_failing_run_does_not_stop_the_others(toy, tmp_path):
    broken = parse_specification(TOY.replace("n_times = 3", "n_tims = 3"), "toy")
    failed = []
    found = do_all(
        runs("toy", broken, seeds=1),
        Options(tmp_path),
        lambda *e: failed.append(e) if e[1] == "failed" else 0,
    )
    assert sorted(found.values()) == ["done", "failed"]
    assert "n_tims" in failed[0][2]["error"]


def deadly(_listen):
    os.kill(os.getpid(), signal.SIGKILL)


def slow(listen):
    listen("slow", "begun", {})
    time.sleep(3)  # the other process dies meanwhile
    return "done"


def harmless(_listen):
    return "done"


@pytest.mark.slow
def test_a_process_that_is_killed_does_not_stop_the_other_jobs():
    """Neither those that wait nor the one that is under way; the culprit is tried twice."""
    for n_processes, other in ((1, harmless), (2, slow)):
        heard = []
        jobs = [("deadly", deadly), ("slow", other), ("two", harmless), ("three", harmless)]
        found = in_processes(jobs, n_processes, lambda *event, to=heard: to.append(event[:2]))
        assert [each.state for each in found] == ["failed", "done", "done", "done"]
        assert [event for event in heard if event[0] == "deadly"] == [
            ("deadly", "again"),
            ("deadly", "failed"),
        ]
        assert heard.count(("slow", "begun")) == (other is slow)  # it was not begun anew


@pytest.mark.slow
def test_processes_end_with_a_parent_that_is_killed(tmp_path):
    """Those at work and those that wait for more: neither would know, and none would ever end."""
    (tmp_path / "sleepers.py").write_text(
        textwrap.dedent(
            """
            import functools, os, sys, time
            from elliptica.lab.experiments.engines import in_processes

            def sleep(seconds, listen):
                listen("", "pid", {"pid": os.getpid()})
                time.sleep(seconds)
                return "done"

            if __name__ == "__main__":
                jobs = [(str(seconds), functools.partial(sleep, seconds)) for seconds in (0, 1000)]
                in_processes(jobs, 2, lambda *event: print(event[2]["pid"], flush=True))
            """
        )
    )
    killed = subprocess.Popen(
        [sys.executable, "sleepers.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    children = [int(killed.stdout.readline()) for _ in range(2)]
    killed.kill()
    killed.wait()
    deadline = time.monotonic() + 60
    while any(is_running(child) for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
def test_a_job_that_cannot_be_sent_fails_alone():
    heard = []
    jobs = [("local", lambda _: "done"), ("one", harmless)]
    found = in_processes(jobs, 2, lambda *event: heard.append(event[:2]))
    assert [each.state for each in found] == ["failed", "done"]
    assert heard == [("local", "failed")]


@pytest.mark.slow
def test_two_processes_never_do_the_same_run(toy, tmp_path):
    (run,) = runs("toy", toy, methods=["erm"], seeds=1)
    file = record_file(tmp_path, run)
    code = (
        "import sys, time, pathlib\n"
        "from elliptica.lab.experiments.records import claimed\n"
        "with claimed(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])) as mine:\n"
        "    print(mine, flush=True); time.sleep(60)\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), str(file)], stdout=subprocess.PIPE, text=True
    )
    assert other.stdout.readline().strip() == "True"
    assert finish_run(run, Options(tmp_path), silent) == "skipped"
    other.kill()  # a process that dies gives its claim free
    other.wait()
    assert finish_run(run, Options(tmp_path), silent) == "done"


@pytest.mark.needs_data
@pytest.mark.slow
def test_sigkill_and_restart_give_the_same_bytes(data_dir, tmp_path):
    """The command itself, killed half-way, against one that was left alone."""

    def command(out):
        arguments = ["run", "table3", "--dataset", "no2", "--methods", "marginal", "--seeds", "1"]
        return [sys.executable, "-m", "elliptica", *arguments, "--out", str(out)]

    environment = {**os.environ, "ELLIPTICA_DATA": str(data_dir)}
    subprocess.run(command(tmp_path / "whole"), env=environment, check=True, capture_output=True)
    killed = subprocess.Popen(command(tmp_path / "killed"), env=environment, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "killed").rglob("*.safetensors")) and time.monotonic() < deadline:
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert not list((tmp_path / "killed").rglob("*-seed0.json"))
    subprocess.run(command(tmp_path / "killed"), env=environment, check=True, capture_output=True)
    records = [
        without_times(json.loads(next((tmp_path / name).rglob("*-seed0.json")).read_text()))
        for name in ("whole", "killed")
    ]
    assert json.dumps(records[0], sort_keys=True) == json.dumps(records[1], sort_keys=True)


@pytest.mark.slow
@pytest.mark.parametrize("wait_for_a_checkpoint", [False, True])
def test_ctrl_c_stops_several_processes_quietly(data_dir, tmp_path, wait_for_a_checkpoint):
    """At the start, while processes import, and in the middle of training."""
    command = [sys.executable, "-m", "elliptica", "run", "table3", "--dataset", "no2", "--jobs", "2"]
    arguments = [*command, "--methods", "elliptic", "--data-dir", str(data_dir), "--out", str(tmp_path)]
    process = subprocess.Popen(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # background jobs may ignore it
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        found = (
            list(tmp_path.rglob("*.safetensors")) if wait_for_a_checkpoint else (tmp_path / ".locks").exists()
        )
        if found:
            break
        time.sleep(0.05)
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert "Interrupted" in output


def test_several_processes_give_the_same_records(toy, tmp_path, data_dir):
    specification = load_specification("table3")
    wanted = runs("table3", specification, datasets=["no2"], methods=["erm", "marginal"], seeds=1)
    for jobs in (1, 2):
        found = do_all(wanted, Options(tmp_path / str(jobs), data_dir=data_dir, jobs=jobs), silent)
        assert set(found.values()) == {"done"}
    for run in wanted:
        one, two = (read_record(record_file(tmp_path / str(jobs), run)) for jobs in (1, 2))
        assert one["metrics"] == two["metrics"]


def test_table_from_records(toy, tmp_path):
    wanted = runs("toy", toy)
    do_all(wanted, Options(tmp_path), silent)
    records = [read_record(record_file(tmp_path, run)) for run in wanted]
    table = make_table("toy", toy, wanted, records)
    values = [r["metrics"]["test"]["average"] for r in records if r["run"]["row"] == "erm"]
    cell = table.cells["erm", "toy", "average"]
    assert cell.mean == pytest.approx(sum(values) / 2)
    text = render(table, "markdown")
    assert "1.5 ± 0.1" in text
    assert "paired t test" not in text  # with two seeds nothing can be bold
    head, first, *_ = render(table, "csv").splitlines()
    assert head.startswith("method,dataset,column,part,mean")
    assert first.startswith("erm,toy,average,test,")
    latex = render(table, "latex")
    assert r"\begin{tabular}" in latex
    assert r"1.5$_{\pm 0.1}$" in latex
    assert (
        "validation" in render(make_table("toy", toy, wanted, records, "validation"), "latex").splitlines()[0]
    )
    single = make_table("toy", toy, wanted[:1], records[:1])
    for form in ("markdown", "latex", "csv"):
        assert "nan" not in render(single, form)
    partial = render(make_table("toy", toy, wanted, records[:1]), "markdown")
    assert "3 of 4 runs are not recorded yet" in partial


def fake(toy, tmp_path, gap, n=10):
    """Records in which one method is better by ``gap`` on average."""
    wanted = runs("toy", toy, seeds=n)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(n, 2, generator=generator)
    records = []
    for run in wanted:
        value = (
            1
            + 0.1 * float(noise[run.seed, 0])
            - (gap + 0.02 * float(noise[run.seed, 1])) * (run.row == "elliptic")
        )
        records.append({"run": run.model_dump(mode="json"), "metrics": {"test": {"average": value}}})
    return make_table("toy", toy, wanted, records)


def test_best_is_marked_only_when_significant(toy, tmp_path):
    assert "**" in render(fake(toy, tmp_path, 0.05), "markdown").split("Bold")[0]
    assert "**" not in render(fake(toy, tmp_path, 0.0), "markdown").split("Bold")[0]


def test_few_or_equal_gaps_are_not_significant():
    assert _paired_p({0: 1.0, 1: 2.0}, {0: 0.0, 1: 1.5}) == 1
    assert _paired_p({0: 1.0, 1: 2.0, 2: 3.0}, {0: 0.0, 1: 1.0, 2: 2.0}) == 0.25
    a, b = ({s: 100 * (share + s / 100) for s in range(3)} for share in (0.57, 0.56))
    assert len({a[s] - b[s] for s in range(3)}) > 1  # equal but for rounding
    assert _paired_p(a, b) == 0.25
    assert _paired_p({0: 1.0, 1: 2.0, 2: 3.0}, {0: 1.0, 1: 2.0, 2: 3.0}) == 1


def test_the_epoch_is_never_chosen_by_another_column():
    assert score_of({"average": 0.5}, "accuracy", "last") == 0.5
    with pytest.raises(ValueError, match="chosen by 'worst', but the data have only average"):
        score_of({"average": 0.5}, "rmse", "worst")


def test_data_sets_may_have_their_own_number_of_seeds_and_streams(toy):
    text = TOY.replace("[datasets.toy]", '[datasets.toy]\nseeds = 4\nstreams = "other"')
    found = runs("toy", parse_specification(text, "toy"), methods=["erm"])
    assert [run.seed for run in found] == [0, 1, 2, 3]
    (plain, *_) = runs("toy", toy, methods=["erm"])
    assert found[0].streams == "other"
    assert found[0].key != plain.key


def test_paired_test_against_scipy():
    a, b = torch.randn(8).tolist(), torch.randn(8).tolist()
    expected = stats.ttest_rel(a, b).pvalue
    assert _paired_p(dict(enumerate(a)), dict(enumerate(b))) == pytest.approx(expected, rel=1e-6)


def test_tables_may_have_runs_in_common():
    (shared,) = runs(
        "table9", load_specification("table9"), datasets=["breastmnist"], methods=["erm"], seeds=1
    )
    (own,) = runs("table6", load_specification("table6"), datasets=["breastmnist"], methods=["erm"], seeds=1)
    assert shared == own
    changed = load_specification("table9").model_copy(deep=True)
    changed.datasets["breastmnist"].training["lr"] = 1.0
    with pytest.raises(SpecificationError, match=r"training of breastmnist is .* there and .* here"):
        runs("table9", changed, datasets=["breastmnist"])
    text = TOY.replace("[methods.erm]", '[methods.erm]\nfrom = "table3"')
    with pytest.raises(SpecificationError, match=r"methods\.erm\.from.*table3 has no data set 'toy'"):
        runs("toy", parse_specification(text, "toy"))


def test_a_row_may_have_its_own_schedule_or_be_left_out(toy):
    text = TOY.replace("n_times = 3", "n_times = 3\nepochs = 1")
    found = {run.row: run for run in runs("toy", parse_specification(text, "toy"), seeds=1)}
    assert found["elliptic"].training["epochs"] == 1
    assert found["erm"].training["epochs"] == 3
    assert "epochs" not in found["elliptic"].settings
    skipped = TOY.replace("methods = { elliptic = { sigma = 0.1 } }", "methods = { erm = { skip = true } }")
    assert {run.row for run in runs("toy", parse_specification(skipped, "toy"))} == {"elliptic"}


def test_metrics_by_group_and_class():
    class Sign(torch.nn.Module):
        def forward(self, x):
            return torch.cat([-x, x], dim=1)

    x = torch.tensor([[1.0], [1.0], [-1.0], [-1.0]])
    split = Split(x, torch.tensor([1, 0, 0, 0]), group=torch.tensor([0, 1, 1, 1]))
    found = measure(Sign(), split, "accuracy", torch.device("cpu"))
    assert found["average"] == 0.75
    assert found["by_class"] == {"0": pytest.approx(2 / 3), "1": 1.0}
    assert found["worst"] == pytest.approx(2 / 3)
    real = Split(x, torch.tensor([[1.0], [2.0], [-1.0], [-1.0]]), group=torch.tensor([0, 1, 1, 1]))
    found = measure(torch.nn.Identity(), real, "rmse", torch.device("cpu"))
    assert found["average"] == pytest.approx(0.5)
    assert found["worst"] == pytest.approx((1 / 3) ** 0.5)
    assert found["mape"] == pytest.approx(12.5)


@pytest.mark.bad_input
def test_wrong_specifications():
    with pytest.raises(SpecificationError, match=r"toy has wrong entries:\n  sedes: Extra inputs"):
        parse_specification(TOY.replace("seeds = 2", "seeds = 2\nsedes = 3"), "toy")
    with pytest.raises(SpecificationError, match=r"datasets\.toy\.training: Field required"):
        parse_specification(TOY.replace("training = ", "trainig = "), "toy")
    with pytest.raises(SpecificationError, match="not valid TOML"):
        parse_specification("title = ", "toy")
    for epochs in ("0", "0.5", "true", '"many"'):
        with pytest.raises(SpecificationError, match="epochs must be a whole number of at least 1"):
            parse_specification(re.sub(r"epochs = \d+", f"epochs = {epochs}", TOY), "toy")
    search = "search = { lr = { low = 1e-4, high = inf } }\n[methods"
    with pytest.raises(SpecificationError, match="low and high must be finite"):
        parse_specification(TOY.replace("[methods", search, 1), "toy")
    with pytest.raises(SpecificationError, match=r"no table 'tabel3'"):
        load_specification("tabel3")
    specification = load_specification("table3")
    with pytest.raises(SpecificationError, match=r"no data set 'airfoli'"):
        runs("table3", specification, datasets=["airfoli"])
    with pytest.raises(SpecificationError, match=r"no method 'mixpu'"):
        runs("table3", specification, methods=["mixpu"])


@pytest.mark.bad_input
def test_wrong_names_and_settings(toy):
    data = load_toy(0)
    with pytest.raises(RegistryError, match="airfoil"):
        load_dataset({"name": "airfiol"}, 0)
    with pytest.raises(RegistryError, match="Network 'mlp' with"):
        make_model({"name": "mlp", "hiden": [3]}, data, "toy", 0)


def test_records_are_json_with_lists_on_one_line(tmp_path):
    record = {"a": [1.5, 2.0], "b": {"c": [], "d": "[x, y]"}, "e": [[1, 2], [3]], "f": ["g", "h"]}
    text = as_text(record)
    assert json.loads(text) == record
    assert "[ 1.5, 2.0 ]" in text


@pytest.mark.bad_input
def test_broken_record_is_set_aside(toy, tmp_path):
    (run,) = runs("toy", toy, methods=["erm"], seeds=1)
    file = record_file(tmp_path, run)
    write_record(file, {"half": 1})
    with pytest.warns(EllipticWarning, match="cannot be used"):
        assert finish_run(run, Options(tmp_path), silent) == "done"
    assert list(tmp_path.rglob("*.unusable-0"))


@pytest.mark.bad_input
@pytest.mark.parametrize("content", [None, "[" * 100_000, "", "[]", '{"run": 1', "\x00"])
def test_a_record_that_cannot_be_read_is_set_aside(toy, tmp_path, content):
    """Also a pipe, which would make the reader wait, and nesting that JSON does not survive."""
    (run,) = runs("toy", toy, methods=["erm"], seeds=1)
    file = record_file(tmp_path, run)
    file.parent.mkdir(parents=True)
    if content is None:
        os.mkfifo(file)
    else:
        file.write_text(content)
    with pytest.warns(EllipticWarning, match="cannot be used"):
        assert read_record(file) is None
    assert [kept.name for kept in file.parent.iterdir()] == [f"{file.name}.unusable-0"]


@pytest.mark.bad_input
def test_a_record_that_cannot_be_moved_is_left_there(toy, tmp_path, monkeypatch):
    (run,) = runs("toy", toy, methods=["erm"], seeds=1)
    file = record_file(tmp_path, run)
    write_record(file, {"half": 1})

    def locked(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(file), "rename", locked)
    with pytest.warns(EllipticWarning, match=f"kept as {re.escape(str(file))};"):
        assert read_record(file) is None
    assert file.exists()


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("metrics", "test", "average"), math.nan),
        (("metrics", "test", "average"), math.inf),
        (("metrics", "test", "average"), "good"),
        (("metrics", "test"), None),
        (("metrics",), []),
        (("metrics", "validation", "average"), math.nan),
        (("cost",), None),
        (("epoch",), "last"),
        (("run",), {}),
    ],
)
def test_a_damaged_record_is_left_out_of_the_table(toy, tmp_path, place, value):
    """Its number would be NaN, or the command would end in a traceback."""
    wanted = runs("toy", toy, methods=["erm"], seeds=2)
    for run in wanted:
        record = make_record("erm", run.seed, 0.5) | {"run": run.model_dump(mode="json")}
        record["metrics"]["validation"] = dict(record["metrics"]["test"])
        write_record(record_file(tmp_path, run), record)
    assert len(read_records(tmp_path, wanted)) == 2
    *way, last = place
    entry = record
    for step in way:
        entry = entry[step]
    entry[last] = value
    file = record_file(tmp_path, wanted[1])
    write_record(file, record)
    with pytest.warns(EllipticWarning, match=r"is left out: it has a wrong entry.*Delete it"):
        (found,) = read_records(tmp_path, wanted)
    assert found["run"]["seed"] == wanted[0].seed
    assert file.exists()  # a table changes nothing


@pytest.mark.bad_input
@pytest.mark.parametrize("content", ["", "[]", '{"run": 1', "\x00", "{}"])
def test_a_table_does_not_move_a_record_that_cannot_be_read(toy, tmp_path, content):
    (run,) = wanted = runs("toy", toy, methods=["erm"], seeds=1)
    file = record_file(tmp_path, run)
    file.parent.mkdir(parents=True)
    file.write_text(content)
    with pytest.warns(EllipticWarning, match=r"is left out: it .*Delete it"):
        assert read_records(tmp_path, wanted) == []
    assert file.read_text() == content
    assert read_record(file, set_aside_damaged=False) is None
    assert [each.name for each in file.parent.iterdir()] == [file.name]


@pytest.mark.bad_input
def test_names_in_a_table_are_text(toy):
    """Of a specification from anybody: no HTML in Markdown, no formulas in a spreadsheet."""
    (run,) = runs("toy", toy, methods=["erm"], seeds=1)
    run = run.model_copy(update={"row": "=1+1<script>|x"})
    record = make_record("erm", run.seed, 0.5) | {"run": run.model_dump(mode="json")}
    table = make_table("toy", toy, [run], [record])
    text = render(table, "markdown")
    assert "| =1+1&lt;script>\\|x |" in text
    assert "<script>" not in text
    assert render(table, "csv").splitlines()[1].startswith("'=1+1<script>|x,")


@pytest.mark.bad_input
def test_no_space_on_the_disk(toy, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="Is the disk full"):
        write_record(tmp_path / "record.json", {})
    assert not list(tmp_path.iterdir())


@pytest.mark.bad_input
def test_the_command_names_what_is_wrong(tmp_path):
    done = runner.invoke(app, ["run", "table33", "--out", str(tmp_path)])
    assert done.exit_code == 2
    assert "table3" in done.output
    places = ["--data-dir", str(tmp_path), "--out", str(tmp_path)]
    done = runner.invoke(
        app,
        ["run", "table3", "--dataset", "no2", "--seeds", "1", "--methods", "erm", *places],
    )
    assert done.exit_code == 2
    assert "NO2.csv" in done.output.replace("\n", "")
    assert "elliptica data list" in done.output.replace("\n", " ")
    file = tmp_path / "file"
    file.write_text("")
    for arguments, message in [
        (["run", "3"], "table3"),
        (["run", "table3", "--methods", ""], "No method is named"),
        (["run", "table3", "--methods", "lisa"], "lisa is in table11"),
        (["run", "table3", "--device", "nowhere"], "device='nowhere' cannot be used on this machine"),
        (["run", "table3", "--device", "meta"], "device='meta'"),
        (
            ["run", "table3", "--out", str(file / "runs")],
            "is not a folder). Choose another folder with --out",
        ),
        (["table", "table3", "--out", "/nowhere"], "There is no folder"),
        (["list", "tabel3"], "table3"),
    ]:
        done = runner.invoke(app, arguments)
        assert done.exit_code == 2, arguments
        assert message in " ".join(done.output.split()), done.output


def test_folders_that_cannot_be_written_are_known_before_any_work(tmp_path, monkeypatch):
    assert folder_problem(tmp_path / "new" / "runs") is None
    monkeypatch.setattr(os, "access", lambda place, mode: False)  # root may write everywhere
    assert "is read-only). Choose another folder with --out" in folder_problem(tmp_path / "runs")


def test_hyphens_and_underscores_are_the_same_in_names_of_data():
    specification = load_specification("table4")
    (run,) = runs("table4", specification, datasets=["waterbirds_features"], methods=["erm"], seeds=1)
    assert run.dataset == "waterbirds-features"


def test_a_table_says_what_was_changed():
    assert Choice("table3").remarks() == ()
    changed = Choice("table3", training={"epochs": 3}, tuned=True, match_evaluations=True).remarks()
    assert "epochs = 3" in changed[0]
    assert "tuned" in changed[0]
    assert "function evaluations" in changed[0]


def test_claims_are_exclusive_within_a_process_too(tmp_path):
    with claimed(tmp_path, tmp_path / "a.json") as first, claimed(tmp_path, tmp_path / "a.json") as second:
        assert (first, second) == (True, False)
    with claimed(tmp_path, tmp_path / "a.json") as again:
        assert again


@pytest.mark.bad_input
def test_a_metric_of_another_task_is_refused_before_any_run(toy, tmp_path):
    """Accuracy of real targets failed inside torch, one run after the other."""
    wanted = runs("toy", parse_specification(TOY.replace('"rmse"', '"accuracy"'), "toy"))
    assert wanted[0].metric == "accuracy"
    left, problems = check_before(wanted, Options(out=tmp_path / "runs"))
    assert not left
    assert all("does not suit regression" in problem for problem in problems)
