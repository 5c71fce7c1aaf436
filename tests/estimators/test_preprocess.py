"""Frames: what each kind of column becomes, and pipelines in searches with pandas and polars."""

import datetime
import json

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from elliptica.estimators import EllipticClassifier, EllipticRegressor, TablePreprocessor
from elliptica.estimators.preprocess import has_heavy_tail

FRAMES = pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
DAY = datetime.datetime(2020, 1, 1, 12)
QUICK = {"hidden": (16,), "max_iter": 12, "learning_rate": 0.02, "random_state": 0}


def mixed():
    return {
        "age": [20, None, 40, 70],
        "town": ["Bonn", "Ulm", None, "Bonn"],
        "owner": [True, False, None, True],
        "since": [DAY, None, DAY + datetime.timedelta(days=2), DAY],
        "income": [1.5, 2.5, float("nan"), 1.0],
    }


@FRAMES
def test_each_kind_of_column(frame):
    table = TablePreprocessor(min_frequency=1)
    out = table.fit_transform(frame(mixed()))
    by_name = dict(zip(table.get_feature_names_out(), out.T.tolist(), strict=True))
    assert table.kinds_ == ["number", "category", "number", "date", "number"]
    seasons = {name: by_name.pop(name) for name in list(by_name) if "circular" in name}
    # Wednesday, 1 January 2020, and two days later, always at noon
    assert seasons["since_month_circular_0"] == pytest.approx([0.5] * 4)
    for j, function in enumerate((np.sin, np.cos)):
        week = [function(2 * np.pi * day / 7) for day in (3, 3, 5, 3)]
        assert seasons[f"since_weekday_circular_{j}"] == pytest.approx(week)
    assert len(seasons) == 6
    assert by_name == {
        "age": [20, 40, 40, 70],
        "owner": [1, 0, 1, 1],
        "since_days": [0.5, 0.5, 2.5, 0.5],
        "since_year": [2020] * 4,
        "income": [1.5, 2.5, 1.5, 1.0],
        "missingindicator_age": [0, 1, 0, 0],
        "missingindicator_owner": [0, 0, 1, 0],
        "missingindicator_since": [0, 1, 0, 0],
        "missingindicator_income": [0, 0, 1, 0],
        "town_(missing)": [0, 0, 1, 0],
        "town_Bonn": [1, 0, 0, 1],
        "town_Ulm": [0, 1, 0, 0],
    }


def test_pandas_and_polars_agree():
    a = TablePreprocessor().fit_transform(pd.DataFrame(mixed()))
    np.testing.assert_array_equal(a, TablePreprocessor().fit_transform(pl.DataFrame(mixed())))


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
    out = dict(zip(table.get_feature_names_out(), table.transform(frame).T.tolist(), strict=True))
    assert out["code_1"] == [1, 0, 1, 0]
    assert out["count"] == [1, 2, 2, 3]
    assert out["flag"] == [1, 1, 0, 1]
    assert out["zone_days"] == pytest.approx([23 / 24] * 4)  # as UTC, on the day before
    assert out["zone_year"] == [2019] * 4


def test_dtypes_of_polars_only():
    frame = pl.DataFrame(
        {
            "kind": pl.Series(["u", "v", "u"], dtype=pl.Categorical),
            "fixed": pl.Series(["u", "v", "u"], dtype=pl.Enum(["u", "v", "w"])),
            "date": [datetime.date(1970, 1, 2), None, datetime.date(1970, 1, 4)],
            "length": [datetime.timedelta(hours=12), None, datetime.timedelta(days=1)],
            "price": pl.Series(["1.5", None, "2"]).cast(pl.Decimal(10, 2)),
            "nothing": [None, None, None],
        }
    )
    table = TablePreprocessor(min_frequency=1).fit(frame)
    assert table.kinds_ == ["category", "category", "date", "number", "number", "number"]
    out = dict(zip(table.get_feature_names_out(), table.transform(frame).T.tolist(), strict=True))
    assert table.transform(frame)[0, :3].tolist() == [0.5, 1.5, 0.0]
    assert out["date_days"] == [0, 0, 2]
    assert out["missingindicator_date"] == [0, 1, 0]
    assert not any("hour" in name for name in out)


