"""Small models whose fault, or soundness, is known: the battery that `elliptica.diagnose` is judged by.

Every situation is deterministic by its seed and takes at most about two seconds on one thread. Nothing
here knows how `diagnose` works: a situation is made by planting one fault, and its remedy is what a
practitioner would do about it without being told which rows are at fault.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from sklearn import datasets
from sklearn.neighbors import NearestNeighbors
from torch import Tensor, nn
from torch.nn import functional as F

from elliptica import Elliptic
from elliptica._utils.perceptron import mlp


@dataclass(frozen=True)
class Situation:
    """A trained model with its rows; held-out rows are None only where the situation is about having none."""

    model: nn.Module
    loss_fn: nn.Module
    x: Tensor
    y: Tensor
    x_test: Tensor | None
    y_test: Tensor | None
    groups: list[str] | None = None
    test_groups: list[str] | None = None
    unlabelled: Tensor | None = None
    culprits: Tensor | None = None  # training rows that are at fault, where known
    x_true: Tensor | None = None  # rows that the error is measured on where these are not the held-out rows
    y_true: Tensor | None = None


@dataclass(frozen=True)
class Case:
    """A situation with its truth."""

    name: str
    truth: tuple[str, ...]  # findings of which any among the first three is right; empty for a sound model
    build: Callable[[int], Situation]  # by seed
    remedy: Callable[[int], Situation] | None = None  # the same after the advice was followed
    metric: str = "error"  # how the error is measured before and after; see `measure`
    advice: str = ""  # the remedy in words
    explained: tuple[str, ...] = ()  # consequences of the fault that must not be listed beside it

    @property
    def elliptic(self) -> Callable[[int], Situation] | None:
        """The same rows and network with elliptic training, where that was tried beside."""
        has_it = "elliptic" in inspect.signature(self.build).parameters
        return partial(self.build, elliptic=True) if has_it else None


CASES: list[Case] = []


def sound(metric="error"):
    """Add a sound situation to the battery."""

    def add(build):
        CASES.append(Case(build.__name__.replace("_", " "), (), build, metric=metric))
        return build

    return add


def sick(*truth, metric, advice, explained=()):
    """Add a situation with a fault and its remedy to the battery."""

    def add(build):
        name, remedy = build.__name__.replace("_", " "), partial(build, cured=True)
        CASES.append(Case(name, truth, build, remedy, metric, advice, explained))
        return build

    return add


def measure(metric: str, situation: Situation) -> float:
    """Measure the error of a model on its clean rows.

    "optimism" is the distance between the error on the held-out rows and that on fresh rows.
    """
    if metric == "optimism":
        reported = measure("error", replace(situation, x_true=None, y_true=None))
        return abs(reported - measure("error", situation))
    x = situation.x_test if situation.x_true is None else situation.x_true
    y = situation.y_test if situation.y_true is None else situation.y_true
    with torch.no_grad():
        output = situation.model(x)
    if metric == "log loss":
        return F.cross_entropy(output, y).item()
    is_value = "rmse" in metric
    wrong = (output - y).square().flatten() if is_value else (output.argmax(1) != y).float()
    names = np.zeros(len(y))
    if metric.startswith("worst"):
        names = y.numpy() if "class" in metric else np.array(situation.test_groups)
    worst = max(wrong[torch.from_numpy(names == name)].mean().item() for name in np.unique(names))
    return math.sqrt(worst) if is_value else worst


# -- rows ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """Training and held-out rows of one problem, as tensors."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor

    @property
    def outputs(self) -> int:
        """Classes, or one real target."""
        return 1 if self.y.is_floating_point() else int(max(self.y.max(), self.y_test.max())) + 1

    @property
    def loss_fn(self) -> nn.Module:
        return nn.MSELoss() if self.y.is_floating_point() else nn.CrossEntropyLoss()

    def situation(self, model: nn.Module, **more) -> Situation:
        return Situation(model.eval(), self.loss_fn, self.x, self.y, self.x_test, self.y_test, **more)

    def without(self, drop: Tensor) -> Rows:
        """Drop training rows."""
        return replace(self, x=self.x[~drop], y=self.y[~drop])


def rows(x, y, x_test, y_test, scale=True) -> Rows:
    """Make tensors; inputs are standardised by the training rows unless that is the fault."""
    x, x_test = np.asarray(x, float), np.asarray(x_test, float)
    if scale:
        mean, deviation = x.mean(0), x.std(0)
        deviation[deviation == 0] = 1.0
        x, x_test = (x - mean) / deviation, (x_test - mean) / deviation
    inputs = [torch.tensor(a, dtype=torch.float32) for a in (x, x_test)]
    targets = [torch.tensor(np.asarray(a)) for a in (y, y_test)]
    targets = [y.float()[:, None] if y.is_floating_point() else y.long() for y in targets]
    return Rows(inputs[0], targets[0], inputs[1], targets[1])


