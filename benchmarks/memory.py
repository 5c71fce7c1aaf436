"""Peak memory of a chunked path step, each step in a fresh process."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.timing import Measurement

CHUNK = 32
_CHILD = """
import sys, threading, time, torch
from torch import nn
from elliptica import Elliptic
from elliptica.models import preact_resnet

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

kind, chunk = sys.argv[1], int(sys.argv[2])
net = preact_resnet(18, 10)
x, y = torch.randn(32, 3, 32, 32), torch.randint(10, (32,))
size = chunk if kind == "chunked" else None
objective = Elliptic(net, nn.CrossEntropyLoss(), num_classes=10, sampling="path", n_times=5, chunk_size=size)
for parameter in net.parameters():      # gradients exist before the measurement, in all cases
    parameter.grad = torch.zeros_like(parameter)
with torch.no_grad():
    net(x[:2])                          # and so do thread pools
peak, base, done = [0], resident(), threading.Event()

def watch():
    while not done.is_set():
        peak[0] = max(peak[0], resident())
        time.sleep(0.0005)

watcher = threading.Thread(target=watch)
watcher.start()
if kind == "erm":
    nn.functional.cross_entropy(net(x[:chunk]), y[:chunk]).backward()
else:
    objective(x, y).backward()
done.set()
watcher.join()
print(peak[0] - base)
"""


def peak_bytes(kind: str) -> int:
    """Growth of the resident set during forward and backward pass."""
    result = subprocess.run(
        [sys.executable, "-c", _CHILD, kind, str(CHUNK)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).resolve().parent.parent,
        # freed blocks go back at once, so that the resident set is what is alive
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"},
    )
    return int(result.stdout)


def measure() -> Iterator[Measurement]:
    """160 rows in chunks of 32 against an ordinary step on 32 rows."""
    ratios, sizes = [], []
    for _ in range(5):
        sizes.append((peak_bytes("chunked"), peak_bytes("erm"), peak_bytes("unchunked")))
        ratios.append(sizes[-1][0] / sizes[-1][1])
    low, _, high = statistics.quantiles(ratios, n=4)
    chunked, erm, whole = (statistics.median(column) / 2**20 for column in zip(*sizes, strict=True))
    yield Measurement(
        f"peak memory of a path step of 160 rows in chunks of {CHUNK}, PreActResNet-18",
        f"ERM step on {CHUNK} rows",
        statistics.median(ratios),
        low,
        high,
        1.3,
        f"{chunked:.0f} MiB against {erm:.0f} MiB; {whole:.0f} MiB without chunks",
    )
