"""The benchmark as a picture and as a table: accuracy against bytes, operations and seconds.

The picture is written by hand, so that the same files give the same bytes everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from gossamer.method_names import has_global_model
from gossamer.report import Run
from gossamer.report.curves import last, standard_error
from gossamer.report.curves import mean as mean_of
from gossamer.report.runs import Curve
from gossamer.reproduce.benchmark import TITLES, score_of

Rows = Mapping[str, Sequence[Run]]
"""The runs of each method; they differ in their seeds."""
COSTS = {"bytes": "bytes sent, both ways", "flops": "operations", "seconds": "seconds of training"}
PANEL, GAP, LEFT, TOP, BELOW = (250, 190), 34, 58, 40, 46
LEGEND = 190
LINE = 15
COLOURS = (
    *("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#e377c2", "#7f7f7f"),
    *("#bcbd22", "#17becf", "#393b79", "#637939", "#8c6d31", "#843c39", "#7b4173", "#3182bd"),
    *("#e6550d", "#31a354", "#756bb1", "#636363"),
)
DASHES = ("", "5 2", "1 2")
"""With the colours, enough looks for sixty methods."""
TICKS = 5
"""Values on an axis of accuracies, about."""
NEAR = 1.8
"""Powers of ten on an axis of costs, below which values between them are marked too."""
Point = tuple[float, float]


@dataclass(frozen=True)
class Figures:
    """A line of the benchmark's table: means over the seeds that did not diverge."""

    method: str
    rate: float
    accuracy: float | None
    error: float | None
    seeds: int
    diverged: int
    costs: Mapping[str, float | None]

    @property
    def own(self) -> bool:
        """Whether it is the accuracy of clients' own models."""
        return not has_global_model(self.method)


def figures(rows: Rows) -> list[Figures]:
    """The last accuracies and the costs of all methods, from the most accurate to the least."""
    found = [_figures(method, runs) for method, runs in rows.items()]
    return sorted(found, key=lambda each: -1.0 if each.accuracy is None else -each.accuracy)


def _figures(method: str, runs: Sequence[Run]) -> Figures:
    sound = [run for run in runs if not run.diverged]
    ends = [points for run in sound if (points := run.curve(score_of(method)))]
    scores = [curve[max(curve)] for curve in ends]
    costs = {name: mean_of(last(cost_curve(run, name)) for run in sound) for name in COSTS}
    rate = float(runs[0].table("settings")["lr"])
    lost = len(runs) - len(sound)
    return Figures(method, rate, mean_of(scores), standard_error(scores), len(sound), lost, costs)


def cost_curve(run: Run, name: str) -> Curve:
    """A cost by round, so far: bytes of both directions, operations, or seconds."""
    if name == "bytes":
        up, down = run.curve("up"), run.curve("down")
        return {at: (up[at] + down[at]) / 8 for at in up if at in down}
    return run.curve("training_seconds" if name == "seconds" else name)


def lines(rows: Rows, cost: str) -> dict[str, list[Point]]:
    """By method: cost and accuracy at each evaluation after the first round, means over seeds."""
    found = {}
    for method, runs in rows.items():
        sound = [run for run in runs if not run.diverged]
        scores = [run.curve(score_of(method)) for run in sound]
        costs = [cost_curve(run, cost) for run in sound]
        both = [s.keys() & c.keys() for s, c in zip(scores, costs, strict=True)]
        rounds = sorted(set.intersection(*both)) if both else []
        points = [
            (sum(c[at] for c in costs) / len(costs), sum(s[at] for s in scores) / len(scores))
            for at in rounds
            if at
        ]
        if points:
            found[method] = [point for point in points if point[0] > 0]
    return found


