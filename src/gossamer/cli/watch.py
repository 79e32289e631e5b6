"""`gossamer watch`: follow a running experiment by its event log."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from gossamer.cli.parsing import Parser, Refusal, say
from gossamer.cli.progress import failure
from gossamer.cli.watch_frame import SCORES, _pace, _shares, _traffic, _waiting, frame
from gossamer.engine.events import (
    ClientFailed,
    Evaluated,
    Event,
    Finished,
    Measured,
    RoundFinished,
)
from gossamer.report.live import LiveRun, Tail
from gossamer.report.units import score


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

    def __init__(self, shown: int = 0) -> None:
        self._shown = shown
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
        known = {
            text: live.curves[name][-1] for name, text in SCORES.items() if name in live.curves
        }
        scores = [f"{text} {score(value)}" for text, value in known.items()]
        parts = [f"round {self._shown}/{live.rounds}", *scores, *_traffic(live), *_shares(live)]
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


def _newest(folder: Path) -> str:
    """The most recently updated run below a folder."""
    logs = [log for depth in (1, 2, 3) for log in folder.glob("*/" * depth + "events.jsonl")]
    newest = max(logs, key=lambda path: path.stat().st_mtime, default=None)
    return "" if newest is None else shlex.quote(str(newest.parent))
