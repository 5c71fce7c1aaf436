"""The torchrun examples: they learn, and go on in another number of processes."""

import re
import subprocess
from pathlib import Path

import pytest
import torch.distributed

from processes import torchrun

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed"),
]


def losses(*arguments, size):
    process = subprocess.Popen(**torchrun(*arguments, size=size))
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return {int(epoch): float(loss) for epoch, loss in re.findall(r"epoch (\d+): .* (\d+\.\d+)", out)}


@pytest.mark.parametrize("name", ["torchrun_ddp", "torchrun_fsdp"])
def test_examples_learn_and_go_on(name, tmp_path):
    first = losses(EXAMPLES / f"{name}.py", tmp_path, 4, size=2)
    assert list(first) == [0, 1, 2, 3]
    assert first[3] < first[0]
    second = losses(EXAMPLES / f"{name}.py", tmp_path, 6, size=1)
    assert list(second) == [4, 5]
    assert max(second.values()) < first[0]
