"""Training that is saved and goes on in another number of processes, for distributed/test_checkpoint."""

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from elliptica import Elliptic
from elliptica.distributed import current_ranks, load_checkpoint, rank_generator, save_checkpoint, shard

WRAPPERS = {"plain": lambda module: module, "ddp": DistributedDataParallel, "fsdp": fully_shard}
OPTIMIZERS = {
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.8, 0.99), weight_decay=0.01),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
}


def make(wrapper="plain", optimizer="adam", seed=0):
    """Layers whose rows cannot be shared out equally, and one of which has a single row."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 1)).double()
    model[1].eval().running_mean.normal_()  # a buffer of its own; frozen, so that processes agree
    plain = Elliptic(model, nn.MSELoss(), sampling="path", n_times=3, sigma=0.1, weighting="gradient_norm")
    objective = WRAPPERS[wrapper](plain)
    return objective, OPTIMIZERS[optimizer](objective.parameters()), plain


def train(made, steps):
    """The same global batch and noise in any number of processes."""
    objective, optimizer, plain = made
    for step in steps:
        numbers = torch.Generator().manual_seed(step)
        x = torch.randn(8, 3, dtype=torch.float64, generator=numbers)
        paths = plain.sample(x, x.sum(1, keepdim=True), generator=numbers)
        optimizer.zero_grad()
        objective(shard(x), shard(x.sum(1, keepdim=True)), paths=shard(paths)).backward()
        optimizer.step()


def weights(made):
    full = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in made[2].parameters()]
    return [p.detach().clone() for p in (*full, *made[2].buffers())]


def save(folder, wrapper, optimizer):
    made = make(wrapper, optimizer)
    train(made, range(3))
    noise = rank_generator(5)
    torch.randn(current_ranks().rank + 1, generator=noise)  # streams of processes are at different places
    save_checkpoint(folder, *made[:2], step=3, generators={"noise": noise}, extra={"epoch": 1})
    return torch.randn(2, generator=noise)


def go_on(folder, wrapper, optimizer):
    """Weights after two more steps from other initial weights, and what the stream gives next."""
    made, noise = make(wrapper, optimizer, seed=1), rank_generator(9)
    found = load_checkpoint(folder, *made[:2], generators={"noise": noise})
    train(made, range(found.step, 5))
    return {
        "weights": weights(made),
        "noise": torch.randn(2, generator=noise),
        "found": (found.step, found.extra, found.world_size),
    }


class Together:
    """What each of two processes does; can be sent to them."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, rank):
        found = {}
        for optimizer in OPTIMIZERS:
            for wrapper in ("ddp", "fsdp"):
                folder = self.folder / f"{wrapper}-{optimizer}"
                found["noise", wrapper, optimizer] = save(folder, wrapper, optimizer)
            for before, after in (
                ("ddp", "fsdp"),
                ("fsdp", "ddp"),
                ("fsdp", "fsdp"),
                ("plain", "fsdp"),
                ("plain", "ddp"),
            ):
                folder = self.folder / f"{before}-{optimizer}"
                found[before, after, optimizer] = go_on(folder, after, optimizer)
        found["files"] = sorted(
            file.name for file in (self.folder / "fsdp-adam").rglob("*") if file.is_file()
        )
        return found
