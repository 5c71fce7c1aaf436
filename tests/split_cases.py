"""What a process computes with a network whose rows are shared out, for lab/training/test_rows."""

import torch
from torch import nn

from elliptica import Elliptic, elliptic_loss
from elliptica.baselines import CORAL, IBIRM, CMixup, ManifoldMixup
from elliptica.distributed import current_ranks
from elliptica.lab.models import preact_resnet
from elliptica.lab.training.rows import copied, gather_rows, split_rows, summed, take_rows
from two_processes import Blocks

ROWS = 7  # in two parts of different sizes
WEIGHTINGS = (None, "gradient_norm", "gradient_softmax", "girsanov", "multiplicative")


def filled(model):
    model = model.double()
    numbers = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=numbers, dtype=torch.float64) / 2)
    return model


def network():
    return filled(nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 4)))


def normed():
    return filled(nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 4)))


def batch(rows=ROWS):
    numbers = torch.Generator().manual_seed(1)
    x = torch.randn(rows, 3, dtype=torch.float64, generator=numbers)
    return x, torch.randint(4, (rows,), generator=numbers)


def noise():
    return torch.Generator().manual_seed(2)


def elliptic(model=None, **settings):
    settings = {"num_classes": 4, "sampling": "path", "n_times": 4, "sigma": 0.5, **settings}
    settings.setdefault("n_bridges", 2 if settings.get("weighting") == "multiplicative" else 1)
    return Elliptic(model or network(), nn.CrossEntropyLoss(), **settings)


def gradients(objective, *args, **kwargs):
    """Loss, gradients and buffers after two steps that need not be equal."""
    model = objective.model
    losses = []
    with split_rows(model):
        for _ in range(2):
            loss = objective(*args, generator=kwargs.get("generator") or noise(), **kwargs)
            model.zero_grad()
            loss.backward()
            losses.append(loss.detach())
    found = [p.grad for p in model.parameters()]
    return [*losses, *found, *(b.clone() for b in model.buffers())]