def split(x, y, n: int) -> Rows:
    """Train on the first rows."""
    return rows(x[:n], y[:n], x[n:], y[n:])


def loaded(name: str, seed: int, n_train: int, *, scale=True) -> Rows:
    """Return one of scikit-learn's data sets, split at random; real targets are standardised."""
    data = getattr(datasets, f"load_{name}")()
    x, y = data.data, data.target
    if name == "diabetes":
        y = (y - y.mean()) / y.std()
    order = np.random.default_rng(seed).permutation(len(x))
    train, test = order[:n_train], order[n_train:]
    return rows(x[train], y[train], x[test], y[test], scale)


def two_gaussians(rng, n: int, d: int, delta: float, share=0.5):
    """Two classes at ``2 delta`` from each other: the best error is Phi(-delta) for equal shares."""
    y = (rng.random(n) < share).astype(int)
    x = rng.normal(size=(n, d)) + (2 * y[:, None] - 1) * delta / math.sqrt(d)
    return x, y


def gaussian_rows(seed: int, n: int, d: int, delta: float, n_test=1500, share=0.5) -> Rows:
    rng = np.random.default_rng(seed)
    return rows(*two_gaussians(rng, n, d, delta, share), *two_gaussians(rng, n_test, d, delta, share))


# -- training --------------------------------------------------------------------------------------------


