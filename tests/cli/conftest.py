"""A model of the user's own, for the commands that take one."""

import pytest


@pytest.fixture
def model_file(tmp_path, monkeypatch):
    """A file with a user's model, in the folder where the command is started."""
    (tmp_path / "my_model_file.py").write_text(
        "from torch import nn\n"
        "def make():\n    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))\n"
        "number = 3\n"
        "def needs_more(width):\n    return nn.Linear(3, width)\n"
        "def broken():\n    return 'no model'\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path
