"""The notebook of examples/ is a valid one, has no outputs of its own, and runs in a kernel of Jupyter's."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[3] / "examples"
LIMIT_S = 300
"""For a kernel to start, and for one cell: both take seconds on a quiet machine."""


@pytest.fixture
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the kernel's files and captured cards out of the home folder; it has our own programs."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.usefixtures("own_folders")
def test_each_cell_of_the_notebook_runs_and_shows_something(tmp_path: Path) -> None:
    notebook = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] for cell in cells)
    resources = {"metadata": {"path": str(EXAMPLES)}}
    NotebookClient(
        notebook, timeout=LIMIT_S, startup_timeout=LIMIT_S, kernel_name="python3", resources=resources
    ).execute()
    assert all(cell.outputs for cell in cells)
    (card,) = (tmp_path / "cache" / "gpusage" / "captured").glob("Sequential-*.card.json")
    assert f"--comment=model={card},batch=64" in str(cells[0].outputs)  # a shell's failure raises nothing
    pages = [output.data.get("text/html", "") for cell in cells for output in cell.outputs if "data" in output]
    assert sum("<table>" in page for page in pages) == 3  # several GPUs, the explanation, the share
