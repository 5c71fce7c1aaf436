"""What all objectives promise, in one table: eval mode, generators, inputs, switched off, bad input."""

import copy
import inspect
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from baseline_cases import GROUPINGS, UNEVEN, batch, network, replay, same, value_and_gradient
from elliptica import Green
from elliptica import baselines as b
from elliptica.baselines.erm import ERM
from elliptica.baselines.groups import GroupObjective
from elliptica.lab.experiments.methods import MODULES

CE, MSE = nn.CrossEntropyLoss(), nn.MSELoss()
WEIGHTED = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2, 3, 4]).double())


@dataclass(frozen=True)
class Method:
    """An objective, the settings at which it is ordinary training, and how it is called."""

    kind: type[ERM]
    settings: dict
    off: dict | None = None  # changes of the settings that switch it off
    draws: bool = True
    layer: str | None = None  # the setting that names a layer, if there is one
    real: bool = False  # for real targets only
    classes: bool = False  # for classes only

    def make(self, model, loss_fn=None, at="1", **changes):
        settings = {**self.settings, **changes}
        if self.layer == "layers":
            settings["layers"] = [None, at]
        elif self.layer:
            settings[self.layer] = at
        return self.kind(model, loss_fn or self.loss, **settings)

    @property
    def loss(self):
        return MSE if self.real else CE

    @property
    def n_out(self):
        return 1 if self.real else 4

    @property
    def has_groups(self):
        return issubclass(self.kind, GroupObjective)

    def data(self, generator, n=12):
        """Inputs, targets, and groups if it needs them."""
        x, y = batch(generator, n)
        if self.real:
            y = torch.randn(n, 1, generator=generator, dtype=torch.float64)
        return (x, y, UNEVEN[:n]) if self.has_groups else (x, y)


METHODS = {
    "erm": Method(b.ERM, {}, off={}, draws=False),
    "smoothing": Method(b.LabelSmoothing, {}, off={"smoothing": 0.0}, draws=False, classes=True),
    "noise": Method(b.InputNoise, {"sigma": 0.1}, off={"sigma": 0.0}),
    "bridge noise": Method(
        b.InputNoise, {"sigma": torch.tensor([0.1, 0.0, 0.5]), "law": "bridge"}, off={"sigma": torch.zeros(3)}
    ),
    "green noise": Method(b.InputNoise, {"sigma": Green(), "law": "bridge"}),
    "mixup": Method(b.Mixup, {}, off={"alpha": 0.0}),
    "mixup at": Method(b.Mixup, {}, off={"alpha": 0.0}, layer="at"),
    "manifold": Method(b.ManifoldMixup, {}, off={"alpha": 0.0}, layer="layers"),
    "nfm": Method(b.NFM, {}, off={"alpha": 0.0, "additive": 0.0, "multiplicative": 0.0}, layer="layers"),
    "regmixup": Method(b.RegMixup, {}, off={"weight": 0.0}),
    "mixupe": Method(b.MixupE, {"eta": 0.3}, off={"alpha": 0.0, "eta": 0.0}, classes=True),
    "c-mixup": Method(b.CMixup, {"bandwidth": 0.6}, off={"alpha": 0.0}, real=True),
    "c-mixup at": Method(b.CMixup, {"bandwidth": 0.6}, off={"alpha": 0.0}, layer="at", real=True),
    "ada": Method(b.ADA, {"alpha": 3.0}, off={"alpha": 1.0}, real=True),
    "ada at": Method(b.ADA, {"alpha": 3.0}, off={"alpha": 1.0}, layer="at", real=True),
    "foma": Method(b.FOMA, {"rho": 0.5}, off={"alpha": 0.0}, layer="layers", real=True),
    "umix": Method(b.UMIX, {"probability": 0.8}, off={"probability": 0.0}),
    "focal": Method(b.Focal, {}, off={"gamma": 0.0}, draws=False, classes=True),
    "tilted": Method(b.Tilted, {"t": -1.7}, off={"t": 0.0}, draws=False),
    "cvar": Method(b.DRO, {"alpha": 0.35}, off={"alpha": 1.0}, draws=False),
    "chi2": Method(b.DRO, {"divergence": "chi2", "rho": 0.5}, off={"rho": 0.0}, draws=False),
    "chi2 by alpha": Method(b.DRO, {"divergence": "chi2", "alpha": 0.4}, off={"alpha": 1.0}, draws=False),
    "doro": Method(b.DORO, {"epsilon": 0.15}, off={"epsilon": 0.0, "alpha": 1.0}, draws=False),
    "chi2 doro": Method(b.DORO, {"epsilon": 0.15, "alpha": 0.4, "divergence": "chi2"}, draws=False),
    "groupdro": Method(b.GroupDRO, {"n_groups": 12}, draws=False),
    "irm": Method(b.IRM, {"anneal_steps": 0}, draws=False),
    "ib-irm": Method(b.IBIRM, {"anneal_steps": 0, "ib_anneal_steps": 0}, layer="at", draws=False),
    "v-rex": Method(b.VREx, {"anneal_steps": 0}, draws=False),
    "coral": Method(b.CORAL, {}, layer="at", draws=False),
    "domainmix": Method(b.DomainMix, {}),
    "lisa": Method(b.LISA, {}, off={"alpha": 0.0}),
}
every = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
OFF = {name: method for name, method in METHODS.items() if method.off is not None}


