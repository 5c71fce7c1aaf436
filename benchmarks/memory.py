"""Peak memory of a chunked path step, each step in a fresh process."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.timing import Measurement

#: Rows of a chunk: eight whole paths of five points, so that chunks have exactly as many.
CHUNK = 40
_CHILD = """
import sys, torch
from torch import nn
from elliptica import Elliptic
from elliptica.lab.models import preact_resnet

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

kind, chunk = sys.argv[1], int(sys.argv[2])
net = preact_resnet(18, 10)
x, y = torch.randn(32, 3, 32, 32), torch.randint(10, (32,))
rows = torch.randn(chunk, 3, 32, 32), torch.randint(10, (chunk,))
size = chunk if kind == "chunked" else None
objective = Elliptic(net, nn.CrossEntropyLoss(), num_classes=10, sampling="path", n_times=5, chunk_size=size)
# thread pools and modules that are imported late exist before the measurement
tiny = Elliptic(net, nn.CrossEntropyLoss(), num_classes=10, sampling="path", n_times=5, chunk_size=5)
tiny(x[:2], y[:2]).backward()
net.zero_grad(set_to_none=sys.argv[3] != "kept")  # torch's default is None
base = resident()
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")                     # the kernel forgets the largest resident set so far
if kind == "erm":
    nn.functional.cross_entropy(net(rows[0]), rows[1]).backward()
else:
    objective(x, y).backward()
with open("/proc/self/status") as file:
    (peak,) = (line.split()[1] for line in file if line.startswith("VmHWM"))
print(int(peak) * 1024 - base)
"""


def peak_bytes(kind: str, gradients: str) -> int:
    """Growth of the resident set during forward and backward pass."""
    result = subprocess.run(
        [sys.executable, "-c", _CHILD, kind, str(CHUNK), gradients],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).resolve().parent.parent,
        # freed blocks go back at once, so that the resident set is what is alive
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"},
    )
    return int(result.stdout)


def measure() -> Iterator[Measurement]:
    """160 rows in four chunks of 40 against an ordinary step on 40 rows."""
    yield compared("none", "")
    # sums over chunks cannot go into gradients that are there, so those are in memory twice
    yield compared("kept", ", gradients kept from the step before")


def compared(gradients: str, remark: str) -> Measurement:
    """With gradients made in the step, as after torch's ``zero_grad()``, or with kept ones."""
    whole = peak_bytes("unchunked", gradients) / 2**20
    sizes = [(peak_bytes("chunked", gradients), peak_bytes("erm", gradients)) for _ in range(3)]
    ratios = [chunked / erm for chunked, erm in sizes]
    low, _, high = statistics.quantiles(ratios, n=4)
    chunked, erm = (statistics.median(column) / 2**20 for column in zip(*sizes, strict=True))
    return Measurement(
        f"peak memory of a path step of 160 rows in chunks of {CHUNK}, PreActResNet-18{remark}",
        f"ERM step on {CHUNK} rows",
        statistics.median(ratios),
        low,
        high,
        1.3,
        f"{chunked:.0f} MiB against {erm:.0f} MiB; {whole:.0f} MiB without chunks",
    )
