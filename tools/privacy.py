"""Writes the tables of docs/privacy.md and its picture from results/privacy.

`tools/results.py` puts them into their places.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "pictures" / "privacy.svg"
RESULTS = ROOT / "results" / "privacy"
LEVELS = ("1", "2", "4", "8", "none")
SENT = {"fedavg": 430500, "spdst": 21525, "fedpm": 430500, "spafl": 580}
"""Numbers in a reply of lenet5_caffe; those of FedPM are bits."""
NAMES = {
    "fedavg": "FedAvg: all weights",
    "spdst": "SPDST, density 0.05: weights on a mask",
    "fedpm": "FedPM: bits",
    "spafl": "SpaFL: thresholds",
}
CLIENTS = 50
COLOURS = {"fedavg": "#1f77b4", "spdst": "#2ca02c", "fedpm": "#9467bd", "spafl": "#d62728"}


@cache
def read() -> dict[str, Mapping[str, Any]]:
    """All runs by name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}


def seeds(method: str, level: str) -> list[Mapping[str, Any]]:
    """The runs of a method at an epsilon, one for each seed."""
    return [run for name, run in read().items() if name.rpartition("-")[0] == f"{method}-{level}"]


def accuracy(runs: list[Mapping[str, Any]], figure: str) -> str:
    """The mean over seeds with its standard error, in per cent."""
    values = [100 * run["accuracy"][figure] for run in runs]
    if not values:
        return "–"
    error = f" ± {stdev(values) / math.sqrt(len(values)):.1f}" if len(values) > 1 else ""
    return f"{fmean(values):.1f}{error}"


def accuracies() -> str:
    """Accuracy by epsilon: of the global model, of clients' models, and of clients alone."""
    rows = [(NAMES[m] + ", global model", m, "global") for m in ("fedavg", "spdst", "fedpm")]
    rows += [(NAMES[m] + ", all clients", m, "personal_mean") for m in NAMES]
    rows += [(NAMES["spafl"] + ", clients that took part", "spafl", "local_mean")]
    lines = [
        "| accuracy, % | epsilon 1 | 2 | 4 | 8 | no noise | seeds |",
        "|---|---|---|---|---|---|---|",
    ]
    for text, method, figure in rows:
        found = [seeds(method, level) for level in LEVELS]
        cells = [accuracy(each, figure) for each in found]
        lines.append(f"| {text} | {' | '.join(cells)} | {min(map(len, found))} |")
    for text, figure in (("all clients", "personal_mean"), ("that took part", "local_mean")):
        alone = seeds("spafl", "alone")
        cells = ["–"] * 4 + [accuracy(alone, figure)]
        lines.append(f"| SpaFL without any exchange, {text} | {' | '.join(cells)} | {len(alone)} |")
    return "\n".join(lines)


def noises() -> str:
    """The noise of each epsilon, and how large it is beside the largest change of a client."""
    lines = [
        "| | numbers in a reply | clip | epsilon 1 | 2 | 4 | 8 |",
        "|---|---|---|---|---|---|---|",
    ]
    multipliers = []
    for method, count in SENT.items():
        found = [seeds(method, level) for level in LEVELS[:-1]]
        spent = [each[0]["privacy"] if each else None for each in found]
        ratios = [s["noise"] * math.sqrt(count) / CLIENTS if s else None for s in spent]
        cells = ["–" if ratio is None else f"{ratio:.2g}" for ratio in ratios]
        clip = next((f"{s['clip']:g}" for s in spent if s), "–")
        lines.append(f"| {NAMES[method]} | {count:,} | {clip} | {' | '.join(cells)} |")
        multipliers = multipliers or [f"{s['noise']:.3f}" if s else "–" for s in spent]
    lines.insert(2, f"| noise multiplier, the same for all | | | {' | '.join(multipliers)} |")
    return "\n".join(lines)


def searches() -> str:
    """The search of clips, on validation data."""
    lines = ["| clip, at epsilon 4 | accuracy on clients' validation data, % |", "|---|---|"]
    for method, name in NAMES.items():
        start = f"search-{method}-"
        found = {float(n.removeprefix(start)): r for n, r in read().items() if n.startswith(start)}
        cells = [f"{c:g}: {100 * found[c]['accuracy']['valid_mean']:.1f}" for c in sorted(found)]
        lines.append(f"| {name} | {', '.join(cells)} |")
    return "\n".join(lines)


def picture() -> str:
    """Accuracy against epsilon as SVG: the global model, and SpaFL's clients that took part."""
    width, height, left, bottom, top = 640, 340, 56, 44, 20
    step = (width - left - 190) / (len(LEVELS) - 1)

    def x(place: int) -> float:
        return left + 10 + step * place

    def y(value: float) -> float:
        return height - bottom - value * (height - bottom - top)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    parts += [
        f'<path d="M{left} {y(share):.1f}H{width - 180}" stroke="#ddd"/>'
        f'<text x="{left - 6}" y="{y(share) + 4:.1f}" text-anchor="end">{share:.0%}</text>'
        for share in (0, 0.2, 0.4, 0.6, 0.8)
    ]
    for place, level in enumerate(LEVELS):
        text = "no noise" if level == "none" else level
        parts.append(
            f'<text x="{x(place):.1f}" y="{height - 24}" text-anchor="middle">{text}</text>'
        )
    parts.append(f'<text x="{x(2):.1f}" y="{height - 6}" text-anchor="middle">epsilon</text>')
    for row, method in enumerate(NAMES):
        figure = "local_mean" if method == "spafl" else "global"
        points = []
        for place, level in enumerate(LEVELS):
            values = [run["accuracy"][figure] for run in seeds(method, level)]
            if not values:
                continue
            points.append((x(place), y(fmean(values))))
            if len(values) > 1:
                error = stdev(values) / math.sqrt(len(values))
                ends = (y(fmean(values) - error), y(fmean(values) + error))
                parts.append(
                    f'<path d="M{x(place):.1f} {ends[0]:.1f}V{ends[1]:.1f}" '
                    f'stroke="{COLOURS[method]}" stroke-width="2"/>'
                )
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{COLOURS[method]}" stroke-width="2"/>'
        )
        parts += [
            f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.5" fill="{COLOURS[method]}"/>'
            for a, b in points
        ]
        here = 60 + 34 * row
        first, second = NAMES[method].split(": ")
        parts.append(
            f'<circle cx="{width - 168}" cy="{here - 4}" r="4" fill="{COLOURS[method]}"/>'
            f'<text x="{width - 158}" y="{here}">{first}</text>'
            f'<text x="{width - 158}" y="{here + 14}" fill="#666">{second}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"