def test_the_table_has_all_objectives():
    public = {value for value in vars(b).values() if isinstance(value, type) and issubclass(value, ERM)}
    assert {method.kind for method in METHODS.values()} == public >= set(MODULES.values())


DEFAULTS = {
    b.Mixup: {"alpha": 1.0}, b.ManifoldMixup: {"alpha": 2.0}, b.UMIX: {"alpha": 0.5, "probability": 0.5},
    b.MixupE: {"alpha": 2.0, "eta": 0.001, "threshold": 1.0}, b.RegMixup: {"alpha": 20.0, "weight": 1.0},
    b.NFM: {"alpha": 1.0, "additive": 0.4, "multiplicative": 0.2}, b.LabelSmoothing: {"smoothing": 0.1},
    b.Focal: {"gamma": 2.0}, b.Tilted: {"t": 1.0}, b.DORO: {"alpha": 0.2}, b.GroupDRO: {"step_size": 0.01},
    b.IRM: {"penalty": 100, "anneal_steps": 500}, b.VREx: {"penalty": 10, "anneal_steps": 500},
    b.IBIRM: {"penalty": 100, "anneal_steps": 500, "ib_penalty": 100, "ib_anneal_steps": 500},
    b.CORAL: {"penalty": 1.0}, b.LISA: {"selection": 0.5, "alpha": 2.0, "mix": "input"},
    b.DomainMix: {"alpha": 0.2}, b.CMixup: {"alpha": 2.0}, b.ADA: {"alpha": 2.0}, b.FOMA: {"alpha": 1.0},
}  # fmt: skip


def test_defaults_are_those_of_the_papers():
    for kind, values in DEFAULTS.items():
        settings = inspect.signature(kind).parameters
        assert {name: settings[name].default for name in values} == values


@every
def test_eval_mode_is_the_ordinary_loss_and_draws_nothing(method, generator):
    model = network(n_out=method.n_out)
    x, y, *group = method.data(generator)
    weight = torch.rand(12, generator=generator, dtype=torch.float64)
    objective = method.make(model).eval()
    before = copy.deepcopy(objective.state_dict())
    state = generator.get_state(), torch.get_rng_state()
    plain = value_and_gradient(method.loss(model(x), y), model)
    same(value_and_gradient(objective(x, y, *group, generator=generator), model), plain)
    same(value_and_gradient(objective(x, y), model), plain)  # groups are not needed
    losses = (model(x) - y).square()[:, 0] if method.real else F.cross_entropy(model(x), y, reduction="none")
    same(objective(x, y, sample_weight=weight), (weight * losses).mean())
    assert torch.equal(generator.get_state(), state[0])
    assert torch.equal(torch.get_rng_state(), state[1])
    assert all(torch.equal(value, before[name]) for name, value in objective.state_dict().items())


