"""Names are lazy, noise depends on the step alone, and the examples that need no trainer run."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from elliptica._utils.extras import remedy
from elliptica.integrations.steps import StepNoise

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CPU = torch.device("cpu")


def example(name):
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]


@pytest.mark.slow
def test_the_package_loads_no_trainer_and_names_the_extra_of_an_absent_one():
    """A module that is None in ``sys.modules`` cannot be imported, whatever is installed."""
    code = (
        "import sys, elliptica.integrations as package\n"
        "print({'torch', 'lightning', 'transformers', 'accelerate'} & set(sys.modules))\n"
        "sys.modules |= {'lightning': None, 'transformers': None}\n"
        "for name in package.__all__:\n"
        "    try: getattr(package, name)\n"
        "    except ImportError as error: print(error)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    loaded, *errors = result.stdout.splitlines()
    assert loaded == "set()", result.stderr
    expected = [remedy(extra) for extra in ("lightning", "lightning", "hf", "hf")]
    assert [error.split(": ")[-1] for error in errors] == expected


def first_normals(noise, *step):
    return torch.randn(4, generator=noise.generator(CPU, *step)).tolist()


def test_noise_depends_on_seed_process_step_and_call():
    noise = StepNoise(0)
    seen = [first_normals(noise, 0, 0), first_normals(noise, 0, 0)]  # two calls in one step
    seen += [first_normals(noise, 1, 0), first_normals(noise, 0, 1), first_normals(StepNoise(1), 0, 0)]
    assert all(a != b for i, a in enumerate(seen) for b in seen[:i])
    assert [first_normals(noise, 0, 0), first_normals(noise, 0, 0)] == seen[:2]  # whatever came before


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


def test_collate_fn_gives_the_same_batches_on_any_number_of_workers():
    main = example("collate_fn")
    one, two = main(num_workers=0), main(num_workers=2)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert not torch.equal(one[0], one[4])  # the same samples in the second epoch


@pytest.mark.slow
@pytest.mark.parametrize("name", ["accelerate_loop", "fabric_loop"])
def test_loops_of_other_libraries_save_the_plain_model(name, tmp_path):
    if name == "fabric_loop":
        pytest.importorskip("lightning")
        model = example(name)(tmp_path / "model.pt")
        saved = torch.load(tmp_path / "model.pt", weights_only=True)
    else:
        from accelerate.state import AcceleratorState
        from safetensors.torch import load_file

        AcceleratorState._reset_state(reset_partial_state=True)  # one per process; others may have had one
        model = example(name)(str(tmp_path))
        saved = load_file(tmp_path / "model.safetensors")
    fresh = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))
    fresh.load_state_dict(saved, strict=True)
    assert accuracy(fresh) > 0.7
    assert all(torch.equal(saved[key], value) for key, value in model.state_dict().items())
