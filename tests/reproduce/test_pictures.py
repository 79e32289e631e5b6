"""Pictures of a table's runs: drawn where there is something to draw, and always the same."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from gossamer.report import Run
from gossamer.reproduce import pictures

pytest.importorskip("matplotlib")


def run(seed: int, own: bool = False, masks: bool = False) -> Run:
    curves: dict[str, dict[int, float]] = {
        "global_score": {1: 0.4 + 0.1 * seed, 5: 0.6},
        **{name: {1: 1e6, 5: 5e6} for name in ("up", "down")},
        "density": {1: 1.0, 5: 0.5},
    }
    if own:
        curves["personal_mean"] = curves["global_score"]
        curves["personal_density"] = {5: 0.3}
    if masks:
        curves["mismatch"] = {1: 0.3, 5: 0.1}
    layers = {"conv1": {"mismatch": {1: 0.2, 5: 0.4}}} if masks else {}
    densities = [0.1, 0.3, 0.2] if own else []
    return Run("folder", {"seed": seed}, curves=curves, layers=layers, densities=densities)


def drawn(folder: Path, **rows: list[Run]) -> dict[str, str]:
    return {path.stem: path.read_text() for path in pictures.draw(rows, folder)}


def test_only_what_runs_have_is_drawn(tmp_path: Path) -> None:
    plain = drawn(tmp_path / "a", dense=[run(0), run(1)])
    assert plain.keys() == {"sparsity", "traffic"}
    assert drawn(tmp_path / "b", own=[run(0, own=True)]).keys() == {
        "sparsity",
        "clients",
        "traffic",
    }
    masks = drawn(tmp_path / "c", moving=[run(0, masks=True)], dense=[run(0)])
    assert masks.keys() == {"mismatch", "layers", "sparsity", "traffic"}
    assert "conv1" in masks["mismatch"] and "moving" in masks["traffic"]
    assert "moving" in masks["layers"] and "conv1" in masks["layers"]


def test_the_mismatch_of_the_server_is_drawn_beside_that_of_clients(tmp_path: Path) -> None:
    both = run(0, masks=True)
    far = dataclasses.replace(both, curves={**both.curves, "client_mismatch": {1: 0.9, 5: 0.8}})
    pictures_of = [drawn(tmp_path / n, row=[r])["mismatch"] for n, r in (("a", both), ("b", far))]
    lines = [text.count('<g id="line2d_') for text in pictures_of]
    assert lines[1] > lines[0]


def test_the_same_runs_give_the_same_files(tmp_path: Path) -> None:
    first, second = (
        drawn(tmp_path / name, own=[run(0, own=True), run(1, own=True)]) for name in "ab"
    )
    assert first == second
