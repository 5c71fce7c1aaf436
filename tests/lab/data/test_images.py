"""Small images, on files of our own in the published layouts, and on real ones."""

import io
import json
import pickle
import tarfile
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from elliptica.lab.data import (
    load_cifar10,
    load_cifar100,
    load_fashion_mnist,
    load_medmnist,
    load_tiny_imagenet,
)
from published import npz, publish

PARTS = ("train", "validation", "test")
WNIDS = ("n003", "n001", "n002")


def pixels(x):
    """Undo the normalisation to [-1, 1]."""
    return ((x + 1) * 127.5).round().to(torch.uint8)


def rows(x, y):
    return sorted(
        (*np.asarray(image).ravel().tolist(), int(label)) for image, label in zip(x, y, strict=True)
    )


# MedMNIST


@pytest.fixture(params=["breastmnist", "pathmnist"])
def medmnist(request, tmp_path, monkeypatch, rng):
    """A grey and a coloured file: 30 / 7 / 11 images."""
    name = request.param
    shape = (28, 28) if name == "breastmnist" else (28, 28, 3)
    arrays = {}
    for part, n in (("train", 30), ("val", 7), ("test", 11)):
        arrays[f"{part}_images"] = rng.integers(0, 256, size=(n, *shape), dtype=np.uint8)
        arrays[f"{part}_labels"] = rng.integers(0, 2, size=(n, 1), dtype=np.uint8)
    publish(monkeypatch, tmp_path, name, {f"{name}/{name}.npz": npz(arrays)})
    return name, tmp_path, arrays


def test_medmnist_official_parts(medmnist):
    name, folder, arrays = medmnist
    data, other = (load_medmnist(name, seed, data_dir=folder) for seed in (3, 4))
    assert (data.name, data.task) == (name, "classification")
    for part, key in zip(PARTS, ("train", "val", "test"), strict=True):
        split = getattr(data, part)
        images, labels = arrays[f"{key}_images"], arrays[f"{key}_labels"][:, 0]
        images = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
        assert split.x.shape == images.shape
        assert (split.x.dtype, split.y.dtype) == (torch.float32, torch.int64)
        assert rows(pixels(split.x), split.y) == rows(images, labels)
        same_order = np.array_equal(pixels(split.x).numpy(), images)
        assert same_order == (part != "train")
    assert not torch.equal(data.train.x, other.train.x)
    assert torch.equal(data.test.x, other.test.x)


def test_medmnist_evaluated_on_the_official_validation_part(medmnist):
    """The paper's way for PathMNIST: nothing of the official test part is seen."""
    name, folder, _ = medmnist
    data, other = (load_medmnist(name, s, data_dir=folder, evaluate_on="validation") for s in (0, 1))
    official = load_medmnist(name, data_dir=folder)
    assert torch.equal(data.test.x, official.validation.x)
    assert (data.train.n_rows, data.validation.n_rows) == (27, 3)
    both = torch.cat([data.train.x, data.validation.x]), torch.cat([data.train.y, data.validation.y])
    assert rows(*both) == rows(official.train.x, official.train.y)
    assert not torch.equal(other.validation.x, data.validation.x)


# CIFAR


def batch(rng, n, n_classes=10):
    return rng.integers(0, 256, size=(n, 3072), dtype=np.uint8), rng.integers(0, n_classes, size=n).tolist()


def archive(folder, contents):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as packed:
        for name, content in contents.items():
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size = len(content)
            packed.addfile(info, io.BytesIO(content))
    return out.getvalue()


