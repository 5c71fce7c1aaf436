"""What each of two gloo processes does for distributed/test_ddp."""

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from elliptica import Elliptic, elliptic_loss

WEIGHTINGS = (None, "gradient_norm", "gradient_softmax", "girsanov", "multiplicative")
SECOND_ORDER = ("gradient_norm", "girsanov")
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


def paths_of(rank, weighting=None):
    return objective_for(weighting).sample(*batch(rank), generator=noise(rank))


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

        if weighting is not None:  # a static graph takes the pass to the inputs for the one that counts
            found["static", weighting] = raises(
                lambda w=weighting: loss(ddp(network(), static_graph=True), w)
            )
        if weighting in SECOND_ORDER:
            found["refused", weighting] = raises(loss)
        else:
            loss().backward()
            found["outside", weighting] = [full(p.grad) for p in model.parameters()]
    for weighting in ("multiplicative", "gradient_norm"):
        model = network()
        objective = objective_for(weighting, model)
        for layer in (model[0], model[2], objective):
            fully_shard(layer)
        if weighting in SECOND_ORDER:
            found["sharded layers"] = raises(lambda o=objective: o(x, y, paths=paths_of(rank)))
        else:
            found["nested", weighting] = trained(objective, x, y, paths=paths_of(rank, weighting))
    return found


class Blocks(nn.Module):
    """Not a sequence, so that bridges in a layer replace its output; blocks have paths around them."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(3, 6), nn.Linear(6, 4)
        self.one, self.two = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)]), Block()
        numbers = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in self.double().parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=numbers) / 2)

    def forward(self, x):
        h = self.stem(x)
        return self.head(self.two(h + self.one[1](self.one[0](h).tanh())))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x):
        return x + self.inner(x).tanh()


def shard_layers(objective):
    model = objective.model
    for layer in (model.stem, model.two, model.head, objective):
        fully_shard(layer)
    return objective


def wrap_model(objective):
    """As trainers do that own the model."""
    objective.model = ddp(objective.model)
    objective.split.at = f"module.{objective.split.at}"
    return objective


LAYERS = ("stem", "one.0", "two.inner", "two")
WRAPPERS = {
    "ddp": ddp,
    "static": lambda objective: ddp(objective, static_graph=True),
    "fsdp": fully_shard,
    "sharded layers": shard_layers,  # where a forward pass that ends in a layer skips hooks of the wrapper
    "wrapped model": wrap_model,
}


def hidden(at, weighting):
    return objective_for(weighting, Blocks(), at=at, n_bridges=2)


def combined():
    """Layers, weightings and wrappers that are exact together."""
    for wrapper in WRAPPERS:
        inside = wrapper in ("sharded layers", "wrapped model")
        for weighting in WEIGHTINGS:
            if not (inside and weighting in SECOND_ORDER):
                yield from ((wrapper, at, weighting) for at in LAYERS)


def step_noise(step, rank):
    return torch.Generator().manual_seed(100 * step + rank)


def hidden_layers(rank):
    """Parameters after three steps."""
    x, y = batch(rank)
    found = {}
    for wrapper, at, weighting in combined():
        module = WRAPPERS[wrapper](hidden(at, weighting))
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
        for step in range(3):
            optimizer.zero_grad()
            module(x, y, generator=step_noise(step, rank)).backward()
            optimizer.step()
        found["hidden", wrapper, at, weighting] = [full(p) for p in module.parameters()]
    return found


def run(rank):
    return {**wrapped_objectives(rank), **wrapped_models(rank), **hidden_layers(rank)}
