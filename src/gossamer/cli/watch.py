"""`gossamer watch`: follow a running experiment by its event log."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from gossamer.cli.parsing import Parser, Refusal, say
from gossamer.cli.progress import bits, clock, failure
from gossamer.engine.events import (
    CONFIG,
    SCHEMA,
    ClientFailed,
    Evaluated,
    Event,
    Finished,
    Measured,
    RoundFinished,
)
from gossamer.report.live import LiveRun, Tail

BARS = "▁▂▃▄▅▆▇█"
ACCURACIES = {
    "accuracy/global": "global",
    "accuracy/personal_mean": "personal",
    "accuracy/personal_worst_decile": "worst decile",
    "accuracy/local_mean": "clients' own",
    "accuracy/valid_mean": "validation",
}
"""Labels of the curves, by the names that trackers use."""
SHARES = {
    "density": "density",
    "density/personal": "personal density",
    "density/global": "mask density",
    "mismatch": "mismatch",
}
SILENCE = 60.0
"""Seconds without an event after which the display says so."""
WIDTH = 40
"""Characters of a bar or a curve."""


class Display(Protocol):
    """Shows a run."""

    def update(self, event: Event | None, live: LiveRun) -> None: ...
    def frame(self, live: LiveRun) -> None: ...
    def close(self) -> None: ...


def watch(arguments: Sequence[str]) -> int:
    """`gossamer watch RUN`: follows a running experiment until it ends."""
    parser = Parser(prog="gossamer watch", description=watch.__doc__)
    parser.add_argument("run", help="the folder of the run, which may not exist yet")
    parser.add_argument("--once", action="store_true", help="show the current state and exit")
    parser.add_argument(
        "--every",
        type=float,
        default=0.5,
        metavar="SECONDS",
        help="refresh interval (default: 0.5)",
    )
    options = parser.read(arguments)
    run = Path(options.run)
    if not 0.01 <= options.every <= 3600:
        raise Refusal(f"--every must be between 0.01 and 3600 seconds, not {options.every:g}")
    if run.exists() and not run.is_dir():
        raise Refusal(f"{run} is not a folder; name the folder of a run")
    if not (run / "events.jsonl").exists() and (newest := _newest(run)):
        raise Refusal(f"{run} holds several runs; the newest is: gossamer watch {newest}")
    tail = Tail(run / "events.jsonl")
    if options.once:
        live = LiveRun(run)
        for line in tail.read()[1]:
            live.update(line)
        if live.started is None:
            raise Refusal(f"there is no run to show yet in {tail.path}")
        say("\n".join(frame(live, time.time())))
        return 0
    follow(tail, run, display(), lambda: time.sleep(options.every))
    return 0


def follow(tail: Tail, run: Path, show: Display, wait: Callable[[], None]) -> None:
    """Shows new events and waits, until the run has finished."""
    live = LiveRun(run)
    try:
        while True:
            rewritten, lines = tail.read()
            if rewritten:
                live = LiveRun(run)
            for line in lines:
                show.update(live.update(line), live)
            show.frame(live)
            if live.finished:
                return
            wait()
    finally:
        show.close()


class Lines:
    """One line per round, for pipes and log files; repeated rounds of a resumed run are omitted."""

    def __init__(self) -> None:
        self._shown = 0
        self._waited = False
        self._pending = False

    def update(self, event: Event | None, live: LiveRun) -> None:
        if self._pending and not isinstance(event, Evaluated | Measured | None):
            self._print(live)
        match event:
            case RoundFinished() if event.round > self._shown:
                self._pending, self._shown = True, event.round
            case Evaluated() if self._pending:
                self._print(live)
            case ClientFailed() if event.round > self._shown:
                say(failure(event, live.run))
            case Finished():
                say("\n".join(frame(live, time.time())))
            case _:
                pass

    def frame(self, live: LiveRun) -> None:
        if live.started is None and not self._waited:
            self._waited = True
            say(_waiting(live))

    def close(self) -> None:
        """Has nothing to close."""

    def _print(self, live: LiveRun) -> None:
        self._pending = False
        known = {text: live.last[name] for name, text in ACCURACIES.items() if name in live.last}
        accuracies = [f"{text} {value:.4f}" for text, value in known.items()]
        parts = [f"round {self._shown}/{live.rounds}", *accuracies, *_traffic(live), *_shares(live)]
        say("  ".join([*parts, *_pace(live)]))


class Screen:
    """One frame that is redrawn in place; needs rich."""

    def __init__(self, console: Any = None) -> None:
        from rich.live import Live
        from rich.text import Text

        self._text = Text
        self._live = Live(console=console, auto_refresh=False)
        self._live.start()

    def update(self, event: Event | None, live: LiveRun) -> None:
        """Shows no single events."""

    def frame(self, live: LiveRun) -> None:
        lines = frame(live, time.time())
        self._live.update(self._text("\n".join(lines)), refresh=True)

    def close(self) -> None:
        self._live.stop()


def display() -> Display:
    """A screen if standard output is a terminal and rich is installed, otherwise lines."""
    if sys.stdout.isatty():
        try:
            return Screen()
        except ImportError:
            pass
    return Lines()


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
    for name, text in ACCURACIES.items():
        if curve := live.curves.get(name):
            lines.append(
                f"{text:13}{sparkline(curve).ljust(WIDTH)}  {curve[-1]:.4f}  best {max(curve):.4f}"
            )
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


def _newest(folder: Path) -> str:
    """The most recently updated run below a folder."""
    logs = [log for depth in (1, 2, 3) for log in folder.glob("*/" * depth + "events.jsonl")]
    newest = max(logs, key=lambda path: path.stat().st_mtime, default=None)
    return "" if newest is None else shlex.quote(str(newest.parent))
