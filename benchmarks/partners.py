"""Partners among many rows: building and drawing against the dense design, and against a training step.

Data are clustered Gaussians of low intrinsic dimension. All times are processor time.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import timing
from benchmarks.steps import erm_step
from benchmarks.timing import Measurement
from elliptica import PartnerIndex
from elliptica.lab.models import preact_resnet

BATCH, INTRINSIC, CLUSTERS = 256, 8, 50
POWERS, ROUNDS = (1.0, 4.0), 5
_time = partial(timing.seconds, clock=time.process_time)


def clustered(file: Path, n: int, d: int) -> NDArray[np.float32]:
    """``n`` rows around 50 centres in a subspace of 8 dimensions, with a little noise in all ``d``."""
    rng = np.random.default_rng(0)
    normal = rng.standard_normal
    frame = np.linalg.qr(normal((d, INTRINSIC)))[0].T.astype(np.float32)
    centres = 3 * normal((CLUSTERS, INTRINSIC), dtype=np.float32)
    x = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=(n, d))
    for begin in range(0, n, 10_000):
        m = min(10_000, n - begin)
        latent = centres[rng.integers(CLUSTERS, size=m)] + normal((m, INTRINSIC), dtype=np.float32)
        x[begin : begin + m] = latent @ frame + 0.02 * normal((m, d), dtype=np.float32)
    x.flush()
    return x


def measure() -> Iterator[Measurement]:
    """Sizes from 1e4 to 1e6 rows of 128 features, and 1e5 rows of 3072."""
    net = preact_resnet(18, 10)
    step = erm_step(net, torch.randn(BATCH, 3, 32, 32), torch.randint(10, (BATCH,)))
    sizes, builds, draws = [10_000, 100_000, 1_000_000], [], []
    with tempfile.TemporaryDirectory() as scratch:
        options = {"exact": False, "folder": Path(scratch) / "index", "overwrite": True}
        for n, d in [*((n, 128) for n in sizes), (100_000, 3072)]:
            x = clustered(Path(scratch) / "x.npy", n, d)
            begin = time.process_time()
            index = PartnerIndex.build(x, **options, generator=_seeded())
            build = time.process_time() - begin
            size = f"{n:,} x {d}".replace(",", " ")
            detail = f"built in {build:.3g} s of processor time, recall {index.recall:.3f}"
            detail = f"{index.nbytes / 1e9:.3g} GB, {detail}; dense {4.0 * n * n / 1e9:.3g} GB"
            what, against = f"bytes of a partner index, {size}, k = 32", "2 GB per million rows of 128"
            yield Measurement.of(what, against, [index.nbytes / (2e9 * n * d / 128e6)], 1.0, detail)
            yield from _draws(size, index, step)
            if d == 128:
                builds.append(build)
                rows = torch.randint(len(index), (BATCH,), generator=_seeded())
                draws.append(statistics.median(_time(partial(index.sample, rows)) for _ in range(15)))
    for what, times, budget in (("building", builds, 1.6), ("drawing a batch from", draws, 1.0)):
        slope = float(np.polyfit(np.log(sizes), np.log(times), 1)[0])
        name = f"{what} a partner index: exponent of n, 1e4 to 1e6 rows of 128"
        detail = ", ".join(f"{t:.3g} s" for t in times)
        yield Measurement.of(name, "the dense table's exponent, 2, would be", [slope], budget, detail)


def _draws(size: str, index: PartnerIndex, step: Callable[[], None]) -> Iterator[Measurement]:
    """Drawing as a share of a training step, both in processor time."""
    laws = {power: index.with_law(power=power) for power in POWERS}
    times: dict[float, list[float]] = {power: [] for power in POWERS}
    for number in range(2 * ROUNDS):
        if number == ROUNDS:  # once, in the middle: it takes as long as hundreds of the others
            seconds = _time(step)
        rows = torch.randint(len(index), (BATCH,), generator=torch.Generator().manual_seed(number))
        for power, law in laws.items():
            times[power].append(_time(partial(law.sample, rows)))
    for power, law in laws.items():
        check, milliseconds = law.check(1000, generator=_seeded()), 1e3 * statistics.median(times[power])
        yield Measurement.of(
            f"drawing partners of {BATCH} rows, {size}, power {power:g}",
            f"ERM step of PreActResNet-18 on {BATCH} images, processor time",
            [t / seconds for t in times[power]],
            0.05,
            f"{milliseconds:.0f} against {seconds * 1e3:.0f} ms; "
            f"acceptance {check.acceptance:.2f}, law off by at most {law.error_bound:.1g}",
        )


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)