class Two(nn.Module):
    """Several inputs and outputs, and a parameter that only one process' rows could reach."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(3, 4)

    def forward(self, x, other):
        return {"logits": self.a(x) * self.b(other), "rest": (self.b(x),)}


def several_outputs():
    model = filled(Two())
    x, y = batch()
    with split_rows(model):
        found = model(x, other=x.flip(0))
        loss = nn.functional.cross_entropy(found["logits"], y) + found["rest"][0].var()
        loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters())]


def penalised():
    """Parameters that are also used outside of the network, and a batch too small to be split."""
    model = network()
    x, y = batch()
    with split_rows(model):
        loss = nn.functional.cross_entropy(model(x), y) + nn.functional.cross_entropy(model(x[:1]), y[:1])
        loss = loss + sum(p.square().sum() for p in model.parameters())
        loss.backward()
    return [p.grad for p in model.parameters()]


def functional(weighting):
    """The objective under torch.func, as the compiler runs it."""
    model = network()
    x, y = batch()

    def losses(points):
        each = nn.functional.cross_entropy(model(points), y, reduction="none")
        return each.sum(), each

    with split_rows(model):
        slopes, (_, each) = torch.func.grad_and_value(losses, has_aux=True)(x)
        (each.mean() + slopes.norm(dim=1).mean()).backward()
    loss = elliptic_loss  # the same through the public function
    plain = loss(model, nn.CrossEntropyLoss(), x, y, num_classes=4, weighting=weighting, generator=noise())
    return [slopes.detach(), plain.detach(), *(p.grad for p in model.parameters())]


def images():
    model = preact_resnet(18, num_classes=4, width=2).double().to(memory_format=torch.channels_last)
    numbers = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=numbers, dtype=torch.float64) / p[0].numel() ** 0.5)
    x = torch.randn(5, 3, 8, 8, dtype=torch.float64, generator=numbers)
    y = torch.randint(4, (5,), generator=numbers)
    return gradients(elliptic(model, weighting="gradient_norm", n_times=2), x, y)


def cases():
    """Results by name: in one process and in several they must be the same."""
    x, y = batch()
    found = {}
    for weighting in WEIGHTINGS:
        found["elliptic", weighting] = gradients(elliptic(weighting=weighting), x, y)
        for bn in ("paths", "clean"):
            found["batch norm", weighting, bn] = gradients(
                elliptic(normed(), weighting=weighting, bn=bn), x, y
            )
    for weighting in (None, "gradient_norm"):
        found["hidden", weighting] = gradients(elliptic(at="1", weighting=weighting), x, y)
        inside = elliptic(Blocks(), at="two.inner", weighting=weighting)
        found["hidden in a block", weighting] = gradients(inside, x, y)
    near = {"pairing": "inverse_distance", "at": "1"}
    found["pairs by hidden distance"] = gradients(elliptic(**near), x, y)
    found["marginal"] = gradients(elliptic(sampling="marginal", sigma="green"), x, y)
    loss_fn, group = nn.CrossEntropyLoss(), torch.arange(ROWS) % 2
    found["manifold mixup"] = gradients(ManifoldMixup(network(), loss_fn, layers=(None, "1")), x, y)
    found["coral"] = gradients(CORAL(network(), loss_fn, at="1"), x, y, group)
    found["ib-irm"] = gradients(IBIRM(network(), loss_fn, at="1"), x, y, group)
    found["c-mixup"] = gradients(
        CMixup(network(), nn.MSELoss(), bandwidth=1.0), x, x.sin() @ torch.ones(3, 4).double()
    )
    found["outputs"], found["penalised"] = several_outputs(), penalised()
    found["functional"] = functional("gradient_norm")
    found["images"] = images()
    momentum = normed()
    momentum[1].momentum = None
    found["cumulative"] = gradients(elliptic(momentum), x, y)
    return found


def refusals():
    x, _ = batch()
    found = set()

    def note(name, function):
        try:
            function()
        except ValueError:
            found.add(name)

    def run(model, *args):
        with split_rows(model):
            model(*args)

    class Mean(nn.Module):
        def forward(self, x):
            return x.mean()

    note("scalar", lambda: run(Mean(), x))
    note("rows", lambda: run(Two().double(), x, x[:3]))
    note("nested", lambda: [run(m, x) for m in [network()] for _ in [0] if _in_split(m)])
    note("instance norm", lambda: run(nn.Sequential(nn.InstanceNorm1d(3, track_running_stats=True)), x))
    note("ddp", lambda: run(nn.parallel.DistributedDataParallel(network()), x))
    note("batch norm of one", lambda: run(nn.Sequential(nn.BatchNorm1d(3)), x[:1]))
    return found


def _in_split(model):
    with split_rows(model), split_rows(model):
        return True


def derivatives(rank):
    """Each collective against the whole, to the third order: sums over processes are done by hand."""
    ranks = current_ranks()
    whole = torch.linspace(-1, 1, ROWS * 2, dtype=torch.float64).view(ROWS, 2).requires_grad_()
    scale = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)

    def split(whole, scale):
        (own,) = copied([scale], ranks)
        rows = gather_rows((own * take_rows(whole, ranks)).sin() * own, ranks, ROWS)
        (total,) = summed([(own * take_rows(whole, ranks)).exp().sum()], ranks)
        return (rows**3).sum() * total

    def plain(whole, scale):
        return (((scale * whole).sin() * scale) ** 3).sum() * (scale * whole).exp().sum()

    found = []
    for function in (split, plain):
        value, each = function(whole, scale), []
        for _ in range(3):
            first = torch.autograd.grad(value, (whole, scale), create_graph=True)
            each += [part.detach() for part in first]
            value = sum((part * part.detach().cos()).sum() for part in first)
        tangents = torch.func.jvp(
            function, (whole.detach(), scale.detach()), (whole.detach(), scale.detach() / 2)
        )
        found.append([*each, *tangents])
    return found


def run(rank):
    return {"cases": cases(), "refusals": refusals(), "derivatives": derivatives(rank)}