@pytest.mark.parametrize(
    ("step", "seasons"),
    [
        (datetime.timedelta(hours=5), ["month", "day", "hour", "weekday"]),
        (datetime.timedelta(days=5), ["month", "day", "weekday"]),
        ("month", ["month"]),
        ("year", []),
    ],
)
def test_only_seasons_that_differ(step, seasons):
    """Else the weekday of the first of each month would be two columns of noise."""
    if step == "month":
        days = [datetime.datetime(2000 + i // 12, 1 + i % 12, 1) for i in range(30)]
    elif step == "year":
        days = [datetime.datetime(1970 + i, 1, 1) for i in range(30)]
    else:
        days = [DAY + i * step for i in range(30)]
    names = TablePreprocessor().fit(pl.DataFrame({"d": days})).get_feature_names_out().tolist()
    circles = [f"d_{season}_circular_{j}" for season in seasons for j in (0, 1)]
    assert names == ["d_days", "d_year", *circles]


@FRAMES
def test_rare_and_unseen_categories_share_a_column(frame):
    table = TablePreprocessor(min_frequency=2).fit(frame({"c": ["a", "a", "b", "b", "z", "y"]}))
    assert table.get_feature_names_out().tolist() == ["c_a", "c_b", "c_infrequent_sklearn"]
    out = table.transform(frame({"c": ["a", "y", "never seen", None]}))
    assert out.tolist() == [[1, 0, 0], [0, 0, 1], [0, 0, 1], [0, 0, 1]]
    few = TablePreprocessor(min_frequency=1, max_categories=2).fit(frame({"c": ["a", "a", "b", "c"]}))
    assert few.get_feature_names_out().tolist() == ["c_a", "c_infrequent_sklearn"]
    whole = TablePreprocessor(min_frequency=1).fit(frame({"c": ["a", "b"]}))
    assert whole.transform(frame({"c": ["never seen"]})).tolist() == [[0, 0]]


@FRAMES
def test_other_columns_are_refused(frame):
    table = TablePreprocessor().fit(frame({"a": [1.0, 2.0], "b": ["x", "y"]}))
    for other in ({"a": [1.0]}, {"a": [1.0], "c": ["x"]}, {"b": ["x"], "a": [1.0]}):
        with pytest.raises(ValueError, match="feature names should match"):
            table.transform(frame(other))
    with pytest.raises(ValueError, match=r"Column 'a' held numbers .* now holds 'old'"):
        table.transform(frame({"a": ["old"], "b": ["x"]}))
    with pytest.raises(ValueError, match="Column 'a' contains infinity"):
        table.transform(frame({"a": [float("inf")], "b": ["x"]}))
    with pytest.raises(TypeError, match="Column 'l' holds"):
        TablePreprocessor().fit(frame({"l": [[1], [2]]}))
    with pytest.raises(ValueError, match="0 rows"):
        table.transform(frame({"a": [1.0], "b": ["x"]})[:0])
    # a column that happens to be empty, or to hold numbers, keeps its kind
    assert table.transform(frame({"a": [None], "b": [3]})).tolist() == [[1.5, 1.0]]


def test_arrays():
    out = TablePreprocessor().fit_transform(np.array([[1.0, np.nan], [3.0, 4.0]]))
    assert out.tolist() == [[1, 4, 1], [3, 4, 0]]
    mixed_array = np.array([[1.0, "u"], [None, "v"], [3, "u"]], dtype=object)
    table = TablePreprocessor(min_frequency=1).fit(mixed_array)
    assert table.kinds_ == ["number", "category"]
    assert table.transform(mixed_array).tolist() == [[1, 0, 1, 0], [2, 1, 0, 1], [3, 0, 1, 0]]


def test_state_is_json_and_complete():
    frame = pd.DataFrame(mixed()).assign(nothing=None, full=[1.0, 2.0, 3.0, 0.1])
    for min_frequency in (1, 2, 10):
        table = TablePreprocessor(min_frequency=min_frequency).fit(frame)
        text = json.dumps(table.to_dict())
        again = TablePreprocessor.from_dict(json.loads(text))
        new = pd.DataFrame(
            {**mixed(), "town": ["Ulm", "Rom", None, "Bonn"], "nothing": [1.0, None, None, 2.0], "full": None}
        )
        for data in (frame, new):
            np.testing.assert_array_equal(again.transform(data), table.transform(data))
        assert again.get_feature_names_out().tolist() == table.get_feature_names_out().tolist()
        assert json.dumps(again.to_dict()) == text
        with pytest.raises(ValueError, match="feature names should match"):
            again.transform(frame[["age"]])


REMARKS = [
    f"{size} {what} with {extra}"
    for size in ("a large", "a tiny", "one old")
    for what in ("house near the lake", "flat in the city", "garden by the road", "barn on the hill")
    for extra in ("five rooms", "no roof", "a great view", "much noise", "its own well")
]


@FRAMES
def test_free_text(frame):
    """Told from categories by its words; like texts are near each other, and gaps are nowhere."""
    table = TablePreprocessor(n_components=6, max_categories=20).fit(
        frame({"t": REMARKS, "c": ["u", "v"] * 30})
    )
    assert table.kinds_ == ["text", "category"]
    assert table.get_feature_names_out().tolist() == ["c_u", "c_v", *(f"t_{j}" for j in range(6))]
    new = [
        "a large house near the lake with no roof",
        "a large house near a lake",
        "the barn on a hill",
        None,
    ]
    house, like, barn, gap = table.transform(frame({"t": new, "c": ["u"] * 4}))[:, 2:]
    assert np.linalg.norm(house - like) < 0.5 * np.linalg.norm(house - barn)
    assert gap.tolist() == [0] * 6
    few = TablePreprocessor(max_categories=100).fit(frame({"t": REMARKS}))
    assert few.kinds_ == ["category"]


def test_free_text_is_what_skrub_makes_of_it():
    from skrub import StringEncoder

    table = TablePreprocessor(kinds={"t": "text"}, min_frequency=1, n_components=5)
    ours = table.fit_transform(pl.DataFrame({"t": REMARKS}))
    encoder = StringEncoder(n_components=5, vocabulary=table.to_dict()["columns"][0]["parts"], random_state=0)
    theirs = encoder.fit_transform(pl.Series("t", REMARKS)).to_numpy()
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_state_of_dates_and_text():
    frame = pl.DataFrame(
        {
            "t": REMARKS,
            "d": [DAY + datetime.timedelta(hours=31 * i) for i in range(59)] + [None],
            "heavy": np.exp(np.linspace(0, 9, 60)),
        }
    )
    table = TablePreprocessor(kinds={"t": "text"}, scale="robust").fit(frame)
    state = json.loads(json.dumps(table.to_dict()))
    again = TablePreprocessor.from_dict(state, table.tensors())
    new = frame.with_columns(pl.col("d").reverse(), heavy=pl.lit(1e9))
    for data in (frame, new):
        np.testing.assert_array_equal(again.transform(data), table.transform(data))
    assert again.get_feature_names_out().tolist() == table.get_feature_names_out().tolist()
    assert again.to_dict() == state
    with pytest.raises(ValueError, match="weights are missing"):
        TablePreprocessor.from_dict(state)
    broken = {name: array[:-1] for name, array in table.tensors().items()}
    with pytest.raises(ValueError, match="have different sizes"):
        TablePreprocessor.from_dict(state, broken)
    with pytest.raises(ValueError, match="of an unknown kind"):
        TablePreprocessor.from_dict({**state, "columns": [{"name": "a", "kind": "image"}]})


def test_parts_of_words_that_few_rows_have_are_not_kept():
    """A file may be passed on: no name of a person is in it."""
    texts = [*REMARKS, "owned by Xaverq Zwkbjx since then"]
    table = TablePreprocessor(kinds={"t": "text"}, min_frequency=3).fit(pl.DataFrame({"t": texts}))
    assert "zwk" not in json.dumps(table.to_dict()).lower()
    assert "house"[:3] in table.to_dict()["columns"][0]["parts"]


def test_dates_have_hours_if_training_had():
    days = [DAY.replace(hour=0) + datetime.timedelta(days=i) for i in range(9)]
    table = TablePreprocessor().fit(pl.DataFrame({"d": days}))
    width = len(table.get_feature_names_out())
    assert table.transform(pl.DataFrame({"d": [DAY]})).shape == (1, width)
    with_hours = TablePreprocessor().fit(pl.DataFrame({"d": [DAY, *days]}))
    assert with_hours.transform(pl.DataFrame({"d": days})).shape == (9, width + 2)


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
    wild = pd.DataFrame({"heavy": [1e308, -1e308], "zeros": [1e200, np.nan], "plain": [1e308, 25.0]})
    far = table.transform(wild)
    assert far[:, 0].tolist() == pytest.approx([3, -3])
    assert far[:, 1].tolist() == pytest.approx([3, 0])
    assert far[:, 2].tolist() == [30, 25]  # twice the range beyond it; nearer values are kept
    plain = TablePreprocessor().fit(frame)
    np.testing.assert_array_equal(plain.transform(wild[["heavy", "zeros", "plain"]])[:, 2], wild["plain"])


@pytest.mark.parametrize(
    ("values", "heavy"),
    [
        (np.random.default_rng(0).normal(size=5000), False),
        (np.random.default_rng(0).uniform(size=5000), False),
        (np.random.default_rng(0).exponential(size=5000), False),
        (np.random.default_rng(0).lognormal(size=5000), True),
        (np.random.default_rng(0).standard_cauchy(size=500), True),
        (np.r_[np.zeros(95), np.ones(5)], False),  # a flag
        (np.full(9, 7.0), False),
    ],
    ids=["normal", "uniform", "exponential", "lognormal", "cauchy", "flag", "constant"],
)
def test_heavy_tails(values, heavy):
    assert has_heavy_tail(values) == heavy
    assert has_heavy_tail(1e-3 * values + 7) == heavy


@FRAMES
def test_kinds_may_be_given(frame):
    data = frame({"code": [1, 2, 1, None], "d": [DAY] * 4, "t": ["a b c", None, "b c d", "a"]})
    table = TablePreprocessor(kinds={"code": "category", "d": "number"}, min_frequency=1).fit(data)
    assert table.kinds_ == ["category", "number", "category"]
    assert {"code_1", "code_2", "code_(missing)", "d"} <= set(table.get_feature_names_out())
    for kinds, message in (
        ({"cod": "number"}, "names the column 'cod', which is not in X"),
        ({"code": "id"}, "'code' has 'id'"),
        ({"t": "number"}, "Column 't' held numbers .* now holds 'a b c'"),
        ({"code": "date"}, "Column 'code' held dates .* now holds"),
    ):
        with pytest.raises(ValueError, match=message):
            TablePreprocessor(kinds=kinds).fit(data)
    with pytest.raises(ValueError, match="scale must be one of standard, robust, but got 'log'"):
        TablePreprocessor(scale="log").fit(data)


def test_states_of_version_1():
    """As files of the first version hold them."""
    column = {"name": "a", "kind": "number", "median": 2.0, "had_gaps": True}
    town = {"name": "c", "kind": "category", "frequent": ["u", "v"], "n_rare": 3}
    state = {"min_frequency": 5, "max_categories": 50, "named": True, "columns": [column, town]}
    table = TablePreprocessor.from_dict(state)
    out = table.transform(pl.DataFrame({"a": [1e308, None], "c": ["v", "w"]}))
    assert out.tolist() == [[1e308, 0, 0, 1, 0], [2, 1, 0, 0, 1]]
    # dates were numbers then: days since 1970
    days = table.transform(pl.DataFrame({"a": [datetime.date(1970, 1, 4)], "c": ["u"]}))
    assert days[0, 0] == 3


def test_dates_of_python_in_pandas():
    frame = pd.DataFrame({"d": [datetime.date(2020, 1, 1), None, datetime.date(2020, 1, 3)]}, dtype=object)
    table = TablePreprocessor().fit(frame)
    assert table.kinds_ == ["date"]
    assert table.transform(frame)[:, 0].tolist() == [0, 0, 2]


@parametrize_with_checks([TablePreprocessor(scale="robust", min_frequency=1, n_components=2)])
def test_scikit_learn_checks_of_the_options(estimator, check):
    check(estimator)


def people(frame, n=120):
    rng = np.random.default_rng(0)
    age, town = rng.uniform(20, 70, n), rng.choice(["Bonn", "Ulm", "Rom"], n)
    score = (age - 45) / 15 + 2.0 * (town == "Rom") - 0.7
    age[::9] = np.nan
    data = {"age": age, "town": town.tolist(), "odd": ["same"] * n}
    return frame(data), score


@FRAMES
def test_pipelines_in_searches(frame):
    x, score = people(frame)
    labels = np.where(score > 0, "high", "low")
    y = pd.Series(labels) if frame is pd.DataFrame else pl.Series(labels.tolist())
    pipeline = make_pipeline(TablePreprocessor(), EllipticClassifier(**QUICK))
    grid = {
        "ellipticclassifier__method": ["elliptic", "erm"],
        "tablepreprocessor__min_frequency": [1],
    }
    search = GridSearchCV(pipeline, grid, cv=3).fit(x, y)
    assert search.best_score_ > 0.8
    assert set(search.predict(x)) == {"high", "low"}
    regression = make_pipeline(TablePreprocessor(), EllipticRegressor(**QUICK))
    assert cross_val_score(regression, x, score, cv=3).mean() > 0.7


@FRAMES
def test_estimators_take_frames_of_numbers(frame):
    x = frame({"a": np.arange(20.0), "b": np.arange(20.0) % 3})
    model = EllipticRegressor(**QUICK).fit(x, np.arange(20.0))
    assert model.feature_names_in_.tolist() == ["a", "b"]
    assert model.predict(x).shape == (20,)
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame({"b": [1.0], "a": [2.0]}))


@FRAMES
@pytest.mark.parametrize("estimator", [EllipticClassifier, EllipticRegressor], ids=["classes", "numbers"])
def test_text_and_gaps_lead_to_the_preprocessor(frame, estimator):
    """The message names the columns, and the line that it says to write works."""
    rows = frame({"town": ["A", "B"] * 20, "area": [1.0, None, 3.0, 4.0] * 10, "rooms": list(range(40))})
    target = [0, 1] * 20
    with pytest.raises(ValueError, match="could not convert string") as error:
        estimator(**QUICK).fit(rows, target)
    told = str(error.value)
    assert "column 'town' holds text and column 'area' holds gaps" in told
    assert "rooms" not in told
    code = "\n".join(line.strip() for line in told.splitlines() if line.startswith("    "))
    names = {estimator.__name__: estimator}
    exec(code.replace("(...)", "(max_iter=1)"), names)
    assert names["model"].fit(rows, target).predict(rows).shape == (40,)


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([[1.0, np.nan], [2.0, 3.0]] * 5, "column 'x1' holds gaps"),
        ([["a", "b"], ["c", "d"]] * 5, "columns 'x0', 'x1' hold text"),
        ([[f"v{j}" for j in range(8)]] * 10, "columns 'x0', 'x1', 'x2', 'x3', 'x4' and 3 more hold text"),
        (pd.DataFrame({"since": [DAY] * 10, "rooms": list(range(10))}), "column 'since' holds times"),
    ],
    ids=["gaps", "text", "many", "times"],
)
def test_what_the_preprocessor_would_take_is_named(rows, told):
    with pytest.raises((TypeError, ValueError), match="TablePreprocessor") as error:
        EllipticClassifier(**QUICK).fit(rows, [0, 1] * 5)
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("rows", "target"),
    [
        ([[1.0, np.inf], [2.0, 3.0]] * 5, [0.0, 1.0] * 5),
        ([1.0, 2.0] * 5, [0.0, 1.0] * 5),
        ([[1.0], [2.0]] * 5, [np.nan, 1.0] * 5),
        ([[1.0], [2.0]] * 5, ["a", "b"] * 5),
        (np.array([[{}], [2.0]] * 5, dtype=object), [0.0, 1.0] * 5),
    ],
    ids=["infinity", "flat", "gap-in-target", "text-in-target", "objects"],
)
def test_other_faults_do_not_lead_there(rows, target):
    with pytest.raises((TypeError, ValueError)) as error:
        EllipticRegressor(**QUICK).fit(rows, target)
    assert "TablePreprocessor" not in str(error.value)


@pytest.mark.bad_input
@pytest.mark.usefixtures("own_checks")
@pytest.mark.parametrize(
    "setting", [{"min_frequency": 0.05}, {"max_categories": "3"}, {"n_components": 0}, {"kinds": ["a"]}]
)
def test_settings_are_checked(setting):
    with pytest.raises((TypeError, ValueError)):
        TablePreprocessor(**setting).fit([[1.0], [2.0]])
