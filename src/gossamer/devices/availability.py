"""When a device is there: always, in a duty cycle of its own, or as a trace says.

All times are virtual seconds since the start of the run. An availability has one function,
`window(time)`: the first span, from its beginning to its end, that ends after `time`. The device is
there if the span has begun. A device that never comes again has the span from infinity on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gossamer.devices.durations import seconds

Window = tuple[float, float]
NEVER: Window = (math.inf, math.inf)
HEADING = "client,from,until"


class Availability(Protocol):
    """When a device is there."""

    def window(self, time: float) -> Window: ...


@dataclass(frozen=True)
class Always:
    """There at all times."""

    def window(self, time: float) -> Window:
        return (-math.inf, math.inf)


ALWAYS = Always()


@dataclass(frozen=True)
class Duty:
    """There for a share of every period, such as eight hours a day, from a phase of its own."""

    period: float
    share: float
    phase: float

    def window(self, time: float) -> Window:
        # The neighbours are looked at too, because a quotient may be rounded to either side.
        first = math.floor((time - self.phase) / self.period) - 1
        for number in range(first, first + 4):
            begins = number * self.period + self.phase
            ends = begins + self.share * self.period
            if ends > time:
                return begins, ends
        raise AssertionError(f"no window of {self} ends after {time}")


@dataclass(frozen=True)
class Trace:
    """There in the spans of a trace, which do not overlap and are in order."""

    begins: npt.NDArray[np.float64]
    ends: npt.NDArray[np.float64]
    period: float = math.inf
    """After which the trace is repeated."""

    def window(self, time: float) -> Window:
        if not len(self.ends):
            return NEVER
        if not math.isfinite(self.period):
            return self._within(time)
        cycle = math.floor(time / self.period)
        for number in (cycle - 1, cycle, cycle + 1):
            begins, ends = self._within(time - number * self.period)
            if math.isfinite(ends) and ends + number * self.period > time:
                return begins + number * self.period, ends + number * self.period
        return float(self.begins[0]) + (cycle + 1) * self.period, math.inf

    def _within(self, time: float) -> Window:
        place = int(np.searchsorted(self.ends, time, side="right"))
        if place == len(self.ends):
            return NEVER
        return float(self.begins[place]), float(self.ends[place])


def is_there(availability: Availability, time: float) -> bool:
    """Whether a device is there at a time."""
    return availability.window(time)[0] <= time


def comes(availability: Availability, time: float) -> float:
    """When a device is there next, at the earliest now; infinity: never."""
    return max(time, availability.window(time)[0])


def leaves(availability: Availability, time: float) -> float:
    """When a device that is there goes away; infinity: never."""
    return availability.window(time)[1]


# what `--availability` says ----------------------------------------------------------------------


@dataclass(frozen=True)
class Hours:
    """The availability of every client."""

    duty: tuple[float, float] | None = None
    """The period and the share of a duty cycle."""
    traces: Traces | None = None

    @classmethod
    def parse(cls, text: str) -> Hours:
        """Reads `always`, `duty:24h:0.3`, the name of a CSV file, or that of one `@7d`.

        Raises:
            ValueError: The text means none of them.
            FileNotFoundError: There is no such file.
        """
        if text in ("", "always"):
            return cls()
        word, *numbers = text.split(":")
        if word == "duty":
            return cls(duty=_duty(text, numbers))
        name, at, period = text.rpartition("@")
        length = seconds(period, "availability") if at else math.inf
        return cls(traces=Traces.read(Path(name if at else text).expanduser(), length))

    @property
    def always(self) -> bool:
        """Whether everybody is always there."""
        return self.duty is None and self.traces is None

    def of(self, client: int, draw: float) -> Availability:
        """The availability of a client, who drew a number from 0 up to 1."""
        if self.traces is not None:
            return self.traces.of(client)
        if self.duty is not None:
            period, share = self.duty
            return Duty(period, share, draw * period)
        return ALWAYS


def _duty(text: str, numbers: list[str]) -> tuple[float, float]:
    try:
        period, part = numbers
        share = float(part)
    except ValueError:
        raise ValueError(
            f"`availability=` takes duty:PERIOD:SHARE, such as duty:24h:0.3, not {text!r}"
        ) from None
    if not 0 < share <= 1:
        raise ValueError(f"`availability=`: a share is above 0 and up to 1, not {part}")
    return seconds(period, "availability"), share


@dataclass(frozen=True)
class Traces:
    """The spans of all clients in one table, sorted by client and time; nobody else is there."""

    clients: npt.NDArray[np.int64]
    begins: npt.NDArray[np.float64]
    ends: npt.NDArray[np.float64]
    period: float = math.inf
    facts: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, period: float = math.inf) -> Traces:
        """Reads a CSV file with the columns `client,from,until`, in seconds."""
        if not path.is_file():
            raise FileNotFoundError(
                f"`availability=` {str(path)!r} is no file; use always, duty:24h:0.3 or the name "
                f"of a CSV file with lines {HEADING}"
            )
        with path.open(encoding="utf-8-sig") as file:
            heading = file.readline().strip().lower().replace(" ", "")
            try:
                rows = np.loadtxt(file, delimiter=",", ndmin=2) if heading == HEADING else None
            except ValueError as problem:
                raise ValueError(f"{path} has a line that is not {HEADING}: {problem}") from None
        if rows is None or rows.shape[1:] != (3,):
            raise ValueError(f"{path} begins with {heading!r}; its first line must be {HEADING}")
        rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
        table = cls(rows[:, 0].astype(np.int64), rows[:, 1].copy(), rows[:, 2].copy(), period)
        table.check(path)
        return table

    def check(self, path: Path) -> None:
        """Raises ValueError unless spans are in order, apart from each other and in the period."""
        same = self.clients[1:] == self.clients[:-1]
        overlap = same & (self.begins[1:] < self.ends[:-1])
        wrong = (self.ends <= self.begins) | (self.begins < 0) | (self.ends > self.period)
        for bad, what in ((wrong, "ends before it begins, or is outside the period"),):
            if bad.any():
                raise ValueError(f"{path}: a span of client {self.clients[bad.argmax()]} {what}")
        if overlap.any():
            client = self.clients[overlap.argmax()]
            raise ValueError(f"{path}: spans of client {client} overlap; join them to one")

    def of(self, client: int) -> Trace:
        """The trace of a client; one without a line is never there."""
        first, last = np.searchsorted(self.clients, [client, client + 1])
        return Trace(self.begins[first:last], self.ends[first:last], self.period)
