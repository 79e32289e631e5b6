"""Progress of a run: a live display on a terminal, plain lines in a pipe."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from gossamer.engine import replay
from gossamer.engine.events import (
    ClientFailed,
    ClientFinished,
    Clock,
    Evaluated,
    Event,
    Finished,
    Measured,
    PrivacySpent,
    Sink,
    Started,
    StateLost,
)
from gossamer.engine.events import RoundFinished as Round
from gossamer.method_names import has_global_model
from gossamer.report.units import score, seconds
from gossamer.task.metrics import titled


class Figures:
    """The figures that every display shows, collected from events."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.round = 0
        self.metric = "accuracy"
        self.global_model = True
        self.score: float | None = None
        self.personal: float | None = None
        self.valid: float | None = None
        self.bits = 0
        self.density = 1.0
        self.epsilon: float | None = None
        self.virtual: float | None = None
        self.speed = 0.0
        self._examples = 0
        self._start = time.monotonic()
        self._first: int | None = None

    def see(self, event: Event, clock: Clock) -> None:
        """Updates the figures by one event."""
        match event:
            case Started():
                self.global_model = has_global_model(event.method)
            case ClientFinished():
                self._examples += event.examples
            case Round():
                if self._first is None:
                    self._first = event.round - 1
                self.round = event.round
                self.bits = event.up + event.down
                self.density = event.density
                self.virtual = event.device_seconds
                self.speed = self._examples / max(clock.seconds, 1e-9)
                self._examples = 0
            case PrivacySpent():
                self.epsilon = event.epsilon
            case Evaluated():
                self.metric = titled(event.metric)
                self.score = event.global_score if self.global_model else None
                self.personal = event.personal_mean
                self.valid = event.valid_mean

    def left(self) -> str:
        """The time that the remaining rounds will take at the average pace so far."""
        done = self.round - (self._first or 0)
        if not done:
            return "-:--"
        return clock((time.monotonic() - self._start) / done * (self.rounds - self.round))

    def parts(self) -> list[str]:
        """The figures as short texts, the remaining time last."""
        shown = {self.metric: self.score, "personal": self.personal, "valid": self.valid}
        return [
            *(f"{name} {score(value)}" for name, value in shown.items() if value is not None),
            bits(self.bits),
            f"density {self.density:.3g}",
            *([] if self.epsilon is None else [f"epsilon {self.epsilon:.3g}"]),
            *([] if self.virtual is None else [f"virtual {seconds(self.virtual)}"]),
            f"{self.speed:,.0f} examples/s",
            f"left {self.left()}",
        ]


def clock(seconds: float) -> str:
    """A duration as 1:02:03 or 2:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def bits(count: float) -> str:
    """A number of bits with a unit: 4.2 Mbit."""
    for unit in ("bit", "kbit", "Mbit", "Gbit"):
        if count < 1000 or unit == "Gbit":
            return f"{count:.4g} {unit}"
        count /= 1000
    return ""


class Lines:
    """One line per round, for pipes and log files."""

    def __init__(self, rounds: int, stream: TextIO, run: Path | None = None) -> None:
        self._figures = Figures(rounds)
        self._stream = stream
        self._run = run
        self._pending = False

    def emit(self, event: Event, clock: Clock) -> None:
        if self._pending and not isinstance(event, Evaluated | Measured):
            self._print()
        self._figures.see(event, clock)
        match event:
            case Round():
                self._pending = True
            case Evaluated() if self._pending:
                self._print()
            case Started() if told := beginning(event):
                self._stream.write(f"{told}\n")
            case ClientFailed():
                self._stream.write(f"{failure(event, self._run)}\n")
            case StateLost():
                self._stream.write(f"{loss(event)}\n")
            case Finished():
                self._stream.flush()
            case _:
                pass

    def close(self) -> None:
        if self._pending:
            self._print()

    def _print(self) -> None:
        self._pending = False
        figures = self._figures
        text = "  ".join(figures.parts())
        self._stream.write(f"round {figures.round}/{figures.rounds}  {text}\n")
        self._stream.flush()


class Live:
    """A progress bar with the figures below it; needs rich."""

    def __init__(
        self, rounds: int, title: str, run: Path | None = None, console: Any = None
    ) -> None:
        from rich.console import Group
        from rich.live import Live as Screen
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.text import Text

        self._figures = Figures(rounds)
        self._run = run
        self._text = Text(style="dim")
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[left]}"),
        )
        self._bar: Any = self._progress.add_task(title, total=rounds, left="")
        self._screen = Screen(Group(self._progress, self._text), console=console)
        self._screen.start()

    def emit(self, event: Event, clock: Clock) -> None:
        self._figures.see(event, clock)
        if isinstance(event, Started) and (told := beginning(event)):
            self._screen.console.print(told, style="dim", markup=False)
        if isinstance(event, ClientFailed):
            text = failure(event, self._run)
            self._screen.console.print(text, style="yellow", markup=False)
        if isinstance(event, StateLost):
            self._screen.console.print(loss(event), style="yellow", markup=False)
        if isinstance(event, Round | Evaluated):
            *figures, left = self._figures.parts()
            self._text.plain = " · ".join(figures)
            self._progress.update(self._bar, completed=self._figures.round, left=left)

    def close(self) -> None:
        self._screen.stop()


def beginning(event: Started) -> str:
    """Where first weights come from, and what is frozen; empty if all of them are drawn."""
    told, known = [], event.start
    if known["from"] != "seed":
        place = "the module" if known["from"] == "module" else known["from"]
        told.append(f"first weights from {place} (fingerprint {known['weights'][:8]})")
    elif event.frozen:
        told.append(f"first weights drawn from seed {event.seed}")
    if event.frozen:
        mark = known["constants"][:8]
        told.append(f"{event.frozen:,} parameters are frozen (fingerprint {mark})")
    if told:
        told.append(f"{event.parameters:,} are trained")
    return ", ".join(told)


def failure(event: ClientFailed, run: Path | None = None) -> str:
    """A failed client in one line, with the command that replays it if it was recorded."""
    text = (
        f"client {event.client} failed in {event.stage} of round {event.round} "
        f"and was left out: {event.reason}"
    )
    if run is None or not replay.path(run / "rounds", event.round, event.client).exists():
        return text
    command = f"gossamer replay {shlex.quote(str(run))}"
    return f"{text}; replay it with: {command} --round {event.round} --client {event.client}"


def loss(event: StateLost) -> str:
    """A lost state in one line."""
    return f"client {event.client} lost what it kept before round {event.round}: {event.reason}"


def display(rounds: int, title: str, run: Path | None = None) -> Sink:
    """A live display if standard output is a terminal and rich is installed, otherwise lines."""
    if sys.stdout.isatty():
        try:
            return Live(rounds, title, run)
        except ImportError:
            pass
    return Lines(rounds, sys.stdout, run)
