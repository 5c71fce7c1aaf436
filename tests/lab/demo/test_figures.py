"""Figures for print: what they show, sizes, fonts, bytes, and the command in the file."""

import dataclasses
import io
import re
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("matplotlib")

from elliptica.cli import app
from elliptica.lab.demo import expected_loss
from elliptica.lab.demo.expected_loss import (
    LOSSES,
    POINTS,
    QUERY,
    RADIUS,
    draw_expected_loss,
    solve_expected_loss,
    solve_on_grid,
)
from elliptica.lab.demo.figures import (
    WIDTHS,
    draw_boundary_losses,
    draw_figure,
    draw_surfaces,
    save_figure,
    surface_colours,
)
from elliptica.lab.demo.results import SMALL_PRINT, summarise
from elliptica.lab.demo.study import Evaluation, Run, train_exhibits
from elliptica.lab.demo.training import QUICK
from elliptica.lab.demo.uncertainty import ClassUncertainty, draw_uncertainty, read_uncertainty
from elliptica.lab.experiments.records import records_of
from elliptica.landscape import MaximumPrinciple
from laws import ALPHA

RECORDS = Path(__file__).resolve().parents[3] / "results" / "tables"


@pytest.fixture(scope="module")
def exhibits():
    return train_exhibits(["erm", "mixup", "elliptic"], dataclasses.replace(QUICK, n_steps=20))


@pytest.fixture(scope="module")
def idea():
    return solve_expected_loss(n_walks=500, size=54)


def parts():
    generator = np.random.default_rng(0)
    return [
        ClassUncertainty("one", (30, 10), {m: generator.random((4, 2)) for m in ("erm", "elliptic")}),
        ClassUncertainty("two", (5, 50, 20), {m: generator.random((1, 3)) for m in ("erm", "elliptic")}),
    ]


def figures(exhibits, idea):
    return {
        "1": lambda width: draw_surfaces({m: exhibits[m] for m in ("erm", "elliptic")}, width),
        "2": lambda width: draw_expected_loss(idea, width),
        "3": lambda width: draw_boundary_losses(exhibits, width),
        "uncertainty": lambda width: draw_uncertainty(parts(), width),
    }


@pytest.mark.slow
@pytest.mark.parametrize("width", ["column", "page"])
@pytest.mark.parametrize("name", ["1", "2", "3", "uncertainty"])
def test_files_have_size_command_and_the_same_bytes_every_time(name, width, exhibits, idea, tmp_path):
    draw = figures(exhibits, idea)[name]
    forms = {"column": "pdf", "page": "svg"}  # each once for each figure: surfaces take seconds to draw
    written = []
    for attempt in ("a", "b"):
        figure = draw(width)
        save_figure(figure, tmp_path / attempt, forms[width], "elliptica demo <&> 1")
        written.append((tmp_path / attempt).read_bytes())
    assert written[0] == written[1]
    assert not list(tmp_path.glob("*.part"))
    check = {"svg": check_svg, "pdf": check_pdf}[forms[width]]
    check(written[0], WIDTHS[width])
    texts = [t.get_text() for t in figure.findobj(lambda artist: hasattr(artist, "get_text"))]
    assert not any("nan" in text for text in texts)


def test_images_have_300_dots_per_inch_and_the_command(tmp_path):
    for attempt in ("a", "b"):
        save_figure(draw_uncertainty(parts()), tmp_path / attempt, "png", "elliptica demo <&> 1")
    check_png((tmp_path / "a").read_bytes(), WIDTHS["page"])
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def check_png(data, inches):
    from PIL import Image

    image = Image.open(io.BytesIO(data))
    assert image.width == round(inches * 300)
    assert image.text["Description"] == "elliptica demo <&> 1"
    assert len(np.unique(np.asarray(image.convert("L")))) > 20  # not blank


def check_svg(data, inches):
    text = data.decode()
    assert f'width="{inches * 72:g}pt"' in text
    assert "elliptica demo &lt;&amp;&gt; 1" in text
    assert "<dc:date>" not in text
    assert "<path" in text


def check_pdf(data, inches):
    assert f"/MediaBox [ 0 0 {inches * 72:g} ".encode() in data
    assert b"(elliptica demo <&> 1)" in data
    assert b"CreationDate" not in data
    assert b"/CIDFontType2" in data or b"/TrueType" in data  # type 42
    assert b"/Type3" not in data