CIFAR = {
    "cifar10": (load_cifar10, "cifar-10-batches-py", "cifar-10-python.tar.gz", b"labels", 6),
    "cifar100": (load_cifar100, "cifar-100-python", "cifar-100-python.tar.gz", b"fine_labels", 2),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", CIFAR)
def test_cifar_from_pickles(name, packed, tmp_path, monkeypatch, rng):
    load, folder, tar, key, n_files = CIFAR[name]
    files = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"] if n_files == 6 else ["train", "test"]
    made = [batch(rng, 20) for _ in files]
    contents = {
        file: pickle.dumps({b"data": data, key: labels, b"batch_label": b"x"}, protocol=2)
        for file, (data, labels) in zip(files, made, strict=True)
    }
    if packed:
        published = {f"{name}/{tar}": archive(folder, contents)}
    else:
        published = {f"{name}/{folder}/{file}": content for file, content in contents.items()}
    publish(monkeypatch, tmp_path, name, published)
    data = load(data_dir=tmp_path, validation_share=0.25)
    n = 20 * (n_files - 1)
    assert [getattr(data, part).n_rows for part in PARTS] == [n - n // 4, n // 4, 20]
    mean, deviation = {
        "cifar10": ([125.3, 123.0, 113.9], [63.0, 62.1, 66.7]),
        "cifar100": ([129.3, 124.1, 112.4], [68.2, 65.4, 70.4]),
    }[name]
    mean, deviation = (torch.tensor(values).view(3, 1, 1) for values in (mean, deviation))
    test = data.test.x * deviation + mean
    np.testing.assert_allclose(test.numpy(), made[-1][0].reshape(-1, 3, 32, 32), atol=1e-4)
    assert data.test.y.tolist() == made[-1][1]
    seen = torch.cat([data.train.x, data.validation.x]) * deviation + mean
    labels = torch.cat([data.train.y, data.validation.y])
    expected = rows(np.concatenate([x for x, _ in made[:-1]]), [y for _, ys in made[:-1] for y in ys])
    assert rows(seen.round().to(torch.uint8), labels) == expected
    everything = load(data_dir=tmp_path, validation_share=0.0)
    assert everything.train.n_rows == n
    assert torch.equal(everything.validation.x, everything.test.x)


def test_first_batch_from_sheets(tmp_path, monkeypatch, rng):
    """Row i of a PNG is image i, pixel by pixel."""
    contents, made = {}, {}
    for name, n in (("data_batch_1", 20), ("test_batch_first3000", 6)):
        x, y = batch(rng, n)
        image = np.ascontiguousarray(x.reshape(n, 3, 1024).transpose(0, 2, 1))
        out = io.BytesIO()
        Image.fromarray(image).save(out, "PNG")
        contents[f"cifar10/{name}.png"], made[name] = out.getvalue(), (x, y)
    labels = {name: y for name, (_, y) in made.items()} | {"classes": ["a"]}
    contents["cifar10/labels.json"] = json.dumps(labels).encode()
    publish(monkeypatch, tmp_path, "cifar10-batch1", contents)
    data = load_cifar10(data_dir=tmp_path, part="batch1", validation_share=0.0)
    assert (data.name, data.train.n_rows) == ("cifar10-batch1", 20)
    assert data.test.y.tolist() == made["test_batch_first3000"][1]
    mean, deviation = torch.tensor([125.3, 123.0, 113.9]), torch.tensor([63.0, 62.1, 66.7])
    test = data.test.x.permute(0, 2, 3, 1) * deviation + mean
    expected = made["test_batch_first3000"][0].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    np.testing.assert_allclose(test.numpy(), expected, atol=1e-4)


# Tiny-ImageNet


def jpeg(rng, mode="RGB"):
    out = io.BytesIO()
    shape = (64, 64, 3) if mode == "RGB" else (64, 64)
    Image.fromarray(rng.integers(0, 256, size=shape, dtype=np.uint8)).save(out, "JPEG", quality=95)
    return out.getvalue()


def zip_up(files):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        for name, content in files.items():
            packed.writestr(name, content)
    return out.getvalue()


def test_tiny_imagenet_of_200_classes(tmp_path, monkeypatch, rng):
    """Three classes of four and two images, one of them grey; labels of val are in a list."""
    files = {}
    for wnid in WNIDS:
        for i in range(4):
            mode = "L" if (wnid, i) == ("n002", 1) else "RGB"
            files[f"train/{wnid}/images/{wnid}_{i}.JPEG"] = jpeg(rng, mode)
        files[f"train/{wnid}/{wnid}_boxes.txt"] = b"boxes"
    files |= {f"val/images/val_{i}.JPEG": jpeg(rng) for i in range(6)}
    lines = [f"val_{i}.JPEG\t{WNIDS[(i + 1) % 3]}\t0\t0\t63\t63\n" for i in range(6)]
    files |= {"val/val_annotations.txt": "".join(lines).encode(), "test/images/test_0.JPEG": jpeg(rng)}
    packed = zip_up({f"tiny-imagenet-200/{name}": content for name, content in files.items()})
    publish(monkeypatch, tmp_path, "tiny_imagenet", {"tiny_imagenet/tiny-imagenet-200.zip": packed})
    data = load_tiny_imagenet(data_dir=tmp_path, validation_share=0.25)
    assert [getattr(data, part).n_rows for part in PARTS] == [9, 3, 6]
    assert data.test.y.tolist() == [0, 1, 2, 0, 1, 2]  # n001, n002, n003, ...
    decoded = np.asarray(Image.open(io.BytesIO(files["val/images/val_4.JPEG"]))).transpose(2, 0, 1)
    np.testing.assert_array_equal(pixels(data.test.x[4]).numpy(), decoded)
    seen = torch.cat([data.train.x, data.validation.x])
    assert torch.cat([data.train.y, data.validation.y]).bincount().tolist() == [4, 4, 4]
    is_grey = ((seen[:, 0] == seen[:, 1]) & (seen[:, 1] == seen[:, 2])).flatten(1).all(1)
    assert is_grey.sum() == 1


def test_tiny_imagenet_of_ten_classes(tmp_path, monkeypatch, rng):
    names = [f"{p}/{w}/{w}_{i}.JPEG" for p, n in (("train", 3), ("val", 1)) for w in WNIDS for i in range(n)]
    files = {name: jpeg(rng) for name in names} | {"classes.txt": b"n001\tfish\n"}
    packed = {"tiny_imagenet_10/tiny_imagenet_10.zip": zip_up(files)}
    publish(monkeypatch, tmp_path, "tiny_imagenet_10", packed)
    data = load_tiny_imagenet(data_dir=tmp_path, n_classes=10, validation_share=0.0)
    assert data.train.y.bincount().tolist() == [3, 3, 3]
    assert data.test.y.tolist() == [0, 1, 2]


# Fashion-MNIST


def test_fashion_mnist(clothes):
    folder, arrays = clothes
    data = load_fashion_mnist(data_dir=folder)
    assert [getattr(data, part).n_rows for part in PARTS] == [54, 6, 10]
    np.testing.assert_array_equal(pixels(data.test.x)[:, 0].numpy(), arrays["t10k"][0])
    assert data.test.y.tolist() == arrays["t10k"][1].tolist()
    seen = torch.cat([data.train.x, data.validation.x]), torch.cat([data.train.y, data.validation.y])
    assert rows(pixels(seen[0]), seen[1]) == rows(*arrays["train"])


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("load", "argument"),
    [
        (lambda: load_medmnist("chestmnist"), "name"),
        (lambda: load_medmnist("breastmnist", evaluate_on="val"), "evaluate_on"),
        (lambda: load_cifar10(part="batch2"), "part"),
        (lambda: load_tiny_imagenet(n_classes=20), "n_classes"),
    ],
)
def test_bad_arguments(load, argument):
    with pytest.raises(ValueError, match=argument):
        load()


@pytest.mark.bad_input
@pytest.mark.parametrize("share", [-0.1, 1.0, 0.001])
def test_bad_shares(clothes, share):
    with pytest.raises(ValueError, match="validation_share"):
        load_fashion_mnist(data_dir=clothes[0], validation_share=share)


@pytest.mark.needs_data
@pytest.mark.slow
def test_real_cifar_and_tiny_imagenet(data_dir):
    data = load_cifar10(data_dir=data_dir, part="batch1", validation_share=0.0)
    assert data.train.y.bincount().tolist() == [1005, 974, 1032, 1016, 999, 937, 1030, 1001, 1025, 981]
    assert data.test.x.shape == (3000, 3, 32, 32)
    data = load_tiny_imagenet(data_dir=data_dir, n_classes=10)
    assert data.test.y.bincount().tolist() == [50] * 10
    assert data.train.n_rows + data.validation.n_rows == 5000
