"""Every bad input of the public entry points: the error's type, the argument it names, and the remedy.

A good message can be acted on: each test asks for the name of the argument, for what came, and for a piece
of the remedy. What the caller passed in is compared with a copy after every call, refused or not, and a
refused call has drawn nothing from the caller's generator.
"""

import collections
import contextlib
import functools
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from elliptica import (
    BridgeMix,
    Elliptic,
    PartnerIndex,
    PartnerTable,
    auto_sigma,
    elliptic_loss,
    log_weights,
    partner_probabilities,
    path_losses,
    project_to_simplex,
    sample_bridge,
    sample_partners,
    sample_paths,
)

pytestmark = [pytest.mark.bad_input, pytest.mark.usefixtures("own_checks")]

ROWS, FEATURES, CLASSES = 6, 3, 4


class OnCuda:
    """Stands for a generator of another device."""

    device = torch.device("cuda")


@pytest.fixture
def x(generator):
    return torch.randn(ROWS, FEATURES, generator=generator)


@pytest.fixture
def labels(generator):
    return torch.randint(CLASSES, (ROWS,), generator=generator)


@pytest.fixture
def real(generator):
    return torch.randn(ROWS, CLASSES, generator=generator)


def bits(value):
    return value.detach().clone().contiguous().view(torch.uint8) if value.ndim else value.clone()


@contextlib.contextmanager
def unchanged(*tensors):
    """The caller's tensors hold the same bits afterwards, whatever happens."""
    tensors = [t for t in tensors if isinstance(t, torch.Tensor)]
    before = [(bits(t), t._version) for t in tensors]
    try:
        yield
    finally:
        for tensor, (copy, version) in zip(tensors, before, strict=True):
            assert torch.equal(bits(tensor), copy), "a tensor of the caller was modified"
            assert tensor._version == version, "a tensor of the caller was written to"


@contextlib.contextmanager
def refused(error, *words, generator=None, tensors=()):
    """The call raises ``error``, its message holds all ``words``, and nothing was touched or drawn."""
    state = None if generator is None else generator.get_state()
    with unchanged(*tensors), pytest.raises(error) as caught:
        yield
    message = str(caught.value)
    assert type(caught.value) is error, f"{type(caught.value).__name__} instead of {error.__name__}"
    for word in words:
        assert word in message, f"{word!r} is not in: {message}"
    if state is not None:
        assert torch.equal(generator.get_state(), state), "a refused call drew from the generator"


def classifier(**settings):
    settings = {"num_classes": CLASSES} | settings
    return Elliptic(nn.Linear(FEATURES, CLASSES), nn.CrossEntropyLoss(), **settings)


def regressor(**settings):
    return Elliptic(nn.Linear(FEATURES, CLASSES), nn.MSELoss(), **settings)


def mix(**settings):
    return BridgeMix(**({"num_classes": CLASSES} | settings))


def paths_of(**settings):
    def draw(x, y, **call):
        return sample_paths(x, y, target_space="simplex", num_classes=CLASSES, **settings, **call)

    return draw


def loss_of(**settings):
    def evaluate(x, y, **call):
        model = nn.Linear(FEATURES, CLASSES)
        return elliptic_loss(
            model, nn.CrossEntropyLoss(), x, y, **({"num_classes": CLASSES} | settings), **call
        )

    return evaluate


#: Everything that takes (x, y) and settings of bridges.
BATCH = {"Elliptic": classifier, "BridgeMix": mix, "sample_paths": paths_of, "elliptic_loss": loss_of}
batch_entries = pytest.mark.parametrize("entry", BATCH.values(), ids=BATCH)
samplings = pytest.mark.parametrize("sampling", ["path", "marginal"])


# -------------------------------------------------------------------------------- nothing is wrong


@batch_entries
@samplings
def test_right_input_is_left_alone(entry, sampling, x, labels, generator):
    sigma = torch.full((FEATURES,), 0.3)
    partners = torch.arange(ROWS).roll(1)
    call = entry(sampling=sampling, sigma=sigma, sigma_y=0.1)
    with unchanged(x, labels, sigma, partners):
        call(x, labels, generator=generator)
        call(x, labels, partners=partners, generator=generator)


@samplings
@pytest.mark.parametrize("weighting", ["none", "gradient_norm", "gradient_softmax"])
def test_right_input_is_left_alone_by_training(sampling, weighting, x, real, generator):
    """Also through the backward pass, with weights and given ends, for inputs that want gradients."""
    weight, end = torch.rand(ROWS), (torch.randn(ROWS, FEATURES), torch.randn(ROWS, CLASSES))
    x.requires_grad_()
    objective = regressor(sampling=sampling, weighting=weighting)
    with unchanged(x, real, weight, *end):
        objective(x, real, sample_weight=weight, generator=generator).backward()
        objective(x, real, end=end, generator=generator).backward()
    assert x.grad is not None  # what stands in front of the objective is trained, too


def test_right_input_is_left_alone_by_samplers(x, labels, generator):
    end, sigma = torch.randn(ROWS, FEATURES), torch.rand(FEATURES)
    with unchanged(x, end, sigma, labels):
        sample_bridge(x, end, sigma=sigma, n_bridges=2, generator=generator)
        for pairing in ("permutation", "inverse_distance", "nearest"):
            sample_partners(x, pairing=pairing, labels=labels, among="same_class", generator=generator)
        table = PartnerTable(x, labels=labels, among="other_class")
        index = torch.arange(3)
        with unchanged(index):
            table.sample(index, generator=generator)


# ------------------------------------------------------------------------------- not-finite values


@batch_entries
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_of_x_that_are_not_finite(entry, value, x, labels, generator):
    x[2, 1] = x[4, 0] = value
    words = ("x must be finite", "2 values are NaN or infinite", "rows 2, 4", "Impute or drop")
    with refused(ValueError, *words, generator=generator, tensors=(x, labels)):
        entry()(x, labels, generator=generator)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_values_of_y_that_are_not_finite(value, x, real, generator):
    real[3] = value
    words = ("y must be finite", f"{CLASSES} values", "rows 3", "Impute or drop")
    for call in (regressor(), BridgeMix(target_space="real")):
        with refused(ValueError, *words, generator=generator, tensors=(x, real)):
            call(x, real, generator=generator)


def test_values_of_other_arguments_that_are_not_finite(x, real, generator):
    bad = torch.full((ROWS,), math.nan)
    with refused(ValueError, "sample_weight must be finite and at least 0", generator=generator):
        regressor()(x, real, sample_weight=bad, generator=generator)
    far = x.clone()
    far[1] = math.inf
    with refused(ValueError, "end's x", "must be finite", "rows 1", generator=generator):
        regressor()(x, real, end=(far, real), generator=generator)
    with refused(ValueError, "end's y", "must be finite", generator=generator):
        regressor()(x, real, end=(x, real * math.nan), generator=generator)


