"""Checkpoints of several processes: resume in any number of them, never half-written."""

import pytest
import torch
import torch.distributed
from safetensors import SafetensorError
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
        torch.testing.assert_close(case["weights"], expected, rtol=1e-9, atol=1e-12)
        assert case["found"][:2] == (3, {"epoch": 1})
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
    save_checkpoint(tmp_path, *made[:2], step=1, generators={"noise": noise})
    return tmp_path


def test_nothing_there(tmp_path):
    assert load_checkpoint(tmp_path / "nowhere", *make()[:2]) is None


def test_an_interrupted_save_leaves_the_checkpoint_before(saved, monkeypatch):
    made = make()
    train(made, [0, 1])

    def killed(*_args, **_options):
        raise KeyboardInterrupt

    for place in (module.state_dict_saver, module.Path):
        with monkeypatch.context() as patch:
            patch.setattr(place, "save" if place is module.state_dict_saver else "rename", killed)
            with pytest.raises(KeyboardInterrupt):
                save_checkpoint(saved, *made[:2], step=2)
        assert (saved / ".writing").is_dir()
        assert load_checkpoint(saved, *make(seed=1)[:2]).step == 1
    save_checkpoint(saved, *made[:2], step=2)
    assert load_checkpoint(saved, *make(seed=1)[:2]).step == 2
    assert [item.name for item in saved.iterdir()] == ["checkpoint-000002"]


def test_as_many_are_kept_as_asked_for(saved):
    made = make()
    for step in range(2, 6):
        save_checkpoint(saved, *made[:2], step=step, keep=2)
    assert sorted(item.name for item in saved.iterdir()) == ["checkpoint-000004", "checkpoint-000005"]


def wider():
    model = make(seed=1)[2]
    model.model[0] = nn.Linear(3, 6).double()
    return model, torch.optim.Adam(model.parameters()), model


@pytest.mark.parametrize("other", [wider, lambda: make(optimizer="sgd", seed=1)])
def test_what_does_not_fit_changes_nothing(saved, other):
    made = other()
    before = weights(made)
    with pytest.raises(ValueError, match=r"model|optimizer"):
        load_checkpoint(saved, *made[:2])
    assert all(torch.equal(a, b) for a, b in zip(weights(made), before, strict=True))
    assert not made[1].state


def test_a_stream_that_was_not_saved(saved):
    with pytest.raises(ValueError, match="order"):
        load_checkpoint(saved, *make()[:2], generators={"order": rank_generator(0)})


def test_damage_is_not_loaded(saved):
    (file,) = saved.rglob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-9])
    made = make(seed=1)
    before = weights(made)
    with pytest.raises(SafetensorError):
        load_checkpoint(saved, *made[:2])
    assert all(torch.equal(a, b) for a, b in zip(weights(made), before, strict=True))


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
