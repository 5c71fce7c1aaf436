"""What a diagnosis says where rows are few, and which names and amounts it takes."""

import pytest
import torch
from torch import nn

import elliptica
from elliptica.diagnostics.findings import THRESHOLDS, Quantity, undecided


def line(n, d=5):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, d, generator=generator)
    return x, x[:, :1] + 0.5 * torch.randn(n, 1, generator=generator)


def all_quantities(found):
    for finding in found.findings:
        yield from [*finding.numbers.items(), *finding.breakdown.items()]


@pytest.mark.parametrize("n", [2, 3, 6])
def test_few_rows_are_called_few_and_no_loss_has_a_negative_limit(n):
    x, y = line(n)
    found = elliptica.diagnose(nn.Linear(5, 1), nn.MSELoss(), x, y, n=60)
    assert any("few rows: limits at the rows themselves are rough below 30" in s for s in found.about)
    for name, quantity in all_quantities(found):
        if ("loss" in name and "above" not in name) or name.startswith("s 0"):
            assert quantity.lower >= 0, name
    assert "inf" not in str(found).replace("infinity", "")
    if n == 2:
        assert "2 values are too few for limits" in found["slope"].sentence
    x, y = line(200)
    enough = elliptica.diagnose(nn.Linear(5, 1), nn.MSELoss(), x, y, n=60)
    assert not any("few rows" in s for s in enough.about)


def test_a_loss_of_ones_own_may_be_negative():
    x, y = line(4)
    found = elliptica.diagnose(
        nn.Linear(5, 1), lambda out, target: (out - target)[:, 0], x, y, n=20, target_space="real"
    )
    assert found["data"].numbers["mean loss"].lower < 0


def test_a_rare_class_is_not_passed_over_in_silence():
    """Three rows of class 1 are too few to judge; then no other class is called the worst."""
    y = torch.tensor([1] * 3 + [0] * 27)
    x = torch.randn(30, 2, generator=torch.Generator().manual_seed(0)) + 3 * y[:, None]
    found = elliptica.diagnose(
        nn.Linear(2, 2), nn.CrossEntropyLoss(), x, y, n=60, class_names=["common", "rare"]
    )
    assert "Classes with fewer than 5 rows are not judged: rare (3)." in found["data"].sentence
    assert "the worst class" not in found["data"].sentence
    assert list(found["data"].breakdown) == ["class common"]


@pytest.mark.parametrize(("confidence", "limit"), [(0.95, 0.05), (0.99, 0.01), (0.9, 0.5)])
def test_rows_needed_to_exclude_a_share_are_the_fewest(confidence, limit):
    needed = Quantity.share(0, 3, confidence).values_needed(limit)
    if needed is None:  # three are enough
        assert Quantity.share(0, 3, confidence).upper <= limit
        return
    assert Quantity.share(0, needed, confidence).upper <= limit
    assert Quantity.share(0, needed - 1, confidence).upper > limit


def test_rows_needed_for_a_mean_settle_it():
    """As many values of the same spread bring the limit to the threshold, up to Student's factor."""
    values = torch.tensor([1.0, 3.0]).repeat(10)
    needed = Quantity.mean(values, 0.95).values_needed(2.1)
    more = Quantity.mean(torch.tensor([1.0, 3.0]).repeat(needed // 2 + 1), 0.95)
    assert more.upper <= 2.1 < Quantity.mean(values, 0.95).upper
    assert more.upper == pytest.approx(2.1, abs=0.01)
    for settled in (1.0, 3.5):
        assert Quantity.mean(values, 0.95).values_needed(settled) is None
    assert Quantity.number(1.0).values_needed(0.5) is None
    assert Quantity.median(values[:2], 0.95).values_needed(2.5) == 1_000_000


def test_what_few_rows_cannot_exclude_is_said():
    x, y = line(6)
    found = elliptica.diagnose(nn.Linear(5, 1), nn.MSELoss(), x, y, n=60)["slope"]
    share = found.numbers["share of steep points at the data"]
    assert (share.value, found.severity) == (0, "fine")
    assert "6 rows are too few to tell whether it is above 5%" in found.advice
    assert "Pass more rows: about 72 are needed" in found.advice
    assert undecided("slope", Quantity.share(0, 72, 0.95)) is None
    assert "Raise n: many more" in undecided("profile", Quantity(0.1, 0.0, 1.0, 0.1, 5, "mean"), of="points")


@pytest.mark.parametrize(("height", "severity"), [(0.001, "fine"), (0.1, "look"), (0.3, "warning")])
def test_points_above_every_loss_must_be_so_by_an_amount_that_matters(height, severity):
    """A perfect fit at two places, off by ``height`` between them: each point is above, y varies by 1/4."""

    class Bump(nn.Module):
        def forward(self, x):
            return x + height * ((x > 0) & (x < 1))

    x = (torch.arange(40) % 2).double()[:, None]
    found = elliptica.diagnose(Bump(), nn.MSELoss(), x, x, n=400, sigma=0.0)["between"]
    assert found.severity == severity
    assert found.numbers["share above"].lower > THRESHOLDS["between"].warning
    excess = found.numbers["mean excess of those"].value
    assert excess == pytest.approx(height**2, rel=1e-6)
    assert (excess / 0.25 > 0.1) == (severity == "warning")


@pytest.mark.bad_input
def test_names_of_classes_must_fit():
    x, y = line(20)
    labels = (y[:, 0] > 0).long()
    with pytest.raises(ValueError, match="one name for each class, but there are 3 names and 2 classes"):
        elliptica.diagnose(nn.Linear(5, 2), nn.CrossEntropyLoss(), x, labels, class_names="abc")
    with pytest.raises(ValueError, match="2 names and no single classes"):
        elliptica.diagnose(nn.Linear(5, 1), nn.MSELoss(), x, y, class_names="ab")