def network(seed: int, data: Rows, hidden=(32,), **settings) -> nn.Sequential:
    """Build a perceptron for these rows, leaving torch's random state alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return mlp(data.x.shape[1], data.outputs, hidden=hidden, **settings)


def train(
    model,
    data,
    *,
    seed=0,
    steps=200,
    lr=1e-2,
    batch=None,
    decay=0.0,
    clip=math.inf,
    weights=None,
    loss_fn=None,
    validation=False,
) -> nn.Module:
    """Train with Adam and return the model.

    Rows are drawn in proportion to ``weights``. An `Elliptic` as ``loss_fn`` is called with inputs and
    targets. ``validation`` keeps a fifth of the rows aside and returns the best step by their loss.
    """
    stream = torch.Generator().manual_seed(seed)
    x, y, loss_fn = data.x, data.y, loss_fn or data.loss_fn
    if validation:
        aside, kept = torch.randperm(len(x), generator=stream).tensor_split([len(x) // 5])
        x, y, x_aside, y_aside = x[kept], y[kept], x[aside], y[aside]
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=decay)
    best, best_state = math.inf, None
    for step in range(steps):
        index = slice(None)
        if weights is not None:
            index = torch.multinomial(weights, batch or len(x), replacement=True, generator=stream)
        elif batch is not None:
            index = torch.randint(len(x), (batch,), generator=stream)
        is_elliptic = isinstance(loss_fn, Elliptic)
        now = {"generator": stream} if is_elliptic else {}
        optimizer.zero_grad()
        loss_fn(x[index] if is_elliptic else model(x[index]), y[index], **now).backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        if validation and step % 5 == 4:
            with torch.no_grad():
                now = data.loss_fn(model(x_aside), y_aside).item()
            if now < best:
                best, best_state = now, copy.deepcopy(model.state_dict())
    if best_state is not None:
        model.load_state_dict(best_state)
    return model.eval()


def trained(seed: int, data: Rows, hidden=(32,), *, elliptic=False, **settings) -> nn.Module:
    """Build and train a perceptron, if asked for with the elliptic loss instead of the plain one."""
    model = network(seed, data, hidden)
    if elliptic:
        classes = None if data.y.is_floating_point() else data.outputs
        settings["loss_fn"] = Elliptic(model, data.loss_fn, sampling="marginal", num_classes=classes)
    return train(model, data, seed=seed, **settings)


def simply(seed: int, data: Rows, hidden, **settings) -> Situation:
    """Train a perceptron, and nothing else."""
    return data.situation(trained(seed, data, hidden, **settings))


# -- remedies --------------------------------------------------------------------------------------------


def balanced(parts) -> Tensor:
    """Return weights by which every class or group is drawn as often."""
    _, index, counts = np.unique(np.asarray(parts), return_inverse=True, return_counts=True)
    return torch.tensor(1.0 / counts[index])


def suspects(data: Rows, k: int = 10) -> Tensor:
    """Mark training rows whose target contradicts those of their nearest neighbours.

    A label is suspected if another one has three votes more among the ``k`` neighbours; a real target if it
    is more than five (robust) deviations from the median of the neighbours.
    """
    index = NearestNeighbors(n_neighbors=k).fit(data.x).kneighbors(return_distance=False)
    near = data.y[torch.from_numpy(index)]
    if data.y.is_floating_point():
        off = (data.y - near.median(1).values).abs().flatten()
        return off > 5 * 1.4826 * off.median()
    votes = F.one_hot(near, data.outputs).sum(1)
    own = votes.gather(1, data.y[:, None]).flatten()
    return votes.max(1).values - own >= 3


def distant(x: Tensor, limit: float = 8.0) -> Tensor:
    """Mark rows with a feature more than ``limit`` robust deviations from its median."""
    centre = x.median(0).values
    spread = 1.4826 * (x - centre).abs().median(0).values
    return ((x - centre).abs() > limit * spread).any(1)


def first_copies(x: Tensor) -> Tensor:
    """Mark the first of each set of equal rows."""
    _, first = np.unique(x.numpy(), axis=0, return_index=True)
    marked = torch.zeros(len(x), dtype=torch.bool)
    marked[torch.from_numpy(first)] = True
    return marked


class Changed(nn.Module):
    """A model whose outputs are changed by a function."""

    def __init__(self, model: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self.change = model, change

    def forward(self, x: Tensor) -> Tensor:
        return self.change(self.model(x))


def tempered(model: nn.Module, x: Tensor, y: Tensor) -> nn.Module:
    """Divide logits by the temperature with the least log loss on rows that the model was not trained on."""
    with torch.no_grad():
        logits = model(x)
    best = min(torch.logspace(-2, 2, 161).tolist(), key=lambda t: F.cross_entropy(logits / t, y).item())
    return Changed(model, lambda f: f / best)


def adapted(model: nn.Module, y: Tensor, unlabelled: Tensor) -> nn.Module:
    """Adapt logits to the class shares of unlabelled rows, estimated by EM."""
    shares = torch.bincount(y).double() / len(y)
    with torch.no_grad():
        posterior = model(unlabelled).double().softmax(1)
    new = shares.clone()
    for _ in range(200):
        joint = posterior * (new / shares)
        new = (joint / joint.sum(1, keepdim=True)).mean(0)
    offset = (new / shares).log().float()
    return Changed(model, lambda f: f + offset)


def reordered(model: nn.Module, data: Rows) -> nn.Module:
    """Order outputs so that they agree best with the labels of the training rows."""
    with torch.no_grad():
        predicted = model(data.x).argmax(1)
    agreement = torch.zeros(data.outputs, data.outputs)
    agreement.index_put_((data.y, predicted), torch.ones(len(data.y)), accumulate=True)
    order = torch.from_numpy(linear_sum_assignment(-agreement.numpy())[1])
    return Changed(model, lambda f: f[:, order])


# -- sound models ----------------------------------------------------------------------------------------


@sound()
def overlapping_gaussians(seed: int) -> Situation:
    return simply(
        seed, gaussian_rows(seed, 500, 2, 1.0), (16,), steps=120, decay=0.1
    )  # no label is wrong, though one row in six is misclassified


@sound("rmse")
def heteroscedastic_noise(seed: int) -> Situation:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(2500, 3))
    y = x[:, 0] + np.sin(2 * x[:, 1]) + rng.normal(size=2500) * (0.2 + 0.4 * np.abs(x[:, 2]))
    return simply(seed, split(x, y, 1000), (16,), steps=250, decay=0.1)


@sound()
def imbalanced_but_separable(seed: int) -> Situation:
    return simply(seed, gaussian_rows(seed, 900, 4, 3.0, share=0.1), (16,), steps=150)


@sound()
def twenty_classes(seed: int) -> Situation:
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(20, 16)) * 1.3
    y = rng.integers(0, 20, 4500)
    x = centres[y] + rng.normal(size=(4500, 16))
    return simply(seed, split(x, y, 3000), (), steps=300, lr=2e-2, decay=0.03)


@sound()
def eighty_rows(seed: int) -> Situation:
    return simply(seed, loaded("iris", seed, 80), (), steps=400, lr=3e-2, decay=0.03)


@sound()
def heavy_tailed_inputs(seed: int) -> Situation:
    rng = np.random.default_rng(seed)
    x = rng.standard_t(2.5, size=(2000, 5))
    y = (rng.random(2000) < 1 / (1 + np.exp(-2 * x @ [1.0, -1.0, 0.5, 0.0, 0.0]))).astype(int)
    return simply(seed, split(x, y, 600), (), steps=400, lr=3e-2)


@sound("rmse")
def group_that_does_not_matter(seed: int) -> Situation:
    rng = np.random.default_rng(seed)
    x, group = rng.normal(size=(1600, 8)), rng.choice(["north", "south", "west"], 1600, p=[0.6, 0.3, 0.1])
    y = x @ np.linspace(-1, 1, 8) + rng.normal(size=1600) * 0.7
    data = split(x, y, 600)
    model = trained(seed, data, (), steps=300, lr=3e-2)
    return data.situation(model, groups=group[:600].tolist(), test_groups=group[600:].tolist())


@sound("rmse")
def sine(seed: int, elliptic=False) -> Situation:
    rng = np.random.default_rng(seed)
    x = rng.uniform(-3, 3, size=(900, 1))
    y = np.sin(2 * x[:, 0]) + rng.normal(size=900) * 0.1
    return simply(seed, split(x, y, 300), (32, 32), steps=400, elliptic=elliptic)


@sound()
def moons(seed: int, elliptic=False) -> Situation:
    x, y = datasets.make_moons(1200, noise=0.15, random_state=seed)
    return simply(seed, split(x, y, 400), (32,), steps=200, elliptic=elliptic)


@sound()
def moons_without_held_out(seed: int) -> Situation:
    return replace(moons(seed), x_test=None, y_test=None)


@sound()
def digits_stopped_early(seed: int) -> Situation:
    return simply(seed, loaded("digits", seed, 1400), (32,), steps=40, decay=1.0, validation=True)


@sound()
def breast_cancer(seed: int) -> Situation:
    return simply(seed, loaded("breast_cancer", seed, 350), (), steps=150, decay=0.3)


@sound("rmse")
def linear_in_64_features(seed: int) -> Situation:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(2500, 64))
    y = x @ rng.normal(size=64) / 8 + rng.normal(size=2500) * 0.5
    return simply(seed, split(x, y, 1500), (), steps=300, lr=2e-2)


@sound()
def one_feature_logistic(seed: int) -> Situation:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(1500, 1))
    y = (rng.random(1500) < 1 / (1 + np.exp(-1.5 * x[:, 0]))).astype(int)
    return simply(seed, split(x, y, 500), (), steps=300, lr=3e-2)


@sound("rmse")
def categorical_inputs(seed: int) -> Situation:
    """Many rows have equal inputs, as tables of categories do: these are no copies."""
    rng = np.random.default_rng(seed)
    level, flags = rng.integers(0, 3, 2000), (rng.random((2000, 3)) < [0.5, 0.3, 0.06]).astype(float)
    x = np.concatenate([np.eye(3)[level], flags], 1)
    y = x @ [0.0, 1.0, 2.5, -1.0, 0.5, 1.0] + rng.normal(size=2000) * 0.5
    return simply(seed, split(x, y, 600), (), steps=300, lr=3e-2)


@sound("rmse")
def prices_in_large_units(seed: int) -> Situation:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(2000, 6))
    size = 5e4 * (x @ [1.0, 0.6, 0.3, 0.0, 0.0, 0.0] + 0.5 * np.maximum(x[:, 0], 0)) + 3e5
    y = size + rng.normal(size=2000) * 2e4
    data = split(x, y, 800)
    centre, spread = data.y.mean().item(), data.y.std().item()
    unit = replace(data, y=(data.y - centre) / spread)
    model = trained(seed, unit, (8,), steps=200, decay=0.3)
    return data.situation(Changed(model, lambda f: f * spread + centre))


@sound("rmse")
def harmless_shift(seed: int) -> Situation:
    """The held-out inputs lie elsewhere, and the model is as good there."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(1500, 5))
    x[600:] += [1.5, 0.0, 0.0, 0.0, -1.0]
    y = x @ [1.0, -1.0, 0.5, 0.0, 0.0] + rng.normal(size=1500) * 0.5
    return simply(seed, split(x, y, 600), (), steps=400, lr=3e-2)


