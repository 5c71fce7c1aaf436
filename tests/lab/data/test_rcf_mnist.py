"""RCF-MNIST: turned images, misleading colours, and features of a frozen network."""

import sys

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from elliptica.lab.data import images, load_rcf_mnist, load_rcf_mnist_features


def test_rotation_is_pillows(generator, rng):
    """Nearest pixel about the centre; at most a pixel or two may fall on the other side of a tie."""
    x = rng.integers(0, 256, size=(40, 28, 28), dtype=np.uint8)
    degrees = torch.rand(40, generator=generator) * 360
    ours = images.rotate(torch.from_numpy(x)[:, None].float(), degrees)[:, 0].numpy()
    for image, degree, turned in zip(x, degrees.tolist(), ours, strict=True):
        expected = np.asarray(Image.fromarray(image).rotate(degree))
        assert (turned != expected).sum() <= 4, degree
    wide = torch.arange(12.0).view(1, 1, 3, 4)
    assert torch.equal(images.rotate(wide, torch.tensor([180.0])), wide.flip(2, 3))


@pytest.mark.parametrize("ratio", [0.8, 1.0])
def test_colours_and_groups(clothes, ratio):
    data = load_rcf_mnist(data_dir=clothes[0], ratio=ratio)
    assert (data.task, data.name) == ("regression", "rcf_mnist")
    assert [split.n_rows for split in (data.train, data.validation, data.test)] == [40, 10, 10]
    assert data.train.group.bincount(minlength=2).tolist() == [round(40 * ratio), 40 - round(40 * ratio)]
    assert data.test.group.bincount(minlength=2).tolist() == [10 - round(10 * ratio), round(10 * ratio)]
    assert (data.validation.group == 2).all()
    for split in (data.train, data.test, data.validation):
        assert split.y.shape == (split.n_rows, 1)
        red, green, blue = ((split.x.double() + 1) / 2).unbind(1)
        bright = (red + blue) > 0.2  # surely not background
        assert (green[bright] < 1e-6).all()
        shares = [(r[b] / (r + bl)[b]).mean() for r, bl, b in zip(red, blue, bright, strict=True)]
        angle = split.y.flatten().double()
        expected = torch.where(split.group == 0, angle, 1 - angle)
        agrees = torch.allclose(torch.stack(shares), expected, atol=1e-3)
        assert agrees == (split is not data.validation)


def test_images_are_the_turned_originals(clothes):
    """Red plus blue is the grey image, turned by the target."""
    folder, arrays = clothes
    data = load_rcf_mnist(3, data_dir=folder)
    grey = torch.from_numpy(arrays["train"][0].astype(np.float32) / 255)
    used = set()
    for x, y in zip(data.train.x[:10], data.train.y[:10], strict=True):
        turned = images.rotate(grey[:, None], (360 * y).expand(60))[:, 0]
        total = (x[0] + x[2]) / 2 + 1
        errors = ((total - turned).abs() * (turned > 6 / 255)).amax((1, 2))
        assert errors.min() < 1e-5
        used.add(int(errors.argmin()))
    assert len(used) == 10
    again, other = load_rcf_mnist(3, data_dir=folder), load_rcf_mnist(4, data_dir=folder)
    assert torch.equal(again.test.x, data.test.x)
    assert not torch.equal(other.test.y, data.test.y)


@pytest.fixture
def stub(monkeypatch):
    """A network whose features are the mean of each channel; returns the names it was asked for."""
    asked = []

    def load(name, **options):
        asked.append((name, options))
        return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())

    monkeypatch.setattr(images, "load_backbone", load)
    return asked


def test_features_are_those_of_the_images(clothes, stub, monkeypatch):
    """Edges are empty, so enlarging keeps the ratio of means: red over red plus blue is the target."""
    folder, _ = clothes
    monkeypatch.setattr(images, "standardise", lambda parts: parts)
    data = load_rcf_mnist_features(data_dir=folder)
    assert stub == [("efficientnet_lite0", {"num_classes": 0})]
    assert [split.n_rows for split in (data.train, data.validation, data.test)] == [40, 10, 10]
    assert data.test.group.bincount().tolist() == [2, 8]
    for split in (data.train, data.test):
        red, green, blue = (128 * split.x.double() + 127).unbind(1)
        angle = split.y.flatten().double()
        share = torch.where(split.group == 0, angle, 1 - angle)
        torch.testing.assert_close(red / (red + blue), share, atol=0.02, rtol=0)
        assert (green < 0.05 * (red + blue)).all()


def test_features_are_made_once_and_scaled_by_training_rows(clothes, stub):
    folder, _ = clothes
    first, again, other = (load_rcf_mnist_features(seed, data_dir=folder) for seed in (0, 0, 1))
    assert len(stub) == 1
    assert torch.equal(first.test.x, again.test.x)
    assert not torch.equal(first.test.x, other.test.x)
    assert torch.equal(first.test.x.sort(0).values, other.test.x.sort(0).values)
    torch.testing.assert_close(first.train.x.mean(0), torch.zeros(3), atol=1e-5, rtol=0)
    deviation = first.train.x.std(0, correction=0)  # green is hardly there
    torch.testing.assert_close(deviation[[0, 2]], torch.ones(2))
    assert first.test.x.mean(0).abs().max() > 0.01


@pytest.mark.bad_input
def test_bad_input(clothes, monkeypatch):
    folder, _ = clothes
    with pytest.raises(ValueError, match="ratio"):
        load_rcf_mnist(data_dir=folder, ratio=1.5)
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    with pytest.raises(ImportError, match="efficientnet_lite_pytorch"):
        load_rcf_mnist_features(data_dir=folder)
    assert not (folder / "rcf_mnist").exists()
