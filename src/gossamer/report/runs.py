"""A run as its report needs it: curves, costs and figures, read from its log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gossamer.method_names import has_global_model
from gossamer.report.waiting import Waiting
from gossamer.task.metrics import titled

Curve = dict[int, float]
"""A figure by round."""
Line = tuple[str, str, str]
"""A line of the ledger: direction, message, leaf."""
EVALUATED = (
    *("global_score", "personal_mean", "personal_worst_decile", "personal_density"),
    *("local_mean", "valid_mean"),
)
ROUND = ("up", "down", "paper_up", "paper_down", "flops", "device_seconds", "density")
MOST_TEXT = 50_000
"""Maximum characters of a configuration that are shown."""
MOST_NUMBER = 1e100
"""Larger numbers are ignored, so that squares do not overflow."""


class NoRun(Exception):
    """A folder holds no run; the text says why."""


@dataclass(frozen=True)
class Bits:
    """The traffic of one leaf, over all messages."""

    messages: int = 0
    sent: float = 0.0
    information: float = 0.0
    paper: float = 0.0


@dataclass(frozen=True)
class Headline:
    """The metric that runs are judged by."""

    name: str = "accuracy"
    rises: bool = True
    """Whether higher is better."""
    is_share: bool = True
    """Whether it is between 0 and 1."""

    @property
    def title(self) -> str:
        """The name in a sentence."""
        return titled(self.name)

    def key(self, value: float) -> float:
        """A number that is smaller the better the value is."""
        return -value if self.rises else value


@dataclass(frozen=True)
class Run:
    """A run, as far as its folder describes it."""

    folder: str
    started: Mapping[str, Any] = field(default_factory=dict)
    finished: Mapping[str, Any] = field(default_factory=dict)
    curves: Mapping[str, Curve] = field(default_factory=dict)
    layers: Mapping[str, Mapping[str, Curve]] = field(default_factory=dict)
    """Layers of the server's masks by name: curves of `density` and `mismatch`."""
    ledger: Mapping[Line, Bits] = field(default_factory=dict)
    histogram: Sequence[int] = ()
    """Clients by their score, in the last evaluation that has it."""
    between: tuple[float, float] = (0.0, 1.0)
    """Where the histogram begins and ends."""
    densities: Sequence[float] = ()
    """Of clients' models, in the last evaluation that has them."""
    failed: int = 0
    devices: Mapping[str, Waiting] = field(default_factory=dict)
    """What classes of devices did, if they are simulated."""
    config: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    """The configuration as it was written."""
    networked: bool = False
    """Whether its clients were nodes of a Flower project."""
    notices: Sequence[str] = ()
    damaged: bool = False
    """Whether files are damaged, so that it is shown in part."""

    @property
    def name(self) -> str:
        """The folder's name without its path."""
        return Path(self.folder).name or self.folder

    @property
    def method(self) -> str:
        """The method's name from the log or the configuration, or else the folder's name."""
        known = self.started.get("method") or self.config.get("method")
        return known.rpartition(":")[2] if isinstance(known, str) and known else self.name

    @property
    def headline(self) -> Headline:
        """The metric that the run is judged by; accuracy in logs that do not say."""
        task = self.started.get("task")
        facts = task if isinstance(task, dict) else {}
        name, better = facts.get("metric"), facts.get("better")
        bounds = facts.get("bounds")
        shares = isinstance(bounds, list) and bounds == [0, 1]
        if not isinstance(name, str) or better not in ("higher", "lower"):
            return Headline()
        return Headline(name, better == "higher", shares)

    @property
    def scores(self) -> Mapping[str, Any]:
        """The last and best figures of a finished run."""
        known = self.finished.get("scores") or self.finished.get("accuracy")
        return known if isinstance(known, dict) else {}

    @property
    def diverged(self) -> str:
        """In which round the run diverged, and how that showed; empty if it did not."""
        known = self.finished.get("diverged")
        return known if isinstance(known, str) else ""

    @property
    def goals(self) -> str:
        """The goals at which the run was to end (`--until`); empty if it had none."""
        known = self.table("options").get("until")
        return known if isinstance(known, str) else ""

    @property
    def seed(self) -> int | None:
        known = self.started.get("seed", self.table("experiment").get("seed"))
        return known if isinstance(known, int) else None

    @property
    def planned(self) -> int | None:
        """The planned number of rounds."""
        known = self.started.get("rounds", self.table("experiment").get("rounds"))
        return known if isinstance(known, int) else None

    @property
    def done(self) -> int:
        """The last round in the log."""
        return max((max(curve) for curve in self.curves.values() if curve), default=0)

    @property
    def command(self) -> str:
        """The command that started the run, from the first line of its configuration."""
        first = self.text.partition("\n")[0]
        return first[1:].strip() if first.startswith("#") else ""

    def table(self, name: str) -> Mapping[str, Any]:
        """A table of the configuration; empty if there is none."""
        table = self.config.get(name)
        return table if isinstance(table, dict) else {}

    def curve(self, name: str) -> Curve:
        """A figure by round; empty if the log does not have it."""
        return self.curves.get(name, {})

    def until(self, last: int) -> Run:
        """The run as it was after a round: without what its curves have of later ones."""
        curves = {
            name: {at: value for at, value in curve.items() if at <= last}
            for name, curve in self.curves.items()
        }
        return replace(self, curves=curves)


def meaningful(curves: Mapping[str, Curve], method: object) -> Mapping[str, Curve]:
    """The curves without those of a global model that nobody would use."""
    if has_global_model(str(method)):
        return curves
    return {name: curve for name, curve in curves.items() if name != "global_score"}


def number(value: object) -> float | None:
    """A finite number of reasonable size; None for everything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < MOST_NUMBER else None  # False for NaN
