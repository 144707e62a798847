"""The notebooks of examples/ run from top to bottom, with fewer clients and rounds, and hold their outputs."""

import json
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

FOLDER = Path(__file__).parents[1] / "examples"
SHORTER = {
    "quickstart": {"n_clients=100, test_size=500": "n_clients=8, test_size=60", "ROUNDS = 60": "ROUNDS = 2"},
    "own_data": {"max_epochs=50": "max_epochs=2", "trials=4": "trials=1, seeds=2"},
}
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="examples/ is only in a checkout")


def code(name: str) -> list[dict[str, Any]]:
    cells = json.loads((FOLDER / f"{name}.ipynb").read_text())["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_all_notebooks_are_here() -> None:
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(SHORTER)


@pytest.mark.parametrize("name", SHORTER)
def test_a_notebook_was_saved_with_its_outputs_and_without_errors(name: str) -> None:
    cells = code(name)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert outputs
    assert {output["output_type"] for output in outputs} <= {"execute_result", "display_data", "stream"}
    assert not [output for output in outputs if output.get("name") == "stderr"]
    lines = [line for cell in cells for line in "".join(cell["source"]).splitlines()]
    assert max(map(len, lines)) <= 76  # what the site shows without scrolling


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORTER)
@pytest.mark.filterwarnings("ignore")  # of the kernel's own libraries
def test_a_notebook_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MPLBACKEND", raising=False)  # figures are outputs
    text = (FOLDER / f"{name}.ipynb").read_text()
    for long, short in SHORTER[name].items():
        assert long in text
        text = text.replace(long, short)
    notebook = nbformat.reads(text, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    n_outputs = [len(cell.outputs) for cell in notebook.cells if cell.cell_type == "code"]
    assert n_outputs == [len(cell["outputs"]) for cell in code(name)]