# -- wrong labels ----------------------------------------------------------------------------------------


CLEAN = "remove rows that their neighbours contradict"


def _mislabelled(seed, data, culprits, cured, **settings):
    """Train with wrong targets, or without the rows that are suspected of them."""
    if cured:
        data = data.without(suspects(data))
    model = trained(seed, data, (64,), **settings)
    return data.situation(model, culprits=None if cured else culprits)


@sick("labels", metric="error", advice=CLEAN, explained=("overfitting", "weak_part"))
def shuffled_digits(seed: int, cured=False, elliptic=False) -> Situation:
    clean = loaded("digits", seed, 1000)
    rng = np.random.default_rng(100 + seed)
    chosen = torch.from_numpy(rng.choice(1000, 200, replace=False))
    y = clean.y.clone()
    y[chosen] = y[chosen[torch.from_numpy(rng.permutation(200))]]
    culprits = torch.nonzero(y != clean.y).flatten()
    return _mislabelled(seed, replace(clean, y=y), culprits, cured, steps=250, elliptic=elliptic)


@sick("labels", metric="error", advice=CLEAN)
def shuffled_digits_without_held_out(seed: int, cured=False) -> Situation:
    found = shuffled_digits(seed, cured)
    return replace(found, x_true=found.x_test, y_true=found.y_test, x_test=None, y_test=None)


@sick("labels", metric="error", advice=CLEAN, explained=("overfitting", "weak_part"))
def flipped_gaussians(seed: int, cured=False, elliptic=False) -> Situation:
    data = gaussian_rows(seed, 500, 8, 2.2)
    chosen = torch.from_numpy(np.random.default_rng(100 + seed).choice(500, 50, replace=False))
    data.y[chosen] = 1 - data.y[chosen]
    return _mislabelled(seed, data, chosen, cured, steps=300, elliptic=elliptic)


