"""What tests of baselines share: a small network, a batch, exact comparison, repeated draws."""

import torch
from torch import nn

UNEVEN = torch.tensor([3, 0, 7, 0, 3, 0, 0, 7, 3, 0, 7, 3])  # with gaps, and of sizes 5, 4, 3
GROUPINGS = {
    "even": torch.arange(12) % 3,
    "uneven": UNEVEN,
    "lonely": torch.tensor([3, 0, 0, 0, 3, 0, 0, 7, 3, 0, 0, 3]),  # one row of group 7
    "alone": torch.arange(12),  # one row of every group
    "one": torch.zeros(12, dtype=torch.long),
}


class Recorder(nn.Module):
    """Keeps what it is called with, and gives it back."""

    def forward(self, x):
        self.seen = x
        return x


def network(n_in=3, n_out=4):
    return nn.Sequential(nn.Linear(n_in, 8), nn.Tanh(), nn.Linear(8, n_out)).double()


def batch(generator, n=12, classes=4):
    """Rows of three features and their labels."""
    x = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    return x, torch.randint(classes, (n,), generator=generator)


def regression(generator, n=12, n_in=3, n_out=1):
    """Rows and real targets."""
    return [torch.randn(n, k, generator=generator, dtype=torch.float64) for k in (n_in, n_out)]


def problem(generator):
    """A network, rows and labels."""
    return network(), *batch(generator)


def real_problem(generator):
    """A network of one output, rows and real targets."""
    return network(n_out=1), *regression(generator)


def value_and_gradient(loss, model):
    return loss.detach(), torch.autograd.grad(loss, list(model.parameters()))


def same(a, b, rtol=1e-9):
    torch.testing.assert_close(a, b, rtol=rtol, atol=rtol / 1000)


def replay(generator):
    """A generator that will draw what this one would."""
    copy = torch.Generator()
    copy.set_state(generator.get_state())
    return copy
