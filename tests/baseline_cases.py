"""What tests of baselines share: a small network, a batch, exact comparison, repeated draws."""

import torch
from torch import nn


def network(n_in=3, n_out=4):
    return nn.Sequential(nn.Linear(n_in, 8), nn.Tanh(), nn.Linear(8, n_out)).double()


def batch(generator, n=12, classes=4):
    """Rows of three features and their labels."""
    x = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    return x, torch.randint(classes, (n,), generator=generator)


def value_and_gradient(loss, model):
    return loss.detach(), torch.autograd.grad(loss, list(model.parameters()))


def same(a, b, rtol=1e-9):
    torch.testing.assert_close(a, b, rtol=rtol, atol=rtol / 1000)


def replay(generator):
    """A generator that will draw what this one would."""
    copy = torch.Generator()
    copy.set_state(generator.get_state())
    return copy
