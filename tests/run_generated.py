"""The program on generated rows in the place of NO2, for test_distributed_runs.

The environment says how it goes: FAIL in "all" processes or in "one", STOP after an epoch as if by Ctrl-C,
PAUSE so many seconds after each, and write to the file SEEN how many processes have done which epoch.
"""

import os
import time
from datetime import timedelta
from pathlib import Path

import torch

from elliptica.cli import app
from elliptica.lab.data.splits import Dataset, Split
from elliptica.lab.experiments import engines, registry, run

do_run = run.do_run


def load(seed, *, data_dir=None, **_):
    x = torch.randn(87, 5, generator=torch.Generator().manual_seed(seed))  # not a multiple of two
    y = x.sum(1, keepdim=True).sin()
    return Dataset("no2", *[Split(x[i::3], y[i::3]) for i in range(3)], task="regression")


def do_run_or_fail(each, options, progress=lambda *_: None):
    if each.row == "mixup" and os.environ.get("FAIL") == "all":
        raise FloatingPointError("The training loss became nan.")

    def slowly(state):
        progress(state)
        if "SEEN" in os.environ and options.ranks.is_first:
            with Path(os.environ["SEEN"]).open("a") as file:
                file.write(f"{options.ranks.size} {state.epoch}\n")
        if os.environ.get("STOP") == str(state.epoch):
            raise KeyboardInterrupt
        time.sleep(float(os.environ.get("PAUSE", 0)))
        if os.environ.get("FAIL") == "one" and options.ranks.rank == 1:
            raise MemoryError("no memory left here")

    return do_run(each, options, slowly)


if __name__ == "__main__":  # importing it, as the search for doctests does, must change nothing
    registry.DATASETS["no2"] = load
    run.do_run = do_run_or_fail
    if os.environ.get("FAIL") == "one":  # the others never come, so that there is no use in waiting
        engines.PATIENCE = timedelta(seconds=6)
    app()
