"""The two-moons demo: its parts against what is known of them, and the whole thing quickly."""

import dataclasses
import io
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from scipy import stats
from torch import nn
from typer.testing import CliRunner

from elliptica import Elliptic, partner_probabilities
from elliptica.baselines.mixup import mixup_batch
from elliptica.cli import app
from elliptica.cli.demo import INTERRUPTED, run_demo
from elliptica.cli.demo import Variant as CommandVariant
from elliptica.lab.data.moon_regions import REGIONS, draw_region
from elliptica.lab.data.toy import distance_to_moons
from elliptica.lab.demo import study as study_module
from elliptica.lab.demo import training
from elliptica.lab.demo.page import write_files
from elliptica.lab.demo.results import (
    SMALL_PRINT,
    compare_with_paper,
    find,
    headline,
    is_default,
    summarise,
)
from elliptica.lab.demo.study import (
    Evaluation,
    Run,
    Study,
    evaluate,
    evaluate_losses,
    moon_surfaces,
    point_losses,
    read_runs,
    record,
    run_study,
    typical_run,
)
from elliptica.lab.demo.training import (
    METHODS,
    QUICK,
    VARIANTS,
    DemoSettings,
    Variant,
    build_network,
    describe_variant,
    others_in_groups,
    partners_in_groups,
    stream,
    stream_seed,
    train,
    variant_settings,
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


@pytest.mark.parametrize("settings", [{"alpha": -1.0}, {"share": 1.5}])
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


@pytest.mark.statistical
def test_random_partners_are_uniform_among_the_others(generator):
    n = 20_000
    draws = others_in_groups(4 * n, 4, generator=generator).flatten()
    assert torch.equal(draws // 4, torch.arange(4 * n) // 4)
    for row, found in enumerate((draws % 4).reshape(n, 4).T.numpy()):
        counts = np.bincount(found, minlength=4)
        assert counts[row] == 0
        assert stats.chisquare(counts[counts > 0]).pvalue > 1e-6
        assert stats.chisquare(counts).pvalue < 1e-6  # with oneself it would not be


@pytest.mark.parametrize("group", [1, 4])
def test_partners_refuse_groups_that_do_not_fit(group):
    with pytest.raises(ValueError, match="group"):
        partners_in_groups(torch.ones(6, 2), group)
    with pytest.raises(ValueError, match="group"):
        others_in_groups(6, group)


# settings, variants and streams


@pytest.mark.parametrize(
    "settings",
    [
        {"region": "square"},
        {"pairing": "nearest"},
        {"activation": "sin"},
        {"sigma": -1.0},
        {"n_seeds": 0},
        {"n_steps": 0},
        {"n_times": 7},
        {"n_boundary": 1505},
    ],
)
@pytest.mark.usefixtures("own_checks")
def test_settings_refuse(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        DemoSettings(**settings)


@pytest.mark.parametrize(
    ("variant", "words", "n_parameters"),
    [
        ("half-disc", "Linear(2, 4) - tanh - Linear(4, 2)", 22),
        ("two-hidden", "Linear(2, 4) - tanh - Linear(4, 4) - tanh - Linear(4, 2)", 42),
    ],
)
def test_variants_of_the_network(variant, words, n_parameters):
    settings = variant_settings(variant)
    assert settings.architecture == words
    network = build_network(settings, 0)
    assert sum(p.numel() for p in network.parameters()) == n_parameters
    assert sum(isinstance(layer, nn.Tanh) for layer in network) == len(settings.hidden)


def test_variants_are_those_of_the_command_and_cover_the_regions():
    assert tuple(VARIANTS) == get_args(Variant) == get_args(CommandVariant)
    assert len(REGIONS) == 10
    for variant in VARIANTS:
        settings = variant_settings(variant, TINY)
        assert describe_variant(variant)
        assert is_default(settings) == (variant in ("half-disc", "short"))
        assert settings.region == (variant if variant in REGIONS else "half-disc")


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
    return [
        draw_region("half-disc", TINY.n_boundary, TINY.n_interior, generator=stream(s, "data"))
        for s in (0, 1)
    ]


@pytest.mark.parametrize("method", METHODS)
def test_training_costs_the_same_and_is_repeatable(method, moons):
    steps = []
    first = train(method, moons, TINY, steps.append)
    second = train(method, moons, TINY)
    assert first.n_evaluations == TINY.n_steps * TINY.batch_evaluations
    assert sum(steps) == TINY.n_steps
    for seed in (0, 1):
        networks = (first.networks[seed], second.networks[seed], build_network(TINY, seed))
        for a, b, before in zip(*(n.parameters() for n in networks), strict=True):
            assert torch.equal(a, b)
            assert not torch.equal(a, before)


@pytest.mark.parametrize("pairing", ["random", "inverse_distance"])
@pytest.mark.parametrize("method", METHODS)
def test_networks_do_not_see_data_of_other_seeds(method, pairing, moons):
    """Rows of one network in the place of another's, e.g. times before seeds, would be noticed."""
    settings = dataclasses.replace(TINY, pairing=pairing)
    moved = moons[1]._replace(boundary_x=moons[1].boundary_x + 3)
    before = train(method, moons, settings).networks
    after = train(method, [moons[0], moved], settings).networks
    for a, b in zip(before[0].parameters(), after[0].parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(before[1][0].weight, after[1][0].weight, atol=1e-2)


def test_the_objective_is_the_library_s(generator):
    """One seed: the loss is that of `Elliptic.paper` with the same partners and noise."""
    network = build_network(TINY, 0)
    x, y = torch.randn(1, 50, 2, generator=generator), torch.randint(2, (1, 50), generator=generator)
    found = training._OBJECTIVES["elliptic"](network, TINY)(x, y, torch.Generator().manual_seed(3))
    same = torch.Generator().manual_seed(3)
    partners = others_in_groups(50, 50, generator=same)
    objective = Elliptic.paper(network, nn.CrossEntropyLoss(), num_classes=2, n_times=10, sigma=0.2)
    torch.testing.assert_close(found, objective(x[0], y[0], partners=partners, generator=same))


def test_the_control_has_noise_and_nothing_mixed(generator):
    """Bridges from a point to itself: with no noise, the control is ERM."""
    settings = dataclasses.replace(TINY, sigma=0.0)
    network = build_network(settings, 0)
    x, y = torch.randn(1, 50, 2, generator=generator), torch.randint(2, (1, 50), generator=generator)
    erm, noise, elliptic = (
        training._OBJECTIVES[method](network, settings)(x, y, generator).item()
        for method in ("erm", "noise", "elliptic")
    )
    assert noise == pytest.approx(erm, rel=1e-5)
    assert elliptic != pytest.approx(erm, rel=1e-5)
    noisy = training._OBJECTIVES["noise"](network, TINY)(x, y, generator)
    assert noisy.item() != pytest.approx(erm, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_training_learns(method, moons):
    networks = train(method, moons, dataclasses.replace(QUICK, n_steps=200)).networks
    for network, data in zip(networks, moons, strict=True):
        accuracy = (network(data.interior_x).argmax(1) == data.interior_y).double().mean()
        assert accuracy > 0.65


def test_losses_of_pure_labels_are_cross_entropy(generator):
    network, x = nn.Linear(2, 2), torch.randn(9, 2, generator=generator)
    y = torch.randint(2, (9,), generator=generator)
    expected = F.cross_entropy(network(x), y, reduction="none")
    torch.testing.assert_close(point_losses(network, x, F.one_hot(y, 2).float()).float(), expected.detach())


def test_evaluation_is_of_boundary_and_inside(moons):
    network = nn.Linear(2, 2)
    losses = evaluate_losses(network, moons[0])
    found = evaluate(network, moons[0], losses)
    assert (len(losses.boundary), len(losses.inside)) == (TINY.n_boundary, TINY.n_interior)
    assert found.inside.boundary_max == float(losses.boundary.max())
    assert found.inside.interior_max == float(losses.inside.max())
    assert found.inside_mean == pytest.approx(float(losses.inside.mean()))
    assert network.weight.dtype == torch.float32  # the network itself is left alone


def test_surfaces_cover_the_half_discs_up_to_the_boundary():
    upper, lower = moon_surfaces(nn.Linear(2, 2))
    for x, y in ((upper.x, upper.y), (1 - lower.x, 0.5 - lower.y)):
        assert float(np.hypot(x, y).max()) == pytest.approx(1, abs=1e-9)
        assert float(y.min()) == pytest.approx(0, abs=1e-12)
        np.testing.assert_allclose(y[:, 0], 0, atol=1e-12)  # the chord
        np.testing.assert_allclose(np.hypot(x, y)[:, -1], 1, atol=1e-9)  # the half circle


@pytest.mark.parametrize(("region", "radius"), [("tube", 0.2), ("thin-tube", 0.1), ("band", 0.2)])
def test_surfaces_cover_the_tubes_up_to_the_boundary(region, radius):
    for moon, surface in enumerate(moon_surfaces(nn.Linear(2, 2), region=region)):
        points = torch.from_numpy(np.stack([surface.x.ravel(), surface.y.ravel()], 1))
        distance = distance_to_moons(points)[:, moon]
        assert float(distance.max()) == pytest.approx(radius, abs=1e-9)
        edge = distance.reshape(surface.x.shape)[:, [0, -1]]
        assert torch.allclose(edge, torch.full_like(edge, radius), atol=1e-9)
        assert float(distance.min()) < 1e-9


# summaries


def made_run(method, seed, *, inside_max=0.5):
    verdict = MaximumPrinciple(0.0, 1.0, 0.1, inside_max, 0.25, inside_max - 1, inside_max <= 1, True)
    return Run(method, seed, Evaluation(0.3, 0.2, verdict, 0.9), 1000, 1.0 + seed)


def summaries_with(**inside_max):
    runs = [made_run(m, s, inside_max=inside_max.get(m, 0.5)) for s in range(3) for m in METHODS]
    return summarise(runs)


def test_summary_counts_and_averages():
    summary = summarise([made_run("erm", 0), made_run("erm", 1, inside_max=1.5)])[0]
    assert (summary.n_kept, summary.n_broken, summary.n_seeds) == (1, 1, 2)
    assert summary.seconds == 3.0  # all seeds together
    assert summary.ratios == (0.5, 1.5)
    assert (summary.above, summary.inside_max, summary.accuracy) == (0.25, 1.0, 0.9)


@pytest.mark.parametrize(("ratios", "seed"), [([3, 1, 2], 2), ([4, 1, 3, 2], 3), ([5], 0)])
def test_the_typical_run_is_the_lower_median(ratios, seed):
    runs = [made_run("erm", number, inside_max=ratio) for number, ratio in enumerate(ratios)]
    assert typical_run(runs).seed == seed


@pytest.mark.parametrize(
    ("inside_max", "expected"),
    [
        ({}, "not reproduced"),
        ({"erm": 2.0, "mixup": 2.0}, "Here the contrast is gradual: ERM in 3 and mixup in 3 seeds"),
        ({"erm": 2.0}, "which we do not reproduce"),
        ({"elliptic": 2.0}, "which we do not reproduce"),
    ],
)
def test_comparison_with_the_paper(inside_max, expected):
    assert expected in compare_with_paper(summaries_with(**inside_max))


def test_comparison_needs_all_methods():
    assert "not compared" in compare_with_paper(summarise([made_run("erm", 0)]))


def test_findings_are_the_numbers_and_the_small_print():
    verdicts = [made_run("erm", 0).evaluation.inside, made_run("erm", 0, inside_max=2.0).evaluation.inside]
    inside, untrained, small = find(summaries_with(erm=2.0), verdicts, DemoSettings())
    assert "above its boundary in 3 of 3 seeds. Elliptic training: in none" in inside
    assert "untrained ones keep it in 1 of 2 seeds" in untrained
    assert small == SMALL_PRINT
    assert len(find(summaries_with(erm=2.0), verdicts, variant_settings("tube"))) == 2


def test_headline_says_what_is_seen():
    assert "every method keeps" in headline(summaries_with())
    assert "in 3 of 3 seeds. Elliptic training: in 3" in headline(summaries_with(erm=2.0, elliptic=1.5))
    assert headline(summarise([made_run("erm", 0, inside_max=2.0)]))  # after an interrupt


# the whole


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "new" / "folder"
    result = CliRunner().invoke(app, ["demo", "--quick", "--steps", "30", "--out", str(out)])
    assert result.exit_code == 0, result.output
    return result.output, out


@pytest.mark.slow
def test_record_has_every_run_at_equal_cost(demo):
    results = json.loads((demo[1] / "results.json").read_text())
    runs = results["runs"]
    assert [(run["seed"], run["method"]) for run in runs] == [(s, m) for m in METHODS for s in (0, 1)]
    assert {run["n_evaluations"] for run in runs} == {30 * QUICK.batch_evaluations}
    assert results["settings"]["architecture"] == "Linear(2, 4) - tanh - Linear(4, 2)"
    assert results["versions"]["torch"] == torch.__version__
    assert not results["interrupted"]
    assert len(results["untrained"]) == 2


def test_output_states_the_network_and_the_verdict(demo):
    words = " ".join(demo[0].split())
    assert "is taken as Linear(2, 4) - tanh - Linear(4, 2)" in words
    assert "Bound: no loss inside the moons above the largest on their boundary" in words
    assert " ".join(SMALL_PRINT.split()) in words


def test_records_are_read_again(demo):
    content = json.loads((demo[1] / "results.json").read_text())
    runs, untrained = read_runs(content)
    assert [dataclasses.asdict(run) for run in runs] == content["runs"]
    assert len(untrained) == 2


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["tube", "shell", "by-distance"])
def test_variants_are_drawn(variant, tmp_path):
    arguments = ["demo", "--quick", "--steps", "2", "--variant", variant, "--out", str(tmp_path)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    settings = json.loads((tmp_path / "results.json").read_text())["settings"]
    assert (settings["region"], settings["pairing"]) == {
        "tube": ("tube", "random"),
        "shell": ("shell", "random"),
        "by-distance": ("half-disc", "inverse_distance"),
    }[variant]
    assert (tmp_path / "two_moons.png").exists()


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
    assert "@import" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)


@pytest.mark.slow
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


@pytest.mark.parametrize("n_before", [0, 1, 3])
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
    assert f"{n_before} of 4 methods had finished" in output
    written = {path.name for path in (tmp_path / "out").glob("*")}
    if n_before == 0:
        assert not written
        assert "Nothing was written" in output
        return
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["interrupted"]
    assert len(results["runs"]) == n_before * TINY.n_seeds
    assert written == {"results.json"}


def test_files_of_others_are_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    study = Study(TINY, runs=[made_run("erm", 0)])
    assert write_files(study, tmp_path) == [tmp_path / "results.json"]
    assert sorted(path.name for path in tmp_path.glob("*")) == ["notes.txt", "results.json"]


@pytest.mark.slow
def test_a_failure_keeps_the_old_picture(tmp_path, monkeypatch):
    assert run_demo(TINY, tmp_path, Console(file=io.StringIO())) == 0
    old = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(old) == {"results.json", "two_moons.png", "two_moons.html"}

    def full(_, part, **__):
        Path(part).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
    with pytest.raises(OSError, match="No space left") as caught:
        run_demo(TINY, tmp_path, Console(file=io.StringIO()))
    assert caught.value.filename == str(tmp_path / "two_moons.png")
    now = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(now) == set(old)
    assert now["two_moons.png"] == old["two_moons.png"]
