"""Draws what runs reached: personal accuracy by round, by density, and by bits sent.

python tools/curves.py spafl=runs/a fedavg=runs/b -o docs/pictures/spafl-fmnist.svg
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from statistics import mean

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot


def points(run: Path) -> list[dict[str, float]]:
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
                "accuracy": event["personal_mean"],
                "density": mean(densities[event["round"]]),
                "gbit": sent / 1e9,
            }
            found.append(here)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", help="NAME=FOLDER")
    parser.add_argument("-o", "--out", type=Path, required=True)
    wish = parser.parse_args()
    axes = [("round", "round"), ("density", "density of models"), ("gbit", "Gbit sent")]
    figure, panels = pyplot.subplots(1, 3, figsize=(12, 3.6), sharey=True, layout="constrained")
    for entry in wish.runs:
        name, _, folder = entry.partition("=")
        found = points(Path(folder))
        for panel, (key, label) in zip(panels, axes, strict=True):
            x, y = [each[key] for each in found], [each["accuracy"] for each in found]
            panel.plot(x, y, label=name, linewidth=1.2)
            panel.set_xlabel(label)
            panel.grid(alpha=0.3)
    panels[1].invert_xaxis()
    panels[2].set_xscale("log")
    panels[0].set_ylabel("personal accuracy")
    panels[0].set_ylim(0.6, 0.92)
    panels[0].legend()
    wish.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(wish.out)


main()