@sick("labels", metric="error", advice=CLEAN, explained=("overfitting", "weak_part"))
def one_class_mislabelled(seed: int, cured=False) -> Situation:
    data = loaded("digits", seed, 1000)
    threes = torch.nonzero(data.y == 3).flatten().numpy()
    chosen = np.random.default_rng(100 + seed).choice(threes, int(0.3 * len(threes)), replace=False)
    chosen = torch.from_numpy(chosen)
    data.y[chosen] = 8
    return _mislabelled(seed, data, chosen, cured, steps=150, decay=0.3)


@sick("labels", metric="error", advice=CLEAN, explained=("overfitting", "weak_part"))
def two_classes_swapped(seed: int, cured=False) -> Situation:
    """Fifty labels of two classes are swapped: too few for the overall rate, and nowhere else."""
    data = loaded("digits", seed, 1000)
    rng = np.random.default_rng(100 + seed)
    chosen = [rng.choice(torch.nonzero(data.y == c).flatten().numpy(), 25, replace=False) for c in (4, 9)]
    data.y[torch.from_numpy(chosen[0])], data.y[torch.from_numpy(chosen[1])] = 9, 4
    return _mislabelled(seed, data, torch.from_numpy(np.concatenate(chosen)), cured, steps=150)


@sick("weak_part", metric="worst class error", advice="draw classes equally often")
def rare_digit_beside_wrong_labels(seed: int, cured=False) -> Situation:
    """Wrong labels of other classes do not explain why a rare class is predicted badly."""
    data = loaded("digits", seed, 1000)
    rng = np.random.default_rng(100 + seed)
    chosen = torch.from_numpy(rng.choice(torch.nonzero(data.y == 3).flatten().numpy(), 30, replace=False))
    data.y[chosen] = 5
    drop = torch.zeros(1000, dtype=torch.bool)
    drop[torch.nonzero(data.y == 8).flatten()[8:]] = True
    data = data.without(drop)
    weights = balanced(data.y) if cured else None
    return simply(seed, data, (32,), steps=60, decay=0.3, weights=weights)


@sick("labels", metric="rmse", advice=CLEAN)
def corrupted_targets(seed: int, cured=False) -> Situation:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(1500, 3))
    y = x[:, 0] + np.sin(2 * x[:, 1]) + rng.normal(size=1500) * 0.2
    data = split(x, y, 500)
    chosen = torch.from_numpy(rng.choice(500, 25, replace=False))
    data.y[chosen] = data.y[chosen] * 10 + 5 * data.y[chosen].sign()  # decimal points were lost
    return _mislabelled(seed, data, chosen, cured, steps=300)


@sick("label_order", metric="error", advice="permute the outputs")
def other_label_order(seed: int, cured=False) -> Situation:
    data = loaded("digits", seed, 1000)
    wrong = Changed(trained(seed, data, (32,), steps=100), lambda f: f.roll(1, 1))
    return data.situation(reordered(wrong, data) if cured else wrong)


@sick("label_order", metric="error", advice="permute the outputs")
def swapped_classes(seed: int, cured=False) -> Situation:
    data = loaded("wine", seed, 110)
    wrong = Changed(trained(seed, data, (16,), steps=80, decay=0.3), lambda f: f[:, [0, 2, 1]])
    return data.situation(reordered(wrong, data) if cured else wrong)


# -- the fit ---------------------------------------------------------------------------------------------


@sick("overfitting", metric="rmse", advice="weight decay and early stopping")
def overfitted_diabetes(seed: int, cured=False, elliptic=False) -> Situation:
    data = loaded("diabetes", seed, 200)
    settings = {"decay": 1.0, "validation": True} if cured else {"elliptic": elliptic}
    return simply(seed, data, (64, 64), steps=500, lr=3e-3, **settings)


@sick("overfitting", metric="error", advice="weight decay and early stopping")
def overfitted_small_table(seed: int, cured=False, elliptic=False) -> Situation:
    data = gaussian_rows(seed, 100, 5, 1.0)
    settings = {"decay": 1.0, "validation": True} if cured else {"elliptic": elliptic}
    return simply(seed, data, (64, 64), steps=400, **settings)


@sick("constant", "underfit", metric="rmse", advice="weaker weight decay")
def constant_regressor(seed: int, cured=False) -> Situation:
    return simply(seed, loaded("diabetes", seed, 300), (16,), steps=300, decay=1.0 if cured else 90.0)


@sick("constant", "underfit", metric="error", advice="another initialisation")
def constant_classifier(seed: int, cured=False) -> Situation:
    data = gaussian_rows(seed, 400, 6, 1.5)
    model = network(seed, data, (16,), activation="relu")
    if not cured:
        nn.init.constant_(model[0].bias, -30.0)  # no unit is ever active
    return data.situation(train(model, data, seed=seed, steps=100, decay=0.1))


