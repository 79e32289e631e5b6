"""What happens in a run, as frozen records: the event log consists of them.

A line of the log is one JSON object: `event` (its kind), the fields of the record, and `clock`
(time of day and seconds spent, and a checksum over all lines so far). Without `clock`, equal runs
have equal logs, byte for byte.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from gossamer.accounting import Entry
from gossamer.engine.event_lines import kind as kind
from gossamer.engine.event_lines import line as line
from gossamer.engine.event_lines import plain as plain
from gossamer.engine.event_lines import plain_line as plain_line
from gossamer.engine.files import PRIVATE_FILE, Damaged, chained, follows, is_chained

SCHEMA = 2
"""Version of the event log; readers accept it and older ones.

2: `task` in `started`; `global_score`, `global_metrics`, `metric`, `better`, `personal_range` in
`evaluated`; `scores` in `finished`. What 1 has is the same for tasks that are judged by accuracy.
"""
CONFIG, PROJECT = "config.toml", "project.toml"
"""What a run's folder calls its configuration, beside the log: a run here, one on a network."""


@dataclass(frozen=True)
class Clock:
    """When an event happened, and how long it took."""

    time: float
    seconds: float


@dataclass(frozen=True)
class Started:
    """A run begins."""

    schema: int
    method: str
    settings: Mapping[str, Any]
    rounds: int
    seed: int
    pool: int
    data: Mapping[str, Any]
    parameters: int
    prunable: int
    environment: Mapping[str, str]
    start: Mapping[str, str] = field(default_factory=dict)
    """Where first weights come from, and fingerprints of them and of frozen parameters."""
    frozen: int = 0
    """Frozen parameters, which are never sent."""
    task: Mapping[str, Any] = field(default_factory=dict)
    """What models are judged by: name, kind, and the headline metric with its direction."""


@dataclass(frozen=True)
class ClientFinished:
    """One client's part of a round: what it computed, sent and received."""

    round: int
    client: int
    examples: int
    steps: int
    density: float
    up: int
    down: int
    information_up: float
    information_down: float
    paper_up: int
    paper_down: int
    flops: int
    device_seconds: float | None
    """How long this took on the client's device, if `Options.devices` says which."""
    metrics: Mapping[str, float]
    traffic: Sequence[Entry]
    """The ledger: direction, message, leaf, and bits in three columns."""


@dataclass(frozen=True)
class ClientFailed:
    """A client failed or its reply was refused; the round continues without it."""

    round: int
    client: int
    stage: str
    reason: str
    down: int
    paper_down: int


@dataclass(frozen=True)
class StateLost:
    """A client no longer has the state that it kept; it continues without it, or is sent it."""

    round: int
    client: int
    reason: str


@dataclass(frozen=True)
class RoundFinished:
    """A round is merged; costs are those of the run so far."""

    round: int
    clients: Sequence[int]
    failed: Sequence[int]
    density: float
    metrics: Mapping[str, float]
    up: int
    down: int
    information_up: float
    information_down: float
    paper_up: int
    paper_down: int
    flops: int
    device_seconds: float | None
    """The virtual time at its end, since the start of the run; None without devices."""


@dataclass(frozen=True)
class ClientStopped:
    """A client's part of a round that came to nothing; what it took until then is charged."""

    round: int
    client: int
    reason: str
    """late: after the deadline; spare: enough others had answered; failed; left."""
    up: int
    down: int
    paper_down: int
    flops: int
    device_seconds: float


@dataclass(frozen=True)
class Timed:
    """When a client took part in a round, in virtual seconds since the start of the run."""

    client: int
    device: str
    """The class of its device."""
    began: float
    ended: float
    outcome: str
    """merged, or why not: late, spare, failed, left."""
    staleness: int = 0
    """How many merges the server was ahead of the state that the client trained from."""


@dataclass(frozen=True)
class RoundTimed:
    """The virtual time of a round, and for whom it waited."""

    round: int
    began: float
    ended: float
    waited_for: int | None
    """The client whose reply, failure or absence ended the round."""
    clients: Sequence[Timed]


@dataclass(frozen=True)
class PrivacySpent:
    """What clients have given away after a round, under `--dp`."""

    round: int
    epsilon: float | None
    """Of the whole run so far; None without noise."""
    delta: float
    clip: float
    """The largest norm of a client's change in this round."""
    noise: float
    """Standard deviation of the noise, as a multiple of the clip."""
    sampling: str
    """How clients come to take part: fixed, poisson, or local if sampling hides nobody."""
    neighbours: str
    """What the guarantee hides."""
    releases: int
    """Rounds that count; with local noise, the replies of the client with the most."""


@dataclass(frozen=True)
class Measured:
    """A method's measures of the server state, after a round and before the first."""

    round: int
    density: float | None
    """Active entries of all masks together; None if there are only metrics."""
    mismatch: float | None
    """The Jaccard distance of the masks before and after the round; None before the first."""
    layers: Mapping[str, Mapping[str, float | None]]
    """For every mask its own `density` and `mismatch`."""
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class ArithmeticChosen:
    """How layers are computed, at the densities of the server's masks.

    Reported before the first round, and after a round that changes it.
    """

    round: int
    kernels: str
    """The build of the package's own kernels; empty if there is none."""
    reason: str
    """Why torch computes everything; empty if the kernels can run the model."""
    layers: Mapping[str, str]
    """For every layer `torch`, `native sparse`, `native dense` or `native tiles`."""
    steps: str = ""
    """Why torch takes the optimiser's steps; empty if they follow from `layers`."""


