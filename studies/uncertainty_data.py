"""Data of the study of uncertainty: three parts, inputs from elsewhere, corruptions, wrong labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from elliptica.lab.data import load_fashion_mnist, load_medmnist, load_waterbirds_features, shuffle_labels

#: Deviation of the noise on corrupted test rows, in deviations of the inputs.
NOISE = (0.5, 1.0)
#: Side of the box that blurs images.
BOX = 3
#: Side of the images, other than digits, after averaging pixels.
SIDE = 14
#: Most rows of each part of large data sets, and of inputs from elsewhere.
N_TRAIN, N_VALIDATION, N_TEST, N_OUTSIDE = 2000, 1000, 2000, 1000


class Part(NamedTuple):
    """Inputs ``(rows, features)`` and classes; the group of each row where there is one."""

    x: Tensor
    y: Tensor
    group: Tensor | None = None

    def at(self, rows: Tensor) -> Part:
        """Take some of the rows."""
        return Part(self.x[rows], self.y[rows], None if self.group is None else self.group[rows])


@dataclass(frozen=True)
class Problem:
    """A classification problem.

    Attributes:
        train: Rows to train on.
        validation: Rows that choose strengths and temperatures.
        test: Rows to measure.
        outside: Inputs that belong to no class, by name.
        shape: Channels, height and width of images; None for features.
    """

    train: Part
    validation: Part
    test: Part
    outside: dict[str, Tensor] = field(default_factory=dict)
    shape: tuple[int, int, int] | None = None

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return int(self.train.y.max()) + 1


def digits(seed: int) -> Problem:
    """Half, a fifth and three tenths of scikit-learn's digits; BreastMNIST in 8 x 8 pixels from elsewhere."""
    images, y = _digits()
    order = _order(len(y), seed)
    rows = order.tensor_split([len(y) // 2, 7 * len(y) // 10])
    train, validation, test = (Part(images[r], y[r]) for r in rows)
    outside = {"another data set": _grey_images("breastmnist", 8)}
    return Problem(train, validation, test, outside, (1, 8, 8))


def fashion(seed: int) -> Problem:
    """Rows of Fashion-MNIST; BreastMNIST from elsewhere."""
    data = load_fashion_mnist(seed, validation_share=0.1)
    train, validation, test = (
        Part(_flat(split.x[:n]), split.y[:n])
        for split, n in (
            (data.train, N_TRAIN * 5 // 4),  # a fifth of the classes is left out
            (data.validation, N_VALIDATION * 5 // 4),
            (data.test, N_TEST * 5 // 4),
        )
    )
    outside = {"another data set": _grey_images("breastmnist", SIDE)}
    return Problem(train, validation, test, outside, (1, SIDE, SIDE))


def breast(seed: int) -> Problem:
    """BreastMNIST, a fifth of its training and validation images held out; Fashion-MNIST from elsewhere."""
    outside = {"another data set": _flat(load_fashion_mnist(seed).test.x[:N_OUTSIDE])}
    return _medical("breastmnist", seed, outside)


def retina(seed: int) -> Problem:
    """RetinaMNIST, a fifth of its training and validation images held out; PathMNIST from elsewhere."""
    return _medical("retinamnist", seed, {"another data set": _colour_images("pathmnist_subset")})


def path(seed: int) -> Problem:
    """Rows of PathMNIST, test rows from another clinical centre; RetinaMNIST from elsewhere."""
    data = load_medmnist("pathmnist_subset", seed)
    order = _order(len(data.test.y), seed)[: N_TEST * 5 // 4]
    train = Part(_flat(data.train.x[: N_TRAIN * 5 // 4]), data.train.y[: N_TRAIN * 5 // 4])
    validation = Part(_flat(data.validation.x), data.validation.y)
    test = Part(_flat(data.test.x[order]), data.test.y[order])
    outside = {"another data set": _colour_images("retinamnist")}
    return Problem(train, validation, test, outside, (3, SIDE, SIDE))


def waterbirds(seed: int) -> Problem:
    """Waterbirds as frozen features, in their official parts; only training depends on the seed."""
    data = load_waterbirds_features(seed)
    train, validation, test = (
        Part(part.x, part.y, part.group) for part in (data.train, data.validation, data.test)
    )
    return Problem(train, validation, test)


#: Data sets: how to load them, and how many classes are left out of training in each seed.
PROBLEMS: dict[str, tuple[Callable[[int], Problem], int]] = {
    "digits": (digits, 2),
    "breastmnist": (breast, 0),
    "waterbirds": (waterbirds, 0),
    "retinamnist": (retina, 0),
    "fashion_mnist": (fashion, 2),
    "pathmnist_subset": (path, 2),
}


def load(name: str, seed: int, *, all_classes: bool = False) -> Problem:
    """Load a data set, leave classes out, scale it, and add shuffled columns as inputs from elsewhere."""
    make, n_left_out = PROBLEMS[name]
    problem = make(seed)
    if n_left_out and not all_classes:
        n = problem.n_classes
        problem = leave_out(problem, [(n_left_out * seed + i) % n for i in range(n_left_out)])
    problem = scaled(problem)
    outside = problem.outside | {"shuffled columns": shuffled_columns(problem.test.x, seed)}
    return replace(problem, outside=outside)


def leave_out(problem: Problem, classes: list[int]) -> Problem:
    """Take classes out of all parts; their test rows are inputs from elsewhere."""
    number = torch.full((problem.n_classes,), -1)
    kept = [c for c in range(problem.n_classes) if c not in classes]
    number[kept] = torch.arange(len(kept))
    parts = []
    for part in (problem.train, problem.validation, problem.test):
        labels = number[part.y]
        parts.append(part._replace(y=labels).at(labels >= 0))
    unknown = problem.test.x[number[problem.test.y] < 0]
    return replace(
        problem,
        train=parts[0],
        validation=parts[1],
        test=parts[2],
        outside={"left-out classes": unknown, **problem.outside},
    )


def scaled(problem: Problem) -> Problem:
    """Centre each input on the training rows and divide all by one number, their root mean variance."""
    x = problem.train.x
    centre, unit = x.mean(0), x.var(0).mean().sqrt()

    def scale(values: Tensor) -> Tensor:
        return (values - centre) / unit

    train, validation, test = (
        part._replace(x=scale(part.x)) for part in (problem.train, problem.validation, problem.test)
    )
    outside = {name: scale(values) for name, values in problem.outside.items()}
    return replace(problem, train=train, validation=validation, test=test, outside=outside)


def corruptions(problem: Problem, seed: int) -> dict[str, Tensor]:
    """Corrupt the test inputs: noise of two deviations; a blur of images, or half of the features missing."""
    generator = torch.Generator().manual_seed(seed)
    x = problem.test.x
    found = {f"noise {sigma:g}": x + sigma * torch.randn(x.shape, generator=generator) for sigma in NOISE}
    if problem.shape is None:
        found["half missing"] = x * (torch.rand(x.shape, generator=generator) < 0.5)  # the mean is 0
    else:
        images = x.unflatten(1, problem.shape)
        blurred = nn.functional.avg_pool2d(images, BOX, 1, BOX // 2, count_include_pad=False)
        found["blur"] = blurred.flatten(1)
    return found


def shuffled_columns(x: Tensor, seed: int) -> Tensor:
    """Shuffle each column by itself: every feature keeps its law, and they no longer belong together."""
    generator = torch.Generator().manual_seed(seed)
    return x.gather(0, torch.rand(x.shape, generator=generator).argsort(0))


def half_shuffled(problem: Problem, seed: int) -> Problem:
    """Shuffle the labels of half of the training and of the validation rows."""
    generator = torch.Generator().manual_seed(seed)

    train, validation = (
        part._replace(y=shuffle_labels(part.y, generator=generator).y)
        for part in (problem.train, problem.validation)
    )
    return replace(problem, train=train, validation=validation)


def _digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return torch.as_tensor(pixels).float() / 16, torch.as_tensor(labels).long()


def _medical(name: str, seed: int, outside: dict[str, Tensor]) -> Problem:
    data = load_medmnist(name, 0)
    x = torch.cat([data.train.x, data.validation.x])
    y = torch.cat([data.train.y, data.validation.y])
    order = _order(len(y), seed)
    held_out, rest = order.tensor_split([len(y) // 5])
    train, validation = (Part(_flat(x[rows]), y[rows]) for rows in (rest, held_out))
    test = Part(_flat(data.test.x), data.test.y)
    return Problem(train, validation, test, outside, (x.shape[1], SIDE, SIDE))


def _grey_images(name: str, side: int) -> Tensor:
    """Images of another data set in the range of ours: 0 to 1 for digits, -1 to 1 otherwise."""
    x = _flat(load_medmnist(name).test.x[:N_OUTSIDE], side)
    return (x + 1) / 2 if side == 8 else x


def _colour_images(name: str) -> Tensor:
    return _flat(load_medmnist(name).test.x[:N_OUTSIDE])


def _flat(images: Tensor, side: int = SIDE) -> Tensor:
    return nn.functional.adaptive_avg_pool2d(images, side).flatten(1)


def _order(n: int, seed: int) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))