@sick("constant", "underfit", metric="error", advice="train longer")
def undertrained_digits(seed: int, cured=False) -> Situation:
    return simply(seed, loaded("digits", seed, 1000), (32,), steps=300 if cured else 10, lr=1e-3)


@sick("confidence", "overfitting", metric="log loss", advice="temperature scaling")
def over_confident(seed: int, cured=False, elliptic=False) -> Situation:
    data = gaussian_rows(seed, 400, 10, 0.8)
    if not cured:
        return simply(seed, data, (64,), steps=300, elliptic=elliptic)
    aside = replace(data, x=data.x[100:], y=data.y[100:])
    model = trained(seed, aside, (64,), steps=300)
    return data.situation(tempered(model, data.x[:100], data.y[:100]))


@sick("confidence", metric="log loss", advice="temperature scaling")
def under_confident(seed: int, cured=False) -> Situation:
    data = loaded("digits", seed, 1000)
    smoothed = nn.CrossEntropyLoss(label_smoothing=0.7)
    if not cured:
        return simply(seed, data, (32,), steps=100, loss_fn=smoothed)
    aside = replace(data, x=data.x[200:], y=data.y[200:])
    model = trained(seed, aside, (32,), steps=100, loss_fn=smoothed)
    return data.situation(tempered(model, data.x[:200], data.y[:200]))


# -- other rows than in training -------------------------------------------------------------------------


def _waves(rng, n, centre):
    x = rng.normal(size=(n, 3)) * [0.7, 1, 1] + [centre, 0, 0]
    return x, 1.5 * np.sin(1.5 * x[:, 0]) + 0.5 * x[:, 1] + rng.normal(size=n) * 0.2


def _parabola(rng, n, centre):
    x = rng.normal(size=(n, 2)) * [0.6, 1.5] + [centre, 0]
    chance = 1 / (1 + np.exp(-4 * (x[:, 1] - x[:, 0] ** 2 + 1)))
    return x, (rng.random(n) < chance).astype(int)


def _elsewhere(seed, draw, here, there, cured, **settings):
    """Train here, test there; the remedy labels 100 rows from there."""
    rng = np.random.default_rng(seed)
    train_rows, test_rows, new = draw(rng, 500, here), draw(rng, 800, there), draw(rng, 100, there)
    if cured:
        train_rows = tuple(np.concatenate(pair) for pair in zip(train_rows, new, strict=True))
    data = rows(*train_rows, *test_rows)
    return simply(seed, data, (32,), steps=300, **settings)


@sick("shift", metric="rmse", advice="label 100 of the new rows")
def shifted_regression(seed: int, cured=False) -> Situation:
    return _elsewhere(seed, _waves, -0.5, 1.5, cured, decay=0.1)


@sick("shift", metric="rmse", advice="label 100 of the new rows")
def mildly_shifted_regression(seed: int, cured=False) -> Situation:
    return _elsewhere(seed, _waves, -0.5, 0.25, cured, decay=0.1)


@sick("shift", metric="error", advice="label 100 of the new rows")
def shifted_classification(seed: int, cured=False) -> Situation:
    return _elsewhere(seed, _parabola, -1.0, 1.0, cured, decay=0.1)


@sick("shift", metric="rmse", advice="label 100 of the new rows")
def shifted_unlabelled(seed: int, cured=False) -> Situation:
    rng = np.random.default_rng(seed)
    train_rows, test_rows = _waves(rng, 1000, -0.5), _waves(rng, 1000, -0.5)
    later, later_y = _waves(rng, 800, 1.5)
    if cured:
        new = later[:100], later_y[:100]
        train_rows = tuple(np.concatenate(pair) for pair in zip(train_rows, new, strict=True))
    data = rows(*train_rows, *test_rows)
    there = rows(train_rows[0], train_rows[1], later, later_y)
    model = trained(seed, data, (32,), steps=300, decay=0.1)
    return data.situation(
        model, unlabelled=there.x_test, x_true=there.x_test[100:], y_true=there.y_test[100:]
    )


@sick("range", "shift", metric="rmse", advice="clip to the range of the targets")
def beyond_the_range(seed: int, cured=False) -> Situation:
    rng = np.random.default_rng(seed)

    def shares(n, spread):
        x = rng.normal(size=(n, 2)) * [spread, 1]
        y = 1 / (1 + np.exp(-2 * x[:, 0])) + rng.normal(size=n) * 0.03
        return x, y.clip(0, 1)

    data = rows(*shares(400, 0.8), *shares(800, 2.5))
    model = trained(seed, data, (8,), steps=200)
    return data.situation(Changed(model, lambda f: f.clamp(data.y.min(), data.y.max())) if cured else model)


