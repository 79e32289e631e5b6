"""Progress of several runs: one bar over all their rounds, and one line for each finished run."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any, TextIO

from gossamer.cli.progress import Figures, bits, clock, failure
from gossamer.engine import Summary
from gossamer.engine.events import ClientFailed, Clock, Evaluated, Event, Sink
from gossamer.engine.events import RoundFinished as Round
from gossamer.method_names import has_global_model
from gossamer.report.units import score
from gossamer.reproduce.plans import Plan
from gossamer.task.metrics import titled

LINES = 10
"""Lines per run if there is no terminal."""


class ComparisonProgress:
    """Progress of a comparison: a live bar on a terminal with rich, otherwise plain lines."""

    def __init__(
        self,
        todo: Sequence[Plan],
        left: Sequence[Plan],
        quiet: bool = False,
        stream: TextIO | None = None,
        console: Any = None,
    ) -> None:
        self.rounds = sum(plan.config.experiment.rounds for plan in todo)
        unfinished = sum(plan.config.experiment.rounds for plan in left)
        self.done = self.rounds - unfinished
        """Rounds of finished runs."""
        self._runs, self._finished = len(todo), len(todo) - len(left)
        self._quiet = quiet
        self._stream = stream or sys.stdout
        self._start = time.monotonic()
        self._computed = 0
        self._bar: Any = None
        self._progress: Any = None
        self._text: Any = None
        self._screen: Any = None
        if not quiet and (console is not None or self._stream.isatty()):
            self._open(console)

    def _open(self, console: Any) -> None:
        try:
            from rich.console import Group
            from rich.live import Live
            from rich.progress import BarColumn, Progress, TextColumn
            from rich.text import Text
        except ImportError:
            return
        self._text = Text(style="dim")
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:.0f} % · {task.fields[left]}"),
        )
        self._bar = self._progress.add_task("", total=self.rounds, completed=self.done, left="")
        self._screen = Live(Group(self._progress, self._text), console=console)

    def __enter__(self) -> ComparisonProgress:
        if self._screen:
            self._screen.start()
        return self

    def __exit__(self, *problem: object) -> None:
        if self._screen:
            self._screen.stop()

    def begin(self, plan: Plan) -> Sink:
        """A sink that shows the events of a run."""
        return _Follower(self, plan)

    def end(self, plan: Plan, summary: Summary) -> None:
        """Prints the line of a finished run."""
        self.done += plan.config.experiment.rounds
        self._finished += 1
        scores, title = summary.scores, titled(summary.metric)
        known = scores["global"] if has_global_model(summary.method) else None
        figures = {title: known, "personal": scores["personal_mean"]}
        own = scores["personal_density"]
        parts = [f"{name} {score(value)}" for name, value in figures.items() if value is not None]
        parts += [
            f"density {summary.density if own is None else own:.3g}",
            f"{bits(summary.cost.up)} up, {bits(summary.cost.down)} down",
            f"{summary.seconds:.1f} s",
        ]
        if self._screen:  # runs side by side show no rounds of their own
            self._progress.update(self._bar, completed=self.done, description="")
        self.say(f"{plan.title} finished ({self._finished}/{self._runs})  {'  '.join(parts)}")

    def see(self, plan: Plan, figures: Figures) -> None:
        """Shows a finished round of the current run."""
        self._computed += 1
        place = self.done + figures.round
        *parts, _ = figures.parts()
        if self._screen:
            title = f"{plan.title} ({self._finished + 1}/{self._runs})"
            self._progress.update(
                self._bar, completed=place, description=title, left=f"left {self._left(place)}"
            )
            self._text.plain = f"round {figures.round}/{figures.rounds} · {' · '.join(parts)}"
        elif figures.round % max(1, figures.rounds // LINES) == 0 < figures.rounds - figures.round:
            share = 100 * place / self.rounds
            self.say(
                f"{share:3.0f} %  {plan.title}  round {figures.round}/{figures.rounds}  "
                f"{'  '.join(parts)}  left {self._left(place)}"
            )

    def say(self, text: str, style: str | None = None) -> None:
        """Prints a line above the bar."""
        if self._screen:
            self._screen.console.print(text, style=style, markup=False, highlight=False)
        elif not self._quiet:
            self._stream.write(f"{text}\n")
            self._stream.flush()

    def _left(self, place: int) -> str:
        """The time that the remaining rounds will take at the average pace so far."""
        passed = time.monotonic() - self._start
        return clock(passed / max(self._computed, 1) * (self.rounds - place))


class _Follower:
    """The sink of one run."""

    def __init__(self, progress: ComparisonProgress, plan: Plan) -> None:
        self._progress, self._plan = progress, plan
        self._figures = Figures(plan.config.experiment.rounds)
        self._pending = False

    def emit(self, event: Event, clock: Clock) -> None:
        if self._pending and isinstance(event, Round):
            self.close()
        self._figures.see(event, clock)
        match event:
            case ClientFailed():
                self._progress.say(failure(event, self._plan.folder), "yellow")
            case Round():
                self._pending = True
            case Evaluated() if self._pending:
                self.close()
            case _:
                pass

    def close(self) -> None:
        """Shows the last round if it was not evaluated."""
        if self._pending:
            self._pending = False
            self._progress.see(self._plan, self._figures)
