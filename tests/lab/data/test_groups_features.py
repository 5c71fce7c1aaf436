"""Waterbirds as features: parts, groups and scaling, on a small made-up file and the real one."""

import dataclasses
import hashlib
import os

import numpy as np
import pytest
import torch

from elliptica.lab.data import groups, load_waterbirds_features

PARTS = ("train", "validation", "test")


def write(path, arrays, monkeypatch, **known):
    """Write a file that the loader takes for the published one."""
    path.parent.mkdir(exist_ok=True)
    np.savez_compressed(path, **arrays)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    file = dataclasses.replace(groups._WATERBIRDS_FEATURES.file, checksum=f"sha256:{digest}")
    described = dataclasses.replace(groups._WATERBIRDS_FEATURES, file=file, **known)
    monkeypatch.setattr(groups, "_WATERBIRDS_FEATURES", described)


@pytest.fixture
def made_up(tmp_path, monkeypatch):
    """A hundred rows of five features in the published layout; the last feature is constant."""
    rng = np.random.default_rng(0)
    part = rng.permutation(np.repeat([0, 1, 2], [50, 20, 30]))
    x = rng.normal(3, 2, size=(100, 5)).astype(np.float16)
    x[part == 0, 4] = 1
    arrays = {
        "features": x,
        "y": rng.integers(2, size=100).astype(np.int8),
        "place": rng.integers(2, size=100).astype(np.int8),
        "split": part.astype(np.int8),
        "img_id": np.arange(100, dtype=np.int32),
    }
    path = tmp_path / "waterbirds" / "waterbirds_effnetlite0.npz"
    write(path, arrays, monkeypatch, n_features=5, sizes=(50, 20, 30))
    return tmp_path, arrays, path


def test_parts_classes_and_groups(made_up):
    folder, arrays, _ = made_up
    data = load_waterbirds_features(3, data_dir=folder, scale="none")
    assert (data.name, data.task, data.n_features) == ("waterbirds", "classification", 5)
    for i, part in enumerate(PARTS):
        split = getattr(data, part)
        rows = np.flatnonzero(arrays["split"] == i)
        wanted = {
            (*arrays["features"][r].astype(float), arrays["y"][r], 2 * arrays["y"][r] + arrays["place"][r])
            for r in rows
        }
        columns = torch.cat([split.x, split.y[:, None], split.group[:, None]], 1)
        assert {tuple(row) for row in columns.tolist()} == wanted
        assert len(columns) == len(rows)
        assert split.x.dtype == torch.float32
        assert split.y.dtype == split.group.dtype == torch.int64


def test_scaling_looks_at_training_rows_only(made_up):
    folder, arrays, _ = made_up
    data = load_waterbirds_features(data_dir=folder)
    raw = load_waterbirds_features(data_dir=folder, scale="none")
    seen = arrays["features"][arrays["split"] == 0].astype(np.float64)
    mean, deviation = seen.mean(0), seen.std(0)
    for part in PARTS:
        expected = (getattr(raw, part).x[:, :4].double().numpy() - mean[:4]) / deviation[:4]
        np.testing.assert_allclose(getattr(data, part).x[:, :4].numpy(), expected, rtol=1e-5, atol=1e-6)
        assert torch.all(getattr(data, part).x[:, 4] == 0)  # constant in training
    torch.testing.assert_close(data.train.x.mean(0), torch.zeros(5), atol=1e-6, rtol=0)
    assert data.test.x[:, :4].mean(0).abs().min() > 1e-4


def test_seed_changes_the_order_only(made_up):
    folder, _, _ = made_up
    first, again, other = (load_waterbirds_features(seed, data_dir=folder) for seed in (0, 0, 1))
    for part in PARTS:
        a, b, c = (getattr(data, part) for data in (first, again, other))
        assert torch.equal(a.x, b.x)
        assert not torch.equal(a.x, c.x)
        order = a.x[:, 0].argsort(stable=True), c.x[:, 0].argsort(stable=True)
        assert torch.equal(a.x[order[0], 0], c.x[order[1], 0])
        assert torch.equal(a.group.bincount(), c.group.bincount())


def test_damaged_file_is_refused(made_up):
    folder, _, path = made_up
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ValueError, match="SHA-256") as error:
        load_waterbirds_features(data_dir=folder)
    for needed in (str(path), "put the original there", "Sagawa"):
        assert needed in str(error.value)


def test_other_counts_are_refused(made_up, monkeypatch):
    folder, arrays, path = made_up
    write(path, arrays | {"split": np.zeros(100, np.int8)}, monkeypatch)
    with pytest.raises(
        ValueError, match=r"parts of \(50, 20, 30\) rows of 5 features, but it holds \(100, 0, 0\)"
    ):
        load_waterbirds_features(data_dir=folder)


def test_objects_are_not_unpickled(made_up, monkeypatch):
    folder, arrays, path = made_up
    write(path, arrays | {"y": np.array([print] * 100, dtype=object)}, monkeypatch)
    with pytest.raises(ValueError, match="allow_pickle=False"):
        load_waterbirds_features(data_dir=folder)


def test_missing_file_names_the_origin(tmp_path):
    with pytest.raises(FileNotFoundError, match="The original comes from: Waterbirds") as error:
        load_waterbirds_features(data_dir=tmp_path)
    assert str(tmp_path) in str(error.value)


def test_unknown_scale_is_refused(made_up, own_checks):
    with pytest.raises(ValueError, match="'train' or 'none', but got 'all'"):
        load_waterbirds_features(data_dir=made_up[0], scale="all")


@pytest.mark.needs_data
@pytest.mark.skipif(not os.environ.get("ELLIPTICA_DATA"), reason="set ELLIPTICA_DATA to the data directory")
def test_real_file(data_dir):
    data = load_waterbirds_features(data_dir=data_dir)
    counts = [getattr(data, part).group.bincount().tolist() for part in PARTS]
    assert counts == [[3498, 184, 56, 1057], [467, 466, 133, 133], [2255, 2255, 642, 642]]
    assert data.n_features == 1280
    assert torch.equal(data.test.y, data.test.group // 2)
    torch.testing.assert_close(data.train.x.mean(0), torch.zeros(1280), atol=1e-5, rtol=0)
    torch.testing.assert_close(data.train.x.std(0, correction=0), torch.ones(1280), atol=1e-4, rtol=0)
