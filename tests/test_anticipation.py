"""The study of what anticipates the loss: what it compares, and that its page shows its records."""

import pytest
import torch
from torch import nn

import anticipation
import anticipation_table
from elliptica.lab.experiments.records import read_lines
from elliptica.landscape.loss import LossField


def records():
    return read_lines(anticipation.HERE / anticipation.RECORDS)


def test_the_page_shows_the_records():
    page = (anticipation.HERE / "README.md").read_text()
    assert anticipation_table.table(records()) in page


def test_every_cell_has_every_seed():
    found = {(r["problem"], r["dim"], r["shift"], r["seed"]) for r in records()}
    wanted = {
        (problem, dim, shift, seed)
        for problem, (_, dims) in anticipation.PROBLEMS.items()
        for dim in dims
        for shift in anticipation.SHIFTS
        for seed in anticipation.SEEDS
    }
    assert found == wanted


@pytest.mark.parametrize(("problem", "dim"), [("blobs", 2), ("friedman", 10)])
def test_no_estimate_sees_the_labels_of_the_rows(problem, dim, monkeypatch):
    monkeypatch.setattr(anticipation, "N_WALKS", 4)
    parts = anticipation.split(anticipation.PROBLEMS[problem][0](dim, 0), "mean", 0)
    (x, y), test = parts.train, parts.test
    model = nn.Linear(dim, 1 if y.is_floating_point() else 2).double()
    field = LossField(model, nn.MSELoss() if y.is_floating_point() else nn.CrossEntropyLoss())
    other = parts._replace(test=test._replace(y=test.y.flip(0)))
    first, second = (anticipation.estimates(p, [model, model], field, 0)[0] for p in (parts, other))
    for name, values in first.items():
        torch.testing.assert_close(values, second[name])
    near = torch.cdist(test.x, x).topk(10, largest=False).indices
    torch.testing.assert_close(first["neighbours' losses"], field(x, y)[near].mean(1))


def test_shifts():
    data = anticipation.blobs(3, 0)
    plain, moved, wide, beyond = (anticipation.split(data, shift, 0) for shift in anticipation.SHIFTS)
    torch.testing.assert_close((moved.test.x - plain.test.x).abs(), torch.full_like(plain.test.x, 0.5))
    torch.testing.assert_close(wide.test.x, 1.5 * plain.test.x)
    assert plain.test.y.tolist() == moved.test.y.tolist() == wide.test.y.tolist()
    assert (len(plain.train.x), len(plain.test.x), len(beyond.test.x)) == (300, 200, 150)
    torch.testing.assert_close(plain.train.x.std(0), torch.ones(3).double())


def test_averages_over_seeds_and_problems():
    def record(problem, seed, rank, level):
        measures = {"spearman": rank, "auroc": None, "level": level}
        place = {"problem": problem, "task": "regression", "dim": 1, "shift": "none", "seed": seed}
        return place | {"estimates": {"u": measures}}

    runs = [
        record("a", 0, 0.2, 0.1),
        record("a", 1, 0.4, 10.0),
        record("b", 0, 0.9, 3.0),
        record("b", 1, None, 3.0),
    ]
    found = anticipation_table.chosen(runs, "regression", "d ≤ 2")
    assert anticipation_table.values_of(found, "u", "spearman") == pytest.approx([0.3, 0.9])
    assert anticipation_table.values_of(found, "u", "level") == pytest.approx([1.0, 3.0])
    assert anticipation_table.values_of(found, "u", "auroc") == []
    assert anticipation_table.interval(found, "u", "spearman") == pytest.approx((0.3, 0.9))
