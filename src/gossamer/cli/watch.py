"""`gossamer watch`: a run that is going in another process, as far as its log tells."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, get_args

from gossamer.cli.parsing import Parser, Refusal, say
from gossamer.cli.progress import bits, failure
from gossamer.engine.events import (
    CONFIG,
    SCHEMA,
    ClientFailed,
    ClientFinished,
    Evaluated,
    Event,
    Finished,
    Measured,
    RoundFinished,
    Started,
    kind,
)
from gossamer.engine.trackers import scalars

BARS = "▁▂▃▄▅▆▇█"
ACCURACIES = {
    "accuracy/global": "global",
    "accuracy/personal_mean": "personal",
    "accuracy/personal_worst_decile": "worst decile",
    "accuracy/local_mean": "clients' own",
    "accuracy/valid_mean": "validation",
}
"""Curves, by the names that trackers have for them."""
SHARES = {
    "density": "density",
    "density/personal": "personal density",
    "density/global": "mask density",
    "mismatch": "mismatch",
}
RECENT = 20
"""Rounds by whose times the rest is reckoned."""
FAILURES = 3
"""Failures that are shown."""
SILENCE = 60.0
"""Seconds without news after which that is said."""
WIDTH = 40
"""Letters of a bar or a curve."""
KINDS: dict[str, type[Event]] = {kind(each.__new__(each)): each for each in get_args(Event)}


class Display(Protocol):
    """Where a run is shown."""

    def update(self, event: Event | None, seen: Seen) -> None: ...
    def frame(self, seen: Seen) -> None: ...
    def close(self) -> None: ...


@dataclass
class Tail:
    """New lines of a file that grows, and may be cut and written anew by a run that resumes."""

    path: Path
    position: int = 0
    _last: bytes = b""

    def read(self) -> tuple[bool, list[bytes]]:
        """Whether what was read before holds no more, and all whole lines since."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.position - len(self._last))
                again = file.read(len(self._last)) != self._last
                if again:
                    file.seek(0)
                    self.position, self._last = 0, b""
                data = file.read()
        except FileNotFoundError:
            again = self.position > 0
            self.position, self._last = 0, b""
            return again, []
        whole = data[: data.rfind(b"\n") + 1]
        lines = whole.splitlines(keepends=True)
        self.position += len(whole)
        self._last = lines[-1] if lines else self._last
        return again, lines


@dataclass
class Seen:
    """What the log has told so far."""

    run: Path
    started: Started | None = None
    finished: Finished | None = None
    round: int = 0
    last: dict[str, float] = field(default_factory=dict)
    """The newest of every scalar that trackers get."""
    curves: dict[str, list[float]] = field(default_factory=dict)
    times: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    """How long the newest rounds took, with their evaluations."""
    speed: float = 0.0
    """Examples in a second of the newest round."""
    failed: int = 0
    failures: deque[str] = field(default_factory=lambda: deque(maxlen=FAILURES))
    damaged: int = 0
    told: float = 0.0
    """When the newest event happened."""
    _examples: int = 0

    def take(self, line: bytes) -> Event | None:
        """Takes in one line of the log; None for one that is not understood."""
        try:
            plain = json.loads(line)
            event = parsed(plain)
            told, took = float(plain["clock"]["time"]), float(plain["clock"]["seconds"])
            figures = {} if event is None else scalars(event)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self.damaged += 1
            return None
        self.told = told
        self.last |= figures
        for name in ACCURACIES.keys() & figures.keys():
            self.curves.setdefault(name, []).append(figures[name])
        match event:
            case Started():
                self.started = event
            case ClientFinished():
                self._examples += event.examples
            case ClientFailed():
                self.failed += 1
                self.failures.append(failure(event, self.run))
            case RoundFinished():
                self.round = event.round
                self.times.append(took)
                self.speed, self._examples = self._examples / max(took, 1e-9), 0
            case Evaluated() if self.times:
                self.times[-1] += took
            case Finished():
                self.finished = event
            case _:
                pass
        return event

    @property
    def rounds(self) -> int:
        """Rounds that were asked for."""
        return self.started.rounds if self.started else 0

    @property
    def pace(self) -> float | None:
        """Seconds of a round, the mean of the newest."""
        return sum(self.times) / len(self.times) if self.times else None