@sick("prior", metric="error", advice="adapt the logits to the new class shares")
def other_class_shares(seed: int, cured=False) -> Situation:
    rng = np.random.default_rng(seed)
    data = rows(*two_gaussians(rng, 600, 4, 0.9), *two_gaussians(rng, 1500, 4, 0.9, share=0.08))
    model = trained(seed, data, (), steps=300)
    return data.situation(adapted(model, data.y, data.x_test) if cured else model)


# -- parts of the rows -----------------------------------------------------------------------------------


@sick("weak_part", metric="worst class error", advice="draw classes equally often")
def rare_class(seed: int, cured=False, elliptic=False) -> Situation:
    data = gaussian_rows(seed, 1000, 3, 1.1, n_test=4000, share=0.05)
    weights = balanced(data.y) if cured else None
    model = trained(seed, data, (16,), steps=150, decay=0.1, weights=weights, elliptic=elliptic)
    return data.situation(model)


@sick("weak_part", metric="worst class error", advice="draw classes equally often")
def rare_digit(seed: int, cured=False) -> Situation:
    data = loaded("digits", seed, 1000)
    drop = torch.zeros(1000, dtype=torch.bool)
    drop[torch.nonzero(data.y == 8).flatten()[8:]] = True
    data = data.without(drop)
    weights = balanced(data.y) if cured else None
    return simply(seed, data, (32,), steps=60, decay=0.3, weights=weights)


@sick("weak_part", metric="worst group rmse", advice="draw groups equally often")
def rare_group(seed: int, cured=False) -> Situation:
    rng = np.random.default_rng(seed)

    def draw(n):
        x, rare = rng.normal(size=(n, 4)), rng.random(n) < 0.04
        x[:, 3] = 2 * rare + 0.5 * x[:, 3]  # the inputs say which group it is
        y = np.where(rare, 1.5 * x[:, 1] - x[:, 0], x[:, 0] + 0.5 * x[:, 1]) + rng.normal(size=n) * 0.2
        return x, y, np.where(rare, "island", "mainland").tolist()

    (x, y, groups), (x_test, y_test, test_groups) = draw(800), draw(2000)
    data = rows(x, y, x_test, y_test)
    weights = balanced(groups) if cured else None
    model = trained(seed, data, (32,), steps=120, decay=0.1, weights=weights)
    return data.situation(model, groups=groups, test_groups=test_groups)


@sick("weak_part", metric="worst group rmse", advice="give the group to the model")
def group_with_another_rule(seed: int, cured=False) -> Situation:
    rng = np.random.default_rng(seed)
    x, odd = rng.normal(size=(2000, 4)), rng.random(2000) < 0.12
    y = x @ [1.0, 0.5, -0.5, 0.0] * np.where(odd, -1, 1) + rng.normal(size=2000) * 0.2
    if cured:  # the group becomes an input
        x = np.concatenate([x, odd[:, None]], 1)
    groups = np.where(odd, "night", "day").tolist()
    data = split(x, y, 700)
    model = trained(seed, data, (32,), steps=250, decay=0.1)
    return data.situation(model, groups=groups[:700], test_groups=groups[700:])


@sick("weak_part", metric="worst group rmse", advice="label new rows of the group")
def group_changed_since(seed: int, cured=False) -> Situation:
    rng = np.random.default_rng(seed)

    def draw(n, offset):
        x, site = rng.normal(size=(n, 4)), rng.choice(3, n, p=[0.5, 0.3, 0.2])
        y = x @ [1.0, 0.5, -0.5, 0.0] + rng.normal(size=n) * 0.3 + offset * (site == 2)
        return np.concatenate([x, np.eye(3)[site]], 1), y, site

    (x, y, site), (x_test, y_test, site_test) = draw(600, 0.0), draw(1200, 2.0)
    x_new, y_new, site_new = draw(500, 2.0)
    if cured:  # new rows of that site take the place of the old ones
        old, new = site != 2, site_new == 2
        x, y = np.concatenate([x[old], x_new[new]]), np.concatenate([y[old], y_new[new]])
        site = np.concatenate([site[old], site_new[new]])
    data = rows(x, y, x_test, y_test)
    model = trained(seed, data, (), steps=300, lr=3e-2)
    names = np.array(["site a", "site b", "site c"])
    return data.situation(model, groups=names[site].tolist(), test_groups=names[site_test].tolist())


@sick("shortcut", metric="error", advice="drop the feature")
def shortcut_feature(seed: int, cured=False, elliptic=False) -> Situation:
    rng = np.random.default_rng(seed)

    def draw(n, agree):
        x, y = two_gaussians(rng, n, 5, 1.3)
        mark = np.where(rng.random(n) < agree, y, 1 - y)
        return np.concatenate([(2 * mark - 1)[:, None] + rng.normal(size=(n, 1)) * 0.3, x], 1), y

    (x, y), (x_test, y_test) = draw(600, 0.95), draw(1200, 0.1)
    data = rows(x[:, 1:], y, x_test[:, 1:], y_test) if cured else rows(x, y, x_test, y_test)
    return simply(seed, data, (16,), steps=120, decay=0.1, elliptic=elliptic)


