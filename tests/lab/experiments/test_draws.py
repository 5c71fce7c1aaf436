"""Exact numbers of short runs: they move when random draws do, and then `DRAWS` must move, too.

After such a change raise `elliptica.lab.experiments.records.DRAWS`, and put what this prints into `EXPECTED`:
PYTHONPATH=src:tests python tests/lab/experiments/test_draws.py
"""

import sys
import tempfile
from pathlib import Path

import pytest

from elliptica.lab.experiments.records import DRAWS
from elliptica.lab.experiments.run import Options, do_run
from experiment_cases import run_of

KINDS = {
    "erm": ("erm", {}),
    "mixup": ("mixup", {"alpha": 1.0}),
    "path": ("elliptic", {"sampling": "path", "n_times": 4, "sigma": 0.2}),
    "marginal": ("elliptic", {"sampling": "marginal", "sigma": 0.2}),
    "weighted": ("elliptic", {"sampling": "marginal", "sigma": 0.2, "weighting": "gradient_softmax"}),
}
#: Mean training loss of each of two epochs. If it differs because draws changed: raise DRAWS (see above).
EXPECTED = {
    1: {
        "erm": [0.7439476648966471, 0.7101028760274252],
        "mixup": [0.7203166484832764, 0.7061621348063151],
        "path": [0.731372594833374, 0.7004396915435791],
        "marginal": [0.7312518755594889, 0.7071444988250732],
        "weighted": [0.7648245493570963, 0.7169612248738607],
    }
}


def losses(kind, folder):
    method, settings = KINDS[kind]
    load = {"name": "two_moons", "n_boundary": 60, "n_interior": 20}
    training = {"epochs": 2, "batch_size": 20}
    epochs = []
    run = run_of(
        method, settings=settings, load=load, training=training, model={"name": "mlp", "hidden": [8]}
    )
    do_run(run, Options(folder), epochs.append)
    return [end.loss for end in epochs]


@pytest.mark.parametrize("kind", KINDS)
def test_runs_give_the_numbers_of_these_draws(kind, tmp_path):
    assert losses(kind, tmp_path) == pytest.approx(EXPECTED[DRAWS][kind], rel=1e-6)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        found = {kind: losses(kind, Path(folder)) for kind in KINDS}
    sys.stdout.write(f"EXPECTED = {{{DRAWS}: {found}}}\n")
