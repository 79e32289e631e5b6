"""Executes the notebooks of `examples/`, and stores what their cells show.

    python tools/notebook.py

It needs nbclient and ipykernel, which the extra `dev` installs. The tests execute them too.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[1] / "examples"
SECONDS = 120
"""How long a cell may take."""


def executed(path: Path) -> nbformat.NotebookNode:
    """A notebook with new outputs; it runs in an empty folder.

    Raises:
        CellExecutionError: a cell failed.
    """
    book = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            book,
            timeout=SECONDS,
            kernel_name="python3",
            resources={"metadata": {"path": folder}},
            record_timing=False,
        )
        client.execute()
    book.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    for cell in book.cells:
        cell.metadata = {}
    return book


if __name__ == "__main__":
    for notebook in sorted(EXAMPLES.glob("*.ipynb")):
        nbformat.write(executed(notebook), notebook)
        print(f"executed {notebook.name}")
    sys.exit(0)
