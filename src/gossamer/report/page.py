"""The self-contained page: figures of runs, and the scripts that draw them."""

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
from gossamer.report.figures import SCORES, cards, headline, main_score, rows, score
from gossamer.report.groups import Group, common, differing, grouped, settings
from gossamer.report.page_data import BY_LAYER, TIMES, _ledger, page_data
from gossamer.report.partition import Partition, partitions
from gossamer.report.reading import read_run
from gossamer.report.runs import NoRun, Run

if TYPE_CHECKING:
    from jinja2 import Template

SCRIPTS = (
    *("echarts/echarts.min.js", "parts.js", "charts.js", "downloads.js", "zoom.js"),
    "page.js",
)
SHOWN: Mapping[str, Callable[[float | None], str]] = {
    "score": units.score,
    "valid": units.score,
    "density": units.share,
    "sent": units.bits,
    "up": units.bits,
    "down": units.bits,
    "flops": units.operations,
    "device_seconds": units.seconds,
    "training_seconds": units.seconds,
}
"""How headline figures are formatted."""


@dataclass(frozen=True)
class Report:
    """A page, and the runs in it."""

    html: str
    runs: Sequence[Run]
    groups: Sequence[Group]
    notices: Sequence[str]


@dataclass(frozen=True)
class Block:
    """A column of a paper's table as text: published next to measured figures."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class PaperTable:
    """A paper's table that the runs of a page reproduce."""

    blocks: tuple[Block, ...] = ()
    notes: tuple[str, ...] = ()


def report(
    folders: Sequence[str | Path],
    title: str = "",
    introduction: str = "",
    published: PaperTable | None = None,
) -> Report:
    """Makes a page about runs; problems with single runs are reported in it.

    Args:
        folders: the folders of the runs.
        title: of the page; by default the methods.
        introduction: a paragraph at its top.
        published: the paper's table that the runs reproduce.

    Raises:
        NoRun: none of the folders has a run.
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
    table = published or PaperTable()
    html = _html(groups, drawn, notices, title, introduction, table)
    return Report(html, runs, groups, notices)


def _html(
    groups: Sequence[Group],
    drawn: Sequence[Partition],
    notices: Sequence[str],
    title: str,
    introduction: str,
    published: PaperTable,
) -> str:
    main, metric = main_score(groups), headline(groups)
    data = page_data(groups, drawn, main)
    summary = rows(groups, main)
    runs = [run for group in groups for run in group.runs]
    scripts = [_asset(name) for name in SCRIPTS]
    text = _template().render(
        title=title or _title(groups),
        introduction=introduction,
        published=published,
        facts=_facts(groups),
        notices=notices,
        cards=cards(summary, SHOWN),
        groups=groups,
        rows=summary,
        main=main,
        metric=metric.title if metric else "score",
        rises=metric is None or metric.rises,
        scores={name: text for name, text in SCORES.items() if _has(data, name)},
        charts={**_charts(data), "epsilon": any(run.curve("epsilon") for run in runs)},
        ledger=[(group, _ledger(group)) for group in groups if _ledger(group)],
        partitions=drawn,
        differing=differing([group.first for group in groups]),
        runs=runs,
        several_seeds=len(runs) > len(groups),
        chosen_on=_chosen_on(runs),
        by_validation=score(groups) == "valid",
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
    # Folder names and logs may contain characters that UTF-8 cannot encode.
    return text.encode("utf-8", "replace").decode()


def _charts(data: Mapping[str, Any]) -> dict[str, bool]:
    """Which charts have data."""
    densities = [value for group in data["groups"] for value in group["rounds"].get("density", ())]
    return {
        "rounds": any(_has(data, name) for name in SCORES),
        **{name: _has(data, name) for name in ("sent", *TIMES, "flops")},
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
    """Whether any group has this figure in its evaluations."""
    return any(name in group["evaluated"] for group in data["groups"])


def _measured(data: Mapping[str, Any], name: str) -> bool:
    """Whether a figure of the masks is ever non-zero."""
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
    facts = run.started.get(name)
    return facts if isinstance(facts, dict) else {}


def _chosen_on(runs: Sequence[Run]) -> str:
    held_out = [bool(run.curve("valid_mean")) for run in runs]
    if all(held_out):
        return "validation data"
    return "test data, or on validation data if held out" if any(held_out) else "test data"


def _plain(value: object) -> str:
    """A setting as in a configuration file."""
    return (
        "–"
        if value is None
        else value
        if isinstance(value, str)
        else json.dumps(value, default=str)
    )


def _json(data: Mapping[str, Any]) -> str:
    """JSON that is safe inside HTML: it cannot begin a tag or a comment."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def _hash(script: str) -> str:
    """The hash that permits a script in the page's content security policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@cache
def _template() -> Template:
    """The template of the page; all values are escaped, except our own assets."""
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError:
        raise ImportError("a report needs Jinja; install gossamer[report]") from None
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    names = ("bits", "operations", "seconds", "share")
    environment.filters |= {name: getattr(units, name) for name in names}
    return environment.from_string(_asset("page.html"))


@cache
def _asset(name: str) -> str:
    return (resources.files("gossamer.report") / "assets" / name).read_text(encoding="utf-8")
