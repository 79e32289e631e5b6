"""Writes the tables of docs/robustness.md from results/robust.json.

`tools/results.py` puts them into their places.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
STUDY = ROOT / "results" / "robust.json"
NAMES = {"fedavg": "FedAvg", "spafl": "SpaFL", "spdst": "SPDST", "fedpm": "FedPM"}


def study() -> list[dict[str, Any]]:
    """The runs of the study."""
    runs: list[dict[str, Any]] = json.loads(STUDY.read_text(encoding="utf-8"))["runs"]
    return runs


def tables() -> str:
    """A table for each method: rules down, attacks across, accuracy in percent."""
    runs = study()
    cases = list(dict.fromkeys((run["attack"], run["hostile"]) for run in runs))
    rules = list(dict.fromkeys(run["aggregate"] for run in runs))
    heads = ["nobody" if a == "none" else f"{a} {share:.0%}" for a, share in cases]
    parts = []
    for method in dict.fromkeys(run["method"] for run in runs):
        cells = {
            (run["aggregate"], run["attack"], run["hostile"]): cell(run)
            for run in runs
            if run["method"] == method
        }
        lines = [
            f"| {NAMES[method]} | " + " | ".join(heads) + " |",
            "|---" * (len(heads) + 1) + "|",
            *(
                f"| `{rule}` | " + " | ".join(cells.get((rule, *case), "") for case in cases) + " |"
                for rule in rules
            ),
        ]
        parts.append("\n".join(lines))
    error = 100 * pooled_error(runs)
    if missing(runs):
        parts.append(f"{missing(runs)} cells are not measured yet.")
    parts.append(
        "A star: the limit refused at least one hostile reply. The standard error of a cell is "
        f"{error:.1f} points,\npooled over all cells; differences below "
        f"{2 * 2**0.5 * error:.0f} points show nothing."
    )
    return "\n\n".join(parts)


def cell(run: dict[str, Any]) -> str:
    """The mean over seeds, with a star if replies were refused."""
    return f"{100 * statistics.fmean(run['accuracy']):.0f}" + "*" * any(run["refused"] or ())


def missing(runs: list[dict[str, Any]]) -> int:
    """Cells without a figure; FedPM's bits cannot be scaled."""
    methods = {run["method"] for run in runs} | NAMES.keys()
    cases = {(run["attack"], run["hostile"]) for run in runs}
    rules = {run["aggregate"] for run in runs}
    scaled = sum(attack == "scaled" for attack, _ in cases)
    return len(rules) * (len(methods) * len(cases) - scaled) - len(runs)


def pooled_error(runs: list[dict[str, Any]]) -> float:
    """The standard error of a mean over seeds, from the variances of all cells."""
    variance = statistics.fmean(statistics.variance(run["accuracy"]) for run in runs)
    return float((variance / len(runs[0]["accuracy"])) ** 0.5)
