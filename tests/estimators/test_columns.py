"""Tables that estimators accept: columns of any kind, tensors, and the order of columns."""

import datetime
import decimal

import numpy as np
import pytest
import torch

from elliptica.estimators import EllipticClassifier, EllipticRegressor, TablePreprocessor

pd = pytest.importorskip("pandas")

QUICK = {"hidden": (4,), "max_iter": 1, "random_state": 0}
N = 20


@pytest.fixture
def x(rng):
    return rng.normal(size=(N, 4))


@pytest.fixture
def y(x):
    return (x[:, 0] > 0).astype(int)


def test_half_precision_tensors_are_read(x, y):
    half = torch.tensor(x).bfloat16()
    model = EllipticClassifier(**QUICK).fit(half, y)
    assert np.array_equal(model.predict_proba(half), model.predict_proba(half.double().numpy()))


@pytest.mark.bad_input
def test_other_tensors_are_refused(x, y):
    with pytest.raises((TypeError, ValueError)):
        EllipticClassifier(**QUICK).fit(torch.tensor(x).to_sparse(), y)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "columns",
    [range(4), list("abcd"), pd.MultiIndex.from_product([["a", "b"], ["c", "d"]]), [0.5, 1.5, 2.5, 3.5]],
    ids=["numbers", "names", "levels", "floats"],
)
@pytest.mark.parametrize("preprocess", [True, False])
def test_columns_in_another_order_are_refused(x, y, columns, preprocess):
    frame = pd.DataFrame(x, columns=columns)
    model = (TablePreprocessor() if preprocess else EllipticClassifier(**QUICK)).fit(frame, y)
    apply = model.transform if preprocess else model.predict
    apply(frame)
    apply(x)
    with pytest.raises(ValueError, match="same order as they were in fit"):
        apply(frame.iloc[:, ::-1])


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "values",
    [[1 + 2j] * N, [{}] * N, [datetime.time(1)] * N, list(pd.period_range("2020", periods=N, freq="D"))],
    ids=["complex", "dicts", "times", "periods"],
)
def test_a_column_of_other_objects_is_named(x, y, values):
    frame = pd.DataFrame({"a": x[:, 0], "odd": values})
    for estimator in (EllipticClassifier(**QUICK), TablePreprocessor()):
        with pytest.raises(TypeError, match=r"Column 'odd' holds .* Convert the column, or drop it"):
            estimator.fit(frame, y)


@pytest.mark.bad_input
def test_real_targets_must_be_numbers(x):
    days = pd.Series(pd.date_range("2020", periods=N, tz="UTC"))
    with pytest.raises(TypeError, match="y must hold numbers, but holds Timestamp"):
        EllipticRegressor(**QUICK).fit(x, days)


def test_decimal_targets_are_numbers(x):
    y = [decimal.Decimal(i) for i in range(N)]
    found = EllipticRegressor(**QUICK).fit(x, y).predict(x)
    assert np.array_equal(found, EllipticRegressor(**QUICK).fit(x, np.arange(N)).predict(x))


def test_strings_of_numpy_are_labels(x, y):
    if not hasattr(np.dtypes, "StringDType"):
        pytest.skip("needs NumPy 2")
    labels = np.array(["no", "yes"], dtype=np.dtypes.StringDType())[y]
    assert EllipticClassifier(**QUICK).fit(x, labels).classes_.tolist() == ["no", "yes"]
