"""Bridges in a hidden layer, running statistics, and modes: against models that are split by hand."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import reference
from elliptica import Covariance, Elliptic, Girsanov
from elliptica.core.layers import evaluation_mode, hidden_features, untracked_statistics

pytestmark = pytest.mark.filterwarnings("ignore::elliptica.core.inputs.EllipticWarning")

N = 6
WEIGHTINGS = (None, "gradient_norm", "gradient_softmax", "girsanov", "multiplicative", Girsanov(0.5, "both"))


def normal(*shape, generator):
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


class Split(nn.Module):
    def __init__(self, lower=None):
        super().__init__()
        self.lower = lower or nn.Sequential(nn.Linear(3, 4), nn.Tanh()).double()
        self.upper = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()

    def forward(self, x):
        return self.upper(self.lower(x))


def sliced():
    parts = Split()
    return nn.Sequential(*parts.lower, *parts.upper), "1", lambda m: m[:2], lambda m: m[2:]


def hooked():
    return Split(), "lower", lambda m: m.lower, lambda m: m.upper


def nested():
    return nn.Sequential(Split()), "0.lower", lambda m: m[0].lower, lambda m: m[0].upper


class Sequence(nn.Sequential):
    """With a constructor and a forward pass of its own: a slice would be another model."""

    def __init__(self):
        super().__init__(*(parts := Split()).lower, *parts.upper)

    def forward(self, x):
        return super().forward(2 * x)


def subclassed():
    return Sequence(), "1", lambda m: lambda x: m[1](m[0](2 * x)), lambda m: nn.Sequential(*list(m)[2:])


WAYS = [
    (sampling, weighting)
    for sampling in ("path", "marginal")
    for weighting in WEIGHTINGS
    if sampling == "path" or weighting in (None, "gradient_norm", "gradient_softmax")
]


@pytest.mark.parametrize("make", [sliced, hooked, nested, subclassed])
@pytest.mark.parametrize(("sampling", "weighting"), WAYS)
@pytest.mark.parametrize("far", ["partners", "end", "drawn"])
def test_equals_two_parts(far, sampling, weighting, make, generator):
    """The upper part trained on encoded points: value, and gradients of all parameters, also below."""
    model, at, lower, upper = make()
    x, y = normal(N, 3, generator=generator), normal(N, 2, generator=generator)
    settings = {"sampling": sampling, "n_times": 4, "n_bridges": 2, "weighting": weighting}
    settings |= {"sigma": Covariance(normal(9, 4, generator=generator)), "sigma_y": 0.3}
    settings["pairing"] = "nearest"  # in the features
    inside = Elliptic(model, nn.MSELoss(), at=at, **settings)
    after = Elliptic(upper(model), nn.MSELoss(), **settings)
    given, encoded = {}, {}
    if far == "partners":
        given = encoded = {"partners": torch.randint(N, (N,), generator=generator)}
    elif far == "end":
        shape = (N,) if weighting == "multiplicative" else (N, 2)
        ends = normal(*shape, 3, generator=generator), normal(*shape, 2, generator=generator)
        given, encoded = {"end": ends}, {"end": (lower(model)(ends[0]), ends[1])}
    twin = generator.clone_state()
    loss = inside(x, y, **given, generator=generator)
    expected = after(lower(model)(x), y, **encoded, generator=twin)
    reference.assert_same(loss, expected, model)
    assert reference.gradients(loss, model)[0].abs().max() > 0


class Text(nn.Module):
    """Masked mean of embeddings, then a head."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 4)
        self.head = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))

    def forward(self, tokens, mask):
        return self.pool(self.embedding(tokens), mask)

    def pool(self, embedded, mask):
        weight = mask.unsqueeze(2).to(embedded.dtype)
        return self.head((embedded * weight).sum(1) / weight.sum(1))


@pytest.mark.parametrize("sampling", ["path", "marginal"])
@pytest.mark.parametrize("weighting", [None, "gradient_norm", "gradient_softmax"])
def test_tokens_with_a_mask(sampling, weighting, generator):
    """Embeddings are bridged; the mask comes from the nearer end."""
    model, partner = Text(), torch.tensor([2, 0, 4, 1, 3])
    tokens = torch.randint(11, (5, 6), generator=generator)
    mask = torch.arange(6) < torch.tensor([[6], [2], [3], [1], [4]])
    y = torch.randint(3, (5,), generator=generator)
    settings = {"num_classes": 3, "at": "embedding", "sampling": sampling, "sigma": 0.0}
    objective = Elliptic(model, nn.CrossEntropyLoss(), **settings, n_bridges=2, weighting=weighting)
    x = {"tokens": tokens, "mask": mask}
    paths = objective.sample(x, y, partners=partner, generator=generator)
    loss = objective.loss_on(paths)
    if weighting is None:
        losses = []
        for i, j, t in reference.points_of(paths):
            s, k = paths.s[i, j, t], partner[i]
            hidden = (1 - s) * model.embedding(tokens[i]) + s * model.embedding(tokens[k])
            nearer = mask[i] if s <= 0.5 else mask[k]
            output = model.pool(hidden.unsqueeze(0), nearer.unsqueeze(0))[0]
            losses.append(reference.cross_entropy(output, paths.y[i, j, t]))
        reference.assert_same(loss, sum(losses) / len(losses), model, 1e-6)
    loss.backward()
    assert model.embedding.weight.grad.abs().max() > 0
    assert model.head[0].weight.grad.abs().max() > 0


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.used(self.used(x))


