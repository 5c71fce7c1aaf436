"""A network whose rows are shared out among real processes: results of one process, for every objective."""

import copy

import pytest
import torch
import torch.distributed

import split_cases
from elliptica.distributed import Ranks
from elliptica.lab.training import split_rows
from processes import once

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed"),
    pytest.mark.filterwarnings("ignore::elliptica.EllipticWarning"),
]


@pytest.fixture(scope="module", params=[2, 3])
def found(request, tmp_path_factory):
    return once(tmp_path_factory, split_cases.run, request.param)


@pytest.fixture(scope="module")
def expected():
    return split_cases.cases()


def same(a, b):
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_every_objective_is_that_of_one_process(found, expected):
    for one in found:
        assert set(one["cases"]) == set(expected)
        for name, values in expected.items():
            assert len(values) == len(one["cases"][name])
            for a, b in zip(one["cases"][name], values, strict=True):
                assert torch.allclose(a.double(), b.double(), rtol=1e-9, atol=1e-11), name


def test_derivatives_of_collectives(found):
    for one in found:
        for a, b in zip(*one["derivatives"], strict=True):
            same(a, b)


def test_what_cannot_be_split_is_refused(found):
    for one in found:
        assert one["refusals"] == {"scalar", "rows", "nested", "instance norm", "ddp", "batch norm of one"}


def test_one_process_is_left_alone():
    model = split_cases.network()
    with split_rows(model):
        assert "forward" not in model.__dict__


def test_the_model_is_restored_and_copies_stay_whole():
    """No process group is needed to see that nothing is left behind."""
    model = split_cases.normed()
    keys = set(model.state_dict())
    with split_rows(model, Ranks(0, 2)):
        assert copy.deepcopy(model).forward.__self__ is not model
        assert set(model.state_dict()) == keys
    assert "forward" not in model.__dict__
    assert "forward" not in model[1].__dict__
    assert model(split_cases.batch()[0]).shape == (split_cases.ROWS, 4)