@pytest.mark.parametrize(
    ("weight", "error", "words"),
    [
        (-torch.ones(ROWS), ValueError, ("at least 0", "-1 to -1")),
        (torch.full((ROWS,), math.inf), ValueError, ("must be finite",)),
        (torch.ones(ROWS).long(), TypeError, ("floating point", "torch.int64")),
        (torch.ones(ROWS).double(), TypeError, ("torch.float64", ".to(torch.float32)")),
        ([1.0] * ROWS, TypeError, ("must be a torch.Tensor", "list")),
        (None, TypeError, ("must be a torch.Tensor", "NoneType")),
    ],
)
def test_weights_of_far_ends(weight, error, words, x, real, generator):
    """Negative ones made a loss below zero."""
    given = {"sample_weight": torch.ones(ROWS), "end": (x, real, weight), "generator": generator}
    with refused(error, "end's sample_weight", *words, generator=generator):
        regressor()(x, real, **given)
    with refused(error, "end's sample_weight", *words, generator=generator):
        sample_paths(x, real, target_space="real", **given)


def test_values_of_a_named_input_that_are_not_finite(generator):
    class Two(nn.Module):
        def forward(self, image, table):
            return image + table

    inputs = {"image": torch.ones(4, 2), "table": torch.full((4, 2), math.nan)}
    objective = Elliptic(Two(), nn.MSELoss(), bridged=("image",))
    with refused(ValueError, "x['table'] must be finite", "Impute", generator=generator):
        objective(inputs, torch.zeros(4, 2), generator=generator)


def test_large_numbers_are_finite():
    """The quick check sums; a sum that overflows is not a reason to refuse."""
    x = torch.full((4, 3), 3e38)
    sample_bridge(x, x, sigma=0.0)
    assert torch.isfinite(sample_paths(x, torch.zeros(4, 1), target_space="real", sigma=0.1).x).all()
    half = torch.full((300, 300), 6e4, dtype=torch.float16)
    sample_bridge(half, half, sigma=0.0)


def test_a_refused_batch_leaves_no_trace_in_sigma_auto(x, real, generator):
    """A NaN in the first batch must not become the sigma of all later ones."""
    objective = regressor(sigma="auto")
    bad = x.clone()
    bad[0, 0] = math.nan
    with refused(ValueError, "x must be finite", generator=generator):
        objective(bad, real, generator=generator)
    assert objective.auto_sigma is None
    assert torch.isfinite(objective(x, real, generator=generator))
    assert torch.allclose(objective.auto_sigma, 0.1 * x.std(0))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_samplers_refuse_values_that_are_not_finite(value, x, generator):
    bad = x.clone()
    bad[1, 2] = value
    finite = ("must be finite", "1 values are NaN or infinite", "rows 1", "Impute or drop")
    with refused(ValueError, "start", *finite, generator=generator, tensors=(bad, x)):
        sample_bridge(bad, x, generator=generator)
    with refused(ValueError, "end", *finite, generator=generator, tensors=(bad, x)):
        sample_bridge(x, bad, generator=generator)
    for pairing in ("inverse_distance", "nearest"):
        with refused(ValueError, "x", *finite, generator=generator, tensors=(bad,)):
            sample_partners(bad, pairing=pairing, generator=generator)
    with refused(ValueError, "x", *finite):
        partner_probabilities(bad)
    with refused(ValueError, "x", *finite, tensors=(bad,)):
        PartnerTable(bad)


# --------------------------------------------------------------------------- empty, and a batch of one


@batch_entries
@samplings
def test_empty_batch(entry, sampling, generator):
    words = ("x is empty", "0 rows", "drop_last=True")
    with refused(ValueError, *words, generator=generator):
        entry(sampling=sampling)(torch.zeros(0, FEATURES), torch.zeros(0).long(), generator=generator)


def test_empty_batch_of_samplers(generator):
    none = torch.zeros(0, FEATURES)
    with refused(ValueError, "start is empty", "0 rows", "Skip", generator=generator):
        sample_bridge(none, none, generator=generator)
    for pairing in ("permutation", "inverse_distance", "nearest"):
        with refused(ValueError, "x is empty", "0 rows", "Skip", generator=generator):
            sample_partners(none, pairing=pairing, generator=generator)
    with refused(ValueError, "PartnerTable needs at least two rows", "x has 0"):
        PartnerTable(none)
    with refused(ValueError, "x is empty: it holds no tensor", "Pass the inputs of the model"):
        classifier()((), torch.zeros(2).long())


def test_scalars_have_no_batch(generator):
    number = torch.tensor(1.0)
    with refused(ValueError, "x is a scalar", "first axis must be the batch", "unsqueeze"):
        regressor()(number, number, generator=generator)
    with refused(ValueError, "start is a scalar", "unsqueeze", generator=generator):
        sample_bridge(number, number, generator=generator)
    with refused(ValueError, "x is a scalar", "unsqueeze", generator=generator):
        sample_partners(number, generator=generator)


@batch_entries
@samplings
@pytest.mark.parametrize("pairing", ["permutation", "inverse_distance", "nearest"])
def test_batch_of_one_is_a_loop(entry, sampling, pairing, generator):
    """Documented: a lone point is its own partner, so its bridge is noise around it."""
    x, y = torch.ones(1, FEATURES), torch.tensor([2])
    with unchanged(x, y):
        entry(sampling=sampling, pairing=pairing)(x, y, generator=generator)
    points, targets = BridgeMix(num_classes=CLASSES, sampling=sampling, pairing=pairing, sigma=0.0)(x, y)
    assert torch.equal(points, x.expand_as(points))
    assert (targets.argmax(1) == 2).all()
    partners = sample_partners(x, n_bridges=3, pairing=pairing)
    assert partners.tolist() == [[0, 0, 0]]


def test_batch_of_one_has_no_spread_to_measure(generator):
    with refused(ValueError, 'sigma="auto" needs at least two rows', "got 1", "Pass a number for sigma"):
        classifier(sigma="auto")(torch.ones(1, FEATURES), torch.tensor([2]), generator=generator)
    with refused(ValueError, "PartnerTable needs at least two rows", "x has 1"):
        PartnerTable(torch.ones(1, FEATURES))


# -------------------------------------------------------------------------------- mismatched axes


