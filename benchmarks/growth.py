"""How time and memory of a step grow with batch, points and features; bridges in loader workers.

Exponents are slopes of straight lines through logarithms: 1 is linear, below 1 means a fixed part. Their
times are those of the processor, in one thread, so that others on the machine do not count.
"""

from __future__ import annotations

import io
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from benchmarks.timing import Measurement
from elliptica import BridgeMix, Elliptic
from elliptica.lab.models import mlp

#: Perceptron wide enough that arithmetic, not calls, takes the time.
BASE = {"batch": 256, "points": 4, "features": 512}
SIZES: dict[str, tuple[int, ...]] = {
    "batch": (128, 256, 512, 1024),
    "points": (4, 8, 16, 32),
    "features": (1024, 2048, 4096, 8192),
}
NAMES = {"batch": "batch", "points": "points per sample, n_b n_t", "features": "features"}


def make_step(batch: int, points: int, features: int) -> tuple[Callable[[], None], int]:
    """A step of path training, and the bytes that autograd keeps for its backward pass.

    Paths have four points; there are as many bridges as make the points.
    """
    n_times = 4
    model = mlp(features, 10, hidden=(512, 512))
    objective = Elliptic(
        model,
        nn.CrossEntropyLoss(),
        num_classes=10,
        sampling="path",
        n_times=n_times,
        n_bridges=points // n_times,
        sigma_y=0.0,
    )
    x, y = torch.randn(batch, features), torch.randint(10, (batch,))

    def step() -> None:
        model.zero_grad()
        objective(x, y).backward()

    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = objective(x, y)
    for parameter in model.parameters():
        kept.pop(parameter.untyped_storage()._cdata, None)
    del loss
    return step, sum(kept.values())


def processor_seconds(step: Callable[[], None], repeats: int) -> float:
    """Mean time of a call that a processor spent on this process."""
    begin = time.process_time()
    for _ in range(repeats):
        step()
    return (time.process_time() - begin) / repeats


def exponent(sizes: Sequence[int], values: Sequence[float]) -> float:
    """Slope of the straight line through the logarithms."""
    a, b = [math.log(v) for v in sizes], [math.log(v) for v in values]
    mean_a, mean_b = statistics.mean(a), statistics.mean(b)
    over = sum((u - mean_a) * (v - mean_b) for u, v in zip(a, b, strict=True))
    return over / sum((u - mean_a) ** 2 for u in a)


def growth(name: str) -> Iterator[Measurement]:
    """Exponents of time, in rounds over all sizes in random order, and of memory."""
    sizes = SIZES[name]
    made = {size: make_step(**{**BASE, name: size}) for size in sizes}
    steps = {size: step for size, (step, _) in made.items()}
    peaks = [peak for _, peak in made.values()]
    for step in steps.values():
        step()
    found, times = [], []
    for _ in range(9):
        order = random.sample(list(sizes), len(sizes))
        taken = {size: processor_seconds(steps[size], 3) for size in order}
        times.append([taken[size] for size in sizes])
        found.append(exponent(sizes, times[-1]))
    low, _, high = statistics.quantiles(found, n=4)
    middle = [statistics.median(column) for column in zip(*times, strict=True)]
    what = f"path step of a 512-512 MLP against {NAMES[name]} ({sizes[0]} to {sizes[-1]})"
    yield Measurement(
        f"exponent of time: {what}",
        "linear growth",
        statistics.median(found),
        low,
        high,
        1.1,
        f"{1e3 * middle[0]:.3g} to {1e3 * middle[-1]:.3g} ms",
    )
    slope = exponent(sizes, peaks)
    megabytes = [peak / 2**20 for peak in peaks]
    yield Measurement(
        f"exponent of memory kept for the backward pass: {what}",
        "linear growth",
        slope,
        slope,
        slope,
        1.1,
        f"{megabytes[0]:.3g} to {megabytes[-1]:.3g} MiB",
    )


class Small(Dataset[tuple[Tensor, Tensor]]):
    """Bytes in memory, and what a loader usually does to an image: crop, mirror, normalise."""

    def __init__(self, n: int) -> None:
        self.x = torch.randint(256, (n, 3, 40, 40), dtype=torch.uint8)
        self.y = torch.randint(10, (n,))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        top, left = random.randrange(9), random.randrange(9)
        x = self.x[row, :, top : top + 32, left : left + 32]
        x = x.flip(2) if random.random() < 0.5 else x
        return (x.float() / 255 - 0.5) / 0.25, self.y[row]


