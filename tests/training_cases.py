"""What each of two processes does for distributed/test_training: the ways of training, combined."""

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from elliptica import Covariance, Elliptic
from elliptica.distributed import current_ranks, over_global_batch, shard
from reference import with_points
from two_processes import WEIGHTINGS, network, noise, objective_for, trained

ROWS = 8
UNEVEN = (5, 3)


def global_batch(rows=ROWS):
    numbers = torch.Generator().manual_seed(3)
    x = torch.randn(rows, 3, dtype=torch.float64, generator=numbers)
    return x, torch.randint(4, (rows,), generator=numbers)


def global_paths(objective, **options):
    return objective.sample(*global_batch(), generator=noise(7), **options)


def cut(paths, part):
    rows = ("x", "y", "s", "free_y", "labels")
    return with_points(paths, **{name: getattr(paths, name)[part] for name in rows})


def joined(weighting, kind, **settings):
    """Batch-wise weightings over the rows of both processes, which need not have as many."""
    objective = over_global_batch(objective_for(weighting, **settings))
    module = DistributedDataParallel(objective) if kind == "ddp" else fully_shard(objective)
    rank = current_ranks().rank
    part = slice(0, UNEVEN[0]) if rank == 0 else slice(UNEVEN[0], ROWS)
    x, y = global_batch()
    return trained(
        module, x[part], y[part], paths=cut(global_paths(objective_for(weighting, **settings)), part)
    )


def class_weighted(model, **settings):
    loss_fn = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 0.5, 2.0], dtype=torch.float64))
    return Elliptic(model, loss_fn, sampling="path", n_times=3, sigma=0.5, **settings)


def class_weights(quadrature):
    objective = over_global_batch(class_weighted(network(), quadrature=quadrature))
    x, y = global_batch()
    paths = objective.sample(x, y, generator=noise(7))
    part = slice(0, UNEVEN[0]) if current_ranks().rank == 0 else slice(UNEVEN[0], ROWS)
    found = trained(DistributedDataParallel(objective), x[part], y[part], paths=cut(paths, part))
    objective.eval()
    alone = (
        objective(x, y) if current_ranks().rank == 0 else torch.zeros(())
    )  # one process may evaluate alone
    return [*found, alone.detach()]


SAMPLERS = {
    "green": {"sigma": "green", "n_bridges": 2},
    "features": {"sigma": torch.tensor([0.1, 0.5, 1.0], dtype=torch.float64), "n_bridges": 2},
    "covariance": {"sigma": Covariance(global_batch()[0], rank=2), "n_bridges": 2},
    "covariance by class": {"sigma": Covariance(*global_batch(40), by_class=True), "n_bridges": 2},
    "targets": {"sigma_y": 0.3, "n_bridges": 2},
    "marginal": {"sampling": "marginal", "n_bridges": 3},
}


def sharded(name):
    settings = SAMPLERS[name]
    weighting = None if name == "marginal" else "girsanov"
    objective = objective_for(weighting, **settings)
    weight = torch.linspace(0, 2, ROWS, dtype=torch.float64)
    paths = shard(global_paths(objective_for(weighting, **settings), sample_weight=weight))
    return trained(DistributedDataParallel(objective), *shard(global_batch()), paths=paths)


def far_ends():
    x, y = global_batch()
    partners = torch.randperm(ROWS, generator=noise(1))
    objective = objective_for("gradient_norm", sigma=0.0)
    return trained(DistributedDataParallel(objective), *shard((x, y)), end=shard((x[partners], y[partners])))


def of_weighting(weighting):
    found = {}
    for kind in ("ddp", "fsdp"):
        found["joined", kind] = joined(weighting, kind)
    found["joined", "left"] = joined(weighting, "ddp", quadrature="left")
    return {(*key, weighting): value for key, value in found.items()}


def run(rank):
    found = {}
    for weighting in WEIGHTINGS:
        found |= of_weighting(weighting)
    for quadrature in ("mean", "left"):
        found["class weights", quadrature] = class_weights(quadrature)
    for name in SAMPLERS:
        found["sharded", name] = sharded(name)
    found["far ends"] = far_ends()
    return found
