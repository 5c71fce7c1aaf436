"""Frames: what each kind of column becomes, with pandas and polars."""

import datetime

import numpy as np
import pandas as pd
import polars as pl
import pytest

from elliptica.estimators import TablePreprocessor

FRAMES = pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
DAY = datetime.datetime(2020, 1, 1, 12)


def mixed():
    return {
        "age": [20, None, 40, 70],
        "town": ["Bonn", "Ulm", None, "Bonn"],
        "owner": [True, False, None, True],
        "since": [DAY, None, DAY + datetime.timedelta(days=2), DAY],
        "income": [1.5, 2.5, float("nan"), 1.0],
    }


def columns_of(table, frame):
    return dict(zip(table.get_feature_names_out(), table.transform(frame).T.tolist(), strict=True))


@FRAMES
def test_each_kind_of_column(frame):
    table = TablePreprocessor(min_frequency=1).fit(frame(mixed()))
    columns = columns_of(table, frame(mixed()))
    assert table.kinds_ == ["number", "category", "number", "date", "number"]
    seasons = {name: columns.pop(name) for name in list(columns) if "circular" in name}
    # Wednesday, 1 January 2020, and two days later, always at noon
    assert seasons["since_month_circular_0"] == pytest.approx([0.5] * 4)
    for j, function in enumerate((np.sin, np.cos)):
        week = [function(2 * np.pi * day / 7) for day in (3, 3, 5, 3)]
        assert seasons[f"since_weekday_circular_{j}"] == pytest.approx(week)
    assert len(seasons) == 8
    assert columns == {
        "age": [20, 40, 40, 70],
        "missingindicator_age": [0, 1, 0, 0],
        "town_(missing)": [0, 0, 1, 0],
        "town_Bonn": [1, 0, 0, 1],
        "town_Ulm": [0, 1, 0, 0],
        "owner": [1, 0, 1, 1],
        "missingindicator_owner": [0, 0, 1, 0],
        "since": [18262.5, 18262.5, 18264.5, 18262.5],
        "missingindicator_since": [0, 1, 0, 0],
        "since_year": [2020] * 4,
        "income": [1.5, 2.5, 1.5, 1.0],
        "missingindicator_income": [0, 0, 1, 0],
    }


def test_dtypes_of_pandas_only():
    frame = pd.DataFrame(
        {
            "code": pd.Categorical([1, 2, 1, 2]),
            "count": pd.array([1, None, 2, 3], dtype="Int64"),
            "flag": pd.array([True, None, False, True], dtype="boolean"),
            "text": pd.array(["x", None, "y", "x"], dtype="string"),
            "zone": pd.to_datetime(["2020-01-01"] * 4).tz_localize("Europe/Berlin"),
        }
    )
    table = TablePreprocessor(min_frequency=1).fit(frame)
    assert table.kinds_ == ["category", "number", "number", "category", "date"]
    columns = columns_of(table, frame)
    assert columns["code_1"] == [1, 0, 1, 0]
    assert columns["count"] == [1, 2, 2, 3]
    assert columns["flag"] == [1, 1, 0, 1]
    assert columns["zone"] == pytest.approx([18261 + 23 / 24] * 4)  # as UTC, on the day before
    assert columns["zone_year"] == [2019] * 4


