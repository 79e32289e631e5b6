"""The notebook runs from beginning to end, and what it shows is stored in it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from transcripts import ROOT

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def tool() -> Any:
    """The script that executes notebooks."""
    spec = importlib.util.spec_from_file_location("notebook", ROOT / "tools" / "notebook.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shown(cells: list[dict[str, Any]]) -> list[list[str]]:
    """The kinds of output of every cell of code."""
    return [
        sorted({kind for output in cell["outputs"] for kind in output.get("data", {"text": ""})})
        for cell in cells
        if cell["cell_type"] == "code"
    ]


@pytest.mark.filterwarnings("default")  # of Jupyter's own, which are not ours to mend
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_is_stored(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    now = tool().executed(path)
    stored = json.loads(path.read_text(encoding="utf-8"))
    assert shown(now.cells) == shown(stored["cells"])
    text = json.dumps(stored)
    assert "image/png" in text and "round 10/10" in text
    assert str(ROOT) not in text, "a path of this machine is in the outputs"


def test_there_is_a_notebook() -> None:
    assert [path.name for path in NOTEBOOKS] == ["first_steps.ipynb"]
