"""The two-moons demo: its parts against what is known of them, and the whole thing quickly."""

import dataclasses
import io
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from scipy import stats
from torch import nn
from typer.testing import CliRunner

from elliptica import partner_probabilities
from elliptica.baselines.mixup import mixup_batch
from elliptica.cli import app
from elliptica.cli.demo import INTERRUPTED, run_demo
from elliptica.lab.data.toy import distance_to_moons, two_moons
from elliptica.lab.demo import study as study_module
from elliptica.lab.demo.page import write_files
from elliptica.lab.demo.results import Spread, compare_with_paper, find, headline, summarise
from elliptica.lab.demo.study import (
    Evaluation,
    Run,
    Study,
    evaluate_losses,
    moon_surfaces,
    point_losses,
    record,
    run_study,
)
from elliptica.lab.demo.training import (
    METHODS,
    QUICK,
    DemoSettings,
    build_network,
    partners_in_groups,
    stream,
    stream_seed,
    train,
)
from elliptica.landscape import MaximumPrinciple

TINY = dataclasses.replace(QUICK, n_steps=7, n_seeds=2)


# mixup


def test_mixup_with_share_one_changes_nothing(generator):
    x, y = torch.randn(6, 2, generator=generator), torch.eye(2)[[0, 1, 1, 0, 1, 0]]
    mixed_x, mixed_y = mixup_batch(x, y, share=1.0, generator=generator)
    assert torch.equal(mixed_x, x)
    assert torch.equal(mixed_y, y)


def test_mixup_with_share_zero_is_a_permutation(generator):
    x, y = torch.arange(6.0)[:, None], torch.eye(6)
    mixed_x, mixed_y = mixup_batch(x, y, share=0.0, generator=generator)
    assert sorted(mixed_x.flatten().tolist()) == x.flatten().tolist()
    assert torch.equal(mixed_y.argmax(1), mixed_x.flatten().long())


def test_mixup_keeps_means_and_input(generator):
    x, y = torch.randn(50, 3, generator=generator, dtype=torch.float64), torch.eye(5).double().repeat(10, 1)
    before = x.clone(), y.clone()
    mixed_x, mixed_y = mixup_batch(x, y, alpha=0.4, generator=generator)
    torch.testing.assert_close(mixed_x.mean(0), x.mean(0))
    torch.testing.assert_close(mixed_y.mean(0), y.mean(0))
    assert not torch.equal(mixed_x, x)
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])


@pytest.mark.statistical
@pytest.mark.parametrize("alpha", [0.3, 1.0, 4.0])
def test_share_is_beta(alpha, generator):
    """Recovered from two rows; Beta(alpha, 2 alpha) or a fixed share would be seen at once."""
    y = torch.eye(2)
    shares = []
    for _ in range(3000):
        mixed = mixup_batch(y, y, alpha=alpha, generator=generator)[1]
        if not torch.equal(mixed, y):  # half of the orders leave two rows in place
            shares.append(float(mixed[0, 0]))
    assert stats.kstest(shares, stats.beta(alpha, alpha).cdf).pvalue > 1e-6
    assert stats.kstest(shares, stats.beta(alpha, 2 * alpha).cdf).pvalue < 1e-6


@pytest.mark.parametrize("settings", [{"alpha": 0.0}, {"alpha": -1.0}, {"share": 1.5}])
def test_mixup_refuses(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        mixup_batch(torch.ones(2, 1), torch.eye(2), **settings)


# partners in groups


def test_partners_stay_in_their_group_and_are_never_oneself(generator):
    x = torch.randn(60, 2, generator=generator)
    x[3] = x[4]  # a duplicate
    for _ in range(20):
        partners = partners_in_groups(x, 12, generator=generator).flatten()
        rows = torch.arange(60)
        assert torch.equal(partners // 12, rows // 12)
        assert not torch.any(partners == rows)


@pytest.mark.statistical
def test_partners_follow_the_law_of_the_library(generator):
    """Frequencies against `partner_probabilities` of a group alone; uniform ones are rejected."""
    x = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0], [3.0, 3.0]])
    n = 20_000
    draws = partners_in_groups(x.repeat(n, 1), 4, generator=generator).reshape(n, 4) % 4
    expected = partner_probabilities(x.double()).numpy()
    for row in range(4):
        counts = np.bincount(draws[:, row], minlength=4)
        others = [i for i in range(4) if i != row]
        assert counts[row] == 0
        assert stats.chisquare(counts[others], n * expected[row, others]).pvalue > 1e-6
        assert stats.chisquare(counts[others]).pvalue < 1e-6


