"""One frame of `gossamer watch`: a running experiment in a few lines."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from gossamer.cli.progress import bits, clock, failure
from gossamer.engine.events import (
    CONFIG,
    SCHEMA,
)
from gossamer.report.live import LiveRun
from gossamer.report.units import score
from gossamer.task.metrics import titled

BARS = "▁▂▃▄▅▆▇█"
SCORES = {
    "global": "global",
    "personal_mean": "personal",
    "personal_worst_decile": "worst decile",
    "local_mean": "clients' own",
    "valid_mean": "validation",
}
"""Labels of the curves of the headline metric, by the names of `LiveRun.curves`."""
SHARES = {
    "density": "density",
    "density/personal": "personal density",
    "density/global": "mask density",
    "mismatch": "mismatch",
    "privacy/epsilon": "epsilon",
}
SILENCE = 60.0
"""Seconds without an event after which the display says so."""
WIDTH = 40
"""Characters of a bar or a curve."""


def frame(live: LiveRun, now: float) -> list[str]:
    """The state of a run in a few lines."""
    if live.started is None:
        return [_waiting(live)]
    first = live.started
    lines = [f"{first.method} · seed {first.seed} · pool of {first.pool} clients · {live.run}"]
    done = live.round / max(live.rounds, 1)
    filled = min(round(WIDTH * done), WIDTH)
    state = "finished" if live.finished else ", ".join(_pace(live)) or "no round yet"
    bar = f"{'█' * filled}{'░' * (WIDTH - filled)}"
    lines.append(f"{'round':13}{bar}  {live.round}/{live.rounds}  {state}")
    choose = max if live.better == "higher" else min
    if live.metric != "accuracy":
        lines.append(f"{titled(live.metric)}, {live.better} is better:")
    for name, text in SCORES.items():
        if curve := live.curves.get(name):
            last, best = score(curve[-1]), score(choose(curve))
            lines.append(f"{text:13}{sparkline(curve).ljust(WIDTH)}  {last}  best {best}")
    if figures := [*_traffic(live), *_shares(live)]:
        lines.append(" · ".join(figures))
    if live.failed:
        lines.append(f"dropped replies: {live.failed}; the latest:")
        lines += [f"  {failure(event, live.run)}" for event in live.failures]
    if live.damaged:
        lines.append(f"unreadable lines in the log: {live.damaged}")
    if first.schema > SCHEMA:
        lines.append(f"the log has a newer format ({first.schema}; this version knows {SCHEMA})")
    silent = now - live.updated
    if not live.finished and silent > max(SILENCE, 10 * (live.pace or 0)):
        resume = f"gossamer resume {shlex.quote(str(live.run))}"
        if not (live.run / CONFIG).exists():  # a Flower project's run, on its server
            resume = "`gossamer serve` its project again"
        lines.append(f"no events for {clock(silent)}; if the run was stopped: {resume}")
    return lines


def sparkline(values: Sequence[float], width: int = WIDTH) -> str:
    """A curve in block characters, from its minimum to its maximum; the last value per column."""
    if len(values) > width:
        values = [values[(place + 1) * len(values) // width - 1] for place in range(width)]
    low, high = min(values), max(values)
    top = len(BARS) - 1
    return "".join(
        BARS[round(top * (value - low) / (high - low)) if high > low else 0] for value in values
    )


def _waiting(live: LiveRun) -> str:
    return f"waiting for {live.run / 'events.jsonl'}"


def _traffic(live: LiveRun) -> list[str]:
    names = {"bits/up": "up", "bits/down": "down"}
    return [f"{text} {bits(live.last[name])}" for name, text in names.items() if name in live.last]


def _shares(live: LiveRun) -> list[str]:
    return [f"{text} {live.last[name]:.3g}" for name, text in SHARES.items() if name in live.last]


def _pace(live: LiveRun) -> list[str]:
    """Speed and remaining time."""
    if live.pace is None:
        return []
    rate = 60 / max(live.pace, 1e-9)
    left = clock(live.pace * (live.rounds - live.round))
    return [f"{rate:.3g} rounds/min", f"{live.speed:,.0f} examples/s", f"left {left}"]
