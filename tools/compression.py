"""Makes a table and a picture of results/compression.json: accuracy against bytes.

python tools/compression.py    # prints the table, writes docs/pictures/compression.svg
"""

from __future__ import annotations

import json
import math
import sys
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


def picture(found: Mapping[str, Any], path: Path) -> None:
    """Accuracy against traffic so far, a line for each contender, a panel for each data set."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    data = list(found["settings"]["data"])
    figure, panels = plt.subplots(1, len(data), figsize=(5.5 * len(data), 4), squeeze=False)
    colours = plt.get_cmap("tab20")
    for panel, name in zip(panels[0], data, strict=True):
        for place, contender in enumerate(found["settings"]["contenders"]):
            runs = [r for r in found["runs"] if (r["data"], r["contender"]) == (name, contender)]
            for number, run in enumerate(run for run in runs if not run["diverged"]):
                curve = run["curve"]
                key = "personal_mean" if main_figure(run) == "personal_mean" else "global_accuracy"
                sent = [(u + d) / 8e6 for u, d in zip(curve["up"], curve["down"], strict=True)]
                label = contender if not number else None
                panel.plot(sent[1:], curve[key][1:], color=colours(place), label=label, lw=1)
        panel.set(title=name, xlabel="MB sent, both ways", ylabel="accuracy", xscale="log")
    panels[0][-1].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    source = Path(sys.argv[1]) if sys.argv[1:] else STUDY
    if not source.exists():
        sys.exit(f"there is no {source}; `python -m benchmarks compression` makes it")
    found = json.loads(source.read_text())
    print(table(found))
    picture(found, PICTURE if source == STUDY else source.with_suffix(".svg"))


if __name__ == "__main__":
    main()
