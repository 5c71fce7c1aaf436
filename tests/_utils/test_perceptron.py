"""Networks trained side by side are trained as they would be alone."""

import torch

from elliptica.lab.models import mlp, stack, unstack


def networks(n):
    torch.manual_seed(0)
    return [mlp(3, 1, hidden=(8, 8)) for _ in range(n)]


def step(model, x, y, rows_per_mean):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(5):
        optimizer.zero_grad()
        ((model(x) - y).square().sum() / rows_per_mean).backward()
        optimizer.step()
    return model(x).detach()


def test_stacked_training_equals_separate_training():
    x, y = torch.randn(3, 10, 3), torch.randn(3, 10, 1)
    alone = torch.cat([step(net, x[i], y[i], 10) for i, net in enumerate(networks(3))])
    together = step(stack(networks(3)), x.flatten(0, 1), y.flatten(0, 1), 10)
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_unstacking_gives_the_networks_back():
    before = networks(3)
    x = torch.randn(4, 3)
    for network, again in zip(before, unstack(stack(before), networks(3)), strict=True):
        assert again is not network
        assert torch.equal(network(x), again(x))
