"""What a diagnosis consists of: limits, severities, and the words that are printed."""

import pytest
import torch
from torch import nn

import elliptica
from elliptica.tables.findings import Diagnosis, Finding, Quantity, fine, skipped


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
    found = elliptica.diagnose(nn.Linear(5, 1), nn.MSELoss(), x, y)
    assert any("few rows: below 30 the limits are rough" in s for s in found.about)
    for name, quantity in all_quantities(found):
        if "loss" in name and "above" not in name:
            assert quantity.lower >= 0, name
    assert "inf" not in str(found).replace("infinity", "").replace("information", "")
    x, y = line(200)
    enough = elliptica.diagnose(nn.Linear(5, 1), nn.MSELoss(), x, y)
    assert not any("few rows" in s for s in enough.about)


def test_a_diagnosis_in_words():
    wrong = Finding("labels", "warning", "Many.", "Check them.", rows=tuple(range(12)), title="Labels")
    found = Diagnosis(
        ("40 rows.",), (wrong, fine("inputs", "Alike."), skipped("leak", "no rows")), 40, 40, 0.95, 1
    )
    assert found.headline() == "Labels."
    assert found.severity == "warning"
    assert found.problems == (wrong,)
    text = str(found)
    assert "Rows are counted from 1, without the header." in text
    assert "training rows 0, 1, 2, 3, 4, 5, 6, 7 and 4 more" in text
    assert "Checked, no problem: inputs." in text
    assert "Not judged: leak (no rows)." in text
    calm = Diagnosis(("40 rows.",), (fine("inputs", "Alike."),), 40, 40, 0.95)
    assert (calm.headline(), calm.severity) == ("Nothing stands out.", "fine")
    assert "Nothing stands out." in str(calm)
    assert len(str(calm).splitlines()) <= 10


def test_limits_of_shares():
    assert str(Quantity.share(1, 4, 0.95)) == "25.0% (0.6% to 80.6%)"


@pytest.mark.bad_input
def test_names_of_classes_must_fit():
    x, y = line(20)
    labels = (y[:, 0] > 0).long()
    with pytest.raises(ValueError, match="one name for each class, but there are 3 names and 2 classes"):
        elliptica.diagnose(nn.Linear(5, 2), nn.CrossEntropyLoss(), x, labels, class_names="abc")
    with pytest.raises(ValueError, match="2 names and no single classes"):
        elliptica.diagnose(nn.Linear(5, 1), nn.MSELoss(), x, y, class_names="ab")