def watch(arguments: Sequence[str]) -> int:
    """`gossamer watch RUN`: shows a run that is going elsewhere, until it ends."""
    parser = Parser(prog="gossamer watch", description=watch.__doc__)
    parser.add_argument("run", help="the folder of the run, also before it is there")
    parser.add_argument("--once", action="store_true", help="show how it stands now, and end")
    parser.add_argument("--every", type=float, default=0.5, metavar="SECONDS", help="default: 0.5")
    options = parser.read(arguments)
    run = Path(options.run)
    if not 0.01 <= options.every <= 3600:
        raise Refusal(f"--every is between 0.01 and 3600 seconds, not {options.every:g}")
    if run.exists() and not run.is_dir():
        raise Refusal(f"{run} is no folder; name that of a run")
    if not (run / "events.jsonl").exists() and (newest := _newest(run)):
        raise Refusal(f"{run} holds several runs; the newest is: gossamer watch {newest}")
    tail = Tail(run / "events.jsonl")
    if options.once:
        seen = Seen(run)
        for line in tail.read()[1]:
            seen.take(line)
        if seen.started is None:
            raise Refusal(f"there is nothing to see: {tail.path} tells of no run yet")
        say("\n".join(frame(seen, time.time())))
        return 0
    follow(tail, run, display(), lambda: time.sleep(options.every))
    return 0


def follow(tail: Tail, run: Path, show: Display, wait: Callable[[], None]) -> None:
    """Shows what is new, then waits, until the run is over."""
    seen = Seen(run)
    try:
        while True:
            again, lines = tail.read()
            if again:
                seen = Seen(run)
            for line in lines:
                show.update(seen.take(line), seen)
            show.frame(seen)
            if seen.finished:
                return
            wait()
    finally:
        show.close()


class Lines:
    """One line a round, for pipes and log files; rounds that a resumed run repeats are not."""

    def __init__(self) -> None:
        self._shown = 0
        self._waited = False
        self._pending = False

    def update(self, event: Event | None, seen: Seen) -> None:
        if self._pending and not isinstance(event, Evaluated | Measured | None):
            self._print(seen)
        match event:
            case RoundFinished() if event.round > self._shown:
                self._pending, self._shown = True, event.round
            case Evaluated() if self._pending:
                self._print(seen)
            case ClientFailed() if event.round > self._shown:
                say(seen.failures[-1])
            case Finished():
                say("\n".join(frame(seen, time.time())))
            case _:
                pass

    def frame(self, seen: Seen) -> None:
        if seen.started is None and not self._waited:
            self._waited = True
            say(_waiting(seen))

    def close(self) -> None:
        """Nothing is left open."""

    def _print(self, seen: Seen) -> None:
        self._pending = False
        known = {text: seen.last[name] for name, text in ACCURACIES.items() if name in seen.last}
        accuracies = [f"{text} {value:.4f}" for text, value in known.items()]
        parts = [f"round {self._shown}/{seen.rounds}", *accuracies, *_sent(seen), *_shares(seen)]
        say("  ".join([*parts, *_pace(seen)]))


class Screen:
    """One frame that stays in place; needs rich."""

    def __init__(self, console: Any = None) -> None:
        from rich.live import Live
        from rich.text import Text

        self._text = Text
        self._live = Live(console=console, auto_refresh=False)
        self._live.start()

    def update(self, event: Event | None, seen: Seen) -> None:
        """Single events are not shown."""

    def frame(self, seen: Seen) -> None:
        lines = frame(seen, time.time())
        self._live.update(self._text("\n".join(lines)), refresh=True)

    def close(self) -> None:
        self._live.stop()


