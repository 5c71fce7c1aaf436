"""Names are lazy, noise depends on the step alone, and the examples that need no trainer run."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from elliptica import BridgeMix
from elliptica.integrations.steps import StepNoise

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CPU = torch.device("cpu")


def example(name):
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_importing_the_package_loads_no_trainer():
    heavy = "{'torch', 'lightning', 'transformers', 'accelerate'}"
    result = python(
        "import sys, elliptica.integrations as package; print(set(package.__all__) <= set(dir(package)));"
        f"print({heavy} & set(sys.modules))"
    )
    assert result.stdout.split() == ["True", "set()"], result.stderr


def test_unknown_names_are_refused():
    import elliptica.integrations

    with pytest.raises(AttributeError, match="no attribute 'KerasMixin'"):
        _ = elliptica.integrations.KerasMixin


@pytest.mark.slow
def test_absent_packages_are_named_with_their_extra():
    """Blocked at the import system, so that it does not matter what is installed."""
    result = python(
        "import sys\n"
        "class Blocker:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('lightning', 'transformers'):\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}')\n"
        "sys.meta_path.insert(0, Blocker())\n"
        "import elliptica.integrations as integrations\n"
        "for name in integrations.__all__:\n"
        "    try:\n"
        "        getattr(integrations, name)\n"
        "    except ImportError as error:\n"
        "        print(name, '->', error)\n"
    )
    said = dict(line.split(" -> ") for line in result.stdout.splitlines())
    assert 'pip install "elliptica[lightning]"' in said["EllipticLightningMixin"], result.stderr
    assert 'pip install "elliptica[lightning]"' in said["BridgeMixCallback"]
    assert 'pip install "elliptica[hf]"' in said["EllipticTrainer"]
    assert 'pip install "elliptica[hf]"' in said["EllipticTrainerMixin"]


def first_normals(noise, *step):
    return torch.randn(4, generator=noise.generator(CPU, *step)).tolist()


def test_noise_depends_on_seed_process_step_and_call():
    noise = StepNoise(0)
    seen = [first_normals(noise, 0, 0), first_normals(noise, 0, 0)]  # two calls in one step
    seen += [first_normals(noise, 1, 0), first_normals(noise, 0, 1), first_normals(StepNoise(1), 0, 0)]
    assert all(a != b for i, a in enumerate(seen) for b in seen[:i])


def test_noise_of_a_step_does_not_depend_on_the_steps_before():
    resumed, whole = StepNoise(3), StepNoise(3)
    for step in range(5):
        first_normals(whole, 0, step)
    whole_fifth = first_normals(whole, 0, 5), first_normals(whole, 0, 5)
    assert (first_normals(resumed, 0, 5), first_normals(resumed, 0, 5)) == whole_fifth


def accuracy(model):
    x = torch.randn(500, 20, generator=torch.Generator().manual_seed(7))
    model.eval()
    with torch.no_grad():
        return (model(x).argmax(1) == x[:, :3].argmax(1)).float().mean()


def test_plain_loop():
    assert accuracy(example("plain_loop")()) > 0.7


def test_timm_style_loop(capsys):
    model = example("timm_style_loop")(epochs=3, mixup_off_epoch=2)
    assert {name for name, _ in model.named_parameters()} == {"1.weight", "1.bias"}
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_soft_target_loss_of_the_example_is_cross_entropy(generator):
    loss = runpy.run_path(str(EXAMPLES / "timm_style_loop.py"))["SoftTargetCrossEntropy"]()
    x, y = BridgeMix(num_classes=3)(
        torch.randn(5, 3, generator=generator), torch.tensor([0, 1, 2, 0, 1]), generator=generator
    )
    torch.testing.assert_close(loss(x, y), nn.functional.cross_entropy(x, y))


def test_collate_fn_gives_the_same_batches_on_any_number_of_workers():
    main = example("collate_fn")
    one, two = main(num_workers=0), main(num_workers=2)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert not torch.equal(one[0], one[4])  # the same samples in the second epoch


@pytest.mark.slow
def test_accelerate_loop(tmp_path):
    from accelerate.state import AcceleratorState
    from safetensors.torch import load_file

    AcceleratorState._reset_state(reset_partial_state=True)  # one per process; others may have had one
    model = example("accelerate_loop")(str(tmp_path))
    saved = load_file(tmp_path / "model.safetensors")
    fresh = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))
    fresh.load_state_dict(saved, strict=True)
    assert accuracy(fresh) > 0.7
    assert all(torch.equal(saved[name], value) for name, value in model.state_dict().items())