@every
def test_the_same_generator_gives_the_same_result_and_inputs_stay(method, generator):
    model = network(n_out=method.n_out)
    data = method.data(generator)
    kept, state, fresh = [value.clone() for value in data], torch.get_rng_state(), generator.get_state()
    first, second = (method.make(model)(*data, generator=g) for g in (replay(generator), generator))
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(*pair) for pair in zip(data, kept, strict=True))
    if method.draws:
        assert any(not torch.equal(first, method.make(model)(*data, generator=generator)) for _ in range(12))
    else:
        assert torch.equal(generator.get_state(), fresh)
        assert torch.equal(first, method.make(model)(*data))
    objective = method.make(model)
    objective(*data, generator=generator)
    copy.deepcopy(objective)  # nothing of the call is kept
    extra = {name for name in objective.state_dict() if not name.startswith("model.")}
    assert extra <= {"q", "steps"}  # of GroupDRO, and of annealed penalties


@pytest.mark.parametrize("method", OFF.values(), ids=OFF)
def test_switched_off_is_erm(method, generator):
    model = network(n_out=method.n_out)
    x, y, *group = method.data(generator)
    weight = torch.rand(12, generator=generator, dtype=torch.float64)
    for loss_fn in [MSE] if method.real else [CE, WEIGHTED]:
        for w in (None, weight):
            expected = ERM(model, loss_fn)(x, y, sample_weight=w)
            ours = method.make(model, loss_fn, **method.off)
            ours = ours(x, y, *group, sample_weight=w, generator=generator)
            same(value_and_gradient(ours, model), value_and_gradient(expected, model))


class TwoInputs(nn.Module):
    def __init__(self, n_out):
        super().__init__()
        self.net = network(n_out=n_out)

    def forward(self, a, b):
        return self.net(a + 2 * b)


@every
def test_tuples_and_dicts_of_inputs(method, generator):
    """Alike, and unchanged, with int32 groups, too; what is linear in the inputs commutes with their sum."""
    model = TwoInputs(method.n_out)
    x, y, *group = method.data(generator)
    group = [value.int() for value in group]
    x = {"a": x, "b": x.flip(0)}
    before = {name: value.clone() for name, value in x.items()}
    losses = [
        method.make(model, at="net.1")(given, y, *group, generator=replay(generator))
        for given in (x, tuple(x.values()))
    ]
    assert torch.equal(*losses)
    if method.kind not in (b.InputNoise, b.NFM, b.FOMA):
        joint = method.make(model.net)(x["a"] + 2 * x["b"], y, *group, generator=replay(generator))
        same(losses[0], joint)
    assert all(g.isfinite().all() for g in value_and_gradient(losses[0], model)[1])
    assert all(torch.equal(x[name], value) for name, value in before.items())


@pytest.mark.filterwarnings("ignore:epsilon")  # DORO drops nothing of one row
@every
def test_odd_batches_and_half_precision_stay_finite(method, generator):
    """One row, rows that are all alike, any grouping; a gradient in float16 and bfloat16."""
    model = network(n_out=method.n_out)
    data = method.data(generator)
    batches = [[value[rows] for value in data] for rows in (slice(0, 1), [0] * 5)]
    if method.has_groups:
        batches += [[*data[:2], group] for group in GROUPINGS.values()]
    for given in batches:
        value, slopes = value_and_gradient(method.make(model)(*given, generator=generator), model)
        assert all(t.isfinite().all() for t in (value, *slopes))
    for dtype in (torch.bfloat16, torch.float16):
        low = copy.deepcopy(model).to(dtype)
        given = [v.to(dtype) if v.is_floating_point() else v for v in data]
        value, slopes = value_and_gradient(method.make(low)(*given, generator=generator), low)
        assert all(t.isfinite().all() for t in (value, *slopes))
        assert all(g.dtype == dtype for g in slopes)