@pytest.mark.slow
def test_text_stays_within_the_figure(exhibits, idea):
    """At the width of a column a heading that does not fit would be cut off; ticks are matplotlib's."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    for name, draw in figures(exhibits, idea).items():
        for width in ("column", "page"):
            figure = draw(width)
            canvas = FigureCanvasAgg(figure)
            canvas.draw()
            right, top = figure.bbox.max
            for text in figure.findobj(lambda artist: type(artist).__name__ in ("Text", "Annotation")):
                if text.get_text().strip() and text.get_visible() and "mathdefault" not in text.get_text():
                    box = text.get_window_extent(canvas.get_renderer())
                    assert box.x0 >= -1, (name, width, text.get_text())
                    assert box.x1 <= right + 1, (name, width, text.get_text())
                    assert box.y1 <= top + 1, (name, width, text.get_text())


def test_verdicts_are_those_of_the_losses(exhibits):
    figure = draw_surfaces({m: exhibits[m] for m in ("erm", "elliptic")})
    words = [text.get_text() for text in figure.texts]
    for method in ("erm", "elliptic"):
        losses = exhibits[method].losses
        outer, inner = float(losses.boundary.max()), float(losses.inside.max())
        kept = f"boundary {outer:.2f} ≥ inside {inner:.2f}\nbound kept"
        broken = f"boundary {outer:.2f} < inside {inner:.2f}\nbound broken"
        assert (kept if outer >= inner else broken) in words
    losses = dataclasses.replace(exhibits["erm"].losses, inside=exhibits["erm"].losses.inside + 100)
    broken = draw_surfaces({"erm": dataclasses.replace(exhibits["erm"], losses=losses)})
    assert any("bound broken" in text.get_text() for text in broken.texts)


def test_surfaces_are_red_exactly_above_the_bound():
    red, _, blue, _ = surface_colours(np.array([0.0, 0.5, 1.0, 1.001, 2.0, 9.0])).T
    assert (red > blue).tolist() == [False, False, False, True, True, True]


@pytest.mark.slow
def test_the_picture_shows_every_seed_and_says_what_it_is(exhibits):
    def seed(method, number, ratio):
        verdict = MaximumPrinciple(0.0, 1.0, 0.1, ratio, 0.1, ratio - 1, ratio <= 1, True)
        return Run(method, number, Evaluation(0.3, 0.2, verdict, 0.9), 1000, 1.0)

    ratios = {"erm": (3.0, 0.9, 2.0), "mixup": (0.9, 1.2, 0.8), "elliptic": (0.9, 0.8, 0.7)}
    summaries = summarise([seed(m, n, r) for m, values in ratios.items() for n, r in enumerate(values)])
    figure = draw_figure(summaries, exhibits, QUICK)
    words = " ".join(" ".join(text.get_text() for text in figure.texts).split())
    assert "ERM: the loss inside the moons rises above its boundary in 2 of 3 seeds" in words
    assert "Elliptic training: in none" in words
    assert "median seed" in words
    assert SMALL_PRINT in words
    for axes, values in zip(
        (a for a in figure.axes if a.name == "rectilinear"), ratios.values(), strict=True
    ):
        dots, ringed = axes.collections[1:]
        assert dots.get_offsets()[:, 1].tolist() == sorted(values)
        assert ringed.get_offsets()[0, 1] == sorted(values)[1]
    lowest = min(text.get_window_extent().y0 for text in figure.texts)
    assert lowest > 0  # the small print ends within the picture


def test_the_dashed_line_is_the_largest_loss_on_the_boundary(exhibits):
    figure = draw_boundary_losses(exhibits)
    for axes, exhibit in zip(figure.axes, exhibits.values(), strict=True):
        dashed = axes.lines[0]
        assert list(dashed.get_ydata()) == [float(exhibit.losses.boundary.max())] * 2
        assert dashed.get_linestyle() == "--"
        assert list(axes.lines[1].get_ydata()) == [float(exhibit.losses.inside.max())] * 2


@pytest.mark.slow
@pytest.mark.statistical
def test_walks_and_finite_differences_agree_on_the_idea(seed):
    """Two solvers of one equation; a grid that is twice as fine tells how far the first may be off."""
    idea = solve_expected_loss(n_walks=20_000, size=54, seed=seed)
    column = (QUERY[0] + 0.7) / 5.4

    def at_query(size):
        values = solve_on_grid(size)
        return float(values[int((QUERY[1] + 0.7) / 4.4 * len(values)), int(column * size)])

    coarse, fine = at_query(216), at_query(432)
    from scipy import stats

    slack = stats.norm.isf(ALPHA / 2) * idea.error + 2 * abs(coarse - fine)
    assert abs(idea.value - fine) < slack
    assert abs(np.mean(LOSSES) - fine) > slack  # the mean of the data would be noticed
    assert sum(idea.shares) == pytest.approx(1.0)
    assert idea.value == pytest.approx(np.dot(idea.shares, LOSSES))


def test_the_grid_solution_keeps_the_maximum_principle():
    values = solve_on_grid(54)
    assert float(values.max()) == max(LOSSES)
    assert float(values.min()) == min(LOSSES)
    free = torch.ones_like(values, dtype=torch.bool)
    free[values == values.max()] = free[values == values.min()] = False
    inner = values[1:-1, 1:-1]
    mean = (values[2:, 1:-1] + values[:-2, 1:-1] + values[1:-1, 2:] + values[1:-1, :-2]) / 4
    given = torch.zeros_like(inner, dtype=torch.bool)
    for loss in LOSSES:
        given |= inner == loss
    assert float((inner - mean)[~given].abs().max()) < 1e-6  # harmonic wherever nothing is given


def test_bridges_end_at_the_data(idea):
    assert torch.equal(
        idea.bridges[:, :, -1], torch.tensor(POINTS, dtype=torch.float64)[:, None].expand(4, 2, 2)
    )
    assert torch.equal(idea.bridges[:, :, 0], torch.tensor(QUERY, dtype=torch.float64).expand(4, 2, 2))
    assert RADIUS > 0


def test_scores_are_scaled_over_all_methods_and_sorted_by_size():
    scores = {"erm": np.array([[0.2, 0.6], [0.4, 0.6]]), "elliptic": np.array([[0.5, 0.7], [0.5, 0.9]])}
    part = ClassUncertainty("x", (30, 10), scores)
    assert part.classes == [1, 0]
    found = part.normalised()
    assert found["erm"][0] == pytest.approx([0.6, 0.0])  # (0.6 - 0.3) / 0.5
    assert found["elliptic"][0] == pytest.approx([1.0, 0.4])
    assert found["erm"][1] == pytest.approx([0.0, np.std([0.2, 0.4], ddof=1) / 0.5])


def test_one_value_everywhere_is_no_division_by_zero():
    part = ClassUncertainty("x", (1, 2), {"erm": np.full((1, 2), 0.5)})
    assert part.normalised() == {"erm": ([0.0, 0.0], [0.0, 0.0])}


def test_scores_are_those_of_the_committed_records():
    (part,) = read_uncertainty(RECORDS, lambda run: [1, 2, 3, 4, 5], ["retinamnist"], ["erm"])
    records = [r for r in records_of(RECORDS, "table6").read() if r.run.dataset == "retinamnist"]
    wanted = [r.metrics["test"].uncertainty for r in records if r.run.row == "erm"]
    assert part.scores["erm"].tolist() == [[row[str(c)] for c in range(5)] for row in wanted]


def test_records_without_the_score_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"elliptica run table6 --dataset retinamnist --methods erm --out"):
        read_uncertainty(tmp_path, lambda run: [1], ["retinamnist"])
    found = run("uncertainty", "--runs", tmp_path, "-o", tmp_path / "x.png")
    assert found.exit_code == 2
    assert "No record of erm" in found.output
    assert not list(tmp_path.iterdir())


def run(name, *options):
    return CliRunner().invoke(app, ["demo", "--figure", name, *map(str, options)])


def test_the_command_writes_the_file_and_the_command_into_it(tmp_path, idea, monkeypatch):
    monkeypatch.setattr(expected_loss, "solve_expected_loss", lambda: idea)
    found = run("2", "-o", tmp_path / "deep" / "idea.svg")
    assert found.exit_code == 0, found.output
    text = (tmp_path / "deep" / "idea.svg").read_text()
    assert "elliptica demo --figure 2 --format svg --width column" in text
    assert str(tmp_path) not in text
    assert "3.25 in wide" in found.output


@pytest.mark.slow
@pytest.mark.needs_data
def test_uncertainty_from_records_and_data(data_dir, tmp_path):
    found = run("uncertainty", "-o", tmp_path / "u.pdf", "--runs", RECORDS, "--data-dir", data_dir)
    assert found.exit_code == 0, found.output
    streams = re.findall(rb"stream\r?\n(.*?)endstream", (tmp_path / "u.pdf").read_bytes(), re.DOTALL)
    assert any(b"BT" in zlib.decompressobj().decompress(s) for s in streams if s[:1] == b"x")  # text as text


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["-o", "f.png", "--format", "svg"], "f.png must end in .svg"),
        (["-o", "f.jpg"], "f.jpg must end in one of .png, .svg, .pdf"),
        (["-o", "f.jpg", "--format", "png"], "f.jpg must end in .png"),
        (["-o", "f"], "f must end in one of"),
    ],
)
def test_a_file_has_the_ending_of_its_format(tmp_path, monkeypatch, options, said):
    monkeypatch.chdir(tmp_path)
    found = run("2", *options)
    assert found.exit_code == 2
    assert said in " ".join(found.output.replace("│", " ").split())
    assert not list(tmp_path.iterdir())


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--format", "svg"], "--format belongs to --figure. Add --figure NAME"),
        (["--width", "page", "--quick"], "--width belongs to --figure"),
        (["--figure", "1", "--seeds", "3"], "--seeds belongs to the demo without --figure"),
        (["--figure", "2", "--quick"], "--quick belongs to the demo without --figure"),
        (["--out", "file"], "file is a file. Pass the name of a folder"),
        (["--figure", "2", "-o", "folder.png"], "folder.png is a folder. Pass the name of a file"),
    ],
)
def test_options_that_do_not_go_together(tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("folder.png").mkdir()
    found = CliRunner().invoke(app, ["demo", *arguments])
    assert found.exit_code == 2
    assert said in " ".join(found.output.replace("│", " ").split())