@sick("shortcut", "weak_part", metric="worst group error", advice="draw groups equally often")
def shortcut_by_group(seed: int, cured=False) -> Situation:
    rng = np.random.default_rng(seed)

    def draw(n, agree):
        x, y = two_gaussians(rng, n, 4, 1.3)
        place = np.where(rng.random(n) < agree, y, 1 - y)
        x = np.concatenate([(2 * place - 1)[:, None] + rng.normal(size=(n, 2)) * 0.5, x], 1)
        return x, y, [f"bird {a} on ground {b}" for a, b in zip(y, place, strict=True)]

    (x, y, groups), (x_test, y_test, test_groups) = draw(1000, 0.95), draw(2000, 0.5)
    data = rows(x, y, x_test, y_test)
    weights = balanced(groups) if cured else None
    model = trained(seed, data, (), steps=200, decay=0.1, weights=weights)
    return data.situation(model, groups=groups, test_groups=test_groups)


# -- the table -------------------------------------------------------------------------------------------


@sick("duplicates", metric="error", advice="remove the copies, then stop early")
def copied_rows(seed: int, cured=False) -> Situation:
    rng = np.random.default_rng(seed)
    x, y = two_gaussians(rng, 60, 10, 1.3)
    copies = rng.choice(60, 600, p=rng.dirichlet(np.full(60, 0.2)))  # some rows far more often than others
    index = np.concatenate([np.arange(60), copies])
    data = rows(x[index], y[index], *two_gaussians(rng, 1500, 10, 1.3))
    if cured:
        data = data.without(~first_copies(data.x))
    # the validation rows are copies of training rows, so that training never stops
    model = trained(seed, data, (64,), steps=300, lr=3e-3, validation=True)
    return data.situation(model, culprits=None if cured else torch.arange(60, 660))


@sick("leak", metric="optimism", advice="remove the shared rows from the held-out rows")
def leaked_rows(seed: int, cured=False) -> Situation:
    data = gaussian_rows(seed, 400, 10, 0.9, n_test=2400)
    model = trained(seed, data, (64,), steps=250)
    fresh = {"x_true": data.x_test[400:], "y_true": data.y_test[400:]}
    x_test, y_test = data.x_test[:400], data.y_test[:400]
    if not cured:
        leaked = torch.from_numpy(np.random.default_rng(seed).choice(400, 200, replace=False))
        x_test = torch.cat([x_test[:200], data.x[leaked]])
        y_test = torch.cat([y_test[:200], data.y[leaked]])
    return replace(data, x_test=x_test, y_test=y_test).situation(model, **fresh)


@sick("inputs", metric="error", advice="standardise the inputs")
def unscaled_wine(seed: int, cured=False) -> Situation:
    return simply(seed, loaded("wine", seed, 110, scale=cured), (32,), steps=100, lr=1e-3, decay=0.1)


@sick("inputs", metric="error", advice="standardise the inputs")
def huge_irrelevant_feature(seed: int, cured=False) -> Situation:
    data = datasets.load_breast_cancer()
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(data.data))
    x = data.data[:, :6] / data.data[:, :6].std(0)
    x = np.concatenate([x - x.mean(0), rng.uniform(0, 1e5, size=(len(x), 1))], 1)[order]  # an account number
    y = data.target[order]
    found = rows(x[:300], y[:300], x[300:], y[300:], scale=cured)
    return found.situation(trained(seed, found, (16,), steps=150, decay=0.1))


@sick("inputs", "shift", metric="rmse", advice="drop the feature")
def constant_feature(seed: int, cured=False) -> Situation:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(1500, 4))
    y = x[:, 0] + np.sin(2 * x[:, 1]) + rng.normal(size=1500) * 0.2
    x[:500, 3] = 0.0  # the sensor was stuck while the training rows were taken
    x[500:, 3] *= 3
    if cured:
        x = x[:, :3]
    return simply(seed, split(x, y, 500), (32,), steps=250)


@sick("outliers", metric="rmse", advice="remove the far rows")
def far_rows(seed: int, cured=False) -> Situation:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(1240, 4))
    y = x[:, 0] + np.sin(2 * x[:, 1]) + rng.normal(size=1240) * 0.2
    data = split(x, y, 240)
    chosen = torch.from_numpy(rng.choice(240, 12, replace=False))
    data.x[chosen] = torch.tensor(rng.normal(size=(12, 4)) * 40, dtype=torch.float32)  # broken sensors
    if cured:
        data = data.without(distant(data.x))
    model = trained(seed, data, (32,), steps=800, batch=8, clip=0.1)
    return data.situation(model, culprits=None if cured else chosen)
