"""SkillCraft and Crime: splits by domain, missing values, scaling; on made-up files and the real ones."""

import csv
import dataclasses
import os

import numpy as np
import pytest
import torch

from elliptica.lab.data import tabular
from elliptica.lab.data.splits import Split
from tabular_cases import check_damaged_file, check_global_random_state, check_missing_file, expect

LOADERS = {"skillcraft": tabular.load_skillcraft, "crime": tabular.load_crime}
PARTS = ("train", "validation", "test")
SIZES = {"skillcraft": (1878, 806, 711), "crime": (1390, 231, 373)}
LEAGUES = dict(zip(range(1, 9), (167, 347, 553, 811, 806, 621, 35, 55), strict=True))
#: codes in three parts, with made-up counts that give the published sizes
STATES = {1: 1000, 9: 390, 40: 201, 46: 30, 47: 213, 48: 100, 56: 60}
DOMAINS = {"skillcraft": LEAGUES, "crime": STATES}


@pytest.fixture
def made_up(tmp_path, monkeypatch):
    """Files in the published layout with other numbers, whose hashes the loaders expect."""
    rng = np.random.default_rng(0)
    tables = {}
    for constant in ("_SKILLCRAFT", "_CRIME"):
        table = getattr(tabular, constant)
        values = rng.normal(size=(table.n_rows, table.n_columns)) * 50
        counts = DOMAINS[table.name]
        values[:, table.domain] = rng.permutation(np.repeat(list(counts), list(counts.values())))
        values[:, table.target] = rng.permutation(table.n_rows)  # names the row
        missing = rng.random(values.shape) < 0.2
        missing[:, [table.domain, table.target]] = False
        values[missing] = np.nan
        path = tmp_path / table.file.path
        path.parent.mkdir()
        path.write_bytes(layout(values, table).encode())
        expect(monkeypatch, table, path)
        tables[table.name] = (values, table)
    return tmp_path, tables


def layout(values, table):
    """SkillCraft has a quoted header and quotes around its '?'; Crime has names of towns."""
    quoted = '"?"' if table.has_header else "?"
    lines = [",".join(f'"Column{i}"' for i in range(table.n_columns))] if table.has_header else []
    for row in values:
        cells = [quoted if np.isnan(v) else repr(float(v)) for v in row]
        cells[table.domain] = str(int(row[table.domain]))
        if not table.has_header:
            cells[3] = "Lakewoodcity"
        lines.append(",".join(cells))
    return "\r\n".join(lines)


def parts_by_loop(values, table):
    """Row numbers of the parts, domain after domain, by the rule as the reference states it."""
    codes = sorted(set(values[:, table.domain]))
    reached, total = [], 0
    for code in codes:
        total += sum(values[:, table.domain] == code)
        reached.append(total)
    first = next(i for i, c in enumerate(reached) if c >= int(0.7 * total))
    second = next(i for i, c in enumerate(reached) if c >= reached[first] + int(0.1 * total))
    blocks = (codes[:first], codes[first:second], codes[second:])
    return [[i for i, row in enumerate(values) if row[table.domain] in block] for block in blocks]


def prepared(values, table, rows_seen):
    """Inputs filled in and scaled, column by column, with statistics of some rows."""
    columns = []
    for column in table.features:
        v = values[:, column].copy()
        seen = [v[i] for i in rows_seen if not np.isnan(v[i])]
        v[np.isnan(v)] = np.mean(seen)
        low, high = min(v[i] for i in rows_seen), max(v[i] for i in rows_seen)
        columns.append((v - low) / (high - low))
    return np.stack(columns, 1)


@pytest.mark.parametrize("scale", ["train", "all"])
@pytest.mark.parametrize("name", LOADERS)
def test_equals_a_loop(made_up, name, scale):
    folder, tables = made_up
    values, table = tables[name]
    data = LOADERS[name](3, data_dir=folder, scale=scale)
    parts = parts_by_loop(values, table)
    x = prepared(values, table, parts[0] if scale == "train" else range(len(values)))
    row_of = {target: i for i, target in enumerate(values[:, table.target])}
    for part, expected, size in zip(PARTS, parts, SIZES[name], strict=True):
        split = getattr(data, part)
        rows = [row_of[target] for target in split.y.flatten().tolist()]
        assert sorted(rows) == expected
        assert rows != expected  # shuffled
        assert split.n_rows == size
        np.testing.assert_allclose(split.x.numpy(), x[rows], rtol=1e-6, atol=1e-7)
        assert split.group.tolist() == values[rows, table.domain].tolist()


