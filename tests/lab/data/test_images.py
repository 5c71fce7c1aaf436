"""CIFAR and Tiny-ImageNet on small files of our own in the published layouts, and on real ones."""

import dataclasses
import hashlib
import io
import json
import pickle
import sys
import tarfile
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from elliptica.lab.data import cifar as cifar_files
from elliptica.lab.data import (
    images,
    load_cifar10,
    load_cifar100,
    load_tiny_imagenet,
    normalise,
    tiny_imagenet,
)
from pickled import python2_pickle

N = 20  # rows of each made-up batch


def md5(content):
    return f"md5:{hashlib.md5(content).hexdigest()}"


def rows(x, y):
    return sorted((*image.flatten().tolist(), int(label)) for image, label in zip(x, y, strict=True))


# CIFAR


def batch(rng, n, n_classes):
    return (
        rng.integers(0, 256, size=(n, 3072), dtype=np.uint8),
        rng.integers(0, n_classes, size=n).tolist(),
    )


@pytest.fixture
def cifar(tmp_path, monkeypatch):
    """Both data sets as unpacked batches of a few rows, with the hashes that the loaders expect."""
    made = {}
    for constant in ("CIFAR10", "CIFAR100"):
        known = getattr(cifar_files, constant)
        rng = np.random.default_rng(1)
        folder = tmp_path / known.folder
        folder.mkdir(parents=True)
        described, contents = [], []
        for i, (name, _) in enumerate((*known.train, known.test)):
            data, labels = batch(rng, N, known.n_classes)
            if i % 2:
                raw = python2_pickle(data, labels).replace(
                    b"T\x06\x00\x00\x00labels",
                    b"T" + len(known.label_key).to_bytes(4, "little") + known.label_key,
                )
            else:
                raw = pickle.dumps({b"data": data, known.label_key: labels, b"batch_label": b"x"}, protocol=2)
            (folder / name).write_bytes(raw)
            described.append((name, md5(raw)))
            contents.append((data.reshape(-1, 3, 32, 32), labels))
        changed = dataclasses.replace(known, train=tuple(described[:-1]), test=described[-1], rows=(N, N))
        monkeypatch.setattr(cifar_files, constant, changed)
        made[constant] = contents
    return tmp_path, made


def pack(folder, constant, monkeypatch):
    """Move the unpacked batches into the published archive."""
    known = getattr(cifar_files, constant)
    unpacked = folder / known.folder
    with tarfile.open(folder / known.archive, "w:gz") as archive:
        archive.add(unpacked, arcname=unpacked.name)
    for path in unpacked.iterdir():
        path.unlink()
    unpacked.rmdir()
    digest = md5((folder / known.archive).read_bytes())
    monkeypatch.setattr(cifar_files, constant, dataclasses.replace(known, archive_checksum=digest))


