"""Start real processes that talk over gloo, and collect what each of them found."""

import multiprocessing
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing
from filelock import FileLock  # torch needs it, too

ROOT = Path(__file__).resolve().parent.parent
#: What the processes need: imported once, in a server that they are forked from.
PRELOADED = [
    "torch._dynamo",  # which every optimiser imports
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "elliptica.distributed.checkpoint",
    "elliptica.lab.experiments.run",
    "elliptica.partner_index.index",
]


def together(function, size=2):
    """What ``function(rank)`` returns in each of several processes; they meet in a file and need no port.

    They know nothing of this process but the function. Their environment is that of the first call.
    """
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(
            _run, args=(function, size, folder), nprocs=size, start_method=fresh()
        )
        return [torch.load(f"{folder}/found{rank}.pt", weights_only=False) for rank in range(size)]


def once(tmp_path_factory, function, size=2):
    """`together`, but once for all workers of pytest: the others wait for it, and read what was found."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return together(function, size)
    common = tmp_path_factory.getbasetemp().parent / f"{function.__module__}-{size}.pt"
    with FileLock(f"{common}.lock"):
        if not common.exists():
            torch.save(together(function, size), common)
        return torch.load(common, weights_only=False)


def fresh():
    """A start method for processes that begin with nothing but packages, imported once for all."""
    multiprocessing.set_forkserver_preload(PRELOADED)
    return "forkserver"


def _run(rank, function, size, folder):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    try:
        torch.save(function(rank), f"{folder}/found{rank}.pt")
    finally:
        dist.destroy_process_group()


def pretend_torchrun(rank, size=2):
    """Tell trainers that look at the environment where they are; the processes have met already."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 0, "TORCHELASTIC_RUN_ID": "test"}
    os.environ.update({name: str(value) for name, value in place.items()})


def torchrun(*arguments, size=2, env=None):
    """Command line and environment of a real torchrun, on a free port of its own."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}"]
    paths = [str(ROOT / "src"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    return {
        "args": [*command, *map(str, arguments)],
        "env": {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "OMP_NUM_THREADS": "1",
            **{name: str(value) for name, value in (env or {}).items()},
        },
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