@pytest.mark.parametrize("name", LOADERS)
def test_seed_changes_the_order_only(made_up, name):
    folder, _ = made_up
    first, again, other = (LOADERS[name](seed, data_dir=folder) for seed in (3, 3, 4))
    for part in PARTS:
        a, b, c = (getattr(data, part) for data in (first, again, other))
        assert torch.equal(a.x, b.x)
        assert torch.equal(a.group, b.group)
        assert not torch.equal(a.y, c.y)
        order = a.y.flatten().argsort(), c.y.flatten().argsort()
        assert torch.equal(a.x[order[0]], c.x[order[1]])
        assert torch.equal(a.group[order[0]], c.group[order[1]])


@pytest.mark.slow
@pytest.mark.parametrize("name", LOADERS)
def test_test_rows_do_not_reach_training_by_default(made_up, monkeypatch, name):
    """Other numbers in the test rows leave the training and validation inputs as they were."""
    folder, tables = made_up
    values, table = tables[name]
    before = {scale: LOADERS[name](0, data_dir=folder, scale=scale) for scale in ("train", "all")}
    changed = values.copy()
    changed[np.ix_(parts_by_loop(values, table)[2], table.features)] *= 7
    path = folder / table.file.path
    path.write_bytes(layout(changed, table).encode())
    expect(monkeypatch, table, path)
    after = {scale: LOADERS[name](0, data_dir=folder, scale=scale) for scale in ("train", "all")}
    for part in ("train", "validation"):
        assert torch.equal(getattr(before["train"], part).x, getattr(after["train"], part).x)
        assert not torch.equal(getattr(before["all"], part).x, getattr(after["all"], part).x)
    assert not torch.equal(before["train"].test.x, after["train"].test.x)


def test_global_random_state_is_untouched(made_up):
    check_global_random_state(tabular.load_skillcraft, made_up[0])


def put(content, cell, column):
    """Replace one cell of the second row of the body."""
    lines = content.split(b"\r\n")
    cells = lines[2].split(b",")
    cells[column] = cell
    lines[2] = b",".join(cells)
    return b"\r\n".join(lines)