@pytest.mark.parametrize("group", [1, 4])
def test_partners_refuse_groups_that_do_not_fit(group):
    with pytest.raises(ValueError, match="group"):
        partners_in_groups(torch.ones(6, 2), group)


# settings and streams


@pytest.mark.parametrize(
    "settings",
    [
        {"reading": "three"},
        {"activation": "sin"},
        {"sigma": -1.0},
        {"n_seeds": 0},
        {"n_steps": 0},
        {"n_times": 7},
        {"n_boundary": 1500},
    ],
)
@pytest.mark.usefixtures("own_checks")
def test_settings_refuse(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        DemoSettings(**settings)


@pytest.mark.parametrize(
    ("reading", "words", "n_parameters"),
    [
        ("one-hidden", "Linear(2, 4) - tanh - Linear(4, 2)", 22),
        ("two-hidden", "Linear(2, 4) - tanh - Linear(4, 4) - tanh - Linear(4, 2)", 42),
    ],
)
def test_readings_of_the_network(reading, words, n_parameters):
    settings = DemoSettings(reading=reading)
    assert settings.architecture == words
    network = build_network(settings, 0)
    assert sum(p.numel() for p in network.parameters()) == n_parameters
    assert sum(isinstance(layer, nn.Tanh) for layer in network) == len(settings.hidden)


def test_streams_differ_by_seed_and_purpose():
    assert len({stream_seed(seed, purpose) for seed in range(20) for purpose in ("a", "b", "c")}) == 60


def test_building_leaves_the_default_stream_alone():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    first = build_network(TINY, 0)
    assert torch.equal(torch.rand(1), expected)
    for a, b in zip(first.parameters(), build_network(TINY, 0).parameters(), strict=True):
        assert torch.equal(a, b)


# training and evaluation


@pytest.fixture(scope="module")
def moons():
    return two_moons(TINY.n_boundary, TINY.n_interior, generator=stream(0, "data"))


@pytest.mark.parametrize("method", METHODS)
def test_training_costs_the_same_and_is_repeatable(method, moons):
    steps = []
    first = train(method, moons, TINY, 0, steps.append)
    second = train(method, moons, TINY, 0)
    assert first.n_evaluations == TINY.n_steps * TINY.batch_evaluations
    assert sum(steps) == TINY.n_steps
    start = build_network(TINY, 0)
    pairs = zip(first.network.parameters(), second.network.parameters(), start.parameters(), strict=True)
    for a, b, before in pairs:
        assert torch.equal(a, b)
        assert not torch.equal(a, before)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_training_learns(method, moons):
    settings = dataclasses.replace(QUICK, n_steps=400)
    network = train(method, moons, settings, 0).network
    accuracy = (network(moons.interior_x).argmax(1) == moons.interior_y).double().mean()
    assert accuracy > 0.8  # a straight line reaches this


def test_losses_of_pure_labels_are_cross_entropy(generator):
    network, x = nn.Linear(2, 2), torch.randn(9, 2, generator=generator)
    y = torch.randint(2, (9,), generator=generator)
    expected = F.cross_entropy(network(x), y, reduction="none")
    torch.testing.assert_close(point_losses(network, x, F.one_hot(y, 2).float()).float(), expected.detach())


def test_losses_of_a_perfect_answer_to_a_mixed_label_are_zero():
    network = nn.Linear(2, 2)
    nn.init.zeros_(network.weight)
    network.bias.data = torch.tensor([0.3, 0.7]).log()
    losses = point_losses(network, torch.ones(1, 2), torch.tensor([[0.3, 0.7]]))
    torch.testing.assert_close(losses, torch.zeros(1, dtype=torch.float64), atol=1e-7, rtol=0)
    assert network.weight.dtype == torch.float32  # the network itself is left alone


def test_points_between_have_all_mixtures_of_labels(moons):
    """To an undecided network a label (p, 1 - p) costs log 2 minus its entropy; p fills [0, 1]."""
    network = nn.Linear(2, 2)
    nn.init.zeros_(network.weight)
    nn.init.zeros_(network.bias)
    losses = evaluate_losses(network, moons, stream(0, "between"))
    pure = torch.full((TINY.n_boundary,), np.log(2), dtype=torch.float64)
    torch.testing.assert_close(losses.boundary, pure)
    torch.testing.assert_close(losses.inside, pure[: TINY.n_interior])
    mixed = losses.between[losses.between < np.log(2) - 1e-6]
    assert TINY.n_boundary / 3 < len(mixed) < 2 * TINY.n_boundary / 3  # pairs across the moons
    assert len(mixed.unique()) > 0.9 * len(mixed)  # and not only on a grid of times
    assert 0 <= float(mixed.min()) < 1e-4


def test_surfaces_cover_the_tubes_up_to_the_boundary():
    for moon, surface in enumerate(moon_surfaces(nn.Linear(2, 2))):
        points = torch.from_numpy(np.stack([surface.x.ravel(), surface.y.ravel()], 1))
        distance = distance_to_moons(points)[:, moon]
        assert float(distance.max()) == pytest.approx(0.2, abs=1e-9)
        edge = distance.reshape(surface.x.shape)[:, [0, -1]]
        assert torch.allclose(edge, torch.full_like(edge, 0.2), atol=1e-9)
        assert float(distance.min()) < 1e-9


# summaries


def made_run(method, seed, *, inside_max=0.5, between_max=2.0):
    verdict = MaximumPrinciple(0.0, 1.0, 0.1, inside_max, 0.0, inside_max - 1, inside_max <= 1, True)
    between = MaximumPrinciple(0.0, 1.0, 0.1, between_max, 0.25, between_max - 1, between_max <= 1, True)
    return Run(method, seed, Evaluation(0.3, 0.2, 0.4, verdict, between, 0.9), 1000, 1.0 + seed)


def summaries_with(**inside_max):
    runs = [made_run(m, s, inside_max=inside_max.get(m, 0.5)) for s in range(3) for m in METHODS]
    return summarise(runs)


def test_summary_counts_and_averages():
    summary = summarise([made_run("erm", 0), made_run("erm", 1, inside_max=1.5)])[0]
    assert (summary.maximum_held, summary.minimum_held, summary.between_held) == (1, 2, 0)
    assert summary.seconds.mean == 1.5
    assert summary.seconds.deviation == pytest.approx(0.5**0.5)  # the sample deviation, ddof = 1
    assert summary.n_seeds == 2


@pytest.mark.parametrize(
    ("inside_max", "expected"),
    [
        ({}, "not reproduced"),
        ({"erm": 2.0, "mixup": 2.0}, "which is what is found here"),
        ({"erm": 2.0}, "not what is found"),
        ({"path": 2.0}, "not what is found"),
    ],
)
def test_comparison_with_the_paper(inside_max, expected):
    assert expected in compare_with_paper(summaries_with(**inside_max))


def test_comparison_needs_all_methods():
    assert "not compared" in compare_with_paper(summarise([made_run("erm", 0)]))


def test_findings_are_the_numbers():
    summaries = summaries_with(erm=2.0)
    verdicts = [made_run("erm", 0).evaluation.inside, made_run("erm", 0, inside_max=2.0).evaluation.inside]
    inside, between, own = find(summaries, verdicts)
    assert "ERM in 0 of 3, mixup in 3 of 3" in inside
    assert "untrained networks in 1 of 2" in inside
    assert "no method kept the bound in every seed" in between
    assert "ERM 25.0 % (largest loss 2 times the boundary's)" in between
    assert "ERM 2, mixup 0.5" in own


def test_headline_names_who_keeps_the_principle():
    assert "by every method; between the data by none" in headline(summaries_with())
    assert "by mixup, elliptic (path) and elliptic (marginal);" in headline(summaries_with(erm=2.0))


@pytest.mark.parametrize(
    ("spread", "text"),
    [
        (Spread(0.2291, 0.0102), "0.229 ± 0.010"),
        (Spread(14.113, 1.108), "14.11 ± 1.11"),
        (Spread(0.00354, 0.00079), "0.0035 ± 0.0008"),
        (Spread(100.0, 0.0), "100.00 ± 0.00"),
        (Spread(0.664, None), "0.66"),
    ],
)
def test_numbers_are_shown_with_the_decimals_of_their_deviation(spread, text):
    assert str(spread) == text


# the whole


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "new" / "folder"
    result = CliRunner().invoke(app, ["demo", "--quick", "--steps", "30", "--out", str(out)])
    assert result.exit_code == 0, result.output
    return result.output, out


def test_record_has_every_run_at_equal_cost(demo):
    results = json.loads((demo[1] / "results.json").read_text())
    runs = results["runs"]
    assert [(run["seed"], run["method"]) for run in runs] == [(s, m) for s in (0, 1) for m in METHODS]
    assert {run["n_evaluations"] for run in runs} == {30 * QUICK.batch_evaluations}
    assert results["settings"]["architecture"] == "Linear(2, 4) - tanh - Linear(4, 2)"
    assert results["versions"]["torch"] == torch.__version__
    assert not results["interrupted"]
    assert len(results["untrained"]) == 2


def test_output_states_the_reading_and_the_verdict(demo):
    words = " ".join(demo[0].split())
    assert "is read as Linear(2, 4) - tanh - Linear(4, 2)" in words
    assert "maximum principle" in words
    assert "elliptic (path) in" in words


def test_table_fits_eighty_columns(demo):
    assert max(len(line.rstrip()) for line in demo[0].splitlines() if "Wrote" not in line) <= 80


def test_image_is_an_image(demo):
    content = (demo[1] / "two_moons.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) > 50_000


def test_page_needs_no_network(demo):
    page = (demo[1] / "two_moons.html").read_text(encoding="utf-8")
    assert "Plotly.newPlot" in page
    assert page.count('<div class="plot"') == len(METHODS)
    assert not re.search(r"<(script|link|img|iframe)[^>]*\s(src|href)\s*=", page)
    outside_scripts = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert "http" not in outside_scripts
    assert "@import" not in outside_scripts
    assert "$" not in outside_scripts  # every place of the template is filled


def test_the_demo_needs_what_make_demo_installs(tmp_path):
    """Packages of extras that `make demo` does not name cannot be imported here, and are not missed."""
    root = Path(__file__).resolve().parents[3]
    (line,) = re.findall(r"-demo: SET := -e \. (.*)", (root / "Makefile").read_text(encoding="utf-8"))
    absent = {"fairlearn", "faiss", "imblearn", "joblib", "optuna", "pandas", "polars", "ray", "scipy"}
    absent |= {"jinja2", "safetensors", "sklearn", "skops", "skrub", "tensorboard"}
    absent -= set(line.split())
    code = f"""
        import sys
        sys.modules.update(dict.fromkeys({sorted(absent)!r}))
        sys.argv = ["elliptica", "demo", "--quick", "--steps", "2", "--out", {str(tmp_path)!r}]
        from elliptica.__main__ import main
        main()
        """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "two_moons.html").exists()


def without_times(study):
    result = record(study)
    for run in result["runs"]:
        del run["seconds"]
    return json.dumps(result)


def test_same_seed_same_results():
    studies = [Study(TINY), Study(TINY)]
    for study in studies:
        run_study(study)
    assert without_times(studies[0]) == without_times(studies[1])
    first, second = (run.evaluation.boundary_mean for run in studies[0].runs if run.method == "erm")
    assert first != second  # seeds differ


@pytest.mark.parametrize("n_before", [0, 1, 5])
def test_interrupt_keeps_what_is_finished(n_before, tmp_path, monkeypatch):
    calls = iter(range(100))

    def interrupted_train(*arguments):
        if next(calls) == n_before:
            raise KeyboardInterrupt
        return train(*arguments)

    monkeypatch.setattr(study_module, "train", interrupted_train)
    console = Console(file=io.StringIO(), width=80)
    assert run_demo(TINY, tmp_path / "out", console) == INTERRUPTED
    output = console.file.getvalue()
    assert f"{n_before} of 8 trainings had finished" in output
    written = {path.name for path in (tmp_path / "out").glob("*")}
    if n_before == 0:
        assert not written
        assert "Nothing was written" in output
        return
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["interrupted"]
    assert len(results["runs"]) == n_before
    assert ("two_moons.png" in written) == (n_before >= len(METHODS))


def test_files_of_others_are_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    study = Study(TINY, runs=[made_run("erm", 0)])
    assert write_files(study, tmp_path) == [tmp_path / "results.json"]
    assert sorted(path.name for path in tmp_path.glob("*")) == ["notes.txt", "results.json"]
