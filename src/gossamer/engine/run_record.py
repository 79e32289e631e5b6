"""One run as a frozen record, which the engine, its transports and its evaluator share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from gossamer import fields
from gossamer.accounting import Accounting
from gossamer.core import AnyMethod, Client, Key, budgets_of
from gossamer.data.federation import Federation
from gossamer.devices.fleet import Fleet
from gossamer.engine.conditions import Conditions, fleet_of
from gossamer.engine.conditions import identity as conditions_identity
from gossamer.engine.options import Options
from gossamer.merge import Rule
from gossamer.task import CLASSIFICATION, Task
from gossamer.trust import aggregation
from gossamer.trust.limits import capped
from gossamer.trust.mechanism import Mechanism
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
    dp: str = ""
    """Differential privacy, as `--dp` writes it; empty: none."""
    secret_noise: bool = False
    """Whether noise and cohorts under `dp` come from the operating system, not from the key."""
    real_time: bool = False
    """Whether clients are on a network, where time is not simulated."""
    dry: bool = False
    """Whether clients skip their training steps; see `gossamer.accounting.dry_run`."""
    accounting: Accounting = field(init=False)
    """How the method's paper counts bits."""
    rule: Rule | None = field(init=False)
    """How replies are averaged; None: by their mean."""

    def __post_init__(self) -> None:
        named = getattr(self.method, "method", self.method)  # of a compressed one, what it is of
        derived = {
            "name": self.name or type(named).__name__.lower(),
            "accounting": getattr(self.method, "accounting", Accounting()),
            "rule": aggregation.parse(self.options.aggregate),
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
    def fleet(self) -> Fleet | None:
        """The devices of clients, if times are simulated."""
        return fleet_of(self.options, self.key, len(self.federation.pool))

    @cached_property
    def conditions(self) -> Conditions:
        """Deadlines, sampling and asynchrony."""
        return Conditions.parse(self.options)

    @cached_property
    def clients(self) -> int | None:
        """Clients per round, if that is a setting of the method."""
        count = fields.value(self.method, "clients")
        return count if isinstance(count, int) else None

    def asking(self, clients: int) -> AnyMethod:
        """The method with another number of clients per round."""
        if clients not in self._asking:
            self._asking[clients] = fields.replace(self.method, {"clients": clients})
        return self._asking[clients]

    @cached_property
    def _asking(self) -> dict[int, AnyMethod]:
        return {}

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
    def mechanism(self) -> Mechanism | None:
        """The clipping and noise that `dp` asks for; a ValueError if the method cannot have it."""
        if not self.dp:
            return None
        if len(self.budgets) > 1:
            raise ValueError(
                "`dp=`: clients with different `budgets=` send replies of different form, which "
                "have no common sum; give all of them the same budget"
            )
        clients, pool = fields.value(self.method, "clients"), len(self.federation.pool)
        return Mechanism.of(self.dp, self.method, clients, pool, self.rounds)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The method's settings by name, as the log and the command line show them."""
        return plain_settings(self.method)

    @cached_property
    def spans_rounds(self) -> str:
        """What is spread over all rounds, so that a longer run begins differently; or empty."""
        private = f"--dp {self.dp}" if self.dp else ""
        return fields.listed(fields.spans_rounds(self.method), private)

    @cached_property
    def identity(self) -> str:
        """A hash of everything that the results depend on, including the selection of rounds.

        The number of rounds is part of it only if that changes what a round does.
        """
        shapes = {name: leaf.shape for name, leaf in self.task.layout.leaves.items()}
        data = self.federation.describe()
        rounds = self.rounds if self.spans_rounds else None
        parts = (self.name, self.settings, rounds, self.key.seed, data, shapes)
        selection = [] if self.options.select == "test" else [self.options.select]
        arithmetic = [] if self.task.arithmetic == "auto" else [self.task.arithmetic]
        usual = Options()
        names = ("reply_limit", "weight_cap", "aggregate")
        differing = {name: getattr(self.options, name) for name in names}
        differing = {n: value for n, value in differing.items() if value != getattr(usual, n)}
        protection = [differing] if differing else []
        conditions = {} if self.real_time else conditions_identity(self.options)
        private = [f"dp {self.dp}"] if self.dp else []
        known = [self.task.fingerprints] if self.task.fingerprints else []
        goal = [] if self.task.goal.facts == CLASSIFICATION.facts else [self.task.goal.facts]
        given = [str(self.wire), *selection, *arithmetic, *protection, *private, *known, *goal]
        given += [{"conditions": conditions}] if conditions else []
        text = json.dumps([*parts, *given], default=str)
        return fingerprint(text.encode())

    @cached_property
    def pool(self) -> Sequence[Client]:
        """The clients as methods see them: no claimed size is above the cap."""
        pool = self.federation.pool
        most = self.capped
        return [replace(c, examples=most.get(c.id, c.examples)) for c in pool] if most else pool

    @cached_property
    def capped(self) -> dict[int, int]:
        """The examples of clients whose claims are capped; empty where sizes are known."""
        claimed = getattr(self.federation, "claimed", False)
        return capped(self.federation.pool, self.options.weight_cap) if claimed else {}

    @cached_property
    def label(self) -> str:
        """The name by which clients tell this run from others."""
        return f"{self.name.rpartition(':')[2]}-{self.identity}"


def plain_settings(method: object) -> dict[str, Any]:
    """A method's settings by name, as JSON can represent them."""
    return {item.name: fields.plain(item) for item in fields.settings(method)}