DAMAGES = {
    "whole rows missing": (lambda c: c[: len(c) // 2].rpartition(b"\r\n")[0], r"but it holds \d+ rows"),
    "a web page": (lambda _: b"<html>\nnot found</html>", "but row 1 has 1 columns"),
    "empty": (lambda _: b"", "but it holds 0 rows"),
    "binary": (lambda _: b"header\n" + bytes(range(256)), "but row 1 has 1 columns"),
    "no header": (lambda c: c[c.index(b"\n") + 1 :], "but it holds 3394 rows"),
    "a word": (lambda c: put(c, b"many", 4), "but row 2 holds 'many' in column 5"),
    "no target": (lambda c: put(c, b'"?"', 13), r"but row 2 holds '\?' in column 14"),
    "no domain": (lambda c: put(c, b'"?"', 1), r"but row 2 holds '\?' in column 2"),
    "another delimiter": (lambda c: c.replace(b",", b";"), "but row 1 has 1 columns"),
    "one digit changed": (lambda c: c.replace(b"1", b"2", 1), "SHA-256"),
    "line endings converted": (lambda c: c.replace(b"\r\n", b"\n"), "line endings"),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_damaged_file_is_refused_with_the_reason(made_up, case):
    folder, _ = made_up
    damage, message = DAMAGES[case]
    path = folder / "skillcraft" / "SkillCraft1_Dataset.csv"
    check_damaged_file(tabular.load_skillcraft, folder, path, damage, message)


def test_other_domains_are_refused(made_up, monkeypatch):
    folder, _ = made_up
    monkeypatch.setattr(tabular, "_CRIME", dataclasses.replace(tabular._CRIME, sizes=(1390, 232, 372)))
    with pytest.raises(
        ValueError, match=r"parts of \(1390, 232, 372\) rows, but they give \(1390, 231, 373\)"
    ):
        tabular.load_crime(0, data_dir=folder)


@pytest.mark.parametrize("name", LOADERS)
def test_missing_file_names_the_origin(tmp_path, name):
    check_missing_file(LOADERS[name], tmp_path, ": UCI")


def test_unknown_scale_is_refused(made_up, own_checks):
    with pytest.raises(ValueError, match="'train' or 'all', but got 'test'"):
        tabular.load_crime(0, data_dir=made_up[0], scale="test")


@pytest.mark.parametrize(
    "group", [torch.zeros(2, dtype=torch.int64), torch.zeros(3), torch.zeros(3, 1, dtype=torch.int64)]
)
def test_split_refuses_a_group_that_does_not_fit(group):
    with pytest.raises(ValueError, match=r"group must be int64 of shape \(3,\)"):
        Split(torch.zeros(3, 2), torch.zeros(3, 1), group)


@pytest.mark.needs_data
@pytest.mark.skipif(not os.environ.get("ELLIPTICA_DATA"), reason="set ELLIPTICA_DATA to the data directory")
class TestRealFiles:
    """The published files, where ELLIPTICA_DATA points to them."""

    def test_skillcraft_leagues(self, data_dir):
        data = tabular.load_skillcraft(1, data_dir=data_dir)
        assert (data.name, data.task, data.n_features) == ("skillcraft", "regression", 17)
        for part, leagues in zip(PARTS, ((1, 2, 3, 4), (5,), (6, 7, 8)), strict=True):
            codes, counts = getattr(data, part).group.unique(return_counts=True)
            assert dict(zip(codes.tolist(), counts.tolist(), strict=True)) == {i: LEAGUES[i] for i in leagues}

    def test_crime_states(self, data_dir):
        data = tabular.load_crime(1, data_dir=data_dir)
        assert (data.name, data.task, data.n_features) == ("crime", "regression", 122)
        assert tuple(getattr(data, part).n_rows for part in PARTS) == SIZES["crime"]
        assert data.train.group.unique().tolist() == [
            *(1, 2, 4, 5, 6, 8, 9, 10, 11, 12, 13, 16, 18, 19, 20, 21),
            *(22, 23, 24, 25, 27, 28, 29, 32, 33, 34, 35, 36, 37, 38, 39),
        ]
        assert data.validation.group.unique().tolist() == [40, 41, 42, 44, 45, 46]
        states, counts = data.test.group.unique(return_counts=True)
        assert states.tolist() == [47, 48, 49, 50, 51, 53, 54, 55, 56]
        assert counts.tolist() == [35, 156, 24, 4, 33, 40, 14, 60, 7]

    @pytest.mark.parametrize(("name", "low", "high"), [("skillcraft", 24.09, 176.37), ("crime", 0.0, 1.0)])
    def test_targets_and_inputs(self, data_dir, name, low, high):
        data = LOADERS[name](0, data_dir=data_dir, scale="all")
        x, y = (torch.cat([getattr(getattr(data, part), axis) for part in PARTS]) for axis in "xy")
        assert x.dtype == y.dtype == torch.float32
        assert y.shape == (len(x), 1)
        assert float(y.min()) == pytest.approx(low, abs=0.01)
        assert float(y.max()) == pytest.approx(high, abs=0.01)
        assert torch.all(x.amin(0) == 0)
        assert torch.all(x.amax(0) == 1)
        train = LOADERS[name](0, data_dir=data_dir).train.x
        assert torch.all(train.amin(0) == 0)
        assert torch.all(train.amax(0) == 1)

    @pytest.mark.parametrize("name", LOADERS)
    def test_equals_a_loop_over_the_file(self, data_dir, name):
        table = getattr(tabular, f"_{name.upper()}")
        with (data_dir / table.file.path).open() as file:
            rows = list(csv.reader(file))[int(table.has_header) :]
        values = np.full((len(rows), table.n_columns), np.nan)
        for i, row in enumerate(rows):
            for j in (table.domain, table.target, *table.features):
                values[i, j] = np.nan if row[j] == "?" else float(row[j])
        parts = parts_by_loop(values, table)
        for scale, seen in (("train", parts[0]), ("all", range(len(values)))):
            data = LOADERS[name](0, data_dir=data_dir, scale=scale)
            x = prepared(values, table, seen)
            for part, expected in zip(PARTS, parts, strict=True):
                split = getattr(data, part)
                ours = torch.cat([split.x, split.y, split.group[:, None]], 1).double().numpy()
                theirs = np.column_stack([x, values[:, table.target], values[:, table.domain]])[expected]
                theirs = theirs.astype(np.float32).astype(np.float64)
                for a, b in zip(ours.T, theirs.T, strict=True):  # as sets of values, column by column
                    np.testing.assert_allclose(np.sort(a), np.sort(b), rtol=1e-6, atol=1e-7)