@batch_entries
def test_mismatched_rows(entry, x, labels, generator):
    words = ("y must have as many rows as x (6)", "but has 5 rows", "same batch")
    with refused(ValueError, *words, generator=generator, tensors=(x, labels)):
        entry()(x, labels[:5], generator=generator)
    with refused(ValueError, "y must have as many rows", "a scalar", "batch axis is the first"):
        entry()(x, labels[0], generator=generator)


def test_mismatched_rows_of_other_arguments(x, labels, generator):
    objective = classifier()
    with refused(ValueError, "sample_weight must have as many rows as x (6)", "5 rows", generator=generator):
        objective(x, labels, sample_weight=torch.ones(5), generator=generator)
    words = ("partners must have shape (batch, n_bridges) = (6, 1)", "(5, 1)")
    with refused(ValueError, *words, generator=generator):
        objective(x, labels, partners=torch.zeros(5).long(), generator=generator)
    words = ("partners must be rows of this batch, 0..5", "range from 0 to 6", "end=(x[partner], y[partner])")
    with refused(ValueError, *words, generator=generator):
        objective(x, labels, partners=torch.tensor([0, 2, 3, 4, 5, 6]), generator=generator)
    with refused(ValueError, "end's x", "must have shape (6, 1, 3) or (6, 3)", "(5, 3)", generator=generator):
        objective(x, labels, end=(x[:5], labels), generator=generator)
    with refused(ValueError, "end's y", "must have shape (6, 1, 4) or (6, 4)", generator=generator):
        objective(x, labels, end=(x, labels[:5]), generator=generator)
    both = {"partners": torch.arange(6), "end": (x, labels)}
    with refused(ValueError, "both partners and end", "or end.", generator=generator):
        objective(x, labels, **both, generator=generator)


def test_mismatched_rows_of_several_inputs(x, real, generator):
    objective = Elliptic(nn.Bilinear(FEATURES, FEATURES, CLASSES), nn.MSELoss(), bridged=(0,))
    words = ("x[1] must have as many rows as x[0] (6)", "5 rows", "same batch")
    with refused(ValueError, *words, generator=generator):
        objective((x, x[:5]), real, generator=generator)


def test_mismatched_rows_of_samplers(x, generator):
    words = ("start and end must have the same shape", "(6, 3) and (5, 3)", "end=start[partners]")
    with refused(ValueError, *words, generator=generator, tensors=(x,)):
        sample_bridge(x, x[:5], generator=generator)
    words = ("start and end must have the same dtype", "float32 and torch.float64", "end.to(start.dtype)")
    with refused(TypeError, *words, generator=generator):
        sample_bridge(x, x.double(), generator=generator)
    five = torch.zeros(5, dtype=torch.long)
    words = ("labels must have as many rows as x (6)", "but has 5 rows", "same batch")
    for pairing in ("permutation", "inverse_distance", "nearest"):
        with refused(ValueError, *words, generator=generator):
            sample_partners(x, pairing=pairing, labels=five, among="same_class", generator=generator)
    with refused(ValueError, *words):
        PartnerTable(x, labels=five, among="same_class")
    with refused(ValueError, *words):
        partner_probabilities(x, labels=five, among="other_class")


@pytest.mark.parametrize("shape", [(FEATURES + 1,), (ROWS, 1), (ROWS, FEATURES)])
def test_sigma_that_does_not_fit(shape, x, labels, generator):
    words = ("sigma", "broadcasts to the shape (3,) of one sample", f"has shape {shape}")
    sigma = torch.ones(shape)
    with refused(ValueError, *words, generator=generator):
        sample_bridge(x, x, sigma=sigma, generator=generator)
    for entry in BATCH.values():
        with refused(ValueError, *words):
            entry(sigma=sigma)(x, labels, generator=generator)


# ----------------------------------------------------------------------------------- wrong dtypes


@batch_entries
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_integer_inputs_need_a_hidden_layer(entry, dtype, labels, generator):
    words = ("x must be floating point", str(dtype), ".float()", 'at="name of a layer"')
    tokens = torch.ones(ROWS, FEATURES, dtype=dtype)
    with refused(TypeError, *words, generator=generator, tensors=(tokens, labels)):
        entry()(tokens, labels, generator=generator)


def test_integer_inputs_of_samplers(x, generator):
    words = ("must be floating point", "torch.int64", ".float()")
    with refused(TypeError, "start", *words, generator=generator):
        sample_bridge(x.long(), x, generator=generator)
    with refused(TypeError, "end", *words, generator=generator):
        sample_bridge(x, x.long(), generator=generator)
    with refused(TypeError, "x", *words):
        PartnerTable(x.long())


def test_integer_inputs_pass_with_a_hidden_layer(labels, generator):
    """The remedy that the message names works."""
    model = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(4 * FEATURES, CLASSES))
    tokens = torch.randint(10, (ROWS, FEATURES), generator=generator)
    objective = Elliptic(model, nn.CrossEntropyLoss(), num_classes=CLASSES, at="0")
    with unchanged(tokens, labels):
        assert torch.isfinite(objective(tokens, labels, generator=generator))
    with refused(ValueError, "at='embed' is not a layer of the model", "named_modules"):
        Elliptic(model, nn.CrossEntropyLoss(), num_classes=CLASSES, at="embed")


@pytest.mark.parametrize("value", [[1.0, 2.0], None, 3.0, "x"])
def test_what_is_not_a_tensor(value, x, labels, generator):
    kind = type(value).__name__
    for call in (classifier(), mix(), paths_of()):
        with refused(TypeError, "x", "must be a", "tensor", kind if kind != "list" else "float"):
            call(value, labels, generator=generator)
        with refused(TypeError, "y must be a torch.Tensor", kind, "torch.as_tensor"):
            call(x, value, generator=generator)
    with refused(TypeError, "start must be a torch.Tensor", kind, "torch.as_tensor", generator=generator):
        sample_bridge(value, x, generator=generator)
    with refused(TypeError, "end must be a torch.Tensor", kind, "torch.as_tensor", generator=generator):
        sample_bridge(x, value, generator=generator)
    with refused(TypeError, "x must be a torch.Tensor", kind, "torch.as_tensor", generator=generator):
        sample_partners(value, generator=generator)
    with refused(TypeError, "x must be a torch.Tensor", kind, "torch.as_tensor"):
        PartnerTable(value)
    if value is not None:
        with refused(TypeError, "sample_weight must be a torch.Tensor", kind, "torch.as_tensor"):
            classifier()(x, labels, sample_weight=value, generator=generator)
        with refused(TypeError, "partners must be a torch.Tensor", kind, "torch.as_tensor"):
            classifier()(x, labels, partners=value, generator=generator)


