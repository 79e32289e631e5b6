"""Writes the table of docs/widths.md from benchmarks/results/submodels.json.

python tools/submodels.py          # writes it
python tools/submodels.py --check  # fails if the page differs
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "widths.md"
MEASURED = ROOT / "benchmarks" / "results" / "submodels.json"
START, END = "<!-- submodels -->", "<!-- /submodels -->"


def table(found: dict[str, Any]) -> str:
    """A row for each budget: what every method shares, then seconds and megabytes of each."""
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


def written(page: str) -> str:
    """The page with the table."""
    head, _, rest = page.partition(START)
    _, _, tail = rest.partition(END)
    return f"{head}{START}\n{table(json.loads(MEASURED.read_text()))}\n{END}{tail}"


def main() -> int:
    page = PAGE.read_text(encoding="utf-8")
    if "--check" in sys.argv[1:]:
        if page != written(page):
            print(f"{PAGE} is not what {MEASURED} says; run tools/submodels.py", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(written(page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
