"""The loss against the labels of the nearest training rows, against a plain loop."""

import json

import pytest
import torch
from torch import nn

from elliptica.landscape import expected_loss, neighbour_loss
from elliptica.landscape.loss import LossField


def by_loop(model, loss_fn, at, x, y, k):
    """Mean loss of each query against its nearest labels, and the distance of the nearest row."""
    scale = x.std(0, correction=0)
    scale[scale == 0] = 1
    found = []
    for query in at:
        gaps = sorted((float(((query - row) / scale).norm()), i) for i, row in enumerate(x))
        output = model(query[None]).detach()
        losses = [float(loss_fn(output, y[i : i + 1])) for _, i in gaps[:k]]
        found.append((sum(losses) / k, gaps[0][0]))
    return torch.tensor(found, dtype=torch.float64).T


@pytest.mark.parametrize("chunk", [2**22, 7 * 40])
@pytest.mark.parametrize("task", ["classes", "numbers"])
@pytest.mark.parametrize("k", [1, 10])
def test_the_loop(task, k, chunk, generator, monkeypatch):
    monkeypatch.setattr(expected_loss, "_CHUNK", chunk)
    x = torch.randn(40, 4, generator=generator).double() * torch.tensor([1.0, 100.0, 0.01, 0.0]).double()
    at = x[:15] + 0.3 * x.std(0) * torch.randn(15, 4, generator=generator).double()
    if task == "classes":
        model, loss_fn = nn.Linear(4, 3).double(), nn.CrossEntropyLoss()
        y = torch.randint(3, (40,), generator=generator)
    else:
        model, loss_fn = nn.Linear(4, 2).double(), nn.MSELoss()
        y = torch.randn(40, 2, generator=generator).double()
    found = neighbour_loss(LossField(model, loss_fn, chunk_size=16), at, (x, y), k)
    loss, distance = by_loop(model, loss_fn, at, x, y, k)
    torch.testing.assert_close(found.loss, loss)
    torch.testing.assert_close(found.distance, distance)
    assert found.rows.shape == (15, k)
    json.dumps(found.to_dict(), allow_nan=False)


def test_far_rows_are_told(generator):
    x = torch.randn(400, 3, generator=generator)
    field = LossField(nn.Linear(3, 2), nn.CrossEntropyLoss())
    y = torch.arange(400) % 2
    held_out = torch.randn(400, 3, generator=generator)
    assert float(neighbour_loss(field, held_out, (x, y)).far.float().mean()) < 0.05
    away = neighbour_loss(field, held_out + 20, (x, y))
    assert bool(away.far.all())
    # copies of rows do not make all others look far
    twice = neighbour_loss(field, held_out, (torch.cat([x, x]), torch.cat([y, y])))
    assert float(twice.far.float().mean()) < 0.05
    same = torch.zeros(20, 3)
    assert not bool(neighbour_loss(field, same[:2], (same, y[:20])).far.any())


def test_images_and_single_precision(generator):
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    x = torch.randn(30, 3, 2, 2, generator=generator)
    found = neighbour_loss(LossField(model, nn.CrossEntropyLoss()), x[:4], (x, torch.arange(30) % 3))
    assert found.loss.dtype == torch.float32
    assert found.rows[:, 0].tolist() == [0, 1, 2, 3]
    assert found.distance.tolist() == [0.0] * 4  # exactly, though cdist rounds
