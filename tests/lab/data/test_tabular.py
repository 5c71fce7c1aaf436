"""Splits, scaling and the Airfoil and NO2 loaders, on made-up files and, if present, real ones."""

import dataclasses
import inspect
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from elliptica.lab.data import tabular
from elliptica.lab.data.splits import Dataset, Split, min_max_scale
from tabular_cases import check_damaged_file, check_global_random_state, check_missing_file, expect

needs_data = [
    pytest.mark.needs_data,
    pytest.mark.skipif(
        not os.environ.get("ELLIPTICA_DATA"), reason="set ELLIPTICA_DATA to the data directory"
    ),
]
LOADERS = {"airfoil": tabular.load_airfoil, "no2": tabular.load_no2}
PARTS = ("train", "validation", "test")


def write_table(path, values, delimiter):
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [delimiter.join(repr(float(v)) for v in row) for row in values]
    path.write_bytes("".join(line + "\r\n" for line in lines).encode())


@pytest.fixture
def made_up(tmp_path, monkeypatch):
    """Files of the published shapes with other numbers, whose hashes the loaders expect."""
    rng = np.random.default_rng(0)
    tables = {}
    for constant in ("_AIRFOIL", "_NO2"):
        table = getattr(tabular, constant)
        values = rng.normal(size=(table.n_rows, table.n_columns)) * 50
        path = tmp_path / table.file.path
        write_table(path, values, table.delimiter)
        expect(monkeypatch, table, path)
        tables[table.name] = values
    return tmp_path, tables


def reference_parts(values, target, sizes, seed):
    """C-Mixup's recipe in its own terms: global seed, scaling over all rows, slices."""
    np.random.seed(seed)  # noqa: NPY002
    shuffled = values[np.random.permutation(len(values))]  # noqa: NPY002
    x = np.delete(shuffled, target, axis=1)
    x = (x - x.min(0)) / (x.max(0) - x.min(0))
    cuts = np.cumsum(sizes)[:-1]
    return np.split(x, cuts), np.split(shuffled[:, [target]], cuts)


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1])
@pytest.mark.parametrize(
    ("name", "target", "sizes"), [("airfoil", 5, (1003, 300, 200)), ("no2", 0, (200, 200, 100))]
)
def test_split_is_the_references(made_up, name, target, sizes, seed):
    folder, tables = made_up
    data = LOADERS[name](seed, data_dir=folder, scale="all")
    xs, ys = reference_parts(tables[name], target, sizes, seed)
    for part, x, y in zip(PARTS, xs, ys, strict=True):
        split = getattr(data, part)
        np.testing.assert_array_equal(split.x.numpy(), x.astype(np.float32))
        np.testing.assert_array_equal(split.y.numpy(), y.astype(np.float32))


@pytest.mark.parametrize("name", LOADERS)
def test_parts_share_no_row_and_seeds_differ(made_up, name):
    folder, tables = made_up
    first, again, other = (LOADERS[name](seed, data_dir=folder) for seed in (3, 3, 4))
    ys = torch.cat([getattr(first, part).y for part in PARTS])
    assert len(torch.unique(ys)) == len(tables[name])  # the made-up targets are all different
    assert torch.equal(first.train.x, again.train.x)
    assert not torch.equal(first.train.y, other.train.y)


@pytest.mark.parametrize("name", LOADERS)
def test_default_scaling_looks_at_training_rows_only(made_up, name):
    folder, _ = made_up
    data = LOADERS[name](0, data_dir=folder)
    assert torch.all(data.train.x.amin(0) == 0)
    assert torch.all(data.train.x.amax(0) == 1)
    outside = torch.cat([data.validation.x, data.test.x])
    assert ((outside < 0) | (outside > 1)).any()


def test_dtypes_shapes_and_task(made_up):
    data = tabular.load_airfoil(0, data_dir=made_up[0])
    assert (data.name, data.task, data.n_features) == ("airfoil", "regression", 5)
    for part, n in zip(PARTS, (1003, 300, 200), strict=True):
        split = getattr(data, part)
        assert split.x.shape == (n, 5)
        assert split.y.shape == (n, 1)
        assert split.x.dtype == split.y.dtype == torch.float32


def test_global_random_state_is_untouched(made_up):
    check_global_random_state(tabular.load_no2, made_up[0])


