"""Makes a table and a picture of results/compression.json: accuracy against bytes.

python tools/compression.py    # prints the table, writes docs/pictures/compression.svg
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

ROOT = Path(__file__).parents[1]
STUDY = ROOT / "results" / "compression.json"
PICTURE = ROOT / "docs" / "pictures" / "compression.svg"

Run = Mapping[str, Any]


def main_figure(run: Run) -> str:
    """The accuracy that counts: of personal models where clients keep their own."""
    return "personal_mean" if run["accuracy"].get("personal_density") is not None else "global"


def table(found: Mapping[str, Any]) -> str:
    """A row for each contender, a column for each data set: means in percent, standard errors."""
    data = list(found["settings"]["data"])
    lines = [
        f"| | {' | '.join(f'{name}, %' for name in data)} | rounds | Mbit up | Mbit down |",
        "|---" * (len(data) + 4) + "|",
    ]
    for name in found["settings"]["contenders"]:
        runs = [run for run in found["runs"] if run["contender"] == name]
        cells = [cell([run for run in runs if run["data"] == each]) for each in data]
        rest = (spread([run[key] for run in runs]) for key in ("rounds", "up", "down"))
        rounds, up, down = rest
        parts = [name, *cells, *(rounds, _mega(up), _mega(down))]
        lines.append(f"| {' | '.join(map(str, parts))} |")
    return "\n".join(lines)


def cell(runs: Sequence[Run]) -> str:
    """The mean over seeds with its standard error; runs that diverged are named, not averaged."""
    sound = [100 * run["accuracy"][main_figure(run)] for run in runs if not run["diverged"]]
    lost = len(runs) - len(sound)
    note = f" ({lost} of {len(runs)} diverged)" if lost else ""
    if not sound:
        return f"–{note}"
    error = f" ± {stdev(sound) / math.sqrt(len(sound)):.1f}" if len(sound) > 1 else ""
    return f"{fmean(sound):.1f}{error}{note}"


def spread(values: Sequence[float]) -> float | str:
    return round(fmean(values)) if values else "–"


def _mega(bits: float | str) -> str:
    return bits if isinstance(bits, str) else f"{bits / 1e6:,.0f}"


def picture(found: Mapping[str, Any]) -> str:
    """Accuracy against traffic so far, a line for each contender, a panel for each data set."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "gossamer", "svg.fonttype": "none"})
    import matplotlib.pyplot as plt

    data = list(found["settings"]["data"])
    figure, panels = plt.subplots(1, len(data), figsize=(5 * len(data), 5), squeeze=False)
    colours = plt.get_cmap("tab20")
    for panel, name in zip(panels[0], data, strict=True):
        for place, contender in enumerate(found["settings"]["contenders"]):
            runs = [r for r in found["runs"] if (r["data"], r["contender"]) == (name, contender)]
            sent, reached = line([run for run in runs if not run["diverged"]])
            panel.plot(sent, reached, color=colours(place), label=contender, lw=1.5)
        panel.set(title=name, xlabel="MB sent, both ways", ylabel="accuracy", xscale="log")
    named = panels[0][0].get_legend_handles_labels()
    figure.legend(*named, loc="lower center", ncols=7, fontsize=8)
    figure.tight_layout(rect=(0, 0.1, 1, 1))
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    plt.close(figure)
    return "\n".join(row.rstrip() for row in text.getvalue().splitlines()) + "\n"


def line(runs: Sequence[Run]) -> tuple[list[float], list[float]]:
    """Megabytes and accuracies, means over seeds, at the rounds that all seeds reached."""
    sent, reached = [], []
    for rows in zip(*(points(run) for run in runs), strict=False):
        sent.append(fmean(megabytes for megabytes, _ in rows))
        reached.append(fmean(accuracy for _, accuracy in rows))
    return sent, reached


def points(run: Run) -> list[tuple[float, float]]:
    """Megabytes and accuracy at each evaluation after the first round."""
    curve = run["curve"]
    key = "personal_mean" if main_figure(run) == "personal_mean" else "global_accuracy"
    sent = [(up + down) / 8e6 for up, down in zip(curve["up"], curve["down"], strict=True)]
    return list(zip(sent, curve[key], strict=True))[1:]


def study() -> Any:
    return json.loads(STUDY.read_text())


def main() -> None:
    print(table(study()))
    PICTURE.write_text(picture(study()))


if __name__ == "__main__":
    main()
