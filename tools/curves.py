"""Draws what runs reached: personal accuracy by round, by density, and by bits sent.

    python tools/curves.py spafl=runs/a fedavg=runs/b -o docs/pictures/spafl-fmnist.svg

With `--traffic`, accuracy of the server's model and of the models that clients sent, by gigabytes.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot


def points(run: Path) -> list[dict[str, float | None]]:
    """Every evaluation, with the cohort's mean density and all bits sent until then."""
    densities: dict[int, list[float]] = defaultdict(list)
    found, sent = [], 0
    for line in (run / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "client-finished":
            densities[event["round"]].append(event["density"])
            sent += event["up"] + event["down"]
        elif event["event"] == "evaluated" and event["round"]:
            here = {
                "round": event["round"],
                "personal": event["personal_mean"],
                "local": event.get("local_mean"),
                "global": event["global_accuracy"],
                "density": mean(densities[event["round"]]),
                "gbit": sent / 1e9,
                "gigabytes": sent / 8e9,
            }
            found.append(here)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", nargs="+", help="NAME=FOLDER")
    parser.add_argument("--traffic", action="store_true", help="two accuracies by gigabytes sent")
    parser.add_argument("-o", "--out", type=Path, required=True)
    wish = parser.parse_args()
    runs = [entry.partition("=") for entry in wish.runs]
    found = {name: points(Path(folder)) for name, _, folder in runs}
    figure = _traffic(found) if wish.traffic else _personal(found)
    wish.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(wish.out, metadata={"Date": None})


def _personal(runs: dict[str, list[dict[str, float | None]]]) -> Any:
    figure, panels = pyplot.subplots(1, 3, figsize=(12, 3.6), sharey=True, layout="constrained")
    for panel, (key, label) in zip(
        panels,
        [("round", "round"), ("density", "density of models"), ("gbit", "Gbit sent")],
        strict=True,
    ):
        _lines(panel, runs, key, "personal", label)
    panels[1].invert_xaxis()
    panels[2].set_xscale("log")
    panels[0].set_ylabel("personal accuracy")
    panels[0].set_ylim(0.6, 0.92)
    panels[0].legend()
    return figure


def _traffic(runs: dict[str, list[dict[str, float | None]]]) -> Any:
    figure, panels = pyplot.subplots(1, 2, figsize=(10, 3.8), sharey=True, layout="constrained")
    titles = {"global": "the server's model", "local": "models that clients sent"}
    for panel, (key, title) in zip(panels, titles.items(), strict=True):
        _lines(panel, runs, "gigabytes", key, "GB sent")
        panel.set_title(title)
    panels[0].set_ylabel("accuracy")
    panels[1].legend()
    return figure


def _lines(
    panel: Any, runs: dict[str, list[dict[str, float | None]]], x: str, y: str, label: str
) -> None:
    for name, found in runs.items():
        panel.plot([each[x] for each in found], [each[y] for each in found], label=name, lw=1.2)
    panel.set_xlabel(label)
    panel.grid(alpha=0.3)


main()