CLASSES = {name: method for name, method in METHODS.items() if not method.real}


@pytest.mark.parametrize("method", CLASSES.values(), ids=CLASSES)
def test_one_hot_labels_are_labels(method, generator):
    x, y, *group = method.data(generator)
    model = network()
    for loss_fn in (CE, WEIGHTED) if method.kind is not ERM else (CE,):
        hard, soft = (
            method.make(model, loss_fn)(x, labels, *group, generator=replay(generator))
            for labels in (y, F.one_hot(y, 4).double())
        )
        same(hard, soft)


ANY = {name: method for name, method in METHODS.items() if not method.real and not method.classes}


@pytest.mark.parametrize("method", ANY.values(), ids=ANY)
def test_real_targets_and_ends(method, generator):
    model = network(n_out=1)
    x, _, *group = method.data(generator)
    y = x.sum(1, keepdim=True)
    ends = [{}] if method.has_groups else [{}, {"end": (x.flip(0), y.flip(0))}]
    for end in ends:
        loss = method.make(model, MSE)(x, y, *group, generator=generator, **end)
        assert all(t.isfinite().all() for t in value_and_gradient(loss, model)[1])


# bad input: what would give a wrong number without a word


def with_nan(x):
    x = x.clone()
    x[3, 0] = torch.nan
    return x


@pytest.mark.bad_input
@pytest.mark.usefixtures("own_checks")
@every
def test_bad_batches(method, generator):
    objective = method.make(network(n_out=method.n_out))
    x, y, *group = method.data(generator)
    wrong = [
        ("x", (with_nan(x), y), {}),
        ("x", (x[:0], y[:0]), {}),
        ("y", (x, y[1:]), {}),
        ("sample_weight", (x, y), {"sample_weight": torch.ones(3)}),
        ("sample_weight", (x, y), {"sample_weight": -torch.ones(12)}),
        ("sample_weight", (x, y), {"sample_weight": torch.ones(12, 1)}),
    ]
    wrong += (
        [("y", (x, with_nan(y)), {}), ("y", (x, y.long()), {})] if method.real else [(None, (x, y + 4), {})]
    )
    for name, given, options in wrong:
        for mode in (True, False):
            with pytest.raises((ValueError, TypeError), match=name):
                objective.train(mode)(*given, *group, **options)
    objective.train()
    if objective.mixes_inputs:
        with pytest.raises(TypeError, match="x"):
            objective(x.long(), y, *group)
    if group:
        for bad in (None, UNEVEN.double(), UNEVEN - 1, UNEVEN[1:], UNEVEN[:, None]):
            with pytest.raises(ValueError, match="group"):
                objective(x, y, bad)


ENDS = [m for m in METHODS.values() if issubclass(m.kind, b.Mixup)]


@pytest.mark.bad_input
@pytest.mark.usefixtures("own_checks")
@pytest.mark.parametrize("method", ENDS, ids=lambda m: m.kind.__name__)
def test_bad_ends(method, generator):
    settings = {"probability": 1.0} if method.kind is b.UMIX else {}
    objective = method.make(network(n_out=method.n_out), **settings)
    x, y = method.data(generator)
    ones = torch.ones(12).double()
    for end in ((x[1:], y[1:]), (x, y[:1]), (with_nan(x), y), (x, y, ones)):
        with pytest.raises(ValueError, match="end"):
            objective(x, y, end=end)
    with pytest.raises(ValueError, match="sample_weight"):
        objective(x, y, sample_weight=ones, end=(x, y, -ones))


