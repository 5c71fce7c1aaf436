"""Checkpoints of several processes: go on in any number of them, never half-written, damage is told."""

import hashlib
import json
import os

import numpy as np
import pytest
import torch
import torch.distributed
from torch import nn

import checkpoint_cases
from checkpoint_cases import OPTIMIZERS, make, train, weights
from elliptica.distributed import checkpoint as module
from elliptica.distributed import load_checkpoint, rank_generator, save_checkpoint
from processes import together

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="torch was built without distributed"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def found(folder):
    for optimizer in OPTIMIZERS:
        checkpoint_cases.save(folder / f"plain-{optimizer}", "plain", optimizer)
    return together(checkpoint_cases.Together(folder), 2)


def uninterrupted(optimizer):
    made = make("plain", optimizer)
    train(made, range(5))
    return weights(made)


def same(a, b):
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_goes_on_under_another_wrapper_in_another_number_of_processes(found, folder, optimizer):
    expected = uninterrupted(optimizer)
    cases = [case for one in found for name, case in one.items() if name[-1] == optimizer and len(name) == 3]
    cases = [case for case in cases if isinstance(case, dict)]
    assert len(cases) == 10
    cases += [
        checkpoint_cases.go_on(folder / f"{w}-{optimizer}", "plain", optimizer) for w in ("ddp", "fsdp")
    ]
    for case in cases:
        same(case["weights"], expected)
        assert case["found"][:2] == (3, {"epoch": 1})
        same(case["auto"], cases[0]["auto"])
    assert [case["found"][2] for case in cases[-2:]] == [2, 2]


@pytest.mark.slow
def test_streams_go_on_or_are_new(found, folder):
    for optimizer in OPTIMIZERS:
        for one in found:
            assert torch.equal(one["fsdp", "fsdp", optimizer]["noise"], one["noise", "fsdp", optimizer])
        first, second = (one["plain", "ddp", optimizer]["noise"] for one in found)
        alone = checkpoint_cases.go_on(folder / f"fsdp-{optimizer}", "plain", optimizer)["noise"]
        again = checkpoint_cases.go_on(folder / f"fsdp-{optimizer}", "plain", optimizer)["noise"]
        assert torch.equal(alone, again)
        seen = [first, second, alone, *(one["noise", "fsdp", optimizer] for one in found)]
        assert all(not torch.equal(a, b) for i, a in enumerate(seen) for b in seen[:i])


@pytest.mark.slow
def test_each_process_writes_its_shards_without_a_pickle(found):
    assert len([name for name in found[0]["files"] if name.endswith(".safetensors")]) == 2
    assert {name.rpartition(".")[2] for name in found[0]["files"]} == {"safetensors", "json"}


@pytest.fixture
def saved(tmp_path):
    """A folder with a checkpoint after one step."""
    made, noise = make(), rank_generator(0)
    train(made, [0])
    path = save_checkpoint(tmp_path, *made[:2], step=1, generators={"noise": noise})
    return tmp_path, path


def assert_refused(folder, match, made=None, **options):
    made = made or make(seed=1)
    before = weights(made)
    with pytest.raises(ValueError, match=match):
        load_checkpoint(folder, *made[:2], **options)
    assert made[2].auto_sigma is None
    assert all(torch.equal(a, b) for a, b in zip(weights(made), before, strict=True))


def test_nothing_there():
    assert load_checkpoint("no-such-folder", *make()[:2]) is None


def test_an_interrupted_save_leaves_the_checkpoint_before(saved, monkeypatch):
    folder, path = saved
    made = make()
    train(made, [0, 1])

    def killed(*_):
        raise KeyboardInterrupt

    for name in ("finish", "digests"):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, killed)
            with pytest.raises(KeyboardInterrupt):
                save_checkpoint(folder, *made[:2], step=2)
        assert (folder / ".writing").is_dir()
        assert load_checkpoint(folder, *make(seed=1)[:2]).step == 1
    assert save_checkpoint(folder, *made[:2], step=2) != path
    assert load_checkpoint(folder, *make(seed=1)[:2]).step == 2
    assert [item.name for item in folder.iterdir()] == ["checkpoint-000002"]


def test_as_many_are_kept_as_asked_for(saved):
    folder, _ = saved
    made = make()
    train(made, [0])
    for step in range(2, 6):
        save_checkpoint(folder, *made[:2], step=step, keep=2)
    assert sorted(item.name for item in folder.iterdir()) == ["checkpoint-000004", "checkpoint-000005"]
    with pytest.raises(ValueError, match="keep must be at least 1"):
        save_checkpoint(folder, *made[:2], step=9, keep=0)


def spoil(path, kind):
    (file,) = path.glob("*.safetensors")
    content = bytearray(file.read_bytes())
    if kind == "cut":
        file.write_bytes(content[:-9])
    elif kind == "flipped":
        content[-3] ^= 1
        file.write_bytes(content)
    elif kind == "missing":
        file.unlink()
    elif kind == "added":
        (path / "more.safetensors").write_bytes(content)
    elif kind == "description":
        (path / "checkpoint.json").write_text("{")
    elif kind == "entries":
        (path / "checkpoint.json").write_text("{}")


@pytest.mark.parametrize("kind", ["cut", "flipped", "missing", "added", "description", "entries"])
def test_damage_is_told_and_changes_nothing(saved, kind):
    folder, path = saved
    spoil(path, kind)
    assert_refused(folder, "checkpoint-000001 is damaged .* Move it away")