def picture(by_data: Mapping[str, Rows]) -> str:
    """The benchmark as SVG: a row of panels for each data set, and a legend."""
    methods = list(dict.fromkeys(name for rows in by_data.values() for name in rows))
    wide = LEFT + len(COSTS) * (PANEL[0] + GAP) + LEGEND
    high = max(len(by_data) * (PANEL[1] + TOP + BELOW), TOP + LINE * (len(methods) + 3))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{wide}" height="{high}" fill="white"/>',
    ]
    for place, (data, rows) in enumerate(by_data.items()):
        top = place * (PANEL[1] + TOP + BELOW) + TOP
        title = TITLES.get(data, data)
        parts.append(f'<text x="{LEFT}" y="{top - 14}" font-weight="bold">{escape(title)}</text>')
        known = {cost: lines(rows, cost) for cost in COSTS}
        scores = [y for found in known.values() for each in found.values() for _, y in each]
        if not scores:
            continue
        limits = _around(scores)
        for column, cost in enumerate(COSTS):
            left = LEFT + column * (PANEL[0] + GAP)
            parts += _panel((left, top), COSTS[cost], known[cost], limits, methods)
    parts += _legend(methods, LEFT + len(COSTS) * (PANEL[0] + GAP))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(
    corner: tuple[int, int],
    title: str,
    found: Mapping[str, Sequence[Point]],
    limits: tuple[float, float],
    methods: Sequence[str],
) -> Iterator[str]:
    """Axes with powers of ten, and the line of each method with a dot at its end."""
    (left, top), (wide, high), (least, most) = corner, PANEL, limits
    costs = [x for each in found.values() for x, _ in each]
    low, up = (math.log10(min(costs)), math.log10(max(costs))) if costs else (0.0, 1.0)
    low, up = low - 0.05, max(up, low + 0.1) + 0.05

    def place(point: Point) -> tuple[str, str]:
        x = left + wide * (math.log10(point[0]) - low) / (up - low)
        y = top + high * (1 - (point[1] - least) / (most - least))
        return f"{x:.1f}", f"{y:.1f}"

    yield f'<rect x="{left}" y="{top}" width="{wide}" height="{high}" fill="none" stroke="#999"/>'
    for value in _ticks(least, most):
        y = place((10**low, value))[1]
        yield f'<path d="M{left} {y}h{wide}" stroke="#e4e4e4"/>'
        yield f'<text x="{left - 5}" y="{y}" dy="4" text-anchor="end">{value:.0%}</text>'
    for power, factor in _powers(low, up):
        x = place((factor * 10.0**power, least))[0]
        text = f'10<tspan dy="-4" font-size="8">{power}</tspan>' if factor == 1 else f"{factor}"
        yield f'<path d="M{x} {top}v{high}" stroke="#e4e4e4"/>'
        yield f'<text x="{x}" y="{top + high + 15}" text-anchor="middle">{text}</text>'
    middle = left + wide / 2
    yield f'<text x="{middle:g}" y="{top + high + 31}" text-anchor="middle">{title}</text>'
    for method, points in found.items():
        look = _look(methods.index(method))
        path = " ".join(",".join(place(point)) for point in points)
        x, y = place(points[-1])
        name = f"<title>{escape(_named(method))}</title>"
        yield f'<polyline points="{path}" fill="none" stroke-width="1.4" {look}>{name}</polyline>'
        yield f'<circle cx="{x}" cy="{y}" r="2.6" fill="{_colour(methods.index(method))}"/>'


def _legend(methods: Sequence[str], left: int) -> Iterator[str]:
    for place, method in enumerate(methods):
        y = TOP + LINE * place + 6
        yield f'<path d="M{left} {y}h22" stroke-width="2" {_look(place)}/>'
        yield f'<text x="{left + 28}" y="{y + 4}">{escape(_named(method))}</text>'
    if not all(map(has_global_model, methods)):
        y = TOP + LINE * (len(methods) + 1)
        for line, text in enumerate(("* no global model: accuracy of", "clients' own models")):
            yield f'<text x="{left}" y="{y + 13 * line}" fill="#555">{text}</text>'


def _named(method: str) -> str:
    return method if has_global_model(method) else f"{method} *"


def _colour(place: int) -> str:
    return COLOURS[place % len(COLOURS)]


def _look(place: int) -> str:
    dash = DASHES[place // len(COLOURS) % len(DASHES)]
    return f'stroke="{_colour(place)}"' + (f' stroke-dasharray="{dash}"' if dash else "")


def _around(scores: Sequence[float]) -> tuple[float, float]:
    """The limits of an axis of accuracies: whole steps of five points."""
    least, most = math.floor(20 * min(scores)) / 20, math.ceil(20 * max(scores)) / 20
    return least, max(most, least + 0.05)


def _powers(low: float, up: float) -> list[tuple[int, int]]:
    """Powers of ten between two logarithms; with two and five times each, if they are near."""
    factors = (1, 2, 5) if up - low < NEAR else (1,)
    wide = range(math.floor(low), math.floor(up) + 1)
    return [(p, f) for p in wide for f in factors if low <= p + math.log10(f) <= up]


def _ticks(least: float, most: float) -> list[float]:
    step = max(0.05, math.ceil(20 * (most - least) / TICKS) / 20)
    return [least + step * at for at in range(int((most - least) / step + 1e-9) + 1)]
