"""The reader of published pickles: what it reads, and that it runs nothing."""

import pickle

import numpy as np
import pytest

from elliptica.lab.data import pickles
from elliptica.lab.data.pickles import load_plain_pickle
from pickled import CALLED, Malicious, python2_pickle, trap


def test_python2_pickle_is_read(generator):
    data = np.random.default_rng(0).integers(0, 256, (3, 5), dtype=np.uint8)
    read = load_plain_pickle(python2_pickle(data, [4, 0, 9]), "example")
    assert set(read) == {b"data", b"labels"}
    np.testing.assert_array_equal(read[b"data"], data)
    assert read[b"labels"] == [4, 0, 9]


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.uint8).reshape(3, 4),
        np.asfortranarray(np.arange(12, dtype=np.int64).reshape(3, 4)),
        np.arange(3, dtype=">f4"),
    ],
)
def test_python3_pickles_are_read(array, protocol):
    raw = pickle.dumps({b"data": array, b"labels": [1], "name": "x", b"none": (None, 2.5)}, protocol=protocol)
    read = load_plain_pickle(raw, "example")
    np.testing.assert_array_equal(read[b"data"], array)
    assert read[b"data"].shape == array.shape
    assert read[b"none"] == (None, 2.5)


@pytest.mark.bad_input
@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize(
    ("payload", "named"),
    [
        (Malicious(trap, "run"), "trap"),
        (Malicious(eval, "CALLED.append(1)"), "eval"),
        ({b"data": [Malicious(trap)]}, "trap"),
        (Malicious(getattr, "text", "upper"), "getattr"),
        (Malicious(np.frombuffer, b"12"), "frombuffer"),
        (np.array([trap], dtype=object), "not plain numbers"),
        (Malicious(np.ndarray, (1 << 40,)), "numpy.ndarray as a function"),
        (np.dtype("u1"), "_Dtype"),
    ],
)
def test_malicious_pickles_are_refused_and_not_run(payload, named, protocol, own_checks):
    CALLED.clear()
    raw = pickle.dumps(payload, protocol=protocol)
    with pytest.raises(ValueError, match="Nothing of it was run") as error:
        load_plain_pickle(raw, "evil.pkl")
    assert named in str(error.value)
    assert "evil.pkl" in str(error.value)
    assert CALLED == []


@pytest.mark.bad_input
def test_the_ordinary_unpickler_would_have_run_it(own_checks):
    """The test above has teeth."""
    CALLED.clear()
    raw = pickle.dumps({b"data": Malicious(trap, "run")}, protocol=2)
    pickle.loads(raw)
    assert CALLED == [("run",)]
    with pytest.raises(ValueError, match=r"it calls pickled\.trap"):
        load_plain_pickle(raw, "evil.pkl")
    assert CALLED == [("run",)]


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "name", ["c_codecs\nencode\n", "cnumpy\ndtype\n", "cnumpy.core.multiarray\n_reconstruct\n"]
)
def test_a_pickle_cannot_change_the_reader(name, own_checks):
    """A pickle may set attributes of what it is given: that must not reach the next pickle."""
    state = b"N}X\x0c\x00\x00\x00__defaults__X\x03\x00\x00\x00xyz\x85s\x86b"
    before = {key: getattr(value, "__defaults__", None) for key, value in vars(pickles).items()}
    with pytest.raises(ValueError, match="Nothing of it was run"):
        load_plain_pickle(b"\x80\x02" + name.encode() + state + b".", "evil.pkl")
    after = {key: getattr(value, "__defaults__", None) for key, value in vars(pickles).items()}
    assert before == after


@pytest.mark.bad_input
@pytest.mark.parametrize("raw", [b"", b"\x80\x02}", b"not a pickle", b"\x80\x02]."[:2], b"\x80\x02h\x05."])
def test_damaged_pickles_are_refused(raw, own_checks):
    with pytest.raises(ValueError, match="Expected example to be a pickle of plain containers"):
        load_plain_pickle(raw, "example")
