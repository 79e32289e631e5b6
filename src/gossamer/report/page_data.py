"""The data behind the charts of a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gossamer.report.curves import mean, short, table
from gossamer.report.figures import SCORES, headline
from gossamer.report.groups import Group
from gossamer.report.partition import Partition
from gossamer.report.runs import Bits, Curve, Line, Run

if TYPE_CHECKING:
    pass


TIMES = ("training_seconds", "device_seconds")
LAYERS = 60
"""Maximum number of layers with a panel."""
BY_LAYER = ("density", "mismatch", "sensitivity")
"""Figures of a layer."""
PANEL_POINTS = 120
"""Maximum points of a curve in a layer's panel."""


def page_data(groups: Sequence[Group], drawn: Sequence[Partition], main: str) -> dict[str, Any]:
    """The data of all charts."""
    return {
        "score": main,
        "metric": _metric(groups),
        "groups": [_group_data(group) for group in groups],
        "layers": _layer_names(groups),
        "partitions": [
            {"title": each.title, "clients": each.clients, "counts": each.counts} for each in drawn
        ],
    }


def _metric(groups: Sequence[Group]) -> dict[str, Any]:
    """The metric of the charts; several metrics share an axis under no name."""
    metric = headline(groups)
    if metric is None:
        return {"name": "score", "title": "score", "share": False}
    return {"name": metric.name, "title": metric.title, "share": metric.is_share}


def _group_data(group: Group) -> dict[str, Any]:
    curves = [_shown(run) for run in group.drawn]
    figures = (*SCORES, "personal_worst_decile")
    masks = ("density", "mismatch", "client_mismatch")
    return {
        "label": group.label,
        "seeds": len(group.runs),
        "evaluated": table(curves, figures, ("sent", "paper", *TIMES, "flops")),
        "rounds": table(curves, masks),
        "layers": _layers(group),
        "histogram": _histogram(group),
        "between": list(group.drawn[0].between),
        "ledger": [
            [direction, f"{message} {leaf}", *map(short, (bits.sent, bits.paper))]
            for (direction, message, leaf), bits in _ledger(group).items()
        ],
    }


def _shown(run: Run) -> dict[str, Curve]:
    """The curves to draw, including derived ones."""
    beginning = {0: 0.0} if any(0 in run.curve(name) for name in SCORES) else {}
    up, down = run.curve("up"), run.curve("down")
    paper_up, paper_down = run.curve("paper_up"), run.curve("paper_down")
    more = {
        "sent": {at: up[at] + down[at] for at in up if at in down},
        "paper": {at: paper_up[at] + paper_down[at] for at in paper_up if at in paper_down},
        **{name: run.curve(name) for name in TIMES},
        "flops": run.curve("flops"),
    }
    return {
        **run.curves,
        **{name: {**beginning, **curve} for name, curve in more.items() if curve},
        "density": run.curve("personal_density") or run.curve("density"),
        "mismatch": _moves(run.curve("mismatch")),
    }


def _moves(curve: Curve) -> Curve:
    """The curve without the first round, in which probing replaces the mask."""
    return {at: value for at, value in curve.items() if at > 1}


def _layer_names(groups: Sequence[Group]) -> list[str]:
    names = dict.fromkeys(name for group in groups for run in group.drawn for name in run.layers)
    return list(names)[:LAYERS]


def _layers(group: Group) -> dict[str, dict[str, Any]]:
    names = dict.fromkeys(name for run in group.drawn for name in run.layers)
    columns = {}
    for layer in list(names)[:LAYERS]:
        each = [run.layers.get(layer, {}) for run in group.drawn]
        moved = [{**one, "mismatch": _moves(one.get("mismatch", {}))} for one in each]
        columns[layer] = {name: table(moved, (name,), most=PANEL_POINTS) for name in BY_LAYER}
    return columns


def _histogram(group: Group) -> list[float | None]:
    """The share of clients per bin of scores, averaged over seeds."""
    known = [run.histogram for run in group.drawn if sum(run.histogram)]
    length = {len(counts) for counts in known}
    if len(length) != 1 or len({run.between for run in group.drawn if sum(run.histogram)}) != 1:
        return []
    shares = [[count / sum(counts) for count in counts] for counts in known]
    return [short(mean(each)) for each in zip(*shares, strict=True)]


def _ledger(group: Group) -> dict[Line, Bits]:
    """The traffic of each leaf, averaged over seeds; downloads first, then by size."""
    lines = dict.fromkeys(line for run in group.drawn for line in run.ledger)
    runs = [run for run in group.drawn if run.ledger]
    means = {}
    for line in lines:
        each = [run.ledger.get(line, Bits()) for run in runs]
        means[line] = Bits(
            round(sum(one.messages for one in each) / len(each)),
            sum(one.sent for one in each) / len(each),
            sum(one.information for one in each) / len(each),
            sum(one.paper for one in each) / len(each),
        )
    order = sorted(means, key=lambda line: (line[0], -means[line].sent, line))
    return {line: means[line] for line in order}
