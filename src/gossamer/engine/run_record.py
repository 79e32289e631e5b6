"""One run as a frozen record, which the engine, its transports and its evaluator share."""

from __future__ import annotations

import json
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from gossamer import fields
from gossamer.accounting import Accounting, Network
from gossamer.core import AnyMethod, Key, budgets_of
from gossamer.data.federation import Federation
from gossamer.engine.options import Options
from gossamer.task import Task
from gossamer.wire import PLAIN, Mode, fingerprint


@dataclass(frozen=True, eq=False)
class Run:
    """What is run, and how: a method on a task and a federation for some rounds."""

    method: AnyMethod
    task: Task
    federation: Federation
    _: KW_ONLY
    rounds: int
    key: Key = Key(0)
    """All randomness of the run is derived from it."""
    options: Options = Options()
    wire: Mode = PLAIN
    """How numbers are encoded."""
    name: str = ""
    """Of the method, in events and reports; the name of its class unless given."""
    out: Path | None = None
    """The folder for events and checkpoints; None: a temporary one."""
    dry: bool = False
    """Whether clients skip their training steps; see `gossamer.accounting.dry_run`."""
    accounting: Accounting = field(init=False)
    """How the method's paper counts bits."""
    network: Network | None = field(init=False)
    """The network and device that times are computed for, if any."""

    def __post_init__(self) -> None:
        network = self.options.network
        derived = {
            "name": self.name or type(self.method).__name__.lower(),
            "accounting": getattr(self.method, "accounting", Accounting()),
            "network": Network.parse(network) if network else None,
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return (
            f"Run({self.name}, {self.rounds} rounds, seed {self.key.seed}: {self.task!r}, "
            f"{self.federation!r})"
        )

    @property
    def folder(self) -> Path:
        """Where events and checkpoints are kept."""
        if self.out is None:
            raise ValueError("this run has no folder; set out, or start it with engine.start")
        return self.out

    @cached_property
    def budgets(self) -> tuple[float, ...]:
        """Each budget in the pool once, ascending."""
        return budgets_of(self.federation.pool)

    @cached_property
    def batch(self) -> int:
        """Examples in a local mini-batch; 64 for a method that does not say."""
        size = fields.value(self.method, "batch")
        return size if isinstance(size, int) else 64

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The method's settings by name, as the log and the command line show them."""
        return plain_settings(self.method)

    @cached_property
    def identity(self) -> str:
        """A hash of everything that the results depend on, including the selection of rounds."""
        shapes = {name: leaf.shape for name, leaf in self.task.layout.leaves.items()}
        data = self.federation.describe()
        parts = (self.name, self.settings, self.rounds, self.key.seed, data, shapes)
        selection = [] if self.options.select == "test" else [self.options.select]
        arithmetic = [] if self.task.arithmetic == "auto" else [self.task.arithmetic]
        text = json.dumps([*parts, str(self.wire), *selection, *arithmetic], default=str)
        return fingerprint(text.encode())

    @cached_property
    def label(self) -> str:
        """The name by which clients tell this run from others."""
        return f"{self.name.rpartition(':')[2]}-{self.identity}"


def plain_settings(method: object) -> dict[str, Any]:
    """A method's settings by name, as JSON can represent them."""
    return {item.name: fields.plain(item) for item in fields.settings(method)}
