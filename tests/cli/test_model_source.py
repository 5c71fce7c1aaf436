"""Models and data that the commands read or train, and wrong ones."""

import numpy as np
import pytest
import torch
from torch import nn

from elliptica.cli.model_source import Samples, SourceError, load_model, load_samples, train_network
from table_cases import npz_table


@pytest.mark.parametrize("method", ["erm", "mixup", "elliptic"])
def test_trained_network_takes_raw_inputs(method, tmp_path):
    samples = load_samples(str(npz_table(tmp_path / "data.npz", n=200)))
    shifted = Samples("raw", 100 + 7 * samples.x, samples.y)
    model = train_network(shifted, method, n_steps=600)
    error = (model(shifted.x) - shifted.y).detach().square().mean()
    assert float(error) < 0.2 * float(shifted.y.var())


def test_digits_need_scikit_learn():
    pytest.importorskip("sklearn")
    samples = load_samples("digits")
    assert samples.x.shape == (1000, 64)
    assert samples.n_outputs == 10


@pytest.mark.bad_input
def test_wrong_files(tmp_path):
    with pytest.raises(SourceError, match=r"no file nowhere\.npz.*two-moons, digits"):
        load_samples("nowhere.npz")
    (tmp_path / "text.npz").write_text("x,y")
    with pytest.raises(SourceError, match=r"is not an \.npz file"):
        load_samples(str(tmp_path / "text.npz"))
    np.savez(tmp_path / "objects.npz", x=np.array([object()]), y=np.zeros(1))
    with pytest.raises(SourceError, match="without objects"):
        load_samples(str(tmp_path / "objects.npz"))
    np.savez(tmp_path / "names.npz", inputs=np.zeros((3, 2)))
    with pytest.raises(SourceError, match="must hold arrays x and y, but holds inputs"):
        load_samples(str(tmp_path / "names.npz"))
    np.savez(tmp_path / "nan.npz", x=np.full((3, 2), np.nan), y=np.zeros(3))
    with pytest.raises(SourceError, match="x holds NaN"):
        load_samples(str(tmp_path / "nan.npz"))
    np.savez(tmp_path / "narrow.npz", x=np.zeros((3, 0)), y=np.zeros(3))
    with pytest.raises(SourceError, match=r"at least two rows and one feature, but has shape \(3, 0\)"):
        load_samples(str(tmp_path / "narrow.npz"))
    np.savez(tmp_path / "rows.npz", x=np.zeros((3, 2)), y=np.zeros(4))
    with pytest.raises(SourceError, match="for each of the 3 rows"):
        load_samples(str(tmp_path / "rows.npz"))
    np.savez(tmp_path / "labels.npz", x=np.zeros((3, 2)), y=np.array([-1, 0, 1]))
    with pytest.raises(SourceError, match="must be at least 0, but the smallest is -1"):
        load_samples(str(tmp_path / "labels.npz"))
    np.savez(tmp_path / "half.npz", x=np.zeros((3, 2)), y=np.zeros(3), x_test=np.zeros((3, 2)))
    with pytest.raises(SourceError, match="only one of x_test and y_test"):
        load_samples(str(tmp_path / "half.npz"))


@pytest.mark.bad_input
def test_wrong_test_parts(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(6, 2)), np.array([0, 1, 0, 1, 0, 1])
    np.savez(tmp_path / "width.npz", x=x, y=y, x_test=x[:, :1], y_test=y)
    with pytest.raises(SourceError, match=r"rows of shape \(2,\) as x has, but has \(1,\)"):
        load_samples(str(tmp_path / "width.npz"))
    np.savez(tmp_path / "kind.npz", x=x, y=y, x_test=x, y_test=y.astype(float))
    with pytest.raises(SourceError, match="the other does not"):
        load_samples(str(tmp_path / "kind.npz"))
    np.savez(tmp_path / "group.npz", x=x, y=y, group_test=y)
    with pytest.raises(SourceError, match="group_test but no x_test"):
        load_samples(str(tmp_path / "group.npz"))
    np.savez(tmp_path / "short.npz", x=x, y=y, x_test=x, y_test=y, group_test=y[:2])
    with pytest.raises(SourceError, match="one entry for each of the 6 rows"):
        load_samples(str(tmp_path / "short.npz"))
    np.savez(tmp_path / "words.npz", x=x, y=y, x_test=x, y_test=y, group_test=np.array(list("aabbcc")))
    assert load_samples(str(tmp_path / "words.npz")).test_group == list("aabbcc")
    whole = (tmp_path / "words.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    np.save(tmp_path / "single.npy", x)
    for name in ("cut.npz", "single.npy"):
        with pytest.raises(SourceError, match=r"is not an \.npz file"):
            load_samples(str(tmp_path / name))


@pytest.mark.bad_input
def test_wrong_models(model_file):
    with pytest.raises(SourceError, match=r"must be package\.module:name"):
        load_model("model.pt")
    with pytest.raises(SourceError, match="No module 'no_such_file'"):
        load_model("no_such_file:make")
    with pytest.raises(SourceError, match="my_model_file has no 'absent'"):
        load_model("my_model_file:absent")
    with pytest.raises(SourceError, match=r"returned str, but must return a torch\.nn\.Module"):
        load_model("my_model_file:broken")
    with pytest.raises(SourceError, match=r"needs_more\(\) failed: TypeError.*without arguments"):
        load_model("my_model_file:needs_more")
    (model_file / "bad_syntax_file.py").write_text("def (")
    with pytest.raises(SourceError, match="cannot be imported: SyntaxError"):
        load_model("bad_syntax_file:make")
    with pytest.raises(SourceError, match="is int"):
        load_model("my_model_file:number")
    torch.save(nn.Linear(2, 2).state_dict(), model_file / "other.pt")
    with pytest.raises(SourceError, match="do not fit the model"):
        load_model("my_model_file:make", model_file / "other.pt")
    with pytest.raises(SourceError, match="There is no file"):
        load_model("my_model_file:make", model_file / "absent.pt")
    torch.save(nn.Linear(2, 2), model_file / "pickled.pt")
    with pytest.raises(SourceError, match="cannot be read safely"):
        load_model("my_model_file:make", model_file / "pickled.pt")


@pytest.mark.bad_input
def test_labels_that_are_no_class_numbers(tmp_path):
    """A billion outputs of a network fit into no memory."""
    file = tmp_path / "data.npz"
    np.savez(file, x=np.ones((4, 2)), y=np.array([0, 1, 2, 10**9]))
    with pytest.raises(SourceError, match="the largest is 1,000,000,000"):
        load_samples(str(file))
