"""One page that needs nothing but itself: what is known of runs, and the code that draws it."""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gossamer
from gossamer.report import units
from gossamer.report.curves import mean, short, table
from gossamer.report.figures import ACCURACIES, cards, main_accuracy, rows
from gossamer.report.groups import Group, common, differing, grouped, settings
from gossamer.report.partition import Partition, partitions
from gossamer.report.reading import Bits, Curve, Line, NoRun, Run, read_run

if TYPE_CHECKING:
    from jinja2 import Template

LAYERS = 60
"""Layers that have a panel."""
BY_LAYER = ("density", "mismatch", "sensitivity")
"""Figures that layers have."""
PANEL_POINTS = 120
"""Points of a curve in the panel of a layer."""
SCRIPTS = ("echarts/echarts.min.js", "parts.js", "charts.js", "page.js")
SHOWN: Mapping[str, Callable[[float | None], str]] = {
    "accuracy": units.share,
    "density": units.share,
    "sent": units.bits,
    "up": units.bits,
    "down": units.bits,
    "flops": units.operations,
    "device_seconds": units.seconds,
}
"""How the figures of cards are written."""


@dataclass(frozen=True)
class Report:
    """A page, and what it is about."""

    html: str
    runs: Sequence[Run]
    groups: Sequence[Group]
    notices: Sequence[str]


def report(folders: Sequence[str | Path], title: str = "", introduction: str = "") -> Report:
    """The page of some runs; what cannot be read is told in it.

    Raises `NoRun` if there is nothing to show at all.
    """
    runs: list[Run] = []
    refused: list[str] = []
    for folder in dict.fromkeys(map(Path, folders)):
        try:
            runs.append(read_run(folder))
        except NoRun as problem:
            refused.append(str(problem))
    if not runs:
        raise NoRun("; ".join(refused) or "no run was named")
    groups = grouped(runs)
    drawn, undrawn = partitions(runs)
    notices = [*refused, *(text for run in runs for text in run.notices), *undrawn]
    return Report(_html(groups, drawn, notices, title, introduction), runs, groups, notices)


def _html(
    groups: Sequence[Group],
    drawn: Sequence[Partition],
    notices: Sequence[str],
    title: str,
    introduction: str,
) -> str:
    accuracy = main_accuracy(groups)
    data = page_data(groups, drawn, accuracy)
    summary = rows(groups, accuracy)
    runs = [run for group in groups for run in group.runs]
    scripts = [_asset(name) for name in SCRIPTS]
    text = _template().render(
        title=title or _title(groups),
        introduction=introduction,
        facts=_facts(groups),
        notices=notices,
        cards=cards(summary, SHOWN),
        groups=groups,
        rows=summary,
        accuracy=accuracy,
        accuracies={name: text for name, text in ACCURACIES.items() if _has(data, name)},
        charts=_charts(data),
        ledger=[(group, _ledger(group)) for group in groups if _ledger(group)],
        partitions=drawn,
        differing=differing([group.first for group in groups]),
        runs=runs,
        several_seeds=len(runs) > len(groups),
        chosen_on=_chosen_on(runs),
        shown=SHOWN,
        plain=_plain,
        quoted=shlex.quote,
        facts_of=_facts_of,
        settings=settings,
        style=_asset("page.css"),
        scripts=scripts,
        hashes=[_hash(script) for script in scripts],
        data=_json(data),
        version=gossamer.__version__,
    )
    # Names of folders and texts of logs may have letters that no encoding knows.
    return text.encode("utf-8", "replace").decode()


def page_data(groups: Sequence[Group], drawn: Sequence[Partition], accuracy: str) -> dict[str, Any]:
    """All that is drawn, as the page has it."""
    return {
        "accuracy": accuracy,
        "groups": [_group_data(group) for group in groups],
        "layers": _layer_names(groups),
        "partitions": [
            {"title": each.title, "clients": each.clients, "counts": each.counts} for each in drawn
        ],
    }


def _group_data(group: Group) -> dict[str, Any]:
    curves = [_shown(run) for run in group.runs]
    figures = (*ACCURACIES, "personal_worst_decile")
    masks = ("density", "mismatch", "client_mismatch")
    return {
        "label": group.label,
        "seeds": len(group.runs),
        "evaluated": table(curves, figures, ("sent", "paper", "device_seconds", "flops")),
        "rounds": table(curves, masks),
        "layers": _layers(group),
        "histogram": _histogram(group),
        "ledger": [
            [direction, f"{message} {leaf}", *map(short, (bits.sent, bits.paper))]
            for (direction, message, leaf), bits in _ledger(group).items()
        ],
    }


def _shown(run: Run) -> dict[str, Curve]:
    """The curves that are drawn, with those that are made of others."""
    beginning = {0: 0.0} if any(0 in run.curve(name) for name in ACCURACIES) else {}
    up, down = run.curve("up"), run.curve("down")
    paper_up, paper_down = run.curve("paper_up"), run.curve("paper_down")
    more = {
        "sent": {at: up[at] + down[at] for at in up if at in down},
        "paper": {at: paper_up[at] + paper_down[at] for at in paper_up if at in paper_down},
        "device_seconds": run.curve("device_seconds"),
        "flops": run.curve("flops"),
    }
    return {
        **run.curves,
        **{name: {**beginning, **curve} for name, curve in more.items() if curve},
        "density": run.curve("personal_density") or run.curve("density"),
        "mismatch": _moves(run.curve("mismatch")),
    }