def test_partners_must_be_row_numbers(x, labels, generator):
    for dtype in (torch.float32, torch.bool):
        with refused(TypeError, "partners must hold row numbers", str(dtype), generator=generator):
            classifier()(x, labels, partners=torch.zeros(ROWS, dtype=dtype), generator=generator)


UNUSUAL = {
    "meta": (lambda z: z.to("meta"), ("device meta", "real device")),
    "csr": (lambda z: z.to_sparse_csr(), ("torch.sparse_csr", ".to_dense()")),
    "coo": (lambda z: z.to_sparse(), ("torch.sparse_coo", ".to_dense()")),
    "mkldnn": (lambda z: z.to_mkldnn(), ("mkldnn", ".to_dense()")),
    "nested": (lambda z: torch.nested.nested_tensor([*z]), ("nested", "to_padded_tensor")),
    "quantised": (lambda z: torch.quantize_per_tensor(z, 0.1, 0, torch.quint8), ("quint8", ".dequantize()")),
    "float8": (lambda z: z.to(torch.float8_e4m3fn), ("torch.float8_e4m3fn", ".float()")),
}
unusual = pytest.mark.parametrize(("make", "words"), UNUSUAL.values(), ids=UNUSUAL)


@unusual
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support", "ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_tensors_that_are_not_ordinary(make, words, x, real, generator):
    dense = "must be an ordinary dense tensor"
    for objective in (regressor(), regressor(sampling="path"), regressor(validate=False), regressor().eval()):
        with refused(TypeError, f"x {dense}", *words, generator=generator):
            objective(make(x), real, generator=generator)
        with refused(TypeError, f"y {dense}", *words, generator=generator):
            objective(x, make(real), generator=generator)
    two = Elliptic(nn.Bilinear(FEATURES, FEATURES, CLASSES), nn.MSELoss(), bridged=(0,))
    with refused(TypeError, f"x[1] {dense}", *words):
        two((x, make(x)), real)
    for name, call in (
        ("start", lambda z: sample_bridge(z, x)),
        ("end", lambda z: sample_bridge(x, z)),
        ("x", PartnerTable),
        ("x", partner_probabilities),
        ("x", sample_partners),
        ("x", auto_sigma),
        ("y", project_to_simplex),
        ("end's x['x']", lambda z: regressor()(x, real, end=(z, real))),
        ("end's y", lambda z: regressor()(x, real, end=(x, z))),
    ):
        with refused(TypeError, f"{name} {dense}", *words):
            call(make(x if name != "end's y" else real))


def test_scalars_in_evaluation(x, real):
    with refused(ValueError, "x is a scalar", "first axis must be the batch"):
        regressor().eval()(torch.tensor(1.0), real)
    with refused(ValueError, "y must have as many rows as x (6)", "a scalar"):
        regressor().eval()(x, torch.tensor(1.0))
    with refused(ValueError, "y must have as many rows as x (6)", "5 rows"):
        regressor().eval()(x, real[:5])


@pytest.mark.parametrize("at", [5, 0, True, b"0", ["0"]])
def test_a_layer_that_is_not_a_name(at, x):
    model = nn.Sequential(nn.Linear(FEATURES, 4), nn.Linear(4, CLASSES))
    words = ("at must be the name of a layer", "at='0'", repr(at), type(at).__name__, "named_modules")
    with refused(TypeError, *words):
        Elliptic(model, nn.MSELoss(), at=at)
    with refused(TypeError, *words):
        PartnerIndex.of_features(model, x, at=at)


INFERENCE = [{"weighting": "gradient_norm"}, {"at": "0", "weighting": "gradient_norm"}]


def test_inference_mode(x, real):
    """Losses are the same; what needs gradients says so."""

    def make(**settings):
        model = nn.Sequential(nn.Linear(FEATURES, 4), nn.Linear(4, CLASSES))
        return Elliptic(model, nn.MSELoss(), **settings)

    objective = make()
    with torch.inference_mode():
        found = objective(x, real, generator=torch.Generator().manual_seed(0))
    assert torch.equal(found, objective(x, real, generator=torch.Generator().manual_seed(0)))
    for settings in INFERENCE:
        words = ("needs the gradient of the loss", "torch.inference_mode()", "torch.no_grad()")
        with torch.inference_mode(), refused(ValueError, *words):
            make(**settings)(x, real)
    with torch.inference_mode():
        made, inputs = make(), torch.randn(ROWS, FEATURES)
    with refused(RuntimeError, "The model was made under torch.inference_mode()", "outside"):
        made(x, real)
    with refused(RuntimeError, "x was made under torch.inference_mode()", "x.clone()"):
        make(at="0")(inputs, real)
    make(at="0")(inputs.clone(), real).backward()


# ----------------------------------------------------------------------------------------- labels


@batch_entries
@pytest.mark.parametrize(("bad", "span"), [(CLASSES, f"0 to {CLASSES}"), (-1, "-1 to 0")])
def test_labels_outside_the_classes(entry, bad, span, x, generator):
    y = torch.zeros(ROWS, dtype=torch.long)
    y[3] = bad
    words = ("num_classes=4", "0..3", "y has values", span, "Correct num_classes")
    with refused(ValueError, *words, generator=generator, tensors=(x, y)):
        entry()(x, y, generator=generator)


def test_labels_need_the_number_of_classes(x, labels, generator):
    for call in (classifier(num_classes=None), BridgeMix(target_space="simplex")):
        with refused(ValueError, "y holds integer labels", "Pass num_classes", generator=generator):
            call(x, labels, generator=generator)
    with refused(ValueError, "cannot infer the kind of targets", "num_classes=", 'target_space="real"'):
        BridgeMix()


def test_labels_for_a_regression_loss(x, labels, generator):
    words = ("MSELoss needs floating targets", "y has dtype torch.int64", "y.float()")
    objective = regressor()
    with refused(TypeError, *words, generator=generator):
        objective(x, labels, generator=generator)
    # and the objective is still usable
    assert torch.isfinite(objective(x, torch.zeros(ROWS, CLASSES), generator=generator))


def test_probabilities_that_are_none(x, generator):
    y = torch.full((ROWS, CLASSES), 0.3)
    words = ("sum to 1 along axis 1", "y has sums from 1.2 to 1.2", "Normalise y")
    for entry in BATCH.values():
        with refused(ValueError, *words, generator=generator, tensors=(x, y)):
            entry()(x, y, generator=generator)


@pytest.mark.parametrize("sampling", ["path", "marginal"])
def test_evaluation_checks_labels_too(sampling, x):
    objective = classifier(sampling=sampling).eval()
    with refused(ValueError, "num_classes=4", "Correct num_classes"):
        objective(x, torch.full((ROWS,), 9))