class Files(Dataset[tuple[Tensor, Tensor]]):
    """JPEG files of ImageNet's usual size, in memory: a random part, scaled to 224x224, mirrored.

    Pictures of 500x375 pixels with so much detail that a file has about 100 kB.
    """

    def __init__(self, n: int) -> None:
        coarse = torch.rand(n, 3, 12, 16)
        smooth = nn.functional.interpolate(coarse, size=(375, 500), mode="bicubic")
        pixels = (smooth + 0.08 * torch.randn_like(smooth)).clamp(0, 1).mul(255).byte()
        self.files = []
        for each in pixels:
            file = io.BytesIO()
            Image.fromarray(each.permute(1, 2, 0).numpy()).save(file, "JPEG", quality=90)
            self.files.append(file.getvalue())

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        side = random.randrange(150, 376)
        left, top = random.randrange(501 - side), random.randrange(376 - side)
        picture = Image.open(io.BytesIO(self.files[row])).convert("RGB")
        part = picture.resize((224, 224), Image.Resampling.BILINEAR, (left, top, left + side, top + side))
        x = torch.from_numpy(np.array(part)).permute(2, 0, 1)
        x = x.flip(2) if random.random() < 0.5 else x
        return (x.float() / 255 - 0.5) / 0.25, torch.tensor(row % 10)


class PlainMixup:
    """Mixup as it is usually written: one coefficient, a permutation, soft labels."""

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes
        self.law = torch.distributions.Beta(1.0, 1.0)

    def __call__(self, samples: list[Any]) -> tuple[Tensor, Tensor]:
        """Collate and mix."""
        x, y = default_collate(samples)
        weight, order = float(self.law.sample()), torch.randperm(len(x))
        soft = nn.functional.one_hot(y, self.num_classes).to(x.dtype)
        return weight * x + (1 - weight) * x[order], weight * soft + (1 - weight) * soft[order]


class Bridges:
    """Bridges in the same place, from the worker's own stream."""

    def __init__(self, num_classes: int) -> None:
        self.mix = BridgeMix(num_classes=num_classes, sigma=0.05)

    def __call__(self, samples: list[Any]) -> Any:
        """Collate and mix."""
        return self.mix(*default_collate(samples))


def loaders(name: str, data: Dataset[Any], batch: int, ours: Any, what: str, budget: float) -> Measurement:
    """An epoch through two workers, ours and plain mixup in turns; workers are started before."""
    both = [
        DataLoader(
            data, batch_size=batch, shuffle=True, num_workers=2, collate_fn=each, persistent_workers=True
        )
        for each in (ours, PlainMixup(10))
    ]

    def epoch(loader: DataLoader[Any]) -> float:
        begin = time.perf_counter()
        for _ in loader:
            pass
        return time.perf_counter() - begin

    for loader in both:
        epoch(loader)
    ratios, times = [], []
    for _ in range(15):
        pair = [0, 1] if random.random() < 0.5 else [1, 0]
        taken = {which: epoch(both[which]) for which in pair}
        times.append((taken[0], taken[1]))
        ratios.append(taken[0] / taken[1])
    low, _, high = statistics.quantiles(ratios, n=4)
    a, b = (statistics.median(column) for column in zip(*times, strict=True))
    return Measurement(
        f"an epoch of {name} through two loader workers: {what}",
        "plain mixup in the same workers",
        statistics.median(ratios),
        low,
        high,
        budget,
        f"{1e3 * a:.3g} ms against {1e3 * b:.3g} ms",
    )


def measure() -> Iterator[Measurement]:
    """Growth, then loaders."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for name in SIZES:
        yield from growth(name)
    torch.set_num_threads(threads)
    bridges, seeded = Bridges(10), BridgeMix(num_classes=10, sigma=0.05).collate_fn(seed=0)
    name, files = "256 JPEG files of ImageNet's size, scaled to 224x224, in batches of 32", Files(256)
    yield loaders(name, files, 32, bridges, "`BridgeMix`", 1.1)
    yield loaders(name, files, 32, seeded, "`BridgeMix.collate_fn(seed=0)`", 1.1)
    name = "4096 images 32x32 in memory, cropped and mirrored, in batches of 128"
    yield loaders(name, Small(4096), 128, bridges, "`BridgeMix`", 1.1)
    table = TensorDataset(torch.randn(16384, 122), torch.randint(10, (16384,)))
    yield loaders("16384 rows of 122 features in batches of 128", table, 128, bridges, "`BridgeMix`", 1.1)
