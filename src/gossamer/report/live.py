"""The state of a running experiment, read from its growing event log."""

from __future__ import annotations

import dataclasses
import json
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from gossamer.engine.events import (
    ClientFailed,
    ClientFinished,
    Evaluated,
    Event,
    Finished,
    RoundFinished,
    Started,
    kind,
)
from gossamer.engine.trackers import scalars

RECENT = 20
"""Rounds whose durations the remaining time is estimated from."""
FAILURES = 3
"""Failures that are kept."""
KINDS: dict[str, type[Event]] = {kind(each.__new__(each)): each for each in get_args(Event)}


@dataclass
class Tail:
    """New lines of a growing file, which a resumed run may truncate and continue."""

    path: Path
    position: int = 0
    _last: bytes = b""

    def read(self) -> tuple[bool, list[bytes]]:
        """Reads on.

        Returns:
            Whether the file was rewritten, so that all earlier lines are void, and the complete
            lines since the last call, or since the beginning of a rewritten file.
        """
        try:
            with self.path.open("rb") as file:
                file.seek(self.position - len(self._last))
                rewritten = file.read(len(self._last)) != self._last
                if rewritten:
                    file.seek(0)
                    self.position, self._last = 0, b""
                data = file.read()
        except FileNotFoundError:
            rewritten = self.position > 0
            self.position, self._last = 0, b""
            return rewritten, []
        complete = data[: data.rfind(b"\n") + 1]
        lines = complete.splitlines(keepends=True)
        self.position += len(complete)
        self._last = lines[-1] if lines else self._last
        return rewritten, lines


@dataclass
class LiveRun:
    """What the log of a run says so far."""

    run: Path
    started: Started | None = None
    finished: Finished | None = None
    round: int = 0
    last: dict[str, float] = field(default_factory=dict)
    """The latest value of every scalar that trackers receive."""
    curves: dict[str, list[float]] = field(default_factory=dict)
    """The headline metric of models, by the names that trackers use after that of the metric."""
    metric: str = "accuracy"
    better: str = "higher"
    durations: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    """Seconds of the latest rounds, including their evaluations."""
    speed: float = 0.0
    """Examples per second in the latest round."""
    failed: int = 0
    failures: deque[ClientFailed] = field(default_factory=lambda: deque(maxlen=FAILURES))
    damaged: int = 0
    updated: float = 0.0
    """The time of the latest event."""
    _examples: int = 0

    def update(self, line: bytes) -> Event | None:
        """Updates the state by one line of the log; returns None for an unreadable line."""
        try:
            plain = json.loads(line)
            event = parse(plain)
            updated, seconds = float(plain["clock"]["time"]), float(plain["clock"]["seconds"])
            figures = {} if event is None else scalars(event)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self.damaged += 1
            return None
        self.updated = updated
        self.last |= figures
        for name, value in figures.items():
            if isinstance(event, Evaluated) and name.partition("/")[0] == event.metric:
                self.curves.setdefault(name.partition("/")[2], []).append(value)
        match event:
            case Started():
                self.started = event
            case ClientFinished():
                self._examples += event.examples
            case ClientFailed():
                self.failed += 1
                self.failures.append(event)
            case RoundFinished():
                self.round = event.round
                self.durations.append(seconds)
                self.speed, self._examples = self._examples / max(seconds, 1e-9), 0
            case Evaluated():
                self.metric, self.better = event.metric, event.better
                if self.durations:
                    self.durations[-1] += seconds
            case Finished():
                self.finished = event
            case _:
                pass
        return event

    @property
    def rounds(self) -> int:
        """The planned number of rounds."""
        return self.started.rounds if self.started else 0

    @property
    def pace(self) -> float | None:
        """Seconds per round, the mean of the latest."""
        return sum(self.durations) / len(self.durations) if self.durations else None


def parse(plain: Any) -> Event | None:
    """The event in a line of the log; None for an unknown kind."""
    event_type = KINDS.get(plain["event"])
    if event_type is None:
        return None
    names = {each.name for each in dataclasses.fields(event_type)}
    event: Event = event_type(**{name: value for name, value in plain.items() if name in names})
    return event