@pytest.mark.parametrize("classes", [CLASSES - 1, CLASSES + 1])
def test_probabilities_of_another_number_of_classes(classes, x, generator):
    y = torch.full((ROWS, CLASSES), 1 / CLASSES)
    words = (f"probabilities of {CLASSES} classes", f"num_classes={classes}", "agree")
    with refused(ValueError, *words, generator=generator):
        sample_paths(x, y, target_space="simplex", num_classes=classes, generator=generator)
    for call in (classifier(num_classes=classes), mix(num_classes=classes), loss_of(num_classes=classes)):
        with refused(ValueError, *words, generator=generator):
            call(x, y, generator=generator)
    with refused(ValueError, *words):
        classifier(num_classes=classes).eval()(x, y)


def test_class_weights_of_another_number_of_classes(x):
    loss_fn, y = nn.CrossEntropyLoss(weight=torch.ones(CLASSES - 1)), torch.full((ROWS, CLASSES), 0.25)
    with refused(ValueError, "weights of 3 classes", "num_classes=4", "one weight for each class"):
        Elliptic(nn.Linear(FEATURES, CLASSES), loss_fn, num_classes=CLASSES)
    with refused(ValueError, "probabilities of 4 classes", "num_classes=3"):
        Elliptic(nn.Linear(FEATURES, CLASSES), loss_fn)(x, y)


# ------------------------------------------------------------------------------- losses and models


def test_a_loss_that_reduces(x, real, generator):
    words = ("loss_fn must return one value per sample", "a scalar", 'reduction="none"')
    objective = Elliptic(
        nn.Linear(FEATURES, CLASSES), lambda output, y: (output - y).square().mean(), target_space="real"
    )
    with refused(ValueError, *words, tensors=(x, real)):
        objective(x, real, generator=generator)
    with refused(ValueError, "loss_fn has reduction='sum'", 'Use "mean"'):
        Elliptic(nn.Linear(1, 1), nn.MSELoss(reduction="sum"))
    with refused(TypeError, "loss_fn must be callable", "got str"):
        Elliptic(nn.Linear(1, 1), "mse")
    with refused(TypeError, "model must be a torch.nn.Module", "Elliptic(model, loss_fn)"):
        Elliptic(lambda x: x, nn.MSELoss())


@pytest.mark.parametrize("shape", [(ROWS, CLASSES), (ROWS, 1), (CLASSES + 1,)])
@pytest.mark.parametrize("settings", [{}, {"sampling": "path"}, {"chunk_size": 2}, {"n_bridges": 2}])
def test_weights_of_a_loss_that_are_not_those_of_one_row(shape, settings, x, generator):
    """A row of the batch is not a point: its neighbour's weight counts as well."""
    weight, y, model = torch.ones(shape), torch.rand(ROWS, CLASSES), nn.Linear(FEATURES, CLASSES)
    words = (str(shape), f"targets of one row, shape ({CLASSES},)", "sample_weight=")
    function = functools.partial(F.binary_cross_entropy_with_logits, weight=weight, reduction="none")
    for name, loss_fn in (
        ("weight", nn.BCEWithLogitsLoss(weight=weight)),
        ("pos_weight", nn.BCEWithLogitsLoss(pos_weight=weight)),
        ("weight", nn.MultiLabelSoftMarginLoss(weight=weight)),
        ("weight", function),
    ):
        objective = Elliptic(model, loss_fn, **settings)
        for training in (True, False):
            with refused(ValueError, f"loss_fn has {name} of shape", *words):
                objective.train(training)(x, y, generator=generator)
    with refused(ValueError, "loss_fn has weight of shape", *words):
        Elliptic(nn.Sequential(model, nn.Sigmoid()), nn.BCELoss(weight=weight), **settings)(x, y)


def test_weights_of_a_loss_that_are_those_of_one_row(x):
    """Of one number, of one number per label, and with an axis for the batch of length one."""
    y, model = torch.rand(ROWS, CLASSES), nn.Linear(FEATURES, CLASSES)
    plain = Elliptic(model, nn.BCEWithLogitsLoss()).eval()(x, y)
    for shape in ((), (1,), (CLASSES,), (1, CLASSES), (1, 1)):
        objective = Elliptic(model, nn.BCEWithLogitsLoss(weight=torch.full(shape, 3.0))).eval()
        assert torch.allclose(objective(x, y), 3 * plain)


class Reduces(nn.Module):
    """Wrong models: fewer rows, no rows, rows of another axis."""

    def __init__(self, how):
        super().__init__()
        self.inner = nn.Linear(FEATURES, CLASSES)
        self.how = how

    def forward(self, x):
        output = self.inner(x)
        return {"half": output[::2], "mean": output.mean(0, keepdim=True), "scalar": output.mean()}[self.how]


@samplings
@pytest.mark.parametrize("how", ["half", "mean", "scalar"])
def test_a_model_that_returns_the_wrong_number_of_rows(how, sampling, x, labels, generator):
    words = ("The model must return one row per input row", "but returned shape", "batch axis first")
    for chunk_size in (None, 4):
        objective = Elliptic(
            Reduces(how), nn.CrossEntropyLoss(), num_classes=CLASSES, sampling=sampling, chunk_size=chunk_size
        )
        with refused(ValueError, *words, tensors=(x, labels)):
            objective(x, labels, generator=generator)


class Returns(nn.Module):
    """Wrong models: what they return is not a tensor that a loss of torch could compare."""

    def __init__(self, wrap):
        super().__init__()
        self.layer, self.wrap = nn.Linear(FEATURES, CLASSES), wrap

    def forward(self, x):
        return self.wrap(self.layer(x))


class Output(collections.OrderedDict):
    """As transformers has them: a dict with attributes."""

    @property
    def logits(self):
        return self["logits"]


@pytest.mark.parametrize("settings", [{}, {"sampling": "path"}, {"chunk_size": 2}, {"at": "layer"}])
@pytest.mark.parametrize(
    ("wrap", "kind", "pick"),
    [
        (lambda z: (z, z), "tuple", "output[0]"),
        (lambda z: [z], "list", "output[0]"),
        (lambda z: {"logits": z}, "dict", 'output["logits"]'),
        (lambda z: Output(logits=z), "Output", 'output["logits"]'),
        (lambda z: None, "NoneType", "output.logits"),
    ],
    ids=["tuple", "list", "dict", "ModelOutput", "None"],
)
def test_a_model_that_does_not_return_a_tensor(wrap, kind, pick, settings, x, labels, generator):
    objective = Elliptic(Returns(wrap), nn.CrossEntropyLoss(), num_classes=CLASSES, **settings)
    words = (f"The model returns {kind}", "CrossEntropyLoss compares a tensor", pick, "target_space=")
    for training in (True, False):
        with refused(TypeError, *words):
            objective.train(training)(x, labels, generator=generator)
    with refused(TypeError, f"The model returns {kind}", "mse_loss compares a tensor"):
        Elliptic(Returns(wrap), F.mse_loss)(x, torch.zeros(ROWS, CLASSES))