def damage_truncate(content):
    return content[: len(content) // 2].rpartition(b"\r\n")[0]


def damage_mid_row(content):
    return content[: len(content) // 2]


DAMAGES = {
    "whole rows missing": (damage_truncate, r"but it holds \d+ rows"),
    "cut inside a row": (damage_mid_row, r"but (row \d+ has \d columns|it holds \d+ rows)"),
    "a web page": (lambda _: b"<html>not found</html>", "but row 1 has 1 columns"),
    "empty": (lambda _: b"", "but it holds 0 rows"),
    "binary": (lambda _: bytes(range(128, 256)), "but row 1 has 1 columns"),
    "a missing value": (lambda c: b"?" + c[c.index(b"\t") :], r"but row 1 holds '\?'"),
    "one row too many": (lambda c: c + c[: c.index(b"\n") + 1], "but it holds 1504 rows"),
    "another delimiter": (lambda c: c.replace(b"\t", b" "), "but row 1 has 1 columns"),
    "one digit changed": (lambda c: c.replace(b"1", b"2", 1), "SHA-256"),
    "line endings converted": (lambda c: c.replace(b"\r\n", b"\n"), "line endings"),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_damaged_file_is_refused_with_the_reason(made_up, case):
    folder, _ = made_up
    damage, message = DAMAGES[case]
    path = folder / "airfoil" / "airfoil_self_noise.dat"
    check_damaged_file(tabular.load_airfoil, folder, path, damage, message)


@pytest.mark.parametrize("name", LOADERS)
def test_missing_file_names_the_origin(tmp_path, name):
    check_missing_file(LOADERS[name], tmp_path, "")


def test_scaling_by_hand():
    train = torch.tensor([[0.0, 5.0], [2.0, 5.0]], dtype=torch.float64)
    test = torch.tensor([[4.0, 9.0]], dtype=torch.float64)
    kept = train.clone()
    by_train = min_max_scale(train, [test])
    assert by_train[0].tolist() == [[0, 0], [1, 0]]
    assert by_train[1].tolist() == [[2, 0]]  # constant in training: 0 everywhere
    by_all = min_max_scale(train, [test], statistics="all")
    assert by_all[0].tolist() == [[0, 0], [0.5, 0]]
    assert by_all[1].tolist() == [[1, 1]]
    assert by_all[0].dtype == torch.float64
    assert torch.equal(train, kept)


def test_scaling_one_row_gives_zeros():
    (scaled,) = min_max_scale(torch.tensor([[3.0, -1.0]]))
    assert scaled.tolist() == [[0, 0]]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (torch.zeros(2, 3), r"part 1 has shape \(2, 3\). Split one"),
        (torch.zeros(0, 2), r"part 1 has shape \(0, 2\)"),
        (torch.tensor([[0.0, float("nan")]]), "part 1 holds NaN or infinity. Fill in"),
    ],
)
def test_scaling_refuses_other_columns_no_rows_and_nan(other, message):
    with pytest.raises(ValueError, match=message):
        min_max_scale(torch.zeros(2, 2), [other])


def test_scaling_refuses_unknown_statistics():
    bare = inspect.unwrap(min_max_scale)  # without the run-time type check of the test run
    with pytest.raises(ValueError, match="'train' or 'all', but got 'test'"):
        bare(torch.zeros(2, 2), statistics="test")


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (torch.zeros(3, 2), torch.zeros(2, 1), r"shapes \(3, 2\) and \(2, 1\). Give one row"),
        (torch.zeros(0, 2), torch.zeros(0, 1), "at least one"),
        (torch.tensor(0.0), torch.zeros(1), "same number of rows"),
        (torch.zeros(3, 2).double(), torch.zeros(3, 1), r"torch.float64 and torch.float32"),
        (torch.zeros(3, 2), torch.zeros(3, 1).int(), "torch.float32 and torch.int32. Convert"),
    ],
)
def test_split_refuses_bad_rows_and_dtypes(x, y, message):
    with pytest.raises(ValueError, match=message):
        Split(x, y)


def test_dataset_refuses_parts_that_do_not_fit():
    values, classes = torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64)
    regression = Split(torch.zeros(3, 2), values)
    wide = Split(torch.zeros(3, 4), values)
    labelled = Split(torch.zeros(3, 2), classes)
    with pytest.raises(ValueError, match=r"'toy' must have the same feature shape, but have"):
        Dataset("toy", regression, wide, regression, "regression")
    with pytest.raises(ValueError, match=r"test\.y of 'toy' is torch.int64"):
        Dataset("toy", regression, regression, labelled, "regression")
    with pytest.raises(ValueError, match=r"train\.y of 'toy' is torch.float32"):
        Dataset("toy", regression, labelled, labelled, "classification")
    assert Dataset("toy", labelled, labelled, labelled, "classification").train.n_rows == 3


def test_records_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Split(torch.zeros(3, 2), torch.zeros(3, 1)).x = torch.ones(3, 2)


class TestRealFiles:
    """The published files, where ELLIPTICA_DATA points to them."""

    pytestmark = needs_data

    def test_airfoil_is_the_references(self):
        folder = Path(os.environ["ELLIPTICA_DATA"])
        values = np.loadtxt(folder / "airfoil" / "airfoil_self_noise.dat")
        data = tabular.load_airfoil(0, scale="all")
        xs, ys = reference_parts(values, 5, (1003, 300, 200), 0)
        for part, x, y in zip(PARTS, xs, ys, strict=True):
            np.testing.assert_array_equal(getattr(data, part).x.numpy(), x.astype(np.float32))
            np.testing.assert_array_equal(getattr(data, part).y.numpy(), y.astype(np.float32))

    def test_target_ranges_are_the_published_ones(self):
        for load, low, high in (
            (tabular.load_airfoil, 103.38, 140.987),
            (tabular.load_no2, 1.22378, 6.39509),
        ):
            data = load(0)
            y = torch.cat([getattr(data, part).y for part in PARTS])
            assert float(y.min()) == pytest.approx(low, abs=1e-4)
            assert float(y.max()) == pytest.approx(high, abs=1e-4)

    def test_no2_sizes(self):
        data = tabular.load_no2(1)
        assert [getattr(data, part).n_rows for part in PARTS] == [200, 200, 100]
        assert data.n_features == 7
        assert torch.all(data.train.x.amax(0) == 1)


def test_cells_that_no_reader_takes_are_told(tmp_path):
    path = tmp_path / "t.csv"
    table = dataclasses.replace(
        tabular._CRIME, n_columns=3, target=2, features=(1,), domain=0, sizes=(1, 0, 0)
    )
    for cells, match in ((f"{'9' * 30},1,2", "row 1 holds '999"), (f"1,{'1' * 200_000},2", "field limit")):
        path.write_text(cells + "\n")
        with pytest.raises(ValueError, match=match):
            tabular._read(path, table)
