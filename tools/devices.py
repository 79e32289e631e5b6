"""Writes the table of docs/devices.md and its picture from results/devices.

`tools/results.py` puts them into their places.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev

from devices_study import RESULTS, TARGET, WAYS

from gossamer.devices import PRESETS
from gossamer.devices.declared import UNDECLARED, timing
from gossamer.methods import METHODS
from gossamer.report.kept import read_kept
from gossamer.report.runs import Run
from gossamer.report.waiting import Waiting, together

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "pictures" / "devices.svg"
CLASSES = {"phone-2018": "#1f77b4", "raspberry-pi-4": "#2ca02c", "mcu": "#d62728"}
NAMES = {
    "fedavg": "FedAvg",
    "fedavg-deadline": "FedAvg, deadline 30 s, 1.3 times the clients",
    "fedbuff": "FedBuff (FedAvg, buffer 10, 40 at once)",
    "spdst-by-memory": "SPDST, density 0.2, budgets by memory",
    "spafl": "SpaFL",
    "fedsparse": "FedSparse",
}


EARLIER = 0.8
"""An accuracy that all ways reach."""
NETWORKS = ("4g", "wifi", "iot")
"""Classes without a source, which the table leaves out."""


def classes() -> str:
    """The named classes of devices."""
    lines = [
        "| class | GFLOP/s | Mbit/s up | Mbit/s down | latency, ms | memory, MB |",
        "|---|---|---|---|---|---|",
    ]
    for name, each in PRESETS.items():
        if name not in NETWORKS:
            lines.append(
                f"| `{name}` | {each.flops / 1e9:g} | {each.up / 1e6:g} | {each.down / 1e6:g} | "
                f"{1e3 * each.latency:g} | {each.memory / 1e6:g} |"
            )
    return "\n".join(lines)


def asynchronous() -> str:
    """Which methods can be asynchronous, and which refuse why."""
    reasons: dict[str, list[str]] = {}
    for name, method in METHODS.items():
        reasons.setdefault(timing(method).refused, []).append(f"`{name}`")
    reasons.pop(UNDECLARED.refused)
    lines = ["| methods | asynchronous |", "|---|---|"]
    for reason, names in sorted(reasons.items()):
        lines.append(f"| {', '.join(names)} | {'no: ' + reason if reason else 'yes'} |")
    lines.append("| all others | no: they do not declare that stale replies can be merged |")
    return "\n".join(lines)


def read(results: Path = RESULTS) -> dict[str, list[Run]]:
    """Kept runs by way of training."""
    return {
        way: [read_kept(path) for path in sorted(results.glob(f"{way}-seed-*.json"))]
        for way in WAYS
    }


def scores(run: Run) -> dict[int, float]:
    """The accuracy that a run is judged by: of clients' own models if there are any."""
    return run.curve("personal_mean" if run.curve("personal_density") else "global_score")


def reached(run: Run, target: float = TARGET) -> tuple[float, float, float] | None:
    """Virtual minutes, gigabits and rounds until a target; None if it was not reached."""
    for at, score in sorted(scores(run).items()):
        if score >= target and at:
            sent = (run.curve("up")[at] + run.curve("down")[at]) / 1e9
            return run.curve("device_seconds")[at] / 60, sent, float(at)
    return None


def table(results: Path = RESULTS, target: float = TARGET) -> str:
    """Minutes, bits and rounds to a target, and how many times fewer than FedAvg with a seed."""
    runs = read(results)
    if not any(runs.values()):
        return "No runs are kept yet; the command above makes them."
    first = [reached(run, target) for run in runs["fedavg"]]
    lines = [
        f"| | virtual minutes to {100 * target:.0f} % | times faster than FedAvg | Gbit | "
        "times fewer | faster / fewer | rounds | n |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for way, some in runs.items():
        if not some:
            continue
        found = [each for run in some if (each := reached(run, target))]
        if len(found) < len(some):
            best = max(max(scores(run).values()) for run in some)
            lines.append(
                f"| {NAMES[way]} | not reached by {len(some) - len(found)} of {len(some)} "
                f"(best {100 * best:.1f} %) | – | – | – | – | – | {len(some)} |"
            )
            continue
        minutes, bits, rounds = zip(*found, strict=True)
        pairs = [(one, other) for one, other in zip(first, found, strict=False) if one]
        faster, fewer = ([one[at] / other[at] for one, other in pairs] for at in (0, 1))
        more = [time / sent for time, sent in zip(faster, fewer, strict=True)]
        lines.append(
            f"| {NAMES[way]} | {_mean(minutes)} | {_mean(faster)} | {_mean(bits)} | "
            f"{_mean(fewer)} | {_mean(more)} | {_mean(rounds)} | {len(some)} |"
        )
    return "\n".join(lines)


def earlier(results: Path = RESULTS) -> str:
    """The same to an accuracy that all reach, of FedAvg and the sparse methods."""
    lines = table(results, EARLIER).splitlines()
    return "\n".join(line for line in lines if not line.startswith(("| FedAvg,", "| FedBuff")))


def _mean(values: Sequence[float]) -> str:
    if not values:
        return "–"
    error = f" ± {stdev(values) / math.sqrt(len(values)):.2g}" if len(values) > 1 else ""
    return f"{fmean(values):.3g}{error}"


def waited(results: Path = RESULTS) -> str:
    """Who was waited for: rounds and time, by class of devices."""
    runs = {way: some for way, some in read(results).items() if some}
    if not runs:
        return "No runs are kept yet; the command above makes them."
    lines = [
        f"![Rounds by the class of the device that they waited for](pictures/{PICTURE.name})",
        "",
        f"| merged of those asked | {' | '.join(CLASSES)} | rounds that ended with each | "
        "time of waiting for one alone |",
        "|---|" + "---|" * (len(CLASSES) + 2),
    ]
    for way, some in runs.items():
        total = sum(max(run.curve("device_seconds").values()) for run in some)
        found = together(run.devices for run in some)
        each = [found.get(name, Waiting()) for name in CLASSES]
        merged = " | ".join(f"{one.merged} of {one.parts}" for one in each)
        last = ", ".join(str(one.last) for one in each)
        alone = ", ".join(f"{100 * one.alone / total:.0f} %" for one in each)
        lines.append(f"| {NAMES[way]} | {merged} | {last} | {alone} |")
    return "\n".join(lines)


def pictures(results: Path = RESULTS) -> dict[Path, str]:
    """The picture, if there is something to draw."""
    return {PICTURE: picture(results)} if any(read(results).values()) else {}


def picture(results: Path = RESULTS) -> str:
    """The share of rounds that ended with each class of devices, as bars in SVG."""
    runs: Mapping[str, list[Run]] = {way: some for way, some in read(results).items() if some}
    height, width, left = 34, 420, 300
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 20} '
        f'{height * len(runs) + 60}" font-family="sans-serif" font-size="12">'
    ]
    for row, (way, some) in enumerate(runs.items()):
        known, x = together(run.devices for run in some), float(left)
        total = sum(each.last for each in known.values()) or 1
        y = 40 + height * row
        parts.append(f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{NAMES[way]}</text>')
        for name, colour in CLASSES.items():
            share = known[name].last / total if name in known else 0.0
            parts.append(
                f'<rect x="{x:.1f}" y="{y}" width="{share * width:.1f}" height="20" '
                f'fill="{colour}"/>'
            )
            x += share * width
    for place, (name, colour) in enumerate(CLASSES.items()):
        x = left + 140 * place
        parts.append(f'<rect x="{x}" y="10" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 18}" y="20">{name}</text>')
    return "\n".join([*parts, "</svg>\n"])
