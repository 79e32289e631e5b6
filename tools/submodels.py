"""The table of docs/widths.md, from benchmarks/results/submodels.json, for `tools/results.py`."""

from __future__ import annotations

import json
from pathlib import Path

MEASURED = Path(__file__).parents[1] / "benchmarks" / "results" / "submodels.json"


def table() -> str:
    """A row for each budget: what every method shares, then seconds and megabytes of each."""
    found = json.loads(MEASURED.read_text())
    methods = found["methods"]
    heads = [f"`{name}`: s, MB" for name in methods]
    lines = [
        f"{found['job'][0].upper()}{found['job'][1:]}.",
        "",
        "| budget | weights | GFLOPs | " + " | ".join(heads) + " |",
        "|---" * (3 + len(heads)) + "|",
    ]
    first = next(iter(methods.values()))
    for budget, shared in first.items():
        cells = [
            f"{m[budget]['seconds']:.2f}, {m[budget]['megabytes']:.0f}" for m in methods.values()
        ]
        sizes = f"{shared['weights']:,} | {shared['gflops']:.3g}"
        lines.append(f"| {float(budget):g} | {sizes} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