def _moves(curve: Curve) -> Curve:
    """Without the first round, in which a probe replaces the mask instead of moving it."""
    return {at: value for at, value in curve.items() if at > 1}


def _layer_names(groups: Sequence[Group]) -> list[str]:
    names = dict.fromkeys(name for group in groups for run in group.runs for name in run.layers)
    return list(names)[:LAYERS]


def _layers(group: Group) -> dict[str, dict[str, Any]]:
    names = dict.fromkeys(name for run in group.runs for name in run.layers)
    found = {}
    for layer in list(names)[:LAYERS]:
        each = [run.layers.get(layer, {}) for run in group.runs]
        moved = [{**one, "mismatch": _moves(one.get("mismatch", {}))} for one in each]
        found[layer] = {name: table(moved, (name,), most=PANEL_POINTS) for name in BY_LAYER}
    return found


def _histogram(group: Group) -> list[float | None]:
    """The share of clients in each part of 0 to 1, the mean over seeds."""
    known = [run.histogram for run in group.runs if sum(run.histogram)]
    length = {len(counts) for counts in known}
    if len(length) != 1:
        return []
    shares = [[count / sum(counts) for count in counts] for counts in known]
    return [short(mean(each)) for each in zip(*shares, strict=True)]


def _ledger(group: Group) -> dict[Line, Bits]:
    """What each leaf cost, the mean over seeds; down first, then by size."""
    lines = dict.fromkeys(line for run in group.runs for line in run.ledger)
    runs = [run for run in group.runs if run.ledger]
    found = {}
    for line in lines:
        each = [run.ledger.get(line, Bits()) for run in runs]
        found[line] = Bits(
            round(sum(one.messages for one in each) / len(each)),
            sum(one.sent for one in each) / len(each),
            sum(one.information for one in each) / len(each),
            sum(one.paper for one in each) / len(each),
        )
    order = sorted(found, key=lambda line: (line[0], -found[line].sent, line))
    return {line: found[line] for line in order}


def _charts(data: Mapping[str, Any]) -> dict[str, bool]:
    """Which charts there is anything for."""
    densities = [value for group in data["groups"] for value in group["rounds"].get("density", ())]
    return {
        "rounds": any(_has(data, name) for name in ACCURACIES),
        **{name: _has(data, name) for name in ("sent", "device_seconds", "flops")},
        "histogram": any(group["histogram"] for group in data["groups"]),
        "worst": _has(data, "personal_worst_decile"),
        "ledger": any(group["ledger"] for group in data["groups"]),
        "density": any(value != 1 for value in densities),
        "mismatch": _measured(data, "mismatch"),
        "client_mismatch": _measured(data, "client_mismatch"),
        "layers": bool(data["layers"]),
        **{f"layer_{name}": _in_layers(data, name) for name in BY_LAYER},
    }


def _in_layers(data: Mapping[str, Any], name: str) -> bool:
    return any(
        any(layer[name].get(name, ()))
        for group in data["groups"]
        for layer in group["layers"].values()
    )


def _has(data: Mapping[str, Any], name: str) -> bool:
    """Whether any group has a figure of evaluations."""
    return any(name in group["evaluated"] for group in data["groups"])


def _measured(data: Mapping[str, Any], name: str) -> bool:
    """Whether a figure of masks is ever other than zero."""
    return any(value for group in data["groups"] for value in group["rounds"].get(name, ()))


def _title(groups: Sequence[Group]) -> str:
    names = list(dict.fromkeys(group.first.method for group in groups))
    return ", ".join(names) if len(names) <= 4 else f"{len(names)} methods compared"


def _facts(groups: Sequence[Group]) -> list[str]:
    """What all runs have in common, as short texts."""
    shared = common(
        groups, [f"experiment.{name}" for name in ("data", "partition", "pool", "model", "rounds")]
    )
    names = {name.partition(".")[2]: value for name, value in shared.items() if value}
    runs = sum(len(group.runs) for group in groups)
    texts = [str(names[name]) for name in ("data", "partition", "model") if name in names]
    texts += [f"{names[name]} {text}" for name, text in _COUNTED if name in names]
    return [*texts, f"{runs} runs" if runs > 1 else "1 run"]


_COUNTED = (("pool", "clients"), ("rounds", "rounds"))


def _facts_of(run: Run, name: str) -> Mapping[str, Any]:
    found = run.started.get(name)
    return found if isinstance(found, dict) else {}


def _chosen_on(runs: Sequence[Run]) -> str:
    held_back = [bool(run.curve("valid_mean")) for run in runs]
    if all(held_back):
        return "validation data"
    return (
        "test data, or on validation data where it was held back" if any(held_back) else "test data"
    )


def _plain(value: object) -> str:
    """A setting as it is written in a configuration."""
    return (
        "–"
        if value is None
        else value
        if isinstance(value, str)
        else json.dumps(value, default=str)
    )


def _json(data: Mapping[str, Any]) -> str:
    """JSON that can stand in a page: no letter of it begins a tag or a comment."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def _hash(script: str) -> str:
    """How the page's own policy names a script that may run."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@cache
def _template() -> Template:
    """The page with its gaps; whatever fills them is escaped unless it is our own."""
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError:
        raise ImportError("a report needs Jinja; install gossamer[report]") from None
    pen = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    names = ("bits", "operations", "seconds", "share")
    pen.filters |= {name: getattr(units, name) for name in names}
    return pen.from_string(_asset("page.html"))


@cache
def _asset(name: str) -> str:
    return (resources.files("gossamer.report") / "assets" / name).read_text(encoding="utf-8")
