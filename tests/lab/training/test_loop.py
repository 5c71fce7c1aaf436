"""The training loop: what it computes, and that an interruption changes nothing."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn

from elliptica import EllipticWarning
from elliptica._utils.random import stream
from elliptica.lab.data.splits import Dataset, Split
from elliptica.lab.models import mlp
from elliptica.lab.training import TrainingSettings, fit
from elliptica.lab.training.batch import batches, flip_and_crop
from laws import assert_frequencies


def dataset(n=60, d=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(3 * n, d, generator=generator)
    y = x.sum(1, keepdim=True) + 0.1 * torch.randn(3 * n, 1, generator=generator)
    parts = [Split(x[i * n : (i + 1) * n], y[i * n : (i + 1) * n]) for i in range(3)]
    return Dataset("toy", *parts, task="regression")


def noisy_mse(model, batch):
    """An objective that draws, so that the stream matters."""
    noise = 0.1 * torch.randn(batch.x.shape, generator=batch.generator)
    return nn.functional.mse_loss(model(batch.x + noise), batch.y)


def score(model, split):
    with torch.no_grad():
        return -float(nn.functional.mse_loss(model(split.x), split.y))


def network(dropout=0.2):
    torch.manual_seed(1)
    return nn.Sequential(mlp(3, 8, hidden=(16,)), nn.Dropout(dropout), nn.ReLU(), nn.Linear(8, 1))


SETTINGS = TrainingSettings(epochs=6, batch_size=16, lr=1e-2)


def train(settings=SETTINGS, objective=noisy_mse, score=score, **options):
    model = network()
    result = fit(model, objective, dataset(), settings, score, name="toy", seed=0, **options)
    return model, result


class Killed(BaseException):
    """Like SIGKILL: nothing in the loop may catch it."""


@pytest.mark.parametrize("kill_after", [1, 4])
@pytest.mark.parametrize(
    "settings",
    [
        SETTINGS,
        TrainingSettings(epochs=6, batch_size=16, lr=1e-2, optimizer="sgd", momentum=0.9, milestones=(3,)),
        TrainingSettings(epochs=6, batch_size=16, lr=1e-2, average=True),
    ],
    ids=["adam", "sgd", "average"],
)
def test_a_killed_run_ends_as_if_it_had_not_been(settings, kill_after, tmp_path):
    whole_model, whole = train(settings)

    def kill(end):
        if end.epoch == kill_after:
            raise Killed

    file = tmp_path / "run.safetensors"
    with pytest.raises(Killed):
        train(settings, checkpoint=file, progress=kill)
    model, resumed = train(settings, checkpoint=file)
    assert resumed.scores == whole.scores
    assert resumed.losses == whole.losses
    assert resumed.evaluations == whole.evaluations
    for name, value in whole_model.state_dict().items():
        assert torch.equal(model.state_dict()[name], value)


def test_the_best_epoch_on_validation_is_kept():
    model, result = train(TrainingSettings(epochs=6, batch_size=16, lr=0.5))
    assert result.score == max(result.scores)
    assert score(model, dataset().validation) == pytest.approx(result.score, rel=1e-6)
    last, found = train(TrainingSettings(epochs=6, batch_size=16, lr=0.5, select="last"))
    assert found.epoch == 5
    assert score(last, dataset().validation) == pytest.approx(found.scores[-1], rel=1e-6)


def test_evaluations_are_counted_and_bounded():
    _, result = train()
    assert result.evaluations == 6 * 60
    _, bounded = train(budget=130)
    assert bounded.evaluations == 136  # the batch of 16 in which the bound is passed is the last
    assert bounded.epochs == 3

    def twice(model, batch):
        return noisy_mse(model, batch) + noisy_mse(model, batch)

    _, doubled = train(objective=twice, budget=130)
    assert doubled.evaluations == 152
    assert doubled.epochs == 2


def test_a_budget_of_all_epochs_changes_nothing():
    first, whole = train()
    second, bounded = train(budget=6 * 60)
    assert whole.losses == bounded.losses
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


@pytest.mark.parametrize("repeats", [1, 3])
def test_the_rates_are_stretched_to_the_budget(repeats):
    """Half of the rows at the first rate, three tenths at the second, the rest at the third."""
    rates = []
    settings = TrainingSettings(10, 6, 1e-2, milestones=(5, 8))

    class Watched(torch.optim.SGD):
        def step(self, closure=None):
            rates.append(self.param_groups[0]["lr"])

    settings.__class__.make_optimizer, kept = (
        lambda self, model: Watched(model.parameters(), lr=self.lr),
        settings.__class__.make_optimizer,
    )
    try:
        train(settings, lambda m, b: sum(noisy_mse(m, b) for _ in range(repeats)), budget=600)
    finally:
        settings.__class__.make_optimizer = kept
    counts = Counter(f"{rate:.0e}" for rate in rates)
    steps = 100 // repeats
    assert abs(counts["1e-02"] - 0.5 * steps) <= 1
    assert abs(counts["1e-03"] - 0.3 * steps) <= 1
    assert abs(counts["1e-04"] - 0.2 * steps) <= 1


def test_epochs_before_a_penalty_sets_in_are_not_chosen():
    class Late:
        """Good at first, by the score; its penalty sets in in the third epoch."""

        n = 0
        is_warming_up = True
        restarts_optimizer = False

        def __call__(self, model, batch):
            self.n += 1
            self.is_warming_up = self.n <= 8  # of 4 steps an epoch
            return noisy_mse(model, batch)

    scores = iter([9.0, 8.0, 1.0, 3.0, 2.0, 0.0])
    _, found = train(objective=Late(), score=lambda *_: next(scores))
    assert (found.epoch, found.score) == (3, 3.0)


def test_an_objective_may_ask_for_a_fresh_optimiser():
    seen = []

    class Restarts:
        restarts_optimizer = True

        def __call__(self, model, batch):
            return noisy_mse(model, batch)

    class Watched(torch.optim.Adam):
        def step(self, closure=None):
            super().step(closure)
            seen.append(max(int(entry["step"]) for entry in self.state.values()))

    settings = TrainingSettings(2, 8, 1e-2)
    make = TrainingSettings.make_optimizer
    TrainingSettings.make_optimizer = lambda self, model: Watched(model.parameters())
    try:
        train(settings, Restarts())
    finally:
        TrainingSettings.make_optimizer = make
    assert set(seen) == {1}


def test_bfloat16_is_close_to_float32():
    settings = TrainingSettings(epochs=6, batch_size=16, lr=1e-2, precision="bfloat16")
    _, low = train(settings)
    _, full = train()
    assert low.losses != full.losses
    assert low.losses == pytest.approx(full.losses, rel=0.05)


class TwoSteps:
    """An objective that takes two steps on each batch, and keeps what the second one saw."""

    def __init__(self):
        self.seen = []

    def step(self, model, batch, optimizer):
        for _ in range(2):
            loss = nn.functional.mse_loss(model(batch.x), batch.y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            self.seen.append(float(loss.detach()))
        return loss.detach()


def test_bfloat16_sees_the_weights_of_the_step_before():
    """Autocast keeps rounded weights until it ends, which is after all steps on a batch."""
    seen = {}
    for precision in ("float32", "bfloat16"):
        settings = TrainingSettings(epochs=1, batch_size=60, lr=0.1, precision=precision)
        objective, model = TwoSteps(), nn.Sequential(mlp(3, 1, hidden=()))
        nn.init.zeros_(model[0][-1].weight)
        fit(model, objective, dataset(), settings, score, name="toy", seed=0)
        seen[precision] = objective.seen
    assert seen["bfloat16"] == pytest.approx(seen["float32"], rel=0.02)
    assert seen["bfloat16"][1] < 0.95 * seen["bfloat16"][0]


def test_streams_depend_on_name_and_seed_only():
    _, a = train()
    _, b = train()
    assert a.losses == b.losses
    other = fit(network(), noisy_mse, dataset(), SETTINGS, score, name="toy", seed=1)
    assert other.losses != a.losses


def test_rates_follow_the_milestones():
    settings = TrainingSettings(epochs=9, batch_size=1, lr=1.0, milestones=(3, 6), gamma=0.1)
    assert [settings.rate(e) for e in (0, 2, 3, 5, 6, 8)] == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])


@pytest.mark.parametrize(
    ("n", "size", "drop", "expected"), [(10, 4, False, 3), (10, 4, True, 2), (3, 4, True, 1)]
)
def test_batches(n, size, drop, expected):
    split = Split(torch.arange(n).float()[:, None], torch.zeros(n, 1), group=torch.arange(n) % 2)
    found = list(
        batches(split, size, order=stream(0), noise=stream(1), drop_last=drop, device=torch.device("cpu"))
    )
    assert len(found) == expected
    rows = torch.cat([b.index for b in found])
    assert len(rows.unique()) == len(rows)
    for batch in found:
        assert torch.equal(batch.x[:, 0].long(), batch.index)
        assert torch.equal(batch.group, batch.index % 2)


def killed(file, after=3):
    """Leave a checkpoint as a killed run does."""

    def kill(end):
        if end.epoch == after:
            raise Killed

    with pytest.raises(Killed):
        train(checkpoint=file, progress=kill)


@pytest.mark.bad_input
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_damaged_checkpoint_is_not_used(share, tmp_path):
    file = tmp_path / "run.safetensors"
    killed(file)
    file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])
    with pytest.warns(EllipticWarning, match="damaged"):
        _, result = train(checkpoint=file)
    assert result.scores == train()[1].scores


@pytest.mark.bad_input
def test_a_checkpoint_of_another_run_is_an_error(tmp_path):
    file = tmp_path / "run.safetensors"
    killed(file)
    with pytest.raises(ValueError, match="settings"):
        train(TrainingSettings(epochs=3, batch_size=16, lr=1e-2), checkpoint=file)
    with pytest.raises(RuntimeError, match="weight"):
        fit(mlp(3, 1), noisy_mse, dataset(), SETTINGS, score, name="toy", seed=0, checkpoint=file)


@pytest.mark.bad_input
def test_a_loss_that_diverges_is_named():
    with pytest.raises(FloatingPointError, match="nan"):
        train(objective=lambda model, batch: model(batch.x).mean() * math.nan)


@pytest.mark.statistical
def test_flips_and_crops_by_hand(generator):
    """Every result is one of the flips and shifts of its image, and all of them come."""
    image = torch.arange(1.0, 10.0).reshape(1, 1, 3, 3)
    possible = set()
    for flipped in (image, image.flip(3)):
        padded = torch.nn.functional.pad(flipped, [1] * 4)
        for i in range(3):
            for j in range(3):
                possible.add(tuple(padded[0, 0, i : i + 3, j : j + 3].flatten().tolist()))
    assert len(possible) == 18
    found = flip_and_crop(image.expand(1800, 1, 3, 3), 1, generator)
    counts = Counter(tuple(row.tolist()) for row in found.flatten(1))
    assert set(counts) == possible
    assert_frequencies(list(counts.values()), np.full(18, 1 / 18))
    colours = torch.rand(4, 3, 5, 7)
    first, second = (flip_and_crop(colours, 2, torch.Generator().manual_seed(1)) for _ in range(2))
    assert first.shape == colours.shape
    assert torch.equal(first, second)


def test_the_average_of_weights_is_validated_and_kept():
    """By hand: each step moves the mean by (8 + 1) / (8 + step) of the way; training itself is unchanged."""
    plain = {"epochs": 2, "batch_size": 60, "lr": 1e-2, "select": "last"}
    weights = []
    for epochs in (1, 2):
        weights.append(train(TrainingSettings(**{**plain, "epochs": epochs}))[0][0][0].weight.detach())
    model, result = train(TrainingSettings(**plain, average=True))
    assert torch.allclose(model[0][0].weight, weights[0] + (weights[1] - weights[0]) * 9 / 10, atol=1e-7)
    assert result.losses == train(TrainingSettings(**plain))[1].losses
    assert result.scores[-1] == score(model, dataset().validation)