def display() -> Display:
    """The display that fits where standard output goes."""
    if sys.stdout.isatty():
        try:
            return Screen()
        except ImportError:
            pass
    return Lines()


def frame(seen: Seen, now: float) -> list[str]:
    """How a run stands, in a few lines."""
    if seen.started is None:
        return [_waiting(seen)]
    first = seen.started
    lines = [f"{first.method} · seed {first.seed} · {first.pool} clients in all · {seen.run}"]
    done = seen.round / max(seen.rounds, 1)
    filled = min(round(WIDTH * done), WIDTH)
    state = "finished" if seen.finished else ", ".join(_pace(seen)) or "no round yet"
    bar = f"{'█' * filled}{'░' * (WIDTH - filled)}"
    lines.append(f"{'round':13}{bar}  {seen.round}/{seen.rounds}  {state}")
    for name, text in ACCURACIES.items():
        if curve := seen.curves.get(name):
            lines.append(
                f"{text:13}{sparkline(curve).ljust(WIDTH)}  {curve[-1]:.4f}  best {max(curve):.4f}"
            )
    if figures := [*_sent(seen), *_shares(seen)]:
        lines.append(" · ".join(figures))
    if seen.failed:
        lines.append(f"replies left out: {seen.failed}; the last:")
        lines += [f"  {text}" for text in seen.failures]
    if seen.damaged:
        lines.append(f"lines of the log that could not be understood: {seen.damaged}")
    if first.schema > SCHEMA:
        lines.append(f"the log is of a newer version ({first.schema}, known is {SCHEMA})")
    if not seen.finished and now - seen.told > max(SILENCE, 10 * (seen.pace or 0)):
        resume = f"gossamer resume {shlex.quote(str(seen.run))}"
        if not (seen.run / CONFIG).exists():  # the run of a project, at its server
            resume = "`gossamer serve` its project again"
        lines.append(f"no news for {_clock(now - seen.told)}; if it was stopped: {resume}")
    return lines


def sparkline(values: Sequence[float], width: int = WIDTH) -> str:
    """A curve in letters, from its lowest to its highest value; each the last of its stretch."""
    if len(values) > width:
        values = [values[(place + 1) * len(values) // width - 1] for place in range(width)]
    low, high = min(values), max(values)
    top = len(BARS) - 1
    return "".join(
        BARS[round(top * (value - low) / (high - low)) if high > low else 0] for value in values
    )


def parsed(plain: Any) -> Event | None:
    """The event of a line of the log, None for a kind that is not known."""
    found = KINDS.get(plain["event"])
    if found is None:
        return None
    names = {each.name for each in dataclasses.fields(found)}
    made: Event = found(**{name: value for name, value in plain.items() if name in names})
    return made


def _waiting(seen: Seen) -> str:
    return f"waiting for {seen.run / 'events.jsonl'}"


def _sent(seen: Seen) -> list[str]:
    names = {"bits/up": "up", "bits/down": "down"}
    return [f"{text} {bits(seen.last[name])}" for name, text in names.items() if name in seen.last]


def _shares(seen: Seen) -> list[str]:
    return [f"{text} {seen.last[name]:.3g}" for name, text in SHARES.items() if name in seen.last]


def _pace(seen: Seen) -> list[str]:
    """How fast it goes, and for how long yet."""
    if seen.pace is None:
        return []
    rate = 60 / max(seen.pace, 1e-9)
    left = _clock(seen.pace * (seen.rounds - seen.round))
    return [f"{rate:.3g} rounds/min", f"{seen.speed:,.0f} examples/s", f"left {left}"]


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _newest(folder: Path) -> str:
    """The run in a folder of runs whose log was written to last."""
    logs = [log for depth in (1, 2, 3) for log in folder.glob("*/" * depth + "events.jsonl")]
    newest = max(logs, key=lambda path: path.stat().st_mtime, default=None)
    return "" if newest is None else shlex.quote(str(newest.parent))