@pytest.mark.parametrize(
    ("step", "seasons"),
    [(5 / 24, ["month", "day", "hour", "weekday"]), (5, ["month", "day", "weekday"]), ("month", ["month"])],
)
def test_only_seasons_that_differ(step, seasons):
    """Else the weekday of the first of each month would be two columns of noise."""
    days = [datetime.datetime(2000 + i // 12, 1 + i % 12, 1) for i in range(30)]
    if step != "month":
        days = [days[0] + i * datetime.timedelta(days=step) for i in range(30)]
    names = TablePreprocessor().fit(pl.DataFrame({"d": days})).get_feature_names_out().tolist()
    assert names == ["d", "d_year", *(f"d_{season}_circular_{j}" for season in seasons for j in (0, 1))]


def test_a_placeholder_does_not_move_the_seasons_of_other_dates():
    days = [datetime.datetime(2020, 1, 5) + datetime.timedelta(days=11 * i) for i in range(60)]
    plain, with_one = pl.DataFrame({"d": days}), pl.DataFrame({"d": [*days, datetime.datetime(9999, 12, 31)]})
    seasons = columns_of(TablePreprocessor().fit(plain), plain)
    squashed = columns_of(TablePreprocessor(scale="robust").fit(with_one), with_one)
    for name in (name for name in seasons if "circular" in name):
        assert squashed[name][:-1] == pytest.approx(seasons[name])
    assert np.abs([squashed["d"], squashed["d_year"]]).max() <= 3
    assert np.ptp(squashed["d_year"][:-1]) > 0.5


@FRAMES
def test_rare_and_unseen_categories_share_a_column(frame):
    table = TablePreprocessor(min_frequency=2).fit(frame({"c": ["a", "a", "b", "b", "z", "y"]}))
    assert table.get_feature_names_out().tolist() == ["c_a", "c_b", "c_infrequent_sklearn"]
    out = table.transform(frame({"c": ["a", "y", "never seen", None]}))
    assert out.tolist() == [[1, 0, 0], [0, 0, 1], [0, 0, 1], [0, 0, 1]]
    few = TablePreprocessor(min_frequency=1, max_categories=2).fit(frame({"c": ["a", "a", "b", "c"]}))
    assert few.get_feature_names_out().tolist() == ["c_a", "c_infrequent_sklearn"]


@FRAMES
def test_codes_are_the_same_as_whole_numbers_floats_and_text(frame):
    """A gap makes floats of the whole numbers of pandas; integers beyond 2^53 stay apart."""
    table = TablePreprocessor(kinds={"c": "category"}, min_frequency=1)
    table.fit(frame({"c": [2**53, 2**53 + 1, 3, 3]}))
    assert table.get_feature_names_out().tolist() == ["c_3", f"c_{2**53}", f"c_{2**53 + 1}"]
    for values in ([3.0, None], ["3", None], [3, 3]):
        assert table.transform(frame({"c": values}))[0].tolist() == [1, 0, 0]
    gaps = [table.fit_transform(frame({"c": [3.0, 4.0, gap]})).tolist() for gap in (None, float("nan"))]
    assert gaps[0] == gaps[1]
    assert "c_(missing)" in table.get_feature_names_out()


@FRAMES
def test_other_columns_are_refused(frame):
    table = TablePreprocessor().fit(frame({"a": [1.0, 2.0], "b": ["x", "y"], "d": [DAY, DAY]}))
    row = {"a": [1.0], "b": ["x"], "d": [DAY]}
    for other in ({"a": [1.0]}, {"a": [1.0], "c": ["x"], "d": [DAY]}, {"b": ["x"], "a": [1.0], "d": [DAY]}):
        with pytest.raises(ValueError, match="feature names"):
            table.transform(frame(other))
    zoned = DAY.replace(tzinfo=datetime.UTC)
    for name, value in (("a", "old"), ("a", float("inf")), ("d", 3.0), ("d", "2020-01-01"), ("d", zoned)):
        with pytest.raises(ValueError, match=f"'{name}'"):
            table.transform(frame({**row, name: [value]}))
    with pytest.raises(ValueError, match="X"):
        table.transform(frame(row)[:0])
    with pytest.raises(TypeError, match="'l'"):
        TablePreprocessor().fit(frame({"l": [[1], [2]]}))
    # a column that happens to be empty, or to hold numbers, keeps its kind
    assert table.transform(frame({**row, "a": [None], "b": [3]}))[0, :2].tolist() == [1.5, 1.0]


def test_arrays():
    out = TablePreprocessor().fit_transform(np.array([[1.0, np.nan], [3.0, 4.0]]))
    assert out.tolist() == [[1, 4, 1], [3, 4, 0]]
    mixed_array = np.array([[1.0, "u"], [None, "v"], [3, "u"]], dtype=object)
    table = TablePreprocessor(min_frequency=1).fit(mixed_array)
    assert table.kinds_ == ["number", "category"]
    assert table.transform(mixed_array).tolist() == [[1, 0, 1, 0], [2, 1, 0, 1], [3, 0, 1, 0]]


REMARKS = [
    f"{size} {what} with {extra}"
    for size in ("a large", "a tiny", "one old")
    for what in ("house near the lake", "flat in the city", "garden by the road", "barn on the hill")
    for extra in ("five rooms", "no roof", "a great view", "much noise", "its own well")
]


@FRAMES
def test_free_text(frame):
    """Told from categories by its words; like texts are near each other, and gaps are nowhere."""
    table = TablePreprocessor(n_components=6, max_categories=20).fit(frame({"t": REMARKS}))
    assert table.kinds_ == ["text"]
    assert table.get_feature_names_out().tolist() == [f"t_{j}" for j in range(6)]
    new = [
        "a large house near the lake with no roof",
        "a large house near a lake",
        "the barn on a hill",
        None,
    ]
    house, like, barn, gap = table.transform(frame({"t": new}))
    assert np.linalg.norm(house - like) < 0.5 * np.linalg.norm(house - barn)
    assert gap.tolist() == [0] * 6
    assert (
        not TablePreprocessor(kinds={"t": "text"}).fit_transform(frame({"t": ["abc def", "ghi", ""]})).any()
    )
    assert TablePreprocessor(max_categories=100).fit(frame({"t": REMARKS})).kinds_ == ["category"]


def test_free_text_is_what_skrub_makes_of_it():
    """Up to its scaling factor, which the estimators make irrelevant, and the sign of directions."""
    from skrub import StringEncoder

    table = TablePreprocessor(kinds={"t": "text"}, min_frequency=1, n_components=5)
    ours = table.fit_transform(pl.DataFrame({"t": REMARKS}))
    encoder = StringEncoder(n_components=5, vectorizer="tfidf", random_state=0)
    theirs = encoder.fit_transform(pl.Series("t", REMARKS)).to_numpy() * encoder.scaling_factor_
    np.testing.assert_allclose(np.abs(ours), np.abs(theirs), atol=2e-2)


def test_robust_scale_bounds_what_networks_see():
    """One outlier decides on the standard deviation, but not on the place of the others."""
    values = np.r_[np.linspace(-1, 1, 99), 1e6]
    zeros = np.r_[np.zeros(80), np.linspace(1, 2, 19), 1e6]
    frame = pd.DataFrame({"heavy": values, "zeros": zeros, "plain": np.linspace(0, 10, 100)})
    table = TablePreprocessor(scale="robust").fit(frame)
    out = table.transform(frame)
    assert np.ptp(out[:99, 0]) > 1.5
    assert out[-1, 0] == pytest.approx(3, abs=1e-6)
    assert np.ptp(out[80:99, 1]) > 0.3
    np.testing.assert_array_equal(out[:, 2], frame["plain"])
    far = table.transform(
        pd.DataFrame({"heavy": [1e30, -1e30], "zeros": [1e20, np.nan], "plain": [1e30, 25.0]})
    )
    assert far[:, 0].tolist() == pytest.approx([3, -3])
    assert far[:, 1].tolist() == pytest.approx([3, 0])
    assert far[:, 2].tolist() == [30, 25]  # twice the range beyond it; nearer values are kept


@FRAMES
def test_kinds_may_be_given(frame):
    data = frame({"code": [1, 2, 1, None], "d": [DAY] * 4, "t": ["a b c", None, "b c d", "a"]})
    table = TablePreprocessor(kinds={"code": "category", "d": "number"}, min_frequency=1).fit(data)
    assert table.kinds_ == ["category", "number", "category"]
    assert {"code_1", "code_2", "code_(missing)", "d"} <= set(table.get_feature_names_out())
    for kinds, name in (({"cod": "number"}, "cod"), ({"code": "id"}, "kinds"), ({"t": "number"}, "'t'")):
        with pytest.raises(ValueError, match=name):
            TablePreprocessor(kinds=kinds).fit(data)
    with pytest.raises(ValueError, match="scale"):
        TablePreprocessor(scale="log").fit(data)


@FRAMES
def test_native_codes_keep_gaps_and_leave_numbers_alone(frame):
    table = TablePreprocessor(native=True, scale="robust").fit(frame(mixed()))
    far = columns_of(
        table, frame({**mixed(), "age": [1e9] * 3 + [None], "town": ["Ulm", "new", None, "Bonn"]})
    )
    np.testing.assert_equal([far["age"], far["town"]], [[1e9] * 3 + [np.nan], [1, np.nan, np.nan, 0]])
    is_category = np.asarray(table.kinds_out_) == "category"
    assert table.get_feature_names_out()[is_category].tolist() == ["town"]


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("n_classes", [0, 2, 3])
def test_many_categories_become_target_means(n_classes, native):
    """Shrunk towards the mean of all rows; those of a training row never contain its own target."""
    rng, frame = np.random.default_rng(0), pl.DataFrame({"c": [f"c{i // 4}" for i in range(1200)]})
    y = rng.normal(size=1200) if n_classes == 0 else rng.integers(n_classes, size=1200)
    table = TablePreprocessor(native=native)
    fitted, targets = (
        table.fit_transform(frame, y),
        y[:, None] == np.arange(3) if n_classes > 2 else y[:, None],
    )
    means = targets.reshape(300, 4, -1).sum(1) / 9 + targets.mean(0) * 5 / 9
    np.testing.assert_allclose(table.transform(frame)[::4], means)
    np.testing.assert_allclose(table.transform(pl.DataFrame({"c": ["new"]}))[0], targets.mean(0))
    both = [np.corrcoef(targets[:, 0], x[:, 0])[0, 1] for x in (table.transform(frame), fitted)]
    assert both[0] > 0.3  # pure noise, which correlates with a mean that contains it
    assert abs(both[1]) < 0.1
    for others in (None, range(1200)):  # no targets, or too many classes
        assert TablePreprocessor(native=native).fit_transform(frame, others).max() == (254 if native else 1)
