"""Frames: what each kind of column becomes, and pipelines in searches with pandas and polars."""

import datetime
import json

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline

from elliptica.estimators import EllipticClassifier, EllipticRegressor, TablePreprocessor

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
    days = (DAY - datetime.datetime(1970, 1, 1)) / datetime.timedelta(days=1)
    by_name = dict(zip(table.get_feature_names_out(), out.T.tolist(), strict=True))
    assert table.kinds_ == ["number", "category", "number", "number", "number"]
    assert by_name == {
        "age": [20, 40, 40, 70],
        "owner": [1, 0, 1, 1],
        "since": [days, days, days + 2, days],
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
    assert table.kinds_ == ["category", "number", "number", "category", "number"]
    out = dict(zip(table.get_feature_names_out(), table.transform(frame).T.tolist(), strict=True))
    assert out["code_1"] == [1, 0, 1, 0]
    assert out["count"] == [1, 2, 2, 3]
    assert out["flag"] == [1, 1, 0, 1]
    assert out["zone"] == [18262 - 1 / 24] * 4  # as UTC


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
    assert table.kinds_ == ["category", "category", "number", "number", "number", "number"]
    assert table.transform(frame)[0, :4].tolist() == [1.0, 0.5, 1.5, 0.0]


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
