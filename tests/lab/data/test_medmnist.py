"""MedMNIST: parts, normalisation and refusals, on small made-up files and, if present, real ones."""

import dataclasses
import hashlib
import zipfile

import numpy as np
import pytest
import torch

from elliptica.lab.data import load_medmnist, medmnist, normalise

PARTS = ("train", "validation", "test")
SIZES = (30, 7, 11)


def write(folder, name, arrays, monkeypatch, **known):
    """Write a file that the loader takes for the published one."""
    described = medmnist.MEDMNIST[name]
    path = folder / described.file.path
    path.parent.mkdir(exist_ok=True)
    np.savez(path, **arrays)
    digest = hashlib.md5(path.read_bytes()).hexdigest()
    described = dataclasses.replace(
        described, file=dataclasses.replace(described.file, checksum=f"md5:{digest}"), **known
    )
    monkeypatch.setitem(medmnist.MEDMNIST, name, described)
    return path


def arrays_of(shape, n_classes, rng):
    arrays = {}
    for part, n in zip(("train", "val", "test"), SIZES, strict=True):
        arrays[f"{part}_images"] = rng.integers(0, 256, size=(n, *shape), dtype=np.uint8)
        arrays[f"{part}_labels"] = rng.integers(0, n_classes, size=(n, 1), dtype=np.uint8)
    return arrays


@pytest.fixture
def made_up(tmp_path, monkeypatch):
    """Grey and coloured files in the published layout."""
    rng = np.random.default_rng(0)
    grey, colour = arrays_of((28, 28), 2, rng), arrays_of((28, 28, 3), 9, rng)
    paths = {
        "breastmnist": write(tmp_path, "breastmnist", grey, monkeypatch, sizes=SIZES),
        "pathmnist": write(tmp_path, "pathmnist", colour, monkeypatch, sizes=SIZES),
    }
    return tmp_path, {"breastmnist": grey, "pathmnist": colour}, paths


def rows(x, y):
    return sorted((*image.flatten().tolist(), int(label)) for image, label in zip(x, y, strict=True))


@pytest.mark.parametrize("name", ["breastmnist", "pathmnist"])
def test_official_parts(made_up, name):
    folder, arrays, _ = made_up
    data = load_medmnist(name, 3, data_dir=folder, pixels="uint8")
    assert (data.name, data.task) == (name, "classification")
    for part, key in zip(PARTS, ("train", "val", "test"), strict=True):
        split = getattr(data, part)
        images = arrays[name][f"{key}_images"]
        images = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
        labels = arrays[name][f"{key}_labels"][:, 0]
        assert split.x.shape == images.shape
        assert split.y.dtype == torch.int64
        assert split.y.shape == (len(images),)
        if part == "train":  # shuffled
            assert rows(split.x, split.y) == rows(torch.from_numpy(images.copy()), labels)
        else:
            np.testing.assert_array_equal(split.x.numpy(), images)
            np.testing.assert_array_equal(split.y.numpy(), labels)


def test_pixels_lie_between_minus_one_and_one(made_up):
    folder, arrays, _ = made_up
    plain = load_medmnist("breastmnist", data_dir=folder)
    raw = load_medmnist("breastmnist", data_dir=folder, pixels="uint8")
    images = arrays["breastmnist"]["test_images"][:, None]
    np.testing.assert_allclose(plain.test.x.numpy(), (images / 255 - 0.5) / 0.5, atol=1e-6)
    assert plain.test.x.dtype == torch.float32
    assert raw.test.x.dtype == torch.uint8
    for part in PARTS:
        torch.testing.assert_close(normalise(getattr(raw, part).x), getattr(plain, part).x)


def test_evaluating_on_the_official_validation_part(made_up):
    """The paper's way for PathMNIST: nothing of the official test part is seen."""
    folder, _, _ = made_up
    data = load_medmnist("path", data_dir=folder, evaluate_on="validation", pixels="uint8")
    official = load_medmnist("path", data_dir=folder, pixels="uint8")
    assert torch.equal(data.test.x, official.validation.x)
    assert torch.equal(data.test.y, official.validation.y)
    assert (data.train.n_rows, data.validation.n_rows) == (27, 3)
    both = torch.cat([data.train.x, data.validation.x]), torch.cat([data.train.y, data.validation.y])
    assert rows(*both) == rows(official.train.x, official.train.y)
    other = load_medmnist("path", 1, data_dir=folder, evaluate_on="validation", pixels="uint8")
    assert not torch.equal(other.validation.x, data.validation.x)


def test_seed_orders_the_training_images_only(made_up):
    folder, _, _ = made_up
    first, again, other = (load_medmnist("breastmnist", seed, data_dir=folder) for seed in (0, 0, 1))
    assert torch.equal(first.train.x, again.train.x)
    assert not torch.equal(first.train.x, other.train.x)
    assert torch.equal(first.test.x, other.test.x)


@pytest.mark.parametrize("name", ["Breast", "BREASTMNIST", "breastmnist"])
def test_names(made_up, name):
    assert load_medmnist(name, data_dir=made_up[0]).name == "breastmnist"


def test_published_facts_are_consistent():
    assert len(medmnist.MEDMNIST) == 12
    for known in medmnist.MEDMNIST.values():
        kind, digits = known.file.checksum.split(":")
        assert len(digits) == {"md5": 32, "sha256": 64}[kind]
        assert known.n_channels in (1, 3)
    assert medmnist.MEDMNIST["pathmnist_subset"].file.path == "pathmnist/pathmnist_subset.npz"


