"""Draws accuracy against megabytes sent and against seconds of training, from kept results, as SVG.

Up to eight methods have curves and a legend. More have one point each, with its name; those that no
other method beats in accuracy and cost are emphasised.
"""

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
from gossamer.reproduce.benchmark import MODELS, largest

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
COLOURS = ("#5b6770", "#d55e00", "#00897b", "#7b4fb5", "#0072b2", "#cc79a7", "#8a6d00", "#b22222")
NAMES = {"fedavg": "FedAvg", "fedsparse": "FedSparse", "spafl": "SpaFL", "spdst": "SPDST"}
MOST_CURVES = len(COLOURS)
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
    """The benchmark of all methods; the demo's four before there is one."""
    folders = (largest(RESULTS, data) for data in MODELS)
    found = next((folder for folder in folders if folder), None)
    runs, named = (_runs(found) if found else []), "the benchmark of all methods"
    if not runs:
        runs, named = _runs(RESULTS / "demo"), "the demo"
    lines = [
        _line(NAMES.get(group.label, group.label), group.sound)
        for group in grouped(runs)
        if group.sound
    ]
    facts = runs[0].table("experiment")
    seeds = len({run.seed for run in runs})
    command = _command(runs[0])
    caption = (
        f"Accuracy of the models that clients would use, on their own test data: {named}, "
        f"{facts['pool']} clients, {facts['rounds']} rounds, {seeds} seed{'s' * (seeds > 1)}, two "
        f"cores. `{command}` repeats it."
    )
    return Shown(svg(lines), caption)


def _command(run: Run) -> str:
    words = run.command.split()
    return " ".join(words[: 3 if words[1] == "bench" else 2])


def _runs(folder: Path) -> list[Run]:
    """Kept results of the first data set in a folder whose runs have seconds of training."""
    runs = [read_kept(path) for path in sorted(folder.glob("*.json"))]
    runs = [run for run in runs if run.curve("training_seconds")]
    first = runs[0].table("experiment").get("data") if runs else None
    return [run for run in runs if run.table("experiment").get("data") == first]


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
    legend = len(lines) <= MOST_CURVES
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="system-ui, sans-serif" font-size="13" fill="#24292f">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff"/>',
    ]
    for panel, (cost, title) in zip(PANELS, COSTS, strict=True):
        parts += _panel(lines, panel, cost, title, legend)
    if legend:
        step = (WIDTH - 80) / len(lines)
        for place, line in enumerate(lines):
            x, y = 60 + place * step, HEIGHT - 17
            parts.append(
                f'<circle cx="{x:.0f}" cy="{y - 5}" r="5" fill="{COLOURS[place]}"/>'
                f'<text x="{x + 12:.0f}" y="{y}" font-size="14">{escape(line.name)}</text>'
            )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(
    lines: Sequence[Line], panel: tuple[int, int], cost: str, title: str, curves: bool
) -> Iterator[str]:
    left, right = panel
    ends = [getattr(line, cost)[-1] for line in lines]
    starts = [getattr(line, cost)[0] for line in lines] if curves else ends
    low, high = math.log10(min(starts) / 1.3), math.log10(max(ends) * (1.3 if curves else 2.5))
    scores = [score for line in lines for score in (line.score if curves else line.score[-1:])]
    bottom = math.floor(10 * max(min(scores), max(scores) - 0.5)) / 10
    top = math.ceil(20 * max(scores)) / 20

    def x(value: float) -> float:
        return left + (right - left) * (math.log10(value) - low) / (high - low)

    def y(value: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * (max(value, bottom) - bottom) / (top - bottom)

    middle = (left + right) / 2
    yield f'<text x="{left}" y="24" font-weight="600">accuracy</text>'
    yield f'<text x="{middle}" y="{BOTTOM + 40}" text-anchor="middle">{title}</text>'
    for tick in range(round(10 * bottom), round(10 * top) + 1):
        at = y(tick / 10)
        yield f'<path d="M{left} {at:.1f}H{right}" stroke="#e3e7ea"/>'
        yield f'<text x="{left - 8}" y="{at + 4:.1f}" text-anchor="end">{10 * tick} %</text>'
    for power in range(math.ceil(low), math.floor(high) + 1):
        at = x(10.0**power)
        yield f'<path d="M{at:.1f} {TOP}V{BOTTOM}" stroke="#e3e7ea"/>'
        yield f'<text x="{at:.1f}" y="{BOTTOM + 18}" text-anchor="middle">{10.0**power:,g}</text>'
    if curves:
        for place, line in enumerate(lines):
            where = [(x(a), y(b)) for a, b in zip(getattr(line, cost), line.score, strict=True)]
            path = " ".join(f"{a:.1f},{b:.1f}" for a, b in where)
            paint = COLOURS[place]
            yield f'<polyline points="{path}" fill="none" stroke="{paint}" stroke-width="2.2"/>'
            a, b = where[-1]
            yield f'<circle cx="{a:.1f}" cy="{b:.1f}" r="5" fill="{paint}"/>'
        return
    yield from _points(lines, cost, x, y)


def _points(lines: Sequence[Line], cost: str, x: object, y: object) -> Iterator[str]:
    """One point a method with its name beside it, moved apart where names would overlap."""
    assert callable(x) and callable(y)
    taken: list[tuple[float, float]] = []
    for line in sorted(lines, key=lambda each: -each.score[-1]):
        price, score = getattr(line, cost)[-1], line.score[-1]
        best = not any(
            other.score[-1] >= score and getattr(other, cost)[-1] <= price
            for other in lines
            if other is not line
        )
        a, b = x(price), y(score)
        down = b + 4
        while any(abs(a - p) < 74 and abs(down - q) < 11 for p, q in taken):
            down += 3
        taken.append((a, down))
        paint, weight = ("#00796b", "600") if best else ("#5b6770", "400")
        yield f'<circle cx="{a:.1f}" cy="{b:.1f}" r="{5 if best else 3.5}" fill="{paint}"/>'
        yield (
            f'<text x="{a + 8:.1f}" y="{down:.1f}" font-size="11" font-weight="{weight}" '
            f'fill="{paint}">{escape(line.name)}</text>'
        )
