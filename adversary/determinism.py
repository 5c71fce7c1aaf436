"""Measure what changes a result: threads, workers, hash seeds, resuming, Ray and several processes.

``python -m adversary determinism``. Every result is made in fresh processes and compared with that of one
process with one thread: it has the same bits, or differs by a share that is recorded. Seconds do not count.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "results" / "adversary" / "determinism.json"
PAGE = ROOT / "docs" / "scale.md"
BEGIN, END = "<!-- determinism: begin -->\n", "<!-- determinism: end -->"
#: Values of a result by name.
Values = dict[str, np.ndarray]
#: Records say when and by how many processes they were made, which is not a result.
CLOCKS = (
    "seconds",
    "first_stage",
    "command",
    "out",
    "world_size",
    "versions",
    "memory",
    "threads",
    "created",
)

TABLE = """
title = "Moons"
metric = "accuracy"
seeds = 2
[methods.erm]
[methods.elliptic]
[datasets.two_moons]
load = { n_boundary = 200, n_interior = 200 }
model = { name = "mlp", hidden = [64] }
training = { epochs = 40, batch_size = 20, lr = 1e-2 }
"""


# ------------------------------------------------------------------------- results, in a process of their own


def train_steps(model: Any, x: Any, y: Any, **settings: Any) -> Values:
    """Take 50 steps of Elliptic and Adam, and return the weights; RESUME=1 loads a checkpoint half-way."""
    import torch
    from torch import nn

    from elliptica import Elliptic
    from elliptica.distributed import load_checkpoint, save_checkpoint

    objective = Elliptic(model, nn.CrossEntropyLoss(), num_classes=10, sigma=0.1, **settings)
    optimizer = torch.optim.Adam(objective.parameters(), lr=1e-3)
    streams = {"noise": torch.Generator().manual_seed(1)}
    for step in range(50):
        if step == 25 and os.environ.get("RESUME"):
            with tempfile.TemporaryDirectory() as folder:
                save_checkpoint(folder, objective, optimizer, step=step, generators=streams)
                for parameter in objective.parameters():
                    nn.init.normal_(parameter)
                    parameter.grad = None
                optimizer = torch.optim.Adam(objective.parameters(), lr=1e-3)
                streams = {"noise": torch.Generator().manual_seed(2)}
                load_checkpoint(folder, objective, optimizer, generators=streams)
        loss = objective(x, y, generator=streams["noise"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {name: value.detach().numpy() for name, value in model.named_parameters()}


def perceptron() -> Values:
    """Train a perceptron on one point per bridge."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(100, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    return train_steps(model, torch.randn(256, 100), torch.arange(256) % 10)


def weighted_paths() -> Values:
    """Train it on weighted paths, with partners by distance."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(100, 256), nn.Tanh(), nn.Linear(256, 10))
    settings = {"sampling": "path", "weighting": "gradient_softmax", "pairing": "inverse_distance"}
    return train_steps(model, torch.randn(64, 100), torch.arange(64) % 10, **settings)


def convolutions() -> Values:
    """Train a small convolutional network."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10))
    return train_steps(model, torch.randn(32, 3, 16, 16), torch.arange(32) % 10)


def estimators() -> Values:
    """Fit estimators with one network and with several, and predict."""
    from sklearn.datasets import load_diabetes, load_digits

    from elliptica.estimators import EllipticClassifier, EllipticRegressor

    options = {"hidden": (64,), "max_iter": 10, "random_state": 0}
    x, y = load_digits(return_X_y=True)
    found = {"classes": EllipticClassifier(**options).fit(x[:500], y[:500]).predict_proba(x[500:])}
    x, y = load_diabetes(return_X_y=True)
    found["values"] = EllipticRegressor(**options, n_networks=3).fit(x[:300], y[:300]).predict(x[300:])
    return found


