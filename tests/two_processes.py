"""What each of two gloo processes does for distributed/test_ddp."""

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from elliptica import Elliptic, elliptic_loss

WEIGHTINGS = ("none", "gradient_norm", "gradient_softmax", "girsanov", "multiplicative", "released")
DRIFTS = ("girsanov", "multiplicative")
SECOND_ORDER = ("gradient_norm", "girsanov", "released")
ROWS = 5  # per process


def network():
    model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 4)).double()
    numbers = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=numbers))
    return model


def objective_for(weighting, model=None, **settings):
    settings = {"num_classes": 4, "sampling": "path", "n_times": 4, "sigma": 0.5, **settings}
    settings.setdefault("n_bridges", 2 if weighting == "multiplicative" else 1)
    return Elliptic(model or network(), nn.CrossEntropyLoss(), weighting=weighting, **settings)


def batch(rank):
    numbers = torch.Generator().manual_seed(1 + rank)
    x = torch.randn(ROWS, 3, dtype=torch.float64, generator=numbers)
    return x, torch.randint(4, (ROWS,), generator=numbers)


def noise(rank):
    return torch.Generator().manual_seed(10 + rank)


def paths_of(rank, weighting="none"):
    return objective_for(weighting).sample(*batch(rank), generator=noise(rank))


def partners_of(rank):
    return torch.randperm(ROWS, generator=noise(rank))


def full(gradient):
    gradient = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
    return gradient.detach().clone()


def trained(module, *args, **kwargs):
    """Gradients of the second of two steps: a static graph is only used from the second on."""
    for _ in range(2):
        module.zero_grad()
        module(*args, **kwargs).backward()
    return [full(p.grad) for p in module.parameters()]


def raises(function):
    """Whether what would be silently wrong is an error."""
    try:
        function()
    except ValueError:
        return True
    return False


def ddp(model, **settings):
    return DistributedDataParallel(model, **settings)


def wrapped_objectives(rank):
    x, y = batch(rank)
    found = {}
    for weighting in WEIGHTINGS:
        paths = paths_of(rank, weighting)
        for static in (False, True):
            module = ddp(objective_for(weighting), static_graph=static)
            found["ddp", weighting, static] = trained(module, x, y, paths=paths)
        found["fsdp", weighting] = trained(fully_shard(objective_for(weighting)), x, y, paths=paths)
    straight = ddp(objective_for("gradient_norm", sigma=0.0))
    found["partners"] = trained(straight, x, y, partners=partners_of(rank))
    return found


def wrapped_models(rank):
    """Only what is exact outside of the wrapper is allowed there."""
    x, y = batch(rank)
    settings = {"num_classes": 4, "sampling": "path", "n_times": 4, "sigma": 0.5}
    found = {}
    for weighting in WEIGHTINGS:
        model = ddp(network())
        settings["n_bridges"] = 2 if weighting == "multiplicative" else 1

        def loss(model=model, weighting=weighting):
            arguments = {**settings, "weighting": weighting}
            return elliptic_loss(model, nn.CrossEntropyLoss(), x, y, generator=noise(rank), **arguments)

        if weighting in SECOND_ORDER:
            found["refused", weighting] = raises(loss)
        else:
            loss().backward()
            found["outside", weighting] = [full(p.grad) for p in model.parameters()]
    for weighting in ("multiplicative", "gradient_norm"):
        early, late = network(), network()
        fully_shard(early[0])
        if weighting in SECOND_ORDER:
            found["sharded early"] = raises(lambda m=early, w=weighting: objective_for(w, m))
        objective = objective_for(weighting, late)
        for layer in (late[0], late[2], objective):
            fully_shard(layer)
        if weighting in SECOND_ORDER:
            found["sharded late"] = raises(lambda o=objective: o(x, y, paths=paths_of(rank)))
        else:
            found["nested", weighting] = trained(objective, x, y, paths=paths_of(rank, weighting))
    return found


def with_drift(weighting):
    """An objective whose drift is a network, with as fixed numbers as the model's."""
    drift = nn.Bilinear(3, 4, 3).double()
    numbers = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in drift.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=numbers))
    return objective_for(weighting, drift=drift)


def drift_networks(rank):
    """Three steps each: DDP notices a parameter without gradient in the second."""
    x, y = batch(rank)
    found = {}
    for weighting in DRIFTS:
        for wrap in (ddp, fully_shard):
            objective = with_drift(weighting)
            drift, module = objective.drift, wrap(objective)
            optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
            for step in range(3):
                optimizer.zero_grad()
                module(x, y, generator=torch.Generator().manual_seed(100 * step + rank)).backward()
                optimizer.step()
            key = ("drift", weighting, wrap.__name__)
            found[key] = [full(p) for p in (*objective.model.parameters(), *drift.parameters())]
    return found


def run(rank):
    return {**wrapped_objectives(rank), **wrapped_models(rank), **drift_networks(rank)}
