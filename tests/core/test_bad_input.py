"""What would be silently wrong is refused: one table of entries and bad values.

Everything else may raise what torch raises.
"""

import functools
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from elliptica import (
    BridgeMix,
    Covariance,
    Elliptic,
    Girsanov,
    GradientNorm,
    Green,
    InverseDistance,
    LabelKernel,
    Multiplicative,
    PartnerTable,
    Permutation,
    Weighting,
    auto_sigma,
    log_weights,
    partner_probabilities,
    path_losses,
    sample_bridge,
    sample_partners,
    sample_paths,
)
from elliptica.core.formulations import DynkinSum
from elliptica.core.losses import PerSampleLoss

pytestmark = [pytest.mark.bad_input, pytest.mark.usefixtures("own_checks")]

X, REAL, LABELS = torch.eye(4, 3), torch.arange(4.0)[:, None], torch.tensor([0, 1, 2, 0])
BAD = {value: torch.where(torch.eye(4, 3) > 0, value, 0.0) for value in (math.nan, math.inf)}
PATHS = {"sampling": "path", "n_bridges": 2}
TWO = torch.stack([torch.arange(4).roll(1), torch.arange(4).roll(2)], 1)


def real(x=X, y=REAL, *, model=None, loss=None, given=None, **settings):
    """A step of regression."""
    objective = Elliptic(model or nn.Linear(3, 1), loss or nn.MSELoss(), **settings)
    return objective(x, y, **(given or {}))


def classes(x=X, y=LABELS, *, loss=None, given=None, **settings):
    """A step of classification."""
    settings = {"num_classes": 3, **settings}
    return Elliptic(nn.Linear(3, 3), loss or nn.CrossEntropyLoss(), **settings)(x, y, **(given or {}))


def drawn(model=None, **settings):
    return Elliptic(model or nn.Linear(3, 1), nn.MSELoss(), **settings).sample(X, REAL)


def after_drawing(otherwise, **settings):
    return Elliptic(nn.Linear(3, 1), nn.MSELoss(), **settings).loss_on(drawn(**otherwise))


class First(Weighting):
    """Losses of another shape."""

    def __call__(self, losses, slopes, paths):
        return losses[0]


def evaluated(y=REAL, **given):
    return Elliptic(nn.Linear(3, 1), nn.MSELoss()).eval()(X, y, **given)


def soft(*rows):
    return torch.tensor([*rows, *[[0.5, 0.5, 0.0]] * (4 - len(rows))])


NAN, LONG = BAD[math.nan], LABELS[:, None]
BCE, MULTI, SUM = nn.BCEWithLogitsLoss(), {"weighting": "multiplicative", **PATHS}, {"reduction": "sum"}
BY_CLASS = Covariance(X, LABELS, by_class=True)

