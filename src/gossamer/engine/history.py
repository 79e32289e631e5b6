"""The rounds of a run as records: what each cost, and how good models were after it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from gossamer.engine.events import Clock, Evaluated, Event, RoundFinished

if TYPE_CHECKING:
    from pandas import DataFrame

Record = dict[str, Any]
"""The figures of one round by name; None where there is none."""
COSTS = ("density", "up", "down", "paper_up", "paper_down", "flops", "device_seconds")
SCORES = (
    *("global_score", "global_accuracy", "global_loss", "personal_mean", "personal_std"),
    *("personal_worst_decile", "valid_mean", "personal_density", "global_metrics"),
)
_LINES = (b'{"event":"round-finished"', b'{"event":"evaluated"')


@dataclass
class History(Sequence[Record]):
    """A record per round, in order, from round 0 before any training; costs are those so far.

    >>> history = History([{"round": 0, "up": 0}, {"round": 1, "up": 8}])
    >>> history[-1]["up"], history["up"]
    (8, [0, 8])
    """

    records: list[Record] = field(default_factory=list)

    @classmethod
    def read(cls, log: Path, position: int) -> History:
        """The history in the first bytes of a log, for a run that continues there."""
        history = cls()
        with log.open("rb") as file:
            for line in file.read(position).splitlines():
                if line.startswith(_LINES):
                    event = json.loads(line)
                    names = COSTS if event["event"] == "round-finished" else SCORES
                    history._add(event["round"], {name: event.get(name) for name in names})
                    history.records[-1]["seconds"] += event["clock"]["seconds"]
        return history

    def see(self, event: Event, clock: Clock) -> None:
        """Takes the figures of an event."""
        match event:
            case RoundFinished():
                self._add(event.round, {name: getattr(event, name) for name in COSTS})
            case Evaluated():
                self._add(event.round, {name: getattr(event, name) for name in SCORES})
            case _:
                return
        self.records[-1]["seconds"] += clock.seconds

    def _add(self, number: int, figures: Record) -> None:
        if not self.records or self.records[-1]["round"] != number:
            nothing = dict.fromkeys((*SCORES, *COSTS))
            start = {"density": 1.0, "up": 0, "down": 0, "paper_up": 0, "paper_down": 0, "flops": 0}
            costs = start if not number else {}
            self.records.append({"round": number, **nothing, **costs, "seconds": 0.0})
        self.records[-1] |= figures

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    @overload
    def __getitem__(self, index: str) -> list[Any]: ...
    def __getitem__(self, index: int | slice | str) -> Record | list[Any]:
        """A record, several records, or a figure of all records by its name."""
        if isinstance(index, str):
            return [record[index] for record in self.records]
        return self.records[index]

    @property
    def last_metrics(self) -> dict[str, float | None]:
        """All metrics of the global model in the last round, if it was evaluated."""
        return dict(self.records[-1]["global_metrics"] or {}) if self.records else {}

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __repr__(self) -> str:
        if not self.records:
            return "History()"
        first, last = self.records[0], self.records[-1]
        return f"History(rounds {first['round']} to {last['round']}; last: {_shown(last)})"

    def to_pandas(self) -> DataFrame:
        """A table with a row per round.

        Raises:
            ImportError: pandas is not installed.
        """
        try:
            from pandas import DataFrame
        except ImportError:
            raise ImportError("a table needs pandas; pip install pandas") from None
        return DataFrame(self.records).set_index("round")


def _shown(record: Record) -> str:
    names = ("global_score", "personal_mean", "valid_mean")
    return ", ".join(f"{name} {record[name]:.4f}" for name in names if record[name] is not None)