def test_the_remedies_for_a_model_that_does_not_return_a_tensor(x, labels, generator):
    plain = Elliptic(Returns(lambda z: z), nn.CrossEntropyLoss(), num_classes=CLASSES)
    expected = plain(x, labels, generator=torch.Generator().manual_seed(0))
    for wrap, pick in ((lambda z: (z, z), lambda o: o[0]), (lambda z: Output(logits=z), lambda o: o.logits)):
        model = Returns(wrap)
        model.layer = plain.model.layer

        def loss_fn(output, y, pick=pick):
            return F.cross_entropy(pick(output), y, reduction="none")

        objective = Elliptic(model, loss_fn, num_classes=CLASSES, target_space="simplex")
        assert torch.allclose(objective(x, labels, generator=torch.Generator().manual_seed(0)), expected)


@pytest.mark.parametrize(
    ("wrap", "error", "words"),
    [
        (lambda z: z.argmax(1, keepdim=True).expand_as(z), TypeError, ("floating point", "torch.int64")),
        (lambda z: z.to(torch.complex64), TypeError, ("floating point", "torch.complex64")),
        (lambda z: z.to_sparse(), TypeError, ("ordinary dense tensor", "sparse_coo")),
        (lambda z: torch.nested.nested_tensor([*z]), TypeError, ("ordinary dense tensor", "nested")),
    ],
    ids=["labels", "complex", "sparse", "nested"],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_model_that_returns_another_kind_of_tensor(wrap, error, words, x, labels):
    objective = Elliptic(Returns(wrap), nn.CrossEntropyLoss(), num_classes=CLASSES)
    with refused(error, "odel's output", *words):
        objective(x, labels)


def test_a_weighting_without_a_gradient(x, real):
    objective = Elliptic(Returns(torch.Tensor.detach), nn.MSELoss(), weighting="gradient_norm")
    with refused(ValueError, "needs the gradient of the loss", "detaches its output", 'weighting="none"'):
        objective(x, real)


def test_an_output_that_broadcasts_with_the_targets(x, generator):
    objective = Elliptic(nn.Linear(FEATURES, 1), nn.MSELoss())
    words = ("model returns shape (6, 1)", "targets have (6,)", "y.unsqueeze(1)")
    with refused(ValueError, *words):
        objective(x, torch.zeros(ROWS), generator=generator)


# ------------------------------------------------------------------------------------- settings


SETTINGS = [
    ({"sigma": -0.1}, ValueError, ("sigma must be finite and at least 0", "-0.1")),
    ({"sigma": math.nan}, ValueError, ("sigma must be finite and at least 0", "nan")),
    ({"sigma": torch.tensor([0.1, -3.0, 0.0])}, ValueError, ("sigma must be", "at least 0", "-3 to 0.1")),
    ({"horizon": 0.0}, ValueError, ("horizon must be finite and above 0", "0.0")),
    ({"horizon": -1.0}, ValueError, ("horizon must be finite and above 0", "-1.0")),
    ({"horizon": "1"}, TypeError, ("horizon must be a number", "'1'")),
    ({"n_times": 1}, ValueError, ("n_times must be at least 2", "both end points", "got 1")),
    ({"n_times": 5.0}, TypeError, ("n_times must be an integer", "5.0")),
    ({"n_times": True}, TypeError, ("n_times must be an integer", "True")),
    ({"n_bridges": 0}, ValueError, ("n_bridges must be at least 1", "got 0")),
    ({"antithetic": "no"}, TypeError, ("antithetic must be True or False", "'no'")),
    ({"antithetic": None}, TypeError, ("antithetic must be True or False", "None")),
    (
        {"n_bridges": 3, "antithetic": True},
        ValueError,
        ("n_bridges must be even", "got 3", "Use n_bridges=4 or antithetic=False"),
    ),
]
BATCH_SETTINGS = [
    ({"sigma_y": -0.1}, ValueError, ("sigma_y must be finite and at least 0", "-0.1")),
    ({"sigma_y": "auto"}, TypeError, ("sigma_y must be a number", "'auto'")),
    ({"sigma": "gren"}, ValueError, ("sigma='gren' is not known", '"green"')),
    ({"sigma": [0.1]}, TypeError, ("sigma must be a number", "[0.1]")),
    ({"power": -1.0}, ValueError, ("power must be finite and at least 0", "-1.0")),
    ({"power": torch.ones(2)}, TypeError, ("power must be a number", "Tensor")),
    ({"same_partner": 2}, TypeError, ("same_partner must be True or False", "2")),
    ({"validate": "false"}, TypeError, ("validate must be True or False", "'false'")),
    ({"sampling": "marginals"}, ValueError, ("sampling must be one of 'path', 'marginal'", "Did you mean")),
    ({"pairing": "random"}, ValueError, ("pairing must be one of 'permutation'", "'random'")),
    ({"among": "same"}, ValueError, ("among must be one of 'all'", "'same'")),
    ({"simplex": "ab"}, ValueError, ("simplex must be one of 'abs'", "Did you mean 'abs'")),
]
OBJECTIVE_SETTINGS = [
    ({"xi": -1.0}, ValueError, ("xi must be finite and at least 0", "-1.0")),
    ({"xi": torch.ones(2)}, TypeError, ("xi must be a number", "Tensor")),
    ({"quadrature": "euler"}, ValueError, ("quadrature must be one of 'mean'", "'euler'")),
    ({"weighting": "girsanof"}, ValueError, ("weighting must be one of", "Did you mean 'girsanov'")),
    ({"bn": "clear"}, ValueError, ("bn must be one of 'paths'", "Did you mean 'clean'")),
    ({"chunk_size": 0}, ValueError, ("chunk_size must be at least 1", "0")),
    ({"target_space": "reals"}, ValueError, ("target_space must be one of", "Did you mean 'real'")),
    ({"weighting": "multiplicative"}, ValueError, ("weighting='multiplicative'", 'Use sampling="path"')),
    (
        {"quadrature": "uniform", "sampling": "path"},
        ValueError,
        ('quadrature="uniform"', 'Use sampling="marginal"'),
    ),
]


@pytest.mark.parametrize("settings", [{"sigma": 1e300}, {"sigma": 3e38}, {"horizon": 1e300}])
def test_noise_beyond_the_numbers(settings, x, labels, generator):
    words = ("times sqrt(horizon)", "more than torch.float32 can hold", "Use smaller")
    with refused(ValueError, *words):
        sample_bridge(x, x, **settings)
    for entry in BATCH.values():
        for sampling in ("path", "marginal"):
            with refused(ValueError, *words):
                entry(sampling=sampling, sigma_y=0.0, **settings)(x, labels)


@batch_entries
@pytest.mark.parametrize(("settings", "error", "words"), SETTINGS + BATCH_SETTINGS)
def test_settings(entry, settings, error, words, x, labels, generator):
    with refused(error, *words, generator=generator, tensors=(x, labels)):
        entry(**settings)(x, labels, generator=generator)


@pytest.mark.parametrize(("settings", "error", "words"), OBJECTIVE_SETTINGS)
def test_settings_of_the_objective(settings, error, words):
    """Refused when the objective is made, not in the first epoch."""
    with refused(error, *words):
        classifier(**settings)


@pytest.mark.parametrize(("settings", "error", "words"), SETTINGS)
def test_settings_of_sample_bridge(settings, error, words, x, generator):
    with refused(error, *words, generator=generator, tensors=(x,)):
        sample_bridge(x, x, **settings, generator=generator)


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"n_bridges": 0}, ValueError, ("n_bridges must be at least 1", "got 0")),
        ({"n_bridges": 1.0}, TypeError, ("n_bridges must be an integer", "1.0")),
        ({"pairing": "nearst"}, ValueError, ("pairing must be one of", "Did you mean 'nearest'")),
        ({"among": "other"}, ValueError, ("among must be one of", "'other'")),
        ({"among": "same_class"}, ValueError, ("among='same_class' needs class labels", "Pass labels=")),
        ({"among": "other_class"}, ValueError, ("among='other_class' needs class labels", "Pass labels=")),
        ({"pairing": "inverse_distance", "power": -1.0}, ValueError, ("power must be", "at least 0", "-1.0")),
        ({"pairing": "inverse_distance", "power": math.inf}, ValueError, ("power must be finite", "inf")),
    ],
)
def test_settings_of_sample_partners(settings, error, words, x, generator):
    with refused(error, *words, generator=generator, tensors=(x,)):
        sample_partners(x, **settings, generator=generator)