@pytest.mark.bad_input
def test_damaged_files_are_refused(made_up, own_checks):
    folder, _, paths = made_up
    path = paths["breastmnist"]
    content = path.read_bytes()
    path.write_bytes(content[:-100])
    with pytest.raises(ValueError, match="reading it failed") as error:
        load_medmnist("breastmnist", data_dir=folder)
    for needed in (str(path), "30 / 7 / 11", "zenodo.10519652", "delete it"):
        assert needed in str(error.value)
    path.write_bytes(content[:200] + bytes([content[200] ^ 1]) + content[201:])
    with pytest.raises(ValueError, match=r"reading it failed|MD5"):
        load_medmnist("breastmnist", data_dir=folder)


@pytest.mark.bad_input
def test_another_file_of_the_same_shape_is_refused(made_up, own_checks):
    folder, arrays, paths = made_up
    changed = arrays["breastmnist"]["train_images"].copy()
    changed[0, 0, 0] ^= 1
    np.savez(paths["breastmnist"], **arrays["breastmnist"] | {"train_images": changed})
    with pytest.raises(ValueError, match="MD5") as error:
        load_medmnist("breastmnist", data_dir=folder)
    assert str(paths["breastmnist"]) in str(error.value)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"val_images": np.zeros((7, 64, 64), np.uint8)}, r"val_images is uint8 of shape \(7, 64, 64\)"),
        ({"val_images": np.zeros((6, 28, 28), np.uint8)}, r"val_images is uint8 of shape \(6, 28, 28\)"),
        ({"train_images": np.zeros((30, 28, 28))}, "train_images is float64"),
        ({"test_labels": np.zeros((11, 14), np.uint8)}, r"test_labels is uint8 of shape \(11, 14\)"),
        ({"test_labels": np.full((11, 1), 2, np.uint8)}, "test_labels runs from 2 to 2"),
        ({"val_labels": np.array([[print]] * 7, dtype=object)}, "allow_pickle=False"),
    ],
)
def test_other_layouts_are_refused(made_up, monkeypatch, change, match, own_checks):
    folder, arrays, _ = made_up
    write(folder, "breastmnist", arrays["breastmnist"] | change, monkeypatch)
    with pytest.raises(ValueError, match=match):
        load_medmnist("breastmnist", data_dir=folder)


@pytest.mark.bad_input
def test_missing_array_and_missing_file(made_up, monkeypatch, tmp_path, own_checks):
    folder, arrays, _ = made_up
    without = {key: value for key, value in arrays["breastmnist"].items() if key != "test_labels"}
    write(folder, "breastmnist", without, monkeypatch)
    with pytest.raises(ValueError, match="test_labels"):
        load_medmnist("breastmnist", data_dir=folder)
    with pytest.raises(FileNotFoundError, match=r"bloodmnist/bloodmnist\.npz") as error:
        load_medmnist("blood", data_dir=tmp_path)
    assert "10519652" in str(error.value)


@pytest.mark.bad_input
def test_bad_arguments(made_up, own_checks):
    with pytest.raises(ValueError, match=r"'brestmnist'"):
        load_medmnist("brestmnist", data_dir=made_up[0])
    with pytest.raises(ValueError, match="14 labels per image"):
        load_medmnist("chestmnist", data_dir=made_up[0])
    with pytest.raises(ValueError, match="'test' or 'validation', but got 'val'"):
        load_medmnist("breast", data_dir=made_up[0], evaluate_on="val")
    with pytest.raises(ValueError, match="'float32' or 'uint8', but got 'half'"):
        load_medmnist("breast", data_dir=made_up[0], pixels="half")


@pytest.mark.needs_data
@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("breastmnist", ([147, 399], [21, 57], [42, 114])),
        ("retinamnist", ([486, 128, 206, 194, 66], [54, 12, 28, 20, 6], [174, 46, 92, 68, 20])),
        (
            "pathmnist_subset",
            (
                [879, 954, 1040, 1044, 821, 1245, 775, 927, 1315],
                [105, 97, 116, 120, 96, 131, 75, 113, 148],
                [1338, 847, 339, 634, 1035, 592, 741, 421, 1233],
            ),
        ),
    ],
)
def test_real_files(data_dir, name, counts):
    if not (data_dir / medmnist.MEDMNIST[name].file.path).exists():
        pytest.skip(f"{name} is absent")
    data = load_medmnist(name, data_dir=data_dir, pixels="uint8")
    assert tuple(getattr(data, part).y.bincount().tolist() for part in PARTS) == counts
    known = medmnist.MEDMNIST[name]
    assert data.train.x.shape == (known.sizes[0], known.n_channels, 28, 28)


def test_an_array_that_claims_any_size_is_refused(made_up, monkeypatch, tmp_path, own_checks):
    """NumPy would allocate what the header claims."""
    known = dataclasses.replace(medmnist.MEDMNIST["breastmnist"])
    path = tmp_path / known.file.path
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (17179869184, 28, 28)}".ljust(117) + b"\n"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("train_images.npy", b"\x93NUMPY\x01\x00v\x00" + header + bytes(10))
    with pytest.raises(ValueError, match="breastmnist"):
        medmnist.load_medmnist("breastmnist", data_dir=tmp_path)