@dataclass(frozen=True)
class Evaluated:
    """The metrics of models after a round.

    `global_*`: the global model on the server's test set, all examples weighted equally.
    `personal_*`: the headline metric, such as accuracy, of each client's model on the client's own
    test set, all clients with test data weighted equally; `worst_decile` is the mean over the worst
    tenth of the clients.
    `valid_mean`: the same models on the clients' validation data, if rounds are selected on it.
    """

    round: int
    global_accuracy: float | None
    """None if the task has no accuracy."""
    global_loss: float | None
    personal_mean: float | None
    personal_std: float | None
    personal_worst_decile: float | None
    clients: int
    """Clients in the personal figures."""
    valid_mean: float | None = None
    personal_density: float | None = None
    """Prunable weights that are not zero, mean over all clients; None if nobody has its own."""
    local_mean: float | None = None
    """`personal_mean` over clients with a model of their own only, such as the one they sent."""
    personal_histogram: Sequence[int] | None = None
    """Clients by their score: how many are in each of 20 equal parts of `personal_range`."""
    personal_densities: Sequence[float] | None = None
    """Of each client's model by id, at most 1,000; None if nobody has its own."""
    personal_range: Sequence[float] | None = None
    """Where the histogram begins and ends; None in older logs, which have 0 to 1."""
    global_score: float | None = None
    """The headline metric of the global model: its accuracy, or what the task is judged by."""
    global_metrics: Mapping[str, float | None] = field(default_factory=dict)
    """All metrics of the global model."""
    metric: str = "accuracy"
    """The headline metric."""
    better: str = "higher"

    def __post_init__(self) -> None:
        if self.global_score is None and self.metric == "accuracy":  # as in logs of schema 1
            object.__setattr__(self, "global_score", self.global_accuracy)


@dataclass(frozen=True)
class Finished:
    """The run is over: last and best figures, and the hash of all final states."""

    round: int
    accuracy: Mapping[str, float | None]
    """The same as `scores` if the headline metric is accuracy; empty otherwise."""
    density: float
    state_hash: str
    select: str = "test"
    """The data on which the best round was selected; figures are always on test data."""
    diverged: str = ""
    """In which round the run diverged, and how that showed; empty if it did not."""
    reached: str = ""
    """The goal of `--until` that ended the run; empty if none did."""
    scores: Mapping[str, float | None] = field(default_factory=dict)
    """Last and best figures of the headline metric."""


Event: TypeAlias = (
    Started
    | ClientFinished
    | ClientFailed
    | ClientStopped
    | StateLost
    | RoundTimed
    | RoundFinished
    | PrivacySpent
    | Measured
    | ArithmeticChosen
    | Evaluated
    | Finished
)


class Sink(Protocol):
    """Somewhere events go."""

    def emit(self, event: Event, clock: Clock) -> None: ...
    def close(self) -> None: ...


@dataclass
class EventLog:
    """The log on disk: always on, the only input of a report."""

    path: Path
    position: int = 0
    """Where to continue; what follows it belongs to an unfinished round."""
    chain: str = ""
    """The checksum of the lines up to there."""
    _file: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        how = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._file = os.fdopen(os.open(self.path, how, PRIVATE_FILE), "ab")
        self._file.truncate(self.position)

    def emit(self, event: Event, clock: Clock) -> None:
        data, self.chain = chained(self.chain, line(event, clock).encode())
        self._file.write(data)
        self._file.flush()
        self.position += len(data)

    def sync(self) -> None:
        """Everything so far is on disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class LogReader:
    """The events of a log up to the first line that is damaged, each with its line number.

    Logs of older versions have no checksums: only lines that are no JSON are found damaged.
    """

    def __init__(self, path: Path, marks: Collection[int] = ()) -> None:
        self.path = path
        self.problem = ""
        """What is wrong with the first damaged line; empty if there is none."""
        self.torn = False
        """Whether the last line is incomplete, as after the end of a process."""
        self.chained = False
        """Whether lines have checksums."""
        self.position = 0
        """Bytes of the intact lines."""
        self.seen: dict[int, str] = {}
        """Checksums of the lines up to the positions in `marks`."""
        self._marks = marks

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        chain = ""
        if 0 in self._marks:
            self.seen[0] = chain
        with self.path.open("rb") as file:
            for number, data in enumerate(file, 1):
                if number == 1:
                    self.chained = is_chained(data)
                link = follows(chain, data) if self.chained else ""
                try:
                    event = json.loads(data)
                except (ValueError, RecursionError):
                    event = link = None
                if link is None or not data.endswith(b"\n"):
                    self.torn = not data.endswith(b"\n")
                    if not self.torn:
                        self.problem = f"line {number} of {self.path} is damaged"
                    return
                chain = link
                self.position += len(data)
                if self.position in self._marks:
                    self.seen[self.position] = chain
                yield number, event


def read(path: Path) -> list[dict[str, Any]]:
    """The events of a log; an incomplete last line is left out.

    Raises:
        Damaged: A line is damaged; the message says which.
    """
    reader = LogReader(path)
    events = [event for _, event in reader]
    if reader.problem:
        raise Damaged(reader.problem)
    return events