def test_another_format_is_told(saved):
    folder, path = saved
    description = json.loads((path / "checkpoint.json").read_text())
    (path / "checkpoint.json").write_text(json.dumps({**description, "format": 7}))
    assert_refused(folder, "has format 7")


def test_what_does_not_fit_is_told(saved):
    folder, _ = saved
    wide = make()
    wide[2].model[0] = nn.Linear(3, 6).double()
    wide = (wide[2], torch.optim.Adam(wide[2].parameters()), wide[2])
    assert_refused(folder, r"'model.model.0.weight' has shape \(5, 3\) there and \(6, 3\) here", wide)
    assert_refused(
        folder, "'optimizer.param_groups.model.0.bias.amsgrad' is only there", make(optimizer="sgd", seed=1)
    )
    assert_refused(folder, "does not hold the random streams order", generators={"order": rank_generator(0)})


def test_what_json_cannot_hold_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(TypeError):
        save_checkpoint(tmp_path, *make()[:2], step=1, extra={"model": nn.Linear(1, 1)})
    assert not list(tmp_path.iterdir())


def test_names_are_lazy_and_numbered(tmp_path):
    import elliptica.distributed

    assert module.next_name(tmp_path) == "checkpoint-000001"
    assert "save_checkpoint" in dir(elliptica.distributed)
    with pytest.raises(AttributeError, match="no attribute 'sharding'"):
        _ = elliptica.distributed.sharding


@pytest.mark.parametrize(
    ("entry", "value", "match"),
    [
        ("step", "three", "step or world_size is not a count"),
        ("world_size", 0, "step or world_size is not a count"),
        ("files", [], "files or values are not by name"),
        ("extra", None, "extra is not a dict"),
        ("step", 2, "checkpoint.json has changed since it was written"),
        ("extra", {"epoch": 7}, "checkpoint.json has changed since it was written"),
    ],
)
def test_a_changed_description_is_told(saved, entry, value, match):
    folder, path = saved
    file = path / "checkpoint.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), entry: value}))
    assert_refused(folder, match)


def test_a_pipe_among_the_files_is_told(saved):
    folder, path = saved
    (shard,) = path.glob("*.safetensors")
    shard.unlink()
    os.mkfifo(shard)
    assert_refused(folder, "not regular files")


def test_tensors_that_fit_their_digest_but_are_none(saved):
    folder, path = saved
    file, description = next(path.glob("*.safetensors")), path / "checkpoint.json"
    file.write_bytes(file.read_bytes()[:-8])
    entries = json.loads(description.read_text())
    entries["files"][file.name] = hashlib.sha256(file.read_bytes()).hexdigest()
    del entries["digest"]  # as in a checkpoint of an earlier version
    description.write_text(json.dumps(entries))
    assert_refused(folder, "is damaged")


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"step": "one"}, TypeError, "step must be an integer"),
        ({"step": 1, "keep": True}, TypeError, "keep must be an integer"),
        ({"step": 1, "extra": [1]}, TypeError, "extra must be a dict"),
        ({"step": 1, "extra": {"w": torch.ones(2)}}, TypeError, "JSON can store"),
        ({"step": 1, "generators": {"noise": 3}}, TypeError, "a int for 'noise'"),
        ({"step": 1, "generators": [torch.Generator()]}, TypeError, "but got list"),
    ],
)
def test_nothing_is_written_for_bad_settings(tmp_path, options, error, match):
    with pytest.raises(error, match=match):
        save_checkpoint(tmp_path / "a", *make()[:2], **options)
    assert not (tmp_path / "a").exists()


def test_folders_that_are_none(tmp_path):
    file = tmp_path / "file"
    file.write_text("x")
    for call in (
        lambda f: save_checkpoint(f, *make()[:2], step=1),
        lambda f: load_checkpoint(f, *make()[:2]),
    ):
        with pytest.raises(NotADirectoryError, match="is a file, but checkpoints need a folder"):
            call(file)
        with pytest.raises(TypeError, match="folder must be the path of a folder"):
            call(None)
    with pytest.raises(OSError, match="No checkpoint can be written"):
        save_checkpoint(file / "a", *make()[:2], step=1)


def test_a_step_of_numpy_is_a_step(tmp_path):
    made = make()
    save_checkpoint(tmp_path, *made[:2], step=np.int64(7))
    assert load_checkpoint(tmp_path, *made[:2]).step == 7


def test_an_optimizer_without_a_step_stays_new(tmp_path):
    """torch takes a step without gradients to read the state: it must not count as one of training."""

    def objective_and_optimizer():
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        return model, torch.optim.Adam(model.parameters(), lr=0.1)

    def trained(model, optimizer):
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 3)).square().sum().backward()
            optimizer.step()
        return model.weight.detach().clone()

    expected = trained(*objective_and_optimizer())
    saved = objective_and_optimizer()
    save_checkpoint(tmp_path / "a", *saved, step=0)
    assert not saved[1].state
    assert torch.equal(trained(*saved), expected)
    resumed = objective_and_optimizer()
    load_checkpoint(tmp_path / "a", *resumed)
    assert torch.equal(trained(*resumed), expected)
    other = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(other.parameters())
    with pytest.raises(ValueError, match="does not fit"):
        load_checkpoint(tmp_path / "a", other, optimizer)
    assert not optimizer.state
