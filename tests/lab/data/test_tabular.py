"""Splits, scaling, and the loaders of tables: on made-up files in the published layouts, and on real ones."""

import csv

import numpy as np
import pytest
import torch

from elliptica.lab.data import tabular
from elliptica.lab.data.catalogue import find_entry
from elliptica.lab.data.splits import Dataset, Split, min_max_scale, scale_targets
from published import publish

PARTS = ("train", "validation", "test")
COLUMNS = {"airfoil": 6, "no2": 8, "skillcraft": 20, "crime": 128}
#: Rows of each domain; those of Crime are made up, in three parts of the published sizes.
DOMAINS = {
    "skillcraft": dict(zip(range(1, 9), (167, 347, 553, 811, 806, 621, 35, 55), strict=True)),
    "crime": {1: 1000, 9: 390, 40: 201, 46: 30, 47: 213, 48: 100, 56: 60},
}


def load(name, seed, folder, **options):
    return getattr(tabular, f"load_{name}")(seed, data_dir=folder, **options)


def file_of(name):
    return find_entry(name).forms[0][0].path


def text_of(name, values):
    """SkillCraft has a quoted header and quotes around its '?'; Crime has names of towns."""
    layout = tabular._LAYOUTS[name]
    lines = [",".join(f'"Column{i}"' for i in range(COLUMNS[name]))] if layout.has_header else []
    for row in values:
        missing = '"?"' if layout.has_header else "?"
        cells = [missing if np.isnan(value) else repr(float(value)) for value in row]
        if layout.domain is not None:
            cells[layout.domain] = str(int(row[layout.domain]))
        if name == "crime":
            cells[3] = "Lakewoodcity"
        lines.append(layout.delimiter.join(cells))
    return ("\r\n".join(lines) + "\r\n").encode()


@pytest.fixture
def make_up(tmp_path, monkeypatch):
    """Write other numbers in a published layout; targets name the rows."""

    def make(name):
        rng = np.random.default_rng(0)
        layout, n = tabular._LAYOUTS[name], sum(find_entry(name).rows)
        values = rng.normal(size=(n, COLUMNS[name])) * 50
        if layout.domain is not None:
            values[rng.random(values.shape) < 0.2] = np.nan
            counts = DOMAINS[name]
            values[:, layout.domain] = rng.permutation(np.repeat(list(counts), list(counts.values())))
        values[:, layout.target] = rng.permutation(n)
        publish(monkeypatch, tmp_path, name, {file_of(name): text_of(name, values)})
        return tmp_path, values

    return make


def rows_by_reference(name, values, seed):
    """C-Mixup's recipe in its own terms: global seed and slices, or domain after domain."""
    layout, sizes = tabular._LAYOUTS[name], find_entry(name).rows
    if layout.domain is None:
        np.random.seed(seed)  # noqa: NPY002
        return np.split(np.random.permutation(len(values)), np.cumsum(sizes)[:-1])  # noqa: NPY002
    domain = values[:, layout.domain]
    codes, reached, total = sorted(set(domain)), [], 0
    for code in codes:
        total += int((domain == code).sum())
        reached.append(total)
    first = next(i for i, c in enumerate(reached) if c >= int(0.7 * total))
    second = next(i for i, c in enumerate(reached) if c >= reached[first] + int(0.1 * total))
    return [np.flatnonzero(np.isin(domain, b)) for b in (codes[:first], codes[first:second], codes[second:])]


def prepared(name, values, seen):
    """Inputs filled in and scaled, column by column, with statistics of some rows."""
    columns = []
    for column in tabular._LAYOUTS[name].features:
        v = values[:, column].copy()
        v[np.isnan(v)] = np.nanmean(v[seen])
        low, high = v[seen].min(), v[seen].max()
        columns.append((v - low) / (high - low))
    return np.stack(columns, 1)


def check_against_reference(name, values, seed, folder):
    layout = tabular._LAYOUTS[name]
    parts = rows_by_reference(name, values, seed)
    for scale, seen in (("train", parts[0]), ("all", np.arange(len(values)))):
        data, x = load(name, seed, folder, scale=scale), prepared(name, values, seen)
        for part, expected, size in zip(PARTS, parts, find_entry(name).rows, strict=True):
            split = getattr(data, part)
            assert split.n_rows == size == len(expected)
            theirs = np.column_stack([values[expected, layout.target], x[expected]]).astype(np.float32)
            ours = torch.cat([split.y, split.x], 1).numpy()
            if layout.domain is not None:  # only the parts are the reference's, not the order
                theirs, ours = (rows[np.lexsort(rows.T[::-1])] for rows in (theirs, ours))
                counts = np.unique(values[expected, layout.domain], return_counts=True)
                for wanted, got in zip(counts, split.group.unique(return_counts=True), strict=True):
                    assert wanted.tolist() == got.tolist()
            np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", COLUMNS)