@pytest.mark.parametrize("at", ["used", "unused"])
@pytest.mark.parametrize("weighting", [None, "gradient_norm"])
def test_layers_that_run_twice_or_never(at, weighting, generator):
    model = Twice()
    x = torch.randn(4, 3, generator=generator)
    with pytest.raises(RuntimeError, match=at):
        Elliptic(model, nn.MSELoss(), at=at, weighting=weighting)(x, x)
    assert all(not m._forward_hooks for m in model.modules())  # no hook is left behind


class Checkpointed(Split):
    """Recomputes a part in the backward pass."""

    def __init__(self, part, reentrant):
        super().__init__()
        self.part, self.reentrant = part, reentrant

    def forward(self, x):
        def run(module, value):
            if module is getattr(self, self.part):
                return checkpoint(module, value, use_reentrant=self.reentrant)
            return module(value)

        return run(self.upper, run(self.lower, x))


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("sampling", ["path", "marginal"])
@pytest.mark.parametrize("weighting", [None, "gradient_softmax"])
def test_activation_checkpointing_around_the_layer_is_refused(weighting, sampling, reentrant, generator):
    """It would run the layer again without the bridges; above the layer it is as exact as elsewhere."""
    x, y = normal(N, 3, generator=generator).requires_grad_(), normal(N, 2, generator=generator)
    settings = {"sampling": sampling, "weighting": weighting}
    inside = Elliptic(Checkpointed("lower", reentrant), nn.MSELoss(), at="lower.0", **settings)
    with pytest.raises(RuntimeError, match="lower"):
        inside(x, y, generator=generator)
    if reentrant and weighting:  # torch itself refuses gradients through it
        return
    above = Checkpointed("upper", reentrant)
    plain = Split()
    plain.load_state_dict(above.state_dict())
    found = []
    for model in (above, plain):
        loss = Elliptic(model, nn.MSELoss(), at="lower", **settings)(x, y, generator=generator.clone_state())
        loss.backward()
        found.append([loss, *(p.grad for p in model.parameters())])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def test_saved_tensors_elsewhere_do_not_look_like_checkpointing(generator):
    x, y = normal(N, 3, generator=generator), normal(N, 2, generator=generator)
    objective = Elliptic(Split(), nn.MSELoss(), at="lower")
    with torch.autograd.graph.save_on_cpu():
        objective(x, y, generator=generator).backward()
    with torch.no_grad():
        assert torch.isfinite(objective(x, y, generator=generator))


def normed():
    return nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)
    ).double()


def statistics(model):
    return {name: value.clone() for name, value in model.named_buffers()}


@pytest.mark.parametrize("at", [None, "1", "2", "0.lower"])
@pytest.mark.parametrize("weighting", [None, "gradient_norm", "gradient_softmax"])
@pytest.mark.parametrize("bn", ["paths", "clean"])
@pytest.mark.parametrize("with_end", [False, True])
def test_statistics_are_recorded_once(with_end, bn, weighting, at, generator):
    """Of the points, or of the clean batch; the pass that finds features does not count."""
    model = normed()
    if at == "0.lower":
        model = nn.Sequential(Split(model[:4]))
        model[0].upper = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    expected = copy.deepcopy(model)
    x, y = normal(N, 3, generator=generator), normal(N, 2, generator=generator)
    objective = Elliptic(model, nn.MSELoss(), at=at, bn=bn, weighting=weighting, sampling="path", sigma=0.5)
    far = {"end": (x.flip(0) + 1, y)} if with_end else {}
    paths = objective.sample(x, y, **far, generator=generator.clone_state())
    model.load_state_dict(expected.state_dict())
    objective(x, y, **far, generator=generator)
    found = statistics(model)
    assert all(value == 1 for name, value in found.items() if name.endswith("tracked"))
    if bn == "clean":
        expected(x)
    elif at is None:
        expected(paths.x.transpose(0, 2).flatten(0, 2))
    elif at == "0.lower":  # below the layer: the rows that feed it, those of the nearer ends
        expected[0].lower(paths.inputs)
        expected[0].upper(paths.points["x"])
    else:  # a sequence is cut in two
        expected[: int(at) + 1](x)
        expected[int(at) + 1 :](paths.x.transpose(0, 2).flatten(0, 2))
    for name, value in statistics(expected).items():
        torch.testing.assert_close(found[name], value, msg=name)


LAYERS = [nn.BatchNorm1d(3), nn.InstanceNorm1d(3, track_running_stats=True), nn.BatchNorm1d(3, momentum=None)]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_untracked_statistics(layer, generator):
    """The output is that of training; nothing is recorded, also if the model fails; frozen layers stay."""
    layer = copy.deepcopy(layer).double().train()
    x = normal(5, 3, 4, generator=generator)
    expected, before = copy.deepcopy(layer)(x), copy.deepcopy(layer.state_dict())
    with untracked_statistics(layer):
        torch.testing.assert_close(layer(x), expected)
    with pytest.raises(ZeroDivisionError), untracked_statistics(layer):
        _ = 1 / 0
    assert layer.track_running_stats
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())
    frozen = copy.deepcopy(layer).eval()
    expected = frozen(x)
    with untracked_statistics(frozen):
        torch.testing.assert_close(frozen(x), expected)
    assert not frozen.training


def test_features_and_modes_leave_no_trace(generator):
    model, x = Split(normed()[:4]), normal(N, 3, generator=generator)
    before = statistics(model)
    features = hidden_features(model, x, "lower")
    assert not features.requires_grad
    torch.testing.assert_close(features, copy.deepcopy(model).lower(x))
    assert all(torch.equal(value, before[name]) for name, value in statistics(model).items())
    model.lower[1].eval()
    modes = [module.training for module in model.modules()]
    with evaluation_mode(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == modes