NAN, INF = float("nan"), float("inf")
BAD_SETTINGS = {  # the first of the settings is the wrong one
    b.LabelSmoothing: [{"smoothing": 1.5}],
    b.InputNoise: [{"sigma": -0.1}, {"sigma": -torch.ones(3)}, {"sigma": "much"}, {"law": "no", "sigma": 1}],
    b.Mixup: [{"alpha": -1.0}, {"alpha": INF}],
    b.NFM: [{"additive": -1.0, "layers": [None]}, {"multiplicative": INF, "layers": [None]}],
    b.RegMixup: [{"weight": -1.0}],
    b.MixupE: [{"eta": -0.1}, {"threshold": NAN}],
    b.UMIX: [{"probability": 1.5}],
    b.CMixup: [{"bandwidth": 0.0}, {"alpha": NAN, "bandwidth": 1.0}],
    b.ADA: [{"alpha": 0.5}],
    b.FOMA: [{"rho": -1}, {"alpha": -1, "rho": 1}, {"scaled": "no", "rho": 1}, {"targets": "no", "rho": 1}],
    b.DRO: [
        *({"alpha": 0.0}, {"alpha": 1.5}, {"rho": 1.0}, {"divergence": "chi"}),
        *({"rho": -1.0, "divergence": "chi2"}, {"rho": 1.0, "alpha": 0.5, "divergence": "chi2"}),
    ],
    b.DORO: [{"epsilon": 1.0}, {"epsilon": -0.1}],
    b.Tilted: [{"t": INF}, {"t": NAN}],
    b.Focal: [{"gamma": -1.0}],
    b.GroupDRO: [{"step_size": -0.1, "n_groups": 2}]
    + [{"group_sizes": sizes, "n_groups": 2} for sizes in ([1, 2, 3], [0, 0])],
    b.IRM: [{"penalty": -1.0}],
    b.IBIRM: [{"ib_penalty": -1.0, "at": "1"}],
    b.VREx: [{"penalty": NAN}],
    b.CORAL: [{"penalty": -1.0, "at": "1"}],
    b.DomainMix: [{"alpha": -1.0}],
    b.LISA: [{"selection": 1.1}, {"alpha": NAN}, {"mix": "cutmi"}],
}