@pytest.mark.parametrize("labels", [None, torch.zeros(ROWS, dtype=torch.long)])
def test_settings_of_partner_probabilities(labels, x):
    """``among="same"`` once meant the other classes."""
    with refused(ValueError, "among must be one of", "'same'", tensors=(x,)):
        partner_probabilities(x, labels=labels, among="same")
    with refused(TypeError, "power must be a number", "Tensor", tensors=(x,)):
        partner_probabilities(x, power=torch.ones(2))


def test_powers_that_float32_rounds_to_zero(x):
    """Zero to the power zero is one, so that a row was its own partner."""
    assert torch.equal(partner_probabilities(x, power=1e-60), partner_probabilities(x, power=0))
    assert (
        not PartnerTable(x, power=1e-60)
        .sample(torch.arange(ROWS), n_bridges=99)
        .eq(torch.arange(ROWS)[:, None])
        .any()
    )


def test_powers_of_a_data_set(x):
    with refused(TypeError, "power must be a number", "Tensor", tensors=(x,)):
        PartnerTable(x, power=torch.ones(2))
    with refused(ValueError, "power must be finite and at least 0", "nan", tensors=(x,)):
        PartnerTable(x, power=math.nan)


def test_settings_of_a_partner_table(x, generator):
    table = PartnerTable(x)
    index = torch.arange(3)
    with refused(ValueError, "n_bridges must be at least 1", "got 0", generator=generator):
        table.sample(index, n_bridges=0, generator=generator)
    with refused(TypeError, "n_bridges must be an integer", "1.5", generator=generator):
        table.sample(index, n_bridges=1.5, generator=generator)
    with refused(TypeError, "max_bytes must be an integer", "'1 GB'"):
        PartnerTable(x, max_bytes="1 GB")


@pytest.mark.parametrize("settings", [{}, {"max_bytes": 0}, {"power": math.inf}])
@pytest.mark.parametrize(
    ("index", "error", "words"),
    [
        (torch.tensor([6]), ValueError, ("rows of the data set, 0..5", "spans 6 to 6")),
        (torch.tensor([2, -1]), ValueError, ("rows of the data set, 0..5", "spans -1 to 2")),
        (torch.arange(ROWS) < 2, TypeError, ("row numbers", "torch.bool", "mask.nonzero()")),
        (torch.zeros(2), TypeError, ("row numbers", "torch.float32")),
        (torch.tensor(2), TypeError, ("row numbers", "shape ()")),
        (torch.zeros(2, 1).long(), TypeError, ("row numbers", "shape (2, 1)")),
        (torch.zeros(0).long(), ValueError, ("index is empty", "0 rows")),
        (slice(0, 3), TypeError, ("row numbers", "got slice", "torch.tensor([3, 7])")),
        ([0, 1], TypeError, ("row numbers", "got list")),
        (None, TypeError, ("row numbers", "got NoneType")),
    ],
)
def test_rows_of_a_partner_table(index, error, words, settings, x, generator):
    """Negative numbers, masks and slices would pick other rows than those that the batch holds."""
    table = PartnerTable(x, **settings)
    with refused(error, "index", *words, generator=generator):
        table.sample(index, generator=generator)
    assert torch.equal(  # small integers are numbers of rows as well
        table.sample(torch.tensor([1, 2], dtype=torch.uint8), generator=torch.Generator().manual_seed(0)),
        table.sample(torch.tensor([1, 2]), generator=torch.Generator().manual_seed(0)),
    )


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8, torch.complex64])
def test_distances_need_floating_points(dtype, x, generator):
    words = ("x must be floating point", "distances", str(dtype), "x.float()")
    for pairing in ("inverse_distance", "nearest"):
        with refused(TypeError, *words, generator=generator):
            sample_partners(x.to(dtype), pairing=pairing, generator=generator)
    with refused(TypeError, *words):
        partner_probabilities(x.to(dtype))
    assert sample_partners(x.to(dtype), generator=generator).shape == (ROWS, 1)  # these measure nothing


@pytest.mark.parametrize("labels", [torch.zeros(ROWS), torch.zeros(ROWS, 1).long()])
def test_labels_that_are_not_one_class_per_row(labels, x, generator):
    words = ("labels must hold one class per row", str(tuple(labels.shape)), str(labels.dtype), ".long()")
    for pairing in ("permutation", "inverse_distance", "nearest"):
        with refused(TypeError, *words, generator=generator):
            sample_partners(x, pairing=pairing, labels=labels, among="same_class", generator=generator)
    with refused(TypeError, *words):
        partner_probabilities(x, labels=labels, among="same_class")
    with refused(TypeError, *words):
        PartnerTable(x, labels=labels, among="same_class")


