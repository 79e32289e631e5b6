"""Puts measured figures into the table of docs/methods.md, from what its command wrote.

python tools/table.py runs/table/comparison.csv

The figures are kept beside the pages, and a test compares the table with them.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from gossamer.method_names import has_global_model

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "methods.md"
KEPT = ROOT / "docs" / "reference" / "methods.csv"
HEAD = "| name |"
WORDS = 4
"""Columns before the figures."""


def figures(path: Path) -> dict[str, list[str]]:
    """The cells of each method."""
    with path.open(newline="") as file:
        return {row["method"]: list(_cells(row)) for row in csv.DictReader(file)}


def _cells(row: Mapping[str, str]) -> Iterator[str]:
    known = has_global_model(row["method"])
    yield f"{float(row['global_accuracy']):.3f}" if known else ""
    yield f"{float(row['personal_mean']):.3f}"
    for direction in ("down", "up"):
        yield f"{float(row[direction]) / 1e6:,.4g}"
    yield f"{float(row['density']):.3g}"


def excerpt(*names: str) -> str:
    """The rows of some methods, beside FedAvg, for their page."""
    known = figures(KEPT)
    rows = [f"| `{name}` | {' | '.join(known[name])} |" for name in ("fedavg", *names)]
    return "\n".join(
        [
            "| | global | personal | Mbit down | Mbit up | density |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
            "From [the comparison of all methods](methods.md): one seed, 20 rounds on a sixth of "
            "Fashion-MNIST.",
        ]
    )


def filled(text: str, known: Mapping[str, list[str]]) -> str:
    """A page whose table has the figures of every method that it names."""
    return "".join(_lines(text.splitlines(keepends=True), known))


def _lines(lines: Iterable[str], known: Mapping[str, list[str]]) -> Iterator[str]:
    inside = False
    for line in lines:
        inside = line.startswith(HEAD) or (inside and line.startswith("|"))
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        name = cells[0].strip("`")
        if inside and cells[0] != name:
            figures = known.get(name, [""] * (len(cells) - WORDS))
            yield f"| {' | '.join([*cells[:WORDS], *figures])} |\n"
        else:
            yield line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("csv", type=Path)
    KEPT.write_text(parser.parse_args().csv.read_text())
    PAGE.write_text(filled(PAGE.read_text(), figures(KEPT)))


if __name__ == "__main__":
    main()
