"""The reports of `elliptica diagnose --reports`, with and without test points, in every region."""

import pytest
import torch
from torch import nn

from elliptica.diagnostics import maximum_principle_report
from elliptica.diagnostics.fitted_model import FittedModel
from elliptica.diagnostics.landscape_reports import (
    QUESTIONS,
    LandscapeOptions,
    LandscapeReports,
    run_reports,
)
from elliptica.landscape.loss import LossField, excess_cross_entropy


def reports_on(model, x, y, test=None, *, loss_fn=None, test_groups=None, **options):
    loss_fn = loss_fn or (nn.MSELoss() if y.is_floating_point() else nn.CrossEntropyLoss())
    fitted = FittedModel(model, loss_fn, x, y, test=test, test_groups=test_groups)
    return LandscapeReports(fitted, LandscapeOptions(**options))


def test_the_numbers_are_those_of_the_library(generator):
    """One report, against a direct call."""
    x = torch.randn(40, 3, generator=generator)
    y = (x.sum(1) > 0).long()
    model = nn.Linear(3, 2)
    test = (x[:15] + 0.3, y[:15])
    reports = reports_on(model, x, y, test, n_probes=50)
    (section,) = run_reports(reports, ("test",))
    direct = maximum_principle_report(LossField(model, excess_cross_entropy, num_classes=2), (x, y), test)
    assert section.numbers["overall"]["count"] == direct.overall.count
    assert section.text == str(direct)


def test_rare_class_is_compared():
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    y = (torch.arange(60) < 10).long()
    reports = reports_on(nn.Linear(4, 2), x, y, (x + 0.5, y), n_walks=20)
    (section,) = run_reports(reports, ("ordering",))
    assert section.numbers is not None, section.text


@pytest.mark.parametrize("loss_fn", [nn.L1Loss(), nn.BCEWithLogitsLoss()], ids=["l1", "bce"])
def test_other_losses_than_the_two_usual_ones(loss_fn, generator):
    x = torch.randn(40, 3, generator=generator)
    y = (x[:, :1] > 0).float()
    reports = reports_on(nn.Linear(3, 1), x, y, loss_fn=loss_fn, n_probes=40, n_walks=20)
    computed = {section.name for section in run_reports(reports) if section.numbers is not None}
    assert computed == set(QUESTIONS) - {"test", "shift", "ordering"}


@pytest.mark.bad_input
def test_models_that_do_not_fit_the_data():
    x, y = torch.randn(10, 3), torch.arange(10) % 2

    class Pair(nn.Module):
        def forward(self, x):
            return x, x

    with pytest.raises(ValueError, match="it returns tuple, not a tensor"):
        reports_on(Pair(), x, y)
    unseen = (x[:3] + 0.1, torch.tensor([0, 1, 4]))
    with pytest.raises(ValueError, match=r"Labels range up to 4, but the model returns \(2,\)"):
        reports_on(nn.Linear(3, 2), x, y, unseen)
    reports_on(nn.Linear(3, 5), x, y, unseen)
    with pytest.raises(ValueError, match=r"targets are \(1,\) \(real numbers: a regression\)"):
        reports_on(nn.Linear(3, 2), x, y[:, None].float())


def test_without_test_points_nothing_is_called_a_test():
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    reports = reports_on(nn.Linear(3, 2), x, torch.arange(40) % 2, n_walks=20)
    assert "the file has no x_test" in reports.preface()
    (section,) = run_reports(reports, ("test",))
    assert section.numbers is None
    assert "no test points" in section.text


def test_a_region_that_grew_for_the_test_points_is_named():
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    y = torch.arange(40) % 2
    reports = reports_on(nn.Linear(6, 2), x, y, (x[:7] + 100, y[:7]))
    assert "7 queries lie outside the region of the training points" in reports.preface()


@pytest.mark.parametrize("domain", ["auto", "ball", "box", "reflecting_box", "hull"])
def test_every_region_gives_a_landscape(domain):
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    reports = reports_on(nn.Linear(3, 2), x, torch.arange(40) % 2, domain=domain, n_walks=20)
    (section,) = run_reports(reports, ("landscape",))
    assert section.numbers is not None, section.text
    ends_on_data = min(section.numbers["hit_share"])
    assert (ends_on_data == 1) == (domain in ("auto", "reflecting_box"))


def test_rare_class_in_a_reflecting_box():
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    y = (torch.arange(60) < 10).long()
    reports = reports_on(nn.Linear(2, 2), x, y, (x + 0.3, y), n_walks=20)
    (section,) = run_reports(reports, ("ordering",))
    assert section.numbers is not None, section.text


@pytest.mark.bad_input
def test_a_report_that_fails_does_not_stop_the_others():
    """A hull in ten dimensions is refused before the reports; a model that turns NaN is named."""
    x = torch.randn(40, 10, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="hull"):
        reports_on(nn.Linear(10, 1), x, x[:, :1], domain="hull")

    class Late(nn.Module):
        def forward(self, x):
            return torch.where(x[:, :1] > 1.04, torch.nan, x[:, :1])

    x = torch.linspace(0, 1, 40)[:, None] * torch.tensor([[1.0, 0.5, 0.2]]) + 0.01 * torch.rand(40, 3)
    middle = (x[1:] + x[:-1]) / 2
    reports = reports_on(Late(), x, x[:, :1], (middle, middle[:, :1]), domain="ball", n_walks=20)
    sections = list(run_reports(reports))
    assert len(sections) == len(QUESTIONS)
    failed = [s for s in sections if s.text.startswith("Not computed")]
    assert failed
    assert all("NaN" in s.text for s in failed)
