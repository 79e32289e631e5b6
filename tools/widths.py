"""The table of docs/widths.md, from benchmarks/results/widths.json, for `tools/results.py`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from textwrap import fill

MEASURED = Path(__file__).parents[1] / "benchmarks" / "results" / "widths.json"


def table() -> str:
    """A row for each budget: what every method shares, then seconds and megabytes of each."""
    found = json.loads(MEASURED.read_text(encoding="utf-8"))
    methods, job = found["methods"], found["job"]
    heads = [f"`{name}`: {unit}" for name in methods for unit in ("s", "MB")]
    lines = [
        fill(f"{job[0].upper()}{job[1:]}. In brackets: the ratio to the full model.", width=120),
        "",
        "| budget | weights | GFLOPs | " + " | ".join(heads) + " |",
        "|---" * (3 + len(heads)) + "|",
    ]
    first = next(iter(methods.values()))
    for budget, shared in first.items():
        cells = [cell for each in methods.values() for cell in _cells(each[budget])]
        sizes = f"{shared['weights']:,} | {shared['gflops']:.3g}"
        lines.append(f"| {float(budget):g} | {sizes} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cells(each: Mapping[str, float]) -> tuple[str, str]:
    seconds = f"{each['seconds']:.2f} ({each['seconds_over_full']:.3f})"
    return seconds, f"{each['megabytes']:.0f} ({each['megabytes_over_full']:.2f})"
