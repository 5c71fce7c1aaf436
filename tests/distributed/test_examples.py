"""The torchrun examples: they learn, and go on in another number of processes."""

import re
import runpy
import socket
import subprocess
from pathlib import Path

import pytest
import torch.distributed as dist

from processes import torchrun

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(not dist.is_available(), reason="torch was built without distributed"),
]


def losses(printed):
    return {int(epoch): float(loss) for epoch, loss in re.findall(r"epoch (\d+): .* (\d+\.\d+)", printed)}


@pytest.fixture
def alone(monkeypatch):
    """This process is all that there is, as if ``torchrun --nproc-per-node 1`` had started it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0}
    for name, value in place.items():
        monkeypatch.setenv(name, str(value))
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", ["torchrun_ddp", "torchrun_fsdp"])
def test_examples_learn_and_go_on(name, tmp_path, capsys):
    script = EXAMPLES / f"{name}.py"
    process = subprocess.Popen(**torchrun(script, tmp_path, 4))
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    first = losses(out)
    assert list(first) == [0, 1, 2, 3]
    assert first[3] < first[0]
    runpy.run_path(str(script))["main"](str(tmp_path), 6)
    second = losses(capsys.readouterr().out)
    assert list(second) == [4, 5]
    assert max(second.values()) < first[0]
