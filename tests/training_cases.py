"""What each of two processes does for test_distributed_training: the ways of training, combined."""

import functools

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from elliptica import Covariance, Elliptic
from elliptica.distributed import current_ranks, over_global_batch, shard
from two_processes import WEIGHTINGS, full, network, noise, objective_for, trained

ROWS = 8
UNEVEN = (5, 3)


def global_batch(rows=ROWS):
    numbers = torch.Generator().manual_seed(3)
    x = torch.randn(rows, 3, dtype=torch.float64, generator=numbers)
    return x, torch.randint(4, (rows,), generator=numbers)


def global_paths(objective, **options):
    return objective.sample(*global_batch(), generator=noise(7), **options)


def gradients(module):
    return [full(p.grad) for p in module.parameters()]


def accumulated(module, weighting, hold):
    """Two small batches in a process, synchronised with the second."""
    x, y = shard(global_batch())
    paths = shard(global_paths(objective_for(weighting)))
    module.zero_grad()
    for step in (0, 1):
        part = slice(4 // 2 * step, 4 // 2 * (step + 1))
        hold(module, step == 0, lambda p=part: (module(x[p], y[p], paths=cut(paths, p)) / 2).backward())
    return gradients(module)


def cut(paths, part):
    rows = ("x", "y", "s", "free_y", "labels")
    return paths.replace(**{name: getattr(paths, name)[part] for name in rows})


def hold_ddp(module, waits, step):
    if waits:
        with module.no_sync():
            step()
    else:
        step()


def hold_fsdp(module, waits, step):
    module.set_requires_gradient_sync(not waits)
    step()


class Checkpointed(nn.Module):
    """Activations of the first layers are computed again in the backward pass."""

    def __init__(self, reentrant):
        super().__init__()
        self.model, self.reentrant = network(), reentrant

    def forward(self, x):
        h = checkpoint(self.model[:2], x, use_reentrant=self.reentrant)
        return self.model[2](h)


def wrapped_network():
    model = network()
    model[0] = checkpoint_wrapper(model[0])
    return model


def noted(function, *args, **kwargs):
    """The result, or what an error says."""
    try:
        return function(*args, **kwargs)
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


def low_precision(weighting, kind):
    """In single precision, with bfloat16 in the network."""
    x, y = (part.float() if part.is_floating_point() else part for part in shard(global_batch()))
    objective = objective_for(weighting, network().float())
    generator = noise(current_ranks().rank)
    if kind == "ddp":
        module = DistributedDataParallel(objective)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = module(x, y, generator=generator)
    else:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        module = fully_shard(objective, mp_policy=policy)
        loss = module(x, y, generator=generator)
    loss.backward()
    return gradients(module)


def compiled(weighting, order):
    torch._dynamo.reset()
    x, y = shard(global_batch())
    paths = shard(global_paths(objective_for(weighting)))
    objective = objective_for(weighting)
    # traced backward passes take long: for one weighting in two processes, for all in one (test_compile_amp)
    backend = "aot_eager" if weighting == "gradient_norm" else "eager"
    compiler = functools.partial(torch.compile, backend=backend)
    module = (
        compiler(DistributedDataParallel(objective))
        if order == "outside"
        else DistributedDataParallel(compiler(objective))
    )
    return trained(module, x, y, paths=paths)


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
    wrappers = {"ddp": DistributedDataParallel, "fsdp": fully_shard}
    batch, paths = shard(global_batch()), shard(global_paths(objective_for(weighting)))
    for kind, wrap in wrappers.items():
        hold = hold_ddp if kind == "ddp" else hold_fsdp
        found["accumulated", kind] = accumulated(wrap(objective_for(weighting)), weighting, hold)
        found["bfloat16", kind] = low_precision(weighting, kind)
        found["joined", kind] = joined(weighting, kind)
        for name, model in (("inside", Checkpointed(False)), ("wrapper", wrapped_network())):
            module = wrap(objective_for(weighting, model))
            found["checkpointed", name, kind] = trained(module, *batch, paths=paths)
    found["joined", "left"] = joined(weighting, "ddp", quadrature="left")
    module = DistributedDataParallel(objective_for(weighting, Checkpointed(True)))
    found[("reentrant",)] = noted(trained, module, *batch, paths=paths)
    for order in ("outside", "inside") if weighting == "gradient_norm" else ("inside",):
        found["compiled", order] = compiled(weighting, order)
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