def test_parts_and_inputs_are_the_references(make_up, name):
    folder, values = make_up(name)
    check_against_reference(name, values, 3, folder)


@pytest.mark.parametrize("name", COLUMNS)
def test_seeds_and_scaling(make_up, name):
    folder, values = make_up(name)
    state = np.random.get_state()[1].tolist()  # noqa: NPY002
    first, again, other = (load(name, seed, folder) for seed in (3, 3, 4))
    assert np.random.get_state()[1].tolist() == state  # noqa: NPY002
    assert (first.name, first.task) == (name, "regression")
    assert torch.equal(first.train.x, again.train.x)
    assert not torch.equal(first.train.y, other.train.y)
    assert torch.all(first.train.x.amin(0) == 0)
    assert torch.all(first.train.x.amax(0) == 1)
    outside = torch.cat([first.validation.x, first.test.x])
    assert ((outside < 0) | (outside > 1)).any()  # only training rows give minimum and maximum
    targets = torch.cat([getattr(first, part).y for part in PARTS])
    assert len(targets.unique()) == len(values)
    same_parts = [set(first.test.y.flatten().tolist()) == set(other.test.y.flatten().tolist())]
    assert same_parts == [name in DOMAINS]


def test_scaling_by_hand():
    train = torch.tensor([[1.0, 5.0, 0.0], [3.0, 5.0, 4.0]])
    other = torch.tensor([[5.0, 6.0, 2.0]])
    a, b = min_max_scale(train, [other])
    assert a.tolist() == [[0, 0, 0], [1, 0, 1]]  # a constant column becomes 0, elsewhere too
    assert b.tolist() == [[2, 0, 0.5]]
    a, b = min_max_scale(train, [other], statistics="all")
    assert a.tolist() == [[0, 0, 0], [0.5, 0, 1]]
    assert b.tolist() == [[1, 1, 0.5]]


def test_scaled_targets_have_units():
    parts = [Split(torch.zeros(2, 1), torch.tensor(y)[:, None]) for y in ([2.0, 6.0], [4.0, 8.0], [2.0, 0.0])]
    data = scale_targets(Dataset("d", *parts, task="regression"))
    assert data.train.y.flatten().tolist() == [0, 1]
    for part, original in zip(PARTS, parts, strict=True):
        torch.testing.assert_close(data.units.restore(getattr(data, part).y), original.y)


X, Y = torch.zeros(3, 2), torch.zeros(3, 1)
GOOD = Split(X, Y)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: Split(X, Y[:2]), "y"),
        (lambda: Split(X[:0], Y[:0]), "x"),
        (lambda: Split(X, Y, torch.zeros(2, dtype=torch.int64)), "group"),
        (lambda: Dataset("d", GOOD, GOOD, GOOD, "ranking"), "task"),
        (lambda: scale_targets(Dataset("d", GOOD, GOOD, GOOD, "regression")), "y"),
        (lambda: min_max_scale(X, statistics="test"), "statistics"),
        (lambda: tabular.load_no2(0, scale="none"), "scale"),
    ],
)
def test_bad_arguments(make, argument):
    with pytest.raises(ValueError, match=argument):
        make()


@pytest.mark.needs_data
@pytest.mark.parametrize("name", COLUMNS)
def test_real_files_against_the_reference(data_dir, name):
    layout = tabular._LAYOUTS[name]
    with (data_dir / file_of(name)).open() as file:
        rows = list(csv.reader(file, delimiter=layout.delimiter))[int(layout.has_header) :]
    values = np.full((len(rows), COLUMNS[name]), np.nan)
    used = [*layout.features, layout.target, *([] if layout.domain is None else [layout.domain])]
    for i, row in enumerate(rows):
        for j in used:
            values[i, j] = np.nan if row[j] == "?" else float(row[j])
    check_against_reference(name, values, 0, data_dir)
