"""The notebooks are their tutorials, and run in a real kernel."""

import json

import pytest

import notebooks


def test_cells_of_a_page():
    page = (
        "# Title\n```python\nx = 1\n```\n```text\n1\n```\n```console\n$ echo a\na\n$ false\nerror: no\n```\n"
    )
    code = ["x = 1", "%%sh\necho a", "%%sh --no-raise-error\nfalse"]
    assert list(notebooks.cells(page)) == [("markdown", "# Title"), *(("code", cell) for cell in code)]


@pytest.mark.parametrize("name", notebooks.NAMES)
def test_notebook_has_the_text_of_its_page_and_outputs(name):
    stored = json.loads((notebooks.FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
    page = (notebooks.FOLDER / f"{name}.md").read_text(encoding="utf-8")
    found = [(cell["cell_type"], "".join(cell["source"])) for cell in stored["cells"]]
    assert found == [("code", notebooks.INSTALL), *notebooks.cells(page)]
    printed = ["".join(o["text"]) for cell in stored["cells"] for o in cell.get("outputs", [])]
    assert len(printed) >= 2
    assert not any("Traceback" in text for text in printed)


@pytest.mark.slow
@pytest.mark.parametrize("name", notebooks.NAMES)
def test_notebook_runs(name):
    pytest.importorskip("nbclient", reason="needs nbclient and ipykernel, which make test-all installs")
    pytest.importorskip("ipykernel")
    stored = json.loads((notebooks.FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
    ran = notebooks.run(notebooks.make(name))
    prints = [[bool(cell.get("outputs")) for cell in each["cells"]] for each in (stored, ran)]
    assert prints[0] == prints[1]
