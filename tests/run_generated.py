"""The program on generated rows in the place of NO2, failing as FAIL says: for test_distributed_runs."""

import os
import time

import torch

from elliptica.cli import app
from elliptica.data.splits import Dataset, Split
from elliptica.experiments import problems, run

do_run = run.do_run


def load(seed, *, data_dir=None, **_):
    x = torch.randn(87, 5, generator=torch.Generator().manual_seed(seed))  # not a multiple of two
    y = x.sum(1, keepdim=True).sin()
    return Dataset("no2", *[Split(x[i::3], y[i::3]) for i in range(3)], task="regression")


def do_run_or_fail(each, options, progress=lambda *_: None):
    if each.row == "mixup" and os.environ.get("FAIL") == "all":
        raise FloatingPointError("The training loss became nan.")

    def slowly(*state):
        progress(*state)
        time.sleep(float(os.environ.get("PAUSE", 0)))
        if os.environ.get("FAIL") == "one" and options.ranks.rank == 1:
            raise MemoryError("no memory left here")

    return do_run(each, options, slowly)


if __name__ == "__main__":  # importing it, as the search for doctests does, must change nothing
    problems.DATASETS["no2"] = load
    run.do_run = do_run_or_fail
    app()