@pytest.mark.bad_input
@pytest.mark.usefixtures("own_checks")
@pytest.mark.parametrize(("kind", "settings"), [(k, s) for k, each in BAD_SETTINGS.items() for s in each])
def test_bad_settings(kind, settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        kind(network(), CE, **settings)


Y, LOSSES = torch.randn(6, 1), torch.rand(5)
LABELS, EDGE = torch.arange(6) % 2, torch.eye(2)
TABLE = b.CorrectnessTable(2)
BAD_CALLS = {
    "kernel, labels": (lambda: b.TargetKernel(LABELS, 1.0), "y"),
    "kernel, infinite": (lambda: b.TargetKernel(Y / 0, 1.0), "y"),
    "kernel, bandwidth": (lambda: b.TargetKernel(Y, 0.0), "bandwidth"),
    "clusters, labels": (lambda: b.anchor_clusters(None, LABELS, 2), "y"),
    "clusters, NaN": (lambda: b.anchor_clusters(Y * torch.nan, Y, 2), "x"),
    "order, labels": (lambda: b.neighbour_order(LABELS, 2), "y"),
    "order, size": (lambda: b.neighbour_order(Y, 0), "batch_size"),
    "cvar, alpha": (lambda: b.cvar_weights(LOSSES, 0.0), "alpha"),
    "cvar, NaN": (lambda: b.cvar_weights(LOSSES / 0 * 0, 0.5), "losses"),
    "cvar, weights": (lambda: b.cvar_weights(LOSSES, 0.5, sample_weight=-LOSSES), "sample_weight"),
    "chi2, matrix": (lambda: b.chi2_weights(torch.rand(2, 2), 0.5), "losses"),
    "chi2, rho": (lambda: b.chi2_weights(LOSSES, -1.0), "rho"),
    "balance": (lambda: b.group_balanced_weights(LABELS.float()), "group"),
    "split": (lambda: b.split_by_group(Y, Y, LABELS[1:]), "group"),
    "smoothing": (lambda: b.matched_smoothing(4, -0.1), "sigma_y"),
    "smoothing, times": (lambda: b.matched_smoothing(4, 0.1, quadrature="no"), "quadrature"),
    "smoothed twice": (
        lambda: b.LabelSmoothing(network(), nn.CrossEntropyLoss(label_smoothing=0.1)),
        "loss_fn",
    ),
    "upsampling": (lambda: b.upsampled_rows(LABELS), "errors"),
    "epochs": (lambda: b.umix_weights(TABLE, start=0, length=1), "length"),
    "labels of a column": (
        lambda: b.ErrorRecorder(2).update(torch.arange(2), EDGE, torch.zeros(2, 1).long()),
        "y",
    ),
    "NaN logits": (lambda: b.ErrorRecorder(2).update(torch.arange(2), EDGE * NAN, LABELS[:2]), "output"),
    "NaN labels": (lambda: b.ErrorRecorder(2).update(torch.arange(2), EDGE, EDGE * NAN), "y"),
    "cutmix of rows": (lambda: b.LISA(network(), CE, mix="cutmix")(Y.double(), LABELS, LABELS), "x"),
    "smoothed numbers": (lambda: b.LabelSmoothing(nn.Linear(1, 1), MSE)(Y, Y), "y"),
    "mixupE of numbers": (lambda: b.MixupE(nn.Linear(1, 1), MSE)(Y, Y), "y"),
    "an unknown group": (
        lambda: b.GroupDRO(nn.Linear(1, 2), CE, 2, group_sizes=[3, 0])(Y, LABELS, LABELS),
        "group_sizes",
    ),
    "another model": (
        lambda: b.fish_step(nn.Linear(1, 1), None, b.ERM(nn.Linear(1, 1), MSE), [(Y, Y)]),
        "objective",
    ),
    "nothing recorded": (lambda: b.ErrorRecorder(2).errors, "update"),
    "an empty epoch": (lambda: b.CorrectnessTable(2).end_epoch(), "update"),
    "focal of numbers": (lambda: b.Focal(network(), MSE), "loss_fn"),
    "fish, rate": (lambda: b.fish_step(nn.Linear(1, 1), None, None, [], rate=1.5), "rate"),
}


@pytest.mark.bad_input
@pytest.mark.usefixtures("own_checks")
@pytest.mark.parametrize(("call", "name"), BAD_CALLS.values(), ids=BAD_CALLS)
def test_bad_calls(call, name):
    with pytest.raises((ValueError, RuntimeError), match=name):
        call()


class Turned(nn.Module):
    """A layer whose first axis is not the batch."""

    def __init__(self):
        super().__init__()
        self.turn = nn.Flatten(0)

    def forward(self, x):
        return self.turn(x).view(len(x), -1)[:, :1]


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "make",
    [
        lambda m: b.Mixup(m, MSE, at="turn"),
        lambda m: b.ADA(m, MSE, at="turn"),
        lambda m: b.FOMA(m, MSE, rho=0.5, layers=["turn"]),
        lambda m: b.CORAL(m, MSE, at="turn"),
        lambda m: b.IBIRM(m, MSE, at="turn"),
        lambda m: b.RegMixup(nn.Sequential(m, nn.Flatten(0), nn.Unflatten(0, (4, -1))), MSE),
    ],
)
def test_a_layer_without_a_batch_axis(make, generator):
    x = torch.randn(12, 3, generator=generator)
    objective = make(Turned())
    group = (UNEVEN,) if isinstance(objective, GroupObjective) else ()
    with pytest.raises(ValueError, match="rows"):
        objective(x, x[:, :1], *group)