LOADERS = {"CIFAR10": load_cifar10, "CIFAR100": load_cifar100}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("constant", LOADERS)
def test_cifar_from_pickles(cifar, constant, packed, monkeypatch):
    folder, made = cifar
    if packed:
        pack(folder, constant, monkeypatch)
    data = LOADERS[constant](0, data_dir=folder, validation_share=0.25, pixels="uint8")
    *train, (test_x, test_y) = made[constant]
    n = N * len(train)
    assert (data.train.n_rows, data.validation.n_rows, data.test.n_rows) == (n - n // 4, n // 4, N)
    np.testing.assert_array_equal(data.test.x.numpy(), test_x)
    assert data.test.y.tolist() == test_y
    seen = torch.cat([data.train.x, data.validation.x]), torch.cat([data.train.y, data.validation.y])
    x = np.concatenate([part[0] for part in train])
    assert rows(*seen) == rows(torch.from_numpy(x), [y for part in train for y in part[1]])


def test_cifar_normalisation_and_no_validation_part(cifar):
    folder, made = cifar
    data = load_cifar10(data_dir=folder, validation_share=0.0)
    assert data.train.n_rows == 5 * N
    assert data.validation is data.test
    raw = made["CIFAR10"][-1][0].astype(np.float64)
    expected = (raw - np.reshape([125.3, 123.0, 113.9], (3, 1, 1))) / np.reshape(
        [63.0, 62.1, 66.7], (3, 1, 1)
    )
    np.testing.assert_allclose(data.test.x.numpy(), expected, atol=1e-5)
    small = load_cifar10(data_dir=folder, validation_share=0.0, pixels="uint8")
    torch.testing.assert_close(normalise(small.train.x, images.CIFAR10), data.train.x)
    other = load_cifar10(1, data_dir=folder, validation_share=0.0)
    assert not torch.equal(other.train.x, data.train.x)


def sheet(path, x):
    """Row i of the PNG is image i, pixel by pixel."""
    Image.fromarray(np.ascontiguousarray(x.transpose(0, 2, 3, 1)).reshape(len(x), 1024, 3)).save(path)
    return f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


@pytest.fixture
def sheets(tmp_path, monkeypatch):
    """CIFAR-10 as PNG, all of it and the part of batch 1."""
    rng = np.random.default_rng(2)
    folder = tmp_path / "png" / "cifar10"
    folder.mkdir(parents=True)
    parts = [batch(rng, N, 10) for _ in range(6)]
    xs = [data.reshape(-1, 3, 32, 32) for data, _ in parts]
    digests = [sheet(folder / f"data_batch_{i + 1}.png", xs[i]) for i in range(5)]
    sheet(folder / "test_batch.png", xs[5])
    first = sheet(folder / "test_batch_first3000.png", xs[5][:6])
    (folder / "train_lables.json").write_text(json.dumps([y for _, labels in parts[:5] for y in labels]))
    (folder / "test_lables.json").write_text(json.dumps(parts[5][1]))
    named = {"classes": ["a"], "data_batch_1": parts[0][1], "test_batch_first3000": parts[5][1][:6]}
    (folder / "labels.json").write_text(json.dumps(named))
    full = [
        dataclasses.replace(s, rows=N, first=N * i if i < 5 else 0)
        for i, s in enumerate(cifar_files.FULL_SHEETS)
    ]
    monkeypatch.setattr(cifar_files, "FULL_SHEETS", tuple(full))
    train, test = cifar_files.BATCH1_SHEETS
    few = (
        dataclasses.replace(train, rows=N, checksum=digests[0]),
        dataclasses.replace(test, rows=6, checksum=first),
    )
    monkeypatch.setattr(cifar_files, "BATCH1_SHEETS", few)
    return tmp_path / "png", xs, [labels for _, labels in parts]


def test_cifar_from_sheets(sheets):
    folder, xs, labels = sheets
    data = load_cifar10(data_dir=folder, pixels="uint8", validation_share=0.0)
    assert data.name == "cifar10"
    np.testing.assert_array_equal(data.test.x.numpy(), xs[5])
    assert data.test.y.tolist() == labels[5]
    expected = rows(torch.from_numpy(np.concatenate(xs[:5])), [y for part in labels[:5] for y in part])
    assert rows(data.train.x, data.train.y) == expected


def test_first_batch_from_sheets_and_from_pickles(sheets, cifar):
    folder, xs, labels = sheets
    data = load_cifar10(data_dir=folder, part="batch1", pixels="uint8", validation_share=0.0)
    assert data.name == "cifar10-batch1"
    assert rows(data.train.x, data.train.y) == rows(torch.from_numpy(xs[0]), labels[0])
    np.testing.assert_array_equal(data.test.x.numpy(), xs[5][:6])
    pickled, made = cifar
    data = load_cifar10(data_dir=pickled, part="batch1", pixels="uint8", validation_share=0.0)
    assert data.train.n_rows == N
    np.testing.assert_array_equal(data.test.x.numpy(), made["CIFAR10"][-1][0][:6])


@pytest.mark.bad_input
def test_a_part_is_never_taken_for_the_whole(sheets, own_checks):
    folder, _, _ = sheets
    (folder / "cifar10" / "data_batch_2.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"data_batch_2\.png"):
        load_cifar10(data_dir=folder)


@pytest.mark.bad_input
def test_bad_sheets(sheets, own_checks):
    folder, xs, labels = sheets
    place = folder / "cifar10"
    (place / "test_lables.json").write_text(json.dumps([11] * N))
    with pytest.raises(ValueError, match=rf"{N} labels from 0 to 9"):
        load_cifar10(data_dir=folder)
    (place / "test_lables.json").write_text("[1, 2")
    with pytest.raises(ValueError, match="JSON"):
        load_cifar10(data_dir=folder)
    (place / "test_lables.json").write_text(json.dumps(labels[5]))
    sheet(place / "test_batch.png", xs[5][:-1])
    with pytest.raises(ValueError, match=rf"a sheet of {N} rows of 1024 pixels, but got {N - 1} rows"):
        load_cifar10(data_dir=folder)
    content = (place / "data_batch_1.png").read_bytes()
    (place / "data_batch_1.png").write_bytes(content[:-2000])
    with pytest.raises(ValueError, match=r"decoding failed(.|\n)*delete it"):
        load_cifar10(data_dir=folder)
    with pytest.raises(ValueError, match="SHA-256"):
        load_cifar10(data_dir=folder, part="batch1")


@pytest.mark.bad_input
def test_bad_batches(cifar, monkeypatch, own_checks):
    folder, _ = cifar
    known = cifar_files.CIFAR10
    path = folder / known.folder / "data_batch_3"
    good = path.read_bytes()
    path.write_bytes(good[:-1])
    with pytest.raises(ValueError, match="MD5") as error:
        load_cifar10(data_dir=folder)
    assert str(path) in str(error.value)
    # another edition, which the hash would have stopped: the counts stop it, too
    raw = pickle.dumps({b"data": np.zeros((N - 1, 3072), np.uint8), b"labels": [0] * (N - 1)}, protocol=2)
    path.write_bytes(raw)
    files = tuple((n, md5(raw) if n == "data_batch_3" else h) for n, h in known.train)
    monkeypatch.setattr(cifar_files, "CIFAR10", dataclasses.replace(known, train=files))
    with pytest.raises(ValueError, match=rf"{N} rows of 3072 bytes under 'data', but got uint8"):
        load_cifar10(data_dir=folder)
    path.unlink()
    with pytest.raises(FileNotFoundError, match="data_batch_3"):
        load_cifar10(data_dir=folder)


@pytest.mark.bad_input
def test_a_malicious_batch_in_place_of_a_published_one(cifar, monkeypatch, own_checks):
    folder, _ = cifar
    known = cifar_files.CIFAR100
    raw = b"cos\nsystem\n(S'touch " + str(folder / "hacked").encode() + b"'\ntR."
    (folder / known.folder / "train").write_bytes(raw)
    with pytest.raises(ValueError, match="MD5"):
        load_cifar100(data_dir=folder)
    # and even if its hash were expected
    monkeypatch.setattr(cifar_files, "CIFAR100", dataclasses.replace(known, train=(("train", md5(raw)),)))
    with pytest.raises(ValueError, match=r"it calls (os|posix)\.system"):
        load_cifar100(data_dir=folder)
    assert not (folder / "hacked").exists()


@pytest.mark.bad_input
def test_missing_cifar_says_all_forms(tmp_path, own_checks):
    with pytest.raises(FileNotFoundError) as error:
        load_cifar10(data_dir=tmp_path)
    for needed in (
        "cifar-10-batches-py/data_batch_1",
        "cifar-10-python.tar.gz",
        "data_batch_1.png",
        "toronto",
    ):
        assert needed in str(error.value)
    with pytest.raises(FileNotFoundError, match=r"cifar-100-python\.tar\.gz"):
        load_cifar100(data_dir=tmp_path)


@pytest.mark.bad_input
@pytest.mark.parametrize("share", [-0.1, 1.0, 0.001])
def test_bad_shares(cifar, share, own_checks):
    with pytest.raises(ValueError, match="validation_share"):
        load_cifar10(data_dir=cifar[0], validation_share=share)


@pytest.mark.bad_input
def test_bad_part_and_missing_pillow(sheets, monkeypatch, own_checks):
    with pytest.raises(ValueError, match="'full' or 'batch1', but got 'half'"):
        load_cifar10(data_dir=sheets[0], part="half")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "elliptica\[lab\]"'):
        load_cifar10(data_dir=sheets[0])


# Tiny-ImageNet

WNIDS = ("n001", "n002", "n003")


def jpeg(rng, size=64, mode="RGB"):
    out = io.BytesIO()
    shape = (size, size, 3) if mode == "RGB" else (size, size)
    Image.fromarray(rng.integers(0, 256, size=shape, dtype=np.uint8)).save(out, "JPEG", quality=95)
    return out.getvalue()


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """The published folder with three classes of four and two images, one of them grey."""
    rng = np.random.default_rng(3)
    files = {}
    for wnid in WNIDS:
        for i in range(4):
            mode = "L" if (wnid, i) == ("n002", 1) else "RGB"
            files[f"train/{wnid}/images/{wnid}_{i}.JPEG"] = jpeg(rng, mode=mode)
        files[f"train/{wnid}/{wnid}_boxes.txt"] = b"boxes"
    lines = []
    for i in range(6):
        files[f"val/images/val_{i}.JPEG"] = jpeg(rng)
        lines.append(f"val_{i}.JPEG\t{WNIDS[(i + 1) % 3]}\t0\t0\t63\t63\n")
    files["val/val_annotations.txt"] = "".join(lines).encode()
    files["test/images/test_0.JPEG"] = jpeg(rng)
    small = dataclasses.replace(tiny_imagenet._FULL, n_classes=3, per_class=(4, 2))
    monkeypatch.setitem(tiny_imagenet._EDITIONS, 200, small)
    folder = tmp_path / tiny_imagenet._FULL.folder
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path, files, folder


def zip_up(path, files, prefix=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(prefix + name, content)
    return md5(path.read_bytes())


def test_tiny_imagenet_folder(tiny):
    root, files, _ = tiny
    data = load_tiny_imagenet(data_dir=root, validation_share=0.25, pixels="uint8")
    assert [split.n_rows for split in (data.train, data.validation, data.test)] == [9, 3, 6]
    assert data.test.x.shape == (6, 3, 64, 64)
    assert data.test.y.tolist() == [1, 2, 0, 1, 2, 0]  # from the annotations, in sorted order of ids
    decoded = np.asarray(Image.open(io.BytesIO(files["val/images/val_4.JPEG"]))).transpose(2, 0, 1)
    np.testing.assert_array_equal(data.test.x[4].numpy(), decoded)
    seen = torch.cat([data.train.x, data.validation.x])
    assert torch.cat([data.train.y, data.validation.y]).bincount().tolist() == [4, 4, 4]
    is_grey = ((seen[:, 0] == seen[:, 1]) & (seen[:, 1] == seen[:, 2])).flatten(1).all(1)
    assert is_grey.sum() == 1
    floats = load_tiny_imagenet(data_dir=root, validation_share=0.25)
    torch.testing.assert_close(floats.test.x, data.test.x.float() / 127.5 - 1)


def test_tiny_imagenet_archive_equals_the_folder(tiny, tmp_path, monkeypatch):
    root, files, _ = tiny
    other = tmp_path / "packed"
    digest = zip_up(other / tiny_imagenet._FULL.archive.path, files, "tiny-imagenet-200/")
    edition = tiny_imagenet._EDITIONS[200]
    changed = dataclasses.replace(edition, archive=dataclasses.replace(edition.archive, checksum=digest))
    monkeypatch.setitem(tiny_imagenet._EDITIONS, 200, changed)
    a, b = (load_tiny_imagenet(5, data_dir=d, validation_share=0.5) for d in (root, other))
    for part in ("train", "validation", "test"):
        assert torch.equal(getattr(a, part).x, getattr(b, part).x)
        assert torch.equal(getattr(a, part).y, getattr(b, part).y)


def test_ten_classes_layout(tmp_path, monkeypatch):
    rng = np.random.default_rng(4)
    names = [
        f"{part}/{w}/{w}_{i}.JPEG" for part, n in (("train", 3), ("val", 1)) for w in WNIDS for i in range(n)
    ]
    files = {name: jpeg(rng) for name in names} | {"classes.txt": b"n001\tfish\n"}
    digest = zip_up(tmp_path / tiny_imagenet._TEN.archive.path, files)
    archive = dataclasses.replace(tiny_imagenet._TEN.archive, checksum=digest)
    small = dataclasses.replace(tiny_imagenet._TEN, n_classes=3, per_class=(3, 1), archive=archive)
    monkeypatch.setitem(tiny_imagenet._EDITIONS, 10, small)
    data = load_tiny_imagenet(data_dir=tmp_path, n_classes=10, validation_share=0.0)
    assert data.train.y.bincount().tolist() == [3, 3, 3]
    assert data.test.y.tolist() == [0, 1, 2]


@pytest.mark.bad_input
def test_bad_tiny_imagenet(tiny, tmp_path, own_checks):
    root, files, folder = tiny
    with pytest.raises(ValueError, match="200 or 10, but got 20"):
        load_tiny_imagenet(data_dir=root, n_classes=20)
    (folder / "train/n003/images/n003_0.JPEG").write_bytes(jpeg(np.random.default_rng(0), size=32))
    with pytest.raises(ValueError, match=r"n003_0\.JPEG of .* to be 64x64 pixels, but it is 32x32"):
        load_tiny_imagenet(data_dir=root)
    (folder / "train/n003/images/n003_0.JPEG").unlink()
    with pytest.raises(ValueError, match=r"3 classes of 4 images in 'train', but class n003 has 3"):
        load_tiny_imagenet(data_dir=root)
    (folder / "train/n003/images/n003_0.JPEG").write_bytes(files["train/n003/images/n003_0.JPEG"])
    text = (folder / "val/val_annotations.txt").read_text()
    (folder / "val/val_annotations.txt").write_text(text.replace("n003", "n009"))
    with pytest.raises(ValueError, match="to hold the same classes"):
        load_tiny_imagenet(data_dir=root)
    with pytest.raises(FileNotFoundError, match="stanford"):
        load_tiny_imagenet(data_dir=tmp_path / "nowhere")
    zip_up(tmp_path / "bad" / tiny_imagenet._TEN.archive.path, {"a": b"b"})
    with pytest.raises(ValueError, match="SHA-256"):
        load_tiny_imagenet(data_dir=tmp_path / "bad", n_classes=10)


# real files


@pytest.mark.needs_data
@pytest.mark.slow
def test_real_cifar_batch(data_dir):
    if not (data_dir / "cifar10" / "data_batch_1.png").exists():
        pytest.skip("CIFAR-10 is absent")
    data = load_cifar10(data_dir=data_dir, part="batch1", pixels="uint8", validation_share=0.0)
    assert data.train.y.bincount().tolist() == [1005, 974, 1032, 1016, 999, 937, 1030, 1001, 1025, 981]
    assert data.test.x.shape == (3000, 3, 32, 32)
    mean = data.train.x.double().mean((0, 2, 3)) / 255
    torch.testing.assert_close(mean, torch.tensor([0.4914, 0.4822, 0.4465]).double(), atol=0.01, rtol=0)


@pytest.mark.needs_data
@pytest.mark.slow
def test_real_tiny_imagenet(data_dir):
    if not (data_dir / "tiny_imagenet_10" / "tiny_imagenet_10.zip").exists():
        pytest.skip("Tiny-ImageNet is absent")
    data = load_tiny_imagenet(data_dir=data_dir, n_classes=10, pixels="uint8")
    assert data.test.y.bincount().tolist() == [50] * 10
    assert data.train.n_rows + data.validation.n_rows == 5000
