"""Draws the demo: accuracy against megabytes sent and seconds of training, from kept results."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from statistics import fmean

from gossamer.report.groups import grouped
from gossamer.report.kept import read_kept
from gossamer.report.runs import Run

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
COLOURS = ("#5b6770", "#d55e00", "#00897b", "#7b4fb5")
NAMES = {"fedavg": "FedAvg", "fedsparse": "FedSparse", "spafl": "SpaFL", "spdst": "SPDST"}
WIDTH, HEIGHT = 960, 400
PANELS = ((64, 452), (548, 936))
TOP, BOTTOM = 44, 318
COSTS = (("megabytes", "MB sent, both directions"), ("seconds", "seconds of local training"))


@dataclass(frozen=True)
class Line:
    """A method: what its clients' models reached, and what that took."""

    name: str
    score: tuple[float, ...]
    megabytes: tuple[float, ...]
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class Shown:
    """The picture and its caption."""

    svg: str
    caption: str


@cache
def shown() -> Shown:
    """The picture of the demo's four methods."""
    runs = [read_kept(path) for path in sorted((RESULTS / "demo").glob("*.json"))]
    lines = [_line(NAMES.get(group.label, group.label), group.sound) for group in grouped(runs)]
    facts = runs[0].table("experiment")
    caption = (
        "The demo: accuracy of the models that clients would use, on their own test data, over "
        f"{facts['rounds']} rounds with {facts['pool']} clients; one seed, two cores. "
        "`gossamer demo` repeats it."
    )
    return Shown(svg(lines), caption)


def _line(name: str, runs: Sequence[Run]) -> Line:
    """Means over seeds at every evaluation after the first round."""
    rounds = sorted(set.intersection(*(set(run.curve("personal_mean")) for run in runs)) - {0})
    rounds = [at for at in rounds if all(at in run.curve("up") for run in runs)]

    def mean(*names: str) -> tuple[float, ...]:
        return tuple(fmean(sum(run.curve(n)[at] for n in names) for run in runs) for at in rounds)

    sent = tuple(bits / 8e6 for bits in mean("up", "down"))
    return Line(name, mean("personal_mean"), sent, mean("training_seconds"))


def svg(lines: Sequence[Line]) -> str:
    """The picture."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="system-ui, sans-serif" font-size="13" fill="#24292f">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff"/>',
    ]
    for panel, (cost, title) in zip(PANELS, COSTS, strict=True):
        parts += _panel(lines, panel, cost, title)
    step = (WIDTH - 80) / len(lines)
    for place, line in enumerate(lines):
        x, y = 60 + place * step, HEIGHT - 17
        parts.append(
            f'<circle cx="{x:.0f}" cy="{y - 5}" r="5" fill="{COLOURS[place]}"/>'
            f'<text x="{x + 12:.0f}" y="{y}" font-size="14">{escape(line.name)}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(lines: Sequence[Line], panel: tuple[int, int], cost: str, title: str) -> Iterator[str]:
    left, right = panel
    ends = [getattr(line, cost)[-1] for line in lines]
    starts = [getattr(line, cost)[0] for line in lines]
    low, high = math.log10(min(starts) / 1.3), math.log10(max(ends) * 1.3)
    scores = [score for line in lines for score in line.score]
    bottom = math.floor(10 * max(min(scores), max(scores) - 0.5)) / 10
    top = math.ceil(20 * max(scores)) / 20

    def x(value: float) -> float:
        return left + (right - left) * (math.log10(value) - low) / (high - low)

    def y(value: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * (max(value, bottom) - bottom) / (top - bottom)

    middle = (left + right) / 2
    yield f'<text x="{left}" y="24" font-weight="600">accuracy</text>'
    yield f'<text x="{middle}" y="{BOTTOM + 40}" text-anchor="middle">{title}</text>'
    for tick in range(round(10 * bottom), math.floor(10 * top + 1e-9) + 1):
        at = y(tick / 10)
        yield f'<path d="M{left} {at:.1f}H{right}" stroke="#e3e7ea"/>'
        yield f'<text x="{left - 8}" y="{at + 4:.1f}" text-anchor="end">{10 * tick} %</text>'
    for power in range(math.ceil(low), math.floor(high) + 1):
        at = x(10.0**power)
        yield f'<path d="M{at:.1f} {TOP}V{BOTTOM}" stroke="#e3e7ea"/>'
        yield f'<text x="{at:.1f}" y="{BOTTOM + 18}" text-anchor="middle">{10.0**power:,g}</text>'
    for place, line in enumerate(lines):
        where = [(x(a), y(b)) for a, b in zip(getattr(line, cost), line.score, strict=True)]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in where)
        paint = COLOURS[place]
        yield f'<polyline points="{path}" fill="none" stroke="{paint}" stroke-width="2.2"/>'
        a, b = where[-1]
        yield f'<circle cx="{a:.1f}" cy="{b:.1f}" r="5" fill="{paint}"/>'