#: By the word that the message must hold, the argument.
VALUE_ERRORS = {
    # data that are not numbers
    "x must": [
        *(lambda v=v: real(v) for v in BAD.values()),
        *(lambda f=f: f(NAN) for f in (sample_partners, partner_probabilities, PartnerTable, Covariance)),
        lambda: auto_sigma(NAN),
        lambda: BridgeMix(num_classes=3)(NAN, LABELS),
    ],
    "y must": [
        *(lambda v=v: real(y=v[:, :1]) for v in BAD.values()),
        lambda: classes(y=NAN),
        lambda: Covariance(X, NAN),
        # targets of another space
        *(lambda v=v: classes(y=LABELS + v) for v in (1, -100)),
        lambda: BridgeMix(num_classes=2)(X, LABELS),
        lambda: classes(given={"end": (X, LABELS + 1)}),
        *(lambda v=v: classes(y=v) for v in (LABELS.float(), LABELS + 2**32)),
        lambda: classes(y=soft([0.5, 0.4, 0.0])),
        lambda: classes(y=soft([1.5, -0.5, 0.0])),
        lambda: classes(y=torch.full((4, 2), 0.5)),
        lambda: real(loss=BCE),
        lambda: real(y=REAL[:2]),
        lambda: real(y=REAL[:1]),
    ],
    "num_classes": [lambda: classes(num_classes=None)],
    "target_space": [lambda: real(loss=lambda a, b: (a - b).abs()), lambda: classes(target_space="mena")],
    # shapes that would broadcast
    "y has": [
        lambda: real(y=REAL[:, 0]),
        lambda: real(y=REAL[:, 0], loss=F.mse_loss),
        lambda: real(y=REAL[:, 0], loss=lambda a, b: (a - b).abs(), target_space="real"),
        lambda: evaluated(REAL[:, 0]),
    ],
    "rows": [lambda: real(x=(X, X[:2]), bridged=(0,))],
    "bridged": [lambda: real(x=(X, X))],
    "model": [lambda: real(model=nn.Flatten(0))],
    "loss_fn has weight": [lambda: real(y=torch.rand(4, 1), loss=nn.BCEWithLogitsLoss(torch.ones(4, 1)))],
    # sample weights, partners, far ends
    "sample_weight": [
        *(lambda w=w: real(given={"sample_weight": w}) for w in (torch.ones(4, 1), torch.ones(1))),
        *(lambda w=w: real(given={"sample_weight": torch.full((4,), w)}) for w in (-1.0, math.nan)),
        lambda: evaluated(sample_weight=torch.ones(4, 1)),
        lambda: real(given={"end": (X, REAL, torch.ones(4))}),
        lambda: real(given={"sample_weight": torch.ones(4), "end": (X, REAL, -torch.ones(4))}),
    ],
    "paths": [
        lambda: real(given={"paths": drawn(), "sample_weight": torch.ones(4)}),
        lambda: path_losses(nn.Linear(3, 1), nn.MSELoss(), drawn(nn.Sequential(nn.Linear(3, 1)), at="0")),
    ],
    "partners": [
        *(lambda v=v: real(given={"partners": v}) for v in (torch.arange(1, 5), torch.arange(4) - 1, TWO)),
        lambda: real(pairing=lambda *_: TWO[:, :1] + 3),
        lambda: real(given={"partners": TWO[:, 0], "end": (X, REAL)}),
        lambda: real(**MULTI, given={"partners": TWO}),
        lambda: after_drawing({**PATHS, "pairing": lambda *_: TWO}, **MULTI),
    ],
    "end": [
        lambda: real(given={"end": (NAN, REAL)}),
        lambda: real(given={"end": (X, NAN[:, :1])}),
        lambda: real(given={"end": (X[:1], REAL[:1])}),
        lambda: real(given={"end": (X.double(), REAL)}),
        *(lambda end=end: real(**MULTI, given={"end": end}) for end in ((X[TWO], REAL), (X, REAL[TWO]))),
        lambda: sample_bridge(X, X[:1]),
    ],
    # noise
    "sigma": [
        *(lambda v=v: real(sigma=v) for v in (-0.1, math.nan, math.inf, "gren", torch.ones(4, 1))),
        lambda: real(sigma=torch.tensor([1.0, -1.0, 0.0])),
        lambda: real(sigma=torch.ones(3, requires_grad=True)),
        lambda: real(sigma_y=torch.ones(4, 1)),
        lambda: auto_sigma(X[:1]),
        lambda: real(sigma=lambda start, *_: torch.ones(len(start))),
        # otherwise the second input would come from the nearer end
        lambda: sample_paths((X, X), REAL, target_space="real", sigma=Covariance(X, REAL), bridged=(0, 1)),
    ],
    "class": [lambda: sample_paths(X, LONG[:, :1] / 2, target_space="unit", sigma=BY_CLASS)],
    "sigma_y": [
        lambda: real(sigma_y=-0.1),
        lambda: real(sigma=Covariance(X, REAL), sigma_y=0.1),
        lambda: real(**PATHS, sigma_y=0.0, weighting=Girsanov(drift="both")),
        lambda: DynkinSum(nn.Linear(3, 3), nn.CrossEntropyLoss(), num_classes=3, sigma_y=0.1),
    ],
    "dim": [lambda: real(sigma=Green(dim=2)), lambda: sample_bridge(X[:, :2], X[:, :2], sigma="green")],
    # settings that would mean another one
    "sampling": [
        lambda: real(sampling="mena"),
        lambda: real(weighting="girsanov"),
        lambda: after_drawing({}, weighting="girsanov", sampling="path"),
        lambda: log_weights(nn.Linear(3, 1), nn.MSELoss(), sample_paths(X, REAL, target_space="real")),
    ],
    "quadrature": [
        lambda: real(quadrature="mena"),
        lambda: real(quadrature="uniform", sampling="path"),
        lambda: BridgeMix(num_classes=3, sampling="path", quadrature="left"),
    ],
    "pairing": [
        lambda: real(pairing="mena"),
        *(lambda f=f: real(loss=f, pairing=Permutation("same_class")) for f in (nn.MSELoss(), BCE)),
    ],
    "weighting": [
        *(lambda v=v: real(**PATHS, weighting=v) for v in ("mena", First())),
        lambda: real(**MULTI, end_time=0.5),
    ],
    "simplex": [lambda: real(simplex="mena")],
    "bn": [lambda: real(bn="mena")],
    "n_times": [*(lambda v=v: real(n_times=v) for v in (0, 1))],
    "n_bridges": [
        lambda: real(n_bridges=0),
        lambda: real(weighting="multiplicative", sampling="path"),
        lambda: after_drawing({"sampling": "path"}, **MULTI),
    ],
    "end_time": [*(lambda v=v: real(end_time=v) for v in (0.0, 1.5))],
    "bandwidth": [
        lambda: real(pairing="label_kernel"),
        *(lambda v=v: real(pairing=LabelKernel(v)) for v in (0.0, -1.0, math.nan)),
    ],
    "power": [lambda: real(pairing=InverseDistance(-1.0)), lambda: PartnerTable(X, power=-1.0)],
    "xi": [*(lambda v=v: GradientNorm(v) for v in (-1.0, math.nan))],
    "drift": [
        lambda: Girsanov(drift="bot"),
        lambda: Multiplicative(drift="bot"),
        lambda: real(**PATHS, weighting=Multiplicative(drift=lambda x, y: x[:, :1])),
        lambda: real(**PATHS, sigma=Covariance(X, REAL), weighting=Girsanov(drift="both")),
        lambda: real(**PATHS, sigma=torch.eye(3)[0], weighting=Multiplicative(drift=lambda x, y: x)),
        lambda: real(**PATHS, sigma_y=0.0, weighting=Multiplicative(drift=lambda x, y: (x, y))),
    ],
    # losses that would be averaged wrongly
    "reduction": [lambda: PerSampleLoss(nn.MSELoss(**SUM))],
    "log_target": [lambda: classes(loss=nn.KLDivLoss(log_target=True))],
    "ignore_index": [lambda: classes(loss=nn.CrossEntropyLoss(ignore_index=2))],
    "loss_fn must": [
        lambda: real(loss=functools.partial(F.mse_loss, **SUM)),
        lambda: real(loss=lambda a, b: (a - b).square().mean(), target_space="real"),
        lambda: real(loss=lambda a, b: a[:2, 0], target_space="real"),
    ],
}
OTHER_ERRORS = {
    (TypeError, "x"): [lambda: real(x=LONG.expand(4, 3))],
    (TypeError, "y"): [
        *(lambda loss=loss: real(y=LONG, loss=loss) for loss in (nn.MSELoss(), BCE)),
        lambda: real(y=LONG > 0),
        lambda: classes(y=LABELS.to(torch.complex64)),
        lambda: Covariance(X, LABELS),
    ],
    (TypeError, "partners"): [lambda: real(given={"partners": torch.full((4,), 1.9)})],
}
ERRORS = {**{(ValueError, word): calls for word, calls in VALUE_ERRORS.items()}, **OTHER_ERRORS}


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize(
    ("error", "word", "call"),
    [(error, word, call) for (error, word), calls in ERRORS.items() for call in calls],
)
def test_what_would_be_silently_wrong_is_refused(error, word, call):
    with pytest.raises(error, match=word):
        call()


def test_checks_of_values_can_be_switched_off():
    assert torch.isnan(real(BAD[math.nan], validate=False))
    classes(y=soft([0.5, 0.4, 0.0]), validate=False)


def test_good_neighbours_of_bad_input():
    """What looks like the above and is right."""
    real(x=torch.zeros(1, 3), y=REAL[:1])
    real(x=torch.eye(3), y=torch.eye(3), model=nn.Linear(3, 3))  # as many outputs as rows
    real(sigma=torch.tensor(0.1), sigma_y=torch.ones(1), given={"partners": torch.arange(4)})
    real(weighting="multiplicative", **PATHS, given={"partners": TWO[:, :1].repeat(1, 2)})
    classes(y=F.one_hot(LABELS, 3).float(), num_classes=None)
    classes(loss=nn.CrossEntropyLoss(weight=torch.ones(3)), num_classes=None)
    real(y=torch.rand(4, 1), loss=nn.BCEWithLogitsLoss(pos_weight=torch.ones(1)))