def landscape() -> Values:
    """Estimate the loss landscape by walks."""
    import torch

    from elliptica import estimate_landscape
    from elliptica.landscape import DataDomain

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 3, generator=generator, dtype=torch.float64)
    found = estimate_landscape(
        lambda z: z.square().sum(1),
        DataDomain(x),
        0.5 * x[:20],
        n_walks=500,
        solver="spheres",
        generator=generator,
    )
    return {"value": found.value.numpy(), "error": found.stderr.numpy()}


def partner_index() -> Values:
    """Build an index over clustered rows and draw partners."""
    import torch

    from elliptica import PartnerIndex

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5000, 8, generator=generator) + 4 * torch.randint(5, (5000, 1), generator=generator)
    index = PartnerIndex.build(x, k=16, power=2.0, generator=generator)
    return {"partners": index.sample(torch.arange(5000), generator=generator).numpy()}


def diagnosis() -> Values:
    """Diagnose a model; all numbers of all findings."""
    import torch
    from torch import nn

    from elliptica import diagnose

    torch.manual_seed(0)
    x = torch.randn(600, 10)
    y = (x[:, 0] + 0.5 * torch.randn(600) > 0).long()
    model = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 2))
    found = diagnose(model, nn.CrossEntropyLoss(), x[:400], y[:400], held_out=(x[400:], y[400:]), n=300)
    return dict(flatten(json.loads(json.dumps(found.to_dict(), default=str))))


def loader() -> Values:
    """Mix batches in the workers of a loader; WORKERS says how many."""
    import torch

    from elliptica import BridgeMix

    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(256, 20), torch.arange(256) % 10)
    collate = BridgeMix(num_classes=10, sigma=0.1).collate_fn(seed=0)
    workers = int(os.environ.get("WORKERS", "0"))
    batches = torch.utils.data.DataLoader(data, batch_size=32, collate_fn=collate, num_workers=workers)
    return {f"{i}": torch.cat([x, y], 1).numpy() for i, (x, y) in enumerate(batches)}


LIBRARY: dict[str, Callable[[], Values]] = {
    "50 steps, perceptron": perceptron,
    "50 steps, weighted paths": weighted_paths,
    "50 steps, convolutions": convolutions,
    "estimators": estimators,
    "estimate_landscape": landscape,
    "PartnerIndex": partner_index,
    "diagnose": diagnosis,
    "BridgeMix in a loader": loader,
}
STEPS = tuple(name for name in LIBRARY if name.startswith("50 steps"))


