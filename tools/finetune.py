"""The table of docs/tutorials/finetune.md, from the runs that the page lists.

python tools/finetune.py runs  # reads runs/whole, runs/lora ... into results/finetune.csv

`tools/results.py` writes the table from that file.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from gossamer.engine.events import read

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "finetune.csv"
RUNS = {
    "whole": "`fedavg`, all but the embeddings",
    "lora": "`fedavg-lora`, rank 8",
    "ffa": "`ffa_lora`, rank 8",
    "flasc4": "`flasc`, rank 8, a quarter each way",
}
COLUMNS = ("run", "parameters", "frozen", "first", "last", "up", "down", "rounds", "machine")


def collected(folder: Path) -> list[dict[str, object]]:
    """A row for each run: what is trained, accuracy before and after, bits of all messages."""
    rows = []
    for name in (name for name in RUNS if (folder / name).is_dir()):
        log = read(folder / name / "events.jsonl")
        tested = [event["global_accuracy"] for event in log if event["event"] == "evaluated"]
        last = [event for event in log if event["event"] == "round-finished"][-1]
        about = log[0]
        machine = f"{about['environment']['machine']}, torch {about['environment']['torch']}"
        figures = (about["parameters"], about["frozen"], tested[0], tested[-1])
        rest = (last["up"], last["down"], last["round"], machine)
        rows.append(dict(zip(COLUMNS, (name, *figures, *rest), strict=True)))
    return rows


def table() -> str:
    """The rows of the file as Markdown."""
    lines = [
        "| run | trained | frozen | accuracy before | after | Mbit up | Mbit down |",
        "|---|---|---|---|---|---|---|",
    ]
    with RESULTS.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            sizes = f"{int(row['parameters']):,} | {int(row['frozen']):,}"
            tested = f"{float(row['first']):.3f} | {float(row['last']):.3f}"
            sent = f"{int(row['up']) / 1e6:,.1f} | {int(row['down']) / 1e6:,.1f}"
            lines.append(f"| {RUNS[row['run']]} | {sizes} | {tested} | {sent} |")
    return "\n".join(lines)


def main() -> None:
    rows = collected(Path(sys.argv[1]))
    with RESULTS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