def test_several_inputs_must_be_named(x, real, generator):
    model = nn.Bilinear(FEATURES, FEATURES, CLASSES)
    with refused(ValueError, "x has several tensors (0, 1)", "bridged=(0,)", generator=generator):
        Elliptic(model, nn.MSELoss())((x, x), real, generator=generator)
    with refused(ValueError, "bridged=(2,)", "which has 0, 1", generator=generator):
        Elliptic(model, nn.MSELoss(), bridged=(2,))((x, x), real, generator=generator)
    with refused(TypeError, "bridged must be a tuple", "got 0 (int)", "bridged=(0,)", generator=generator):
        Elliptic(model, nn.MSELoss(), bridged=0)((x, x), real, generator=generator)


@pytest.mark.parametrize("paths", [torch.zeros(2, 1, 1, 3), (torch.zeros(2), torch.zeros(2)), "paths"])
def test_paths_that_are_none(paths, x, real):
    model, words = (
        nn.Linear(FEATURES, CLASSES),
        ("paths must be points of", type(paths).__name__, "sample(x, y)"),
    )
    with refused(TypeError, *words):
        Elliptic(model, nn.MSELoss())(x, real, paths=paths)
    with refused(TypeError, *words):
        path_losses(model, nn.MSELoss(), paths)
    with refused(TypeError, *words):
        log_weights(model, nn.MSELoss(), paths)


def test_complex_numbers(x, labels):
    objective = Elliptic(nn.Linear(FEATURES, CLASSES), nn.CrossEntropyLoss(), num_classes=CLASSES)
    with refused(TypeError, "y must be real or hold labels", "complex64", "y.real"):
        objective(x, torch.zeros(ROWS, CLASSES, dtype=torch.complex64))
    with refused(TypeError, "partners must hold row numbers", "complex64"):
        objective(x, labels, partners=torch.zeros(ROWS, dtype=torch.complex64))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_partners_in_any_integer_dtype(dtype, x, real):
    objective = Elliptic(nn.Linear(FEATURES, CLASSES), nn.MSELoss())
    partners = torch.arange(ROWS).roll(1)
    found, expected = (
        objective.sample(x, real, partners=p, generator=torch.Generator().manual_seed(0))
        for p in (partners.to(dtype), partners)
    )
    assert torch.equal(found.x, expected.x)


def test_numbers_of_numpy(x, real):
    """They are no floats, which single points in float32 took for granted."""
    given = {"sigma": np.float32(0.1), "sigma_y": np.float32(0.2), "horizon": np.float32(1.0)}
    objective = Elliptic(nn.Linear(FEATURES, CLASSES), nn.MSELoss(), **given)
    found = objective.sample(x, real, generator=torch.Generator().manual_seed(0))
    usual = Elliptic(objective.model, nn.MSELoss(), **{name: float(v) for name, v in given.items()})
    expected = usual.sample(x, real, generator=torch.Generator().manual_seed(0))
    assert torch.equal(found.x, expected.x)
    assert torch.equal(found.y, expected.y)


def test_a_model_that_overwrites_its_input(x, real):
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(FEATURES, CLASSES))
    with refused(RuntimeError, "overwrites its input in place", "nn.ReLU(inplace=False)"):
        Elliptic(model, nn.MSELoss(), weighting="gradient_norm")(x, real)


# ------------------------------------------------------------------------------------- generators


WRONG_GENERATORS = [
    (OnCuda(), ValueError, ("generator lives on cuda", "data are on cpu", "Use a CPU generator")),
    (42, TypeError, ("generator must be a torch.Generator", "int", "torch.Generator().manual_seed(0)")),
]


@pytest.mark.parametrize(("wrong", "error", "words"), WRONG_GENERATORS)
def test_generators(wrong, error, words, x, labels):
    for entry in BATCH.values():
        for sampling in ("path", "marginal"):
            with refused(error, *words, tensors=(x, labels)):
                entry(sampling=sampling)(x, labels, generator=wrong)
    with refused(error, *words, tensors=(x,)):
        sample_bridge(x, x, generator=wrong)
    for pairing in ("permutation", "inverse_distance", "nearest"):
        with refused(error, *words, tensors=(x,)):
            sample_partners(x, pairing=pairing, generator=wrong)
    for power in (1.0, math.inf):
        with refused(error, *words):
            PartnerTable(x, power=power).sample(torch.arange(2), generator=wrong)


# ------------------------------------------------------------------------- validation switched off


def test_validation_can_be_switched_off(x, labels, generator):
    """Then NaN passes through, visibly; what would be silently wrong is refused all the same."""
    x[0, 0] = math.nan
    loss = classifier(validate=False)(x, labels, generator=generator)
    assert loss.isnan()
    with refused(ValueError, "y must have as many rows"):
        classifier(validate=False)(x, labels[:5], generator=generator)


class TwoInputs(nn.Module):
    """Takes two inputs by name."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, a, b):
        return self.layer(a) + b


@pytest.mark.bad_input
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "settings", [{}, {"sampling": "path"}, {"bn": "clean"}, {"weighting": "gradient_norm"}]
)
def test_inputs_of_another_dtype_than_the_model_are_named(settings, training):
    x, y = torch.randn(6, 3).double(), torch.randn(6, 2).double()
    message = r"x has dtype torch\.float64, but the model's.*float32.*x\.to\(torch\.float32\).*model\.to\("
    for model in (nn.Linear(3, 2), nn.Sequential(nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 2, 3), nn.Flatten())):
        objective = Elliptic(model, nn.MSELoss(), **settings).train(training)
        with pytest.raises(TypeError, match=message):
            objective(x, y)
    objective = Elliptic(TwoInputs(), nn.MSELoss(), bridged=("a",), **settings).train(training)
    with pytest.raises(TypeError, match=r"x\['a'\] has dtype torch\.float64"):
        objective({"a": x, "b": torch.randn(6, 2)}, y)


@pytest.mark.bad_input
def test_other_errors_of_the_model_are_shown_as_they_are():
    x, y = torch.randn(6, 3), torch.randn(6, 2)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        Elliptic(nn.Linear(4, 2), nn.MSELoss())(x, y)

    class Broken(nn.Linear):
        def forward(self, x):
            raise RuntimeError("a type of its own")

    with pytest.raises(RuntimeError, match="a type of its own"):
        Elliptic(Broken(3, 2), nn.MSELoss())(x, y)