def flatten(value: Any, path: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """Yield numbers and texts of a JSON value by their path, without what clocks say."""
    if isinstance(value, Mapping):
        for key in value:
            if key not in CLOCKS:
                yield from flatten(value[key], f"{path}/{key}")
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from flatten(each, f"{path}/{number}")
    else:
        yield path, np.asarray("" if value is None else value)


# ------------------------------------------------------------------------------------------ ways to make them


def environment(**changes: str | int) -> dict[str, str]:
    """Return the environment of a fresh process with one thread, and some changes."""
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    plain = {
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    return {**os.environ, **plain, **{name: str(value) for name, value in changes.items()}}


def start(arguments: list[str], folder: Path, **changes: str | int) -> None:
    """Run Python in a fresh process, and raise if it fails."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment(**changes),
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )
    if done.returncode:
        raise RuntimeError(
            f"{arguments} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}"
        )


def library(folder: Path, names: tuple[str, ...] = tuple(LIBRARY), **changes: str | int) -> dict[str, Values]:
    """Make results of the library in one fresh process."""
    start(["-m", "adversary.determinism", *names], folder, **changes)
    with np.load(folder / "values.npz", allow_pickle=False) as file:
        return {n: {k.split("|")[1]: file[k] for k in file.files if k.split("|")[0] == n} for n in names}


def compare(folder: Path, *options: str, stop: bool = False, **changes: str | int) -> Values:
    """Run a small comparison of three methods, and return all predictions and the summary."""
    words = [
        "-m",
        "elliptica",
        "compare",
        "diabetes",
        "--methods",
        "erm,elliptic,mixup,trees",
        "--folds",
        "4",
    ]
    words += ["--trials", "3", "--epochs", "15", "--out", "found", *(options or ("--jobs", "1"))]
    if stop:
        interrupt(words, folder, "found/results.json", '"fold": 0', signal.SIGINT, **changes)
    start(words, folder, **changes)
    found = dict(flatten(json.loads((folder / "found/results.json").read_text())))
    with np.load(folder / "found/predictions.npz", allow_pickle=False) as file:
        return found | {name: file[name] for name in file.files}


def table(folder: Path, *options: str, stop: bool = False, torchrun: int = 0, **changes: str | int) -> Values:
    """Train a small table of one's own, and return its records."""
    (folder / "mine.toml").write_text(TABLE, encoding="utf-8")
    words = ["-m", "elliptica", "run", "mine.toml", "--out", "found", *options]
    if torchrun:
        words = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={torchrun}", *words]
    if stop:
        interrupt(words, folder, "found", ".safetensors", signal.SIGKILL, **changes)
    start(words, folder, **changes)
    files = sorted((folder / "found").rglob("*-seed*.json"))
    return {k: v for f in files for k, v in flatten(json.loads(f.read_text(encoding="utf-8")), f.name)}


def demo(folder: Path, **changes: str | int) -> Values:
    """Run the demo in its quick form."""
    start(["-m", "elliptica", "demo", "--quick", "--out", "found"], folder, **changes)
    return dict(flatten(json.loads((folder / "found/results.json").read_text(encoding="utf-8"))))


def interrupt(
    words: list[str], folder: Path, place: str, sign: str, number: int, **changes: str | int
) -> None:
    """Start a command, and send it a signal once it has stored a part of its work."""

    def is_begun() -> bool:
        path = folder / place
        if path.is_dir():
            return any(file.name.endswith(sign) for file in path.rglob("*"))
        return path.exists() and sign in path.read_text(encoding="utf-8")

    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        env=environment(**changes),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: (
            signal.signal(signal.SIGINT, signal.SIG_DFL) and None
        ),  # in the background it is off
    )
    deadline = time.monotonic() + 600
    while process.poll() is None and not is_begun() and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(number)
    if process.wait(timeout=600) == 0:
        raise RuntimeError("The command ended before it could be interrupted: make it longer")


# -------------------------------------------------------------------------------------------------- measuring


def difference(first: Values, second: Values) -> float:
    """Return the largest difference of two results, relative to the largest value of each array.

    Zero means that they have the same bits.

    Example:
        >>> difference({"x": np.array([2.0, 4.0])}, {"x": np.array([2.0, 3.0])})
        0.25
    """
    if first.keys() != second.keys():
        return float("inf")
    largest = 0.0
    for name, one in first.items():
        two = second[name]
        if one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes():
            continue
        if one.dtype.kind not in "fiu" or one.shape != two.shape:
            return float("inf")
        a, b = one.astype(float), two.astype(float)
        finite = np.isfinite(a)
        if not np.array_equal(finite, np.isfinite(b)) or not np.array_equal(
            a[~finite], b[~finite], equal_nan=True
        ):
            return float("inf")
        scale = np.abs(a[finite]).max(initial=0.0) or 1.0
        least = np.finfo(float).tiny  # other bits are never the same, such as those of -0.0
        largest = max(largest, least, float(np.abs(a - b)[finite].max(initial=0.0) / scale))
    return largest


#: Ways to start any process; the first is what all others are compared with.
PLAIN = "one thread"
STARTS: dict[str, dict[str, str | int]] = {
    PLAIN: {},
    "again": {},
    "hash seed": {"PYTHONHASHSEED": 1},
    "random hash seed": {"PYTHONHASHSEED": "random"},
    "2 threads": {"OMP_NUM_THREADS": 2},
}
#: Commands, and further ways to run them.
COMMANDS: dict[str, tuple[Callable[..., Values], dict[str, tuple[tuple[str, ...], dict[str, Any]]]]] = {
    "compare": (
        compare,
        {
            "2 workers": (("--jobs", "2"), {}),
            "2 processes": (("--jobs", "2", "--engine", "processes"), {}),
            "resumed": ((), {"stop": True}),
        },
    ),
    "run": (
        table,
        {
            "2 processes": (("--jobs", "2"), {}),
            "Ray": (("--jobs", "2", "--engine", "ray"), {"RAY_ADDRESS": "local"}),
            "resumed": ((), {"stop": True}),
            "torchrun": ((), {"torchrun": 2}),
        },
    ),
    "demo": (demo, {}),
}


def in_folder(make: Callable[..., Any], *options: Any, **changes: Any) -> Any:
    """Make a result in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        return make(Path(folder), *options, **changes)


def measure_library() -> dict[str, dict[str, float]]:
    """Compare results of the library with those of one thread, by result and way."""
    made = {way: in_folder(library, **changes) for way, changes in STARTS.items()}
    loaders = ("BridgeMix in a loader",)
    made["1 worker"] = in_folder(library, loaders, WORKERS=1)
    made["2 workers"] = in_folder(library, loaders, WORKERS=2)
    made["resumed"] = in_folder(library, STEPS, RESUME=1)
    plain = made.pop(PLAIN)
    return {
        name: {way: difference(plain[name], found[name]) for way, found in made.items() if name in found}
        for name in LIBRARY
    }


def measure_command(name: str) -> dict[str, float]:
    """Compare results of a command with that of one process and one thread, by way."""
    make, ways = COMMANDS[name]
    plain = in_folder(make)
    starts = {way: ((), STARTS[way]) for way in ("random hash seed", "2 threads")}
    found = {}
    for way, (options, changes) in {**starts, **ways}.items():
        found[way] = difference(plain, in_folder(make, *options, **changes))
        print(f"{name}, {way}: {found[way]:.1e}", flush=True)
    return found


def main(out: Path = RECORD, only: Sequence[str] = ("library", *COMMANDS)) -> None:
    """Measure the library and the commands, or some of them; write the record, and its table to the docs."""
    import torch

    import elliptica

    begin = time.monotonic()
    record = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {"differences": {}}
    for part in only:
        found = measure_library() if part == "library" else {part: measure_command(part)}
        record["differences"] |= found
    record["versions"] = {
        "elliptica": elliptica.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "processor": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
    }
    record["minutes"] = round((time.monotonic() - begin) / 60, 1)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(as_table(record["differences"]))
    if out == RECORD:
        page = PAGE.read_text(encoding="utf-8")
        head, tail = page[: page.index(BEGIN) + len(BEGIN)], page[page.index(END) :]
        PAGE.write_text(f"{head}{as_table(record['differences'])}\n{tail}", encoding="utf-8")


#: Columns of the table: a heading, and the ways that it stands for.
COLUMNS = {
    "another process": ("again", "hash seed", "random hash seed"),
    "2 threads": ("2 threads",),
    "2 workers": ("1 worker", "2 workers", "2 processes"),
    "Ray": ("Ray",),
    "resumed": ("resumed",),
    "torchrun, 2 processes": ("torchrun",),
}


def as_table(differences: Mapping[str, Mapping[str, float]]) -> str:
    """Format the differences as Markdown: the largest of each cell."""
    lines = ["| | " + " | ".join(COLUMNS) + " |", "|---|" + "---|" * len(COLUMNS)]
    for name, found in differences.items():
        cells = []
        for ways in COLUMNS.values():
            own = [found[way] for way in ways if way in found]
            cells.append("" if not own else f"{max(own):.0e}" if max(own) else "same")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    values = {f"{name}|{key}": array for name in sys.argv[1:] for key, array in LIBRARY[name]().items()}
    np.savez("values.npz", **values)
