"""What a server accepts: claims within bounds, replies of a usual size, and states that are finite.

A refusal costs its client the round, never the run; the client is named in the log.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from gossamer import merge
from gossamer.accounting import FLOPS, Effort
from gossamer.core import Client, Ctx, Exchange
from gossamer.engine.client import Account, one_line
from gossamer.engine.events import ClientFailed
from gossamer.engine.expected import Replies, Reply, refusal
from gossamer.engine.privacy import Guard
from gossamer.engine.run_record import Run
from gossamer.trust import limits
from gossamer.trust.limits import Norms, Size
from gossamer.wire import WireError

PASSES = 10_000
"""Over its own examples that a client makes in a round, at most."""
METRICS, LONGEST_NAME = 1_000, 200
"""How many metrics a client reports, and how long their names are, at most."""
COLUMN = 64
"""Bits in another column of the ledger for every bit or weight, at most."""


def bounded(run: Run, client: Client, account: Account) -> Account:
    """What a client says of its work, if that can be true; metrics that are not finite are dropped.

    Raises:
        WireError: A claim is out of bounds.
    """
    if not 0 <= account.steps <= account.examples <= PASSES * max(client.examples, 1):
        raise WireError(
            f"{account.examples} examples in {account.steps} steps are claimed by a client that "
            f"has {client.examples}"
        )
    if not 0 <= account.density <= 1:
        raise WireError(f"a density of {account.density:g} is claimed")
    work = (run, account.examples, account.steps, max(account.steps, client.examples))
    if not any(0 <= account.flops <= most for most in _dense_flops(*work)):
        most = max(_dense_flops(*work))
        raise WireError(f"{account.flops} FLOPs are claimed, where a dense model needs {most}")
    names = account.metrics
    if len(names) > METRICS or any(len(name) > LONGEST_NAME for name in names):
        raise WireError(
            f"{len(names)} metrics came, with names of up to {max(map(len, names))} characters; "
            f"{METRICS} and {LONGEST_NAME} at most"
        )
    sent = math.fsum(entry.sent for entry in account.up)
    room = COLUMN * (sent + run.task.layout.count)
    for column in ("information", "paper"):
        if not 0 <= (bits := math.fsum(getattr(entry, column) for entry in account.up)) <= room:
            raise WireError(f"{bits:.3g} bits of {column} are claimed for a message of {sent:.3g}")
    if all(map(math.isfinite, names.values())):
        return account
    finite = {name: value for name, value in names.items() if math.isfinite(value)}
    return replace(account, metrics=finite)


def _dense_flops(run: Run, examples: int, steps: int, per_epoch: int) -> Iterator[int]:
    """What the work costs without masks, and with masks that keep everything."""
    layout, count = run.task.layout, FLOPS[run.options.flops_model]
    for densities in ({}, dict.fromkeys(layout.prunable, 1.0)):
        searched = min(run.batch, examples)
        effort = Effort(layout, densities, examples, steps, per_epoch, searched=searched)
        yield round(count(effort) * (1 + 1e-9))


Rebased: TypeAlias = Callable[[Exchange[Any, Any]], Exchange[Any, Any]]
"""Makes the exchange of a client that began long ago fit the server's state."""


@dataclass(frozen=True)
class Merged:
    """The outcome of a round."""

    state: Any
    refused: Sequence[ClientFailed]
    norms: Norms
    """The memory of usual norms, for the next rounds."""


@dataclass
class Merging:
    """Merges the replies of one round."""

    run: Run
    read: Callable[[Sequence[Reply], dict[int, ClientFailed]], Replies]
    """Decodes replies, and adds those that it cannot decode to the refused ones."""
    ctx: Ctx
    state: Any
    guard: Guard | None = None
    """What protects the clients' privacy, if something does."""
    rebased: Rebased | None = None
    """Makes exchanges fit the server's state, if they may be stale."""
    refused: dict[int, ClientFailed] = field(default_factory=dict)
    failed: Exception | None = None
    """What `merge` raised last, apart from refusals."""

    def merged(self, replies: Sequence[Reply], recent: Norms) -> Merged:
        """The state after the round; if all replies are refused, the state that there was.

        Raises:
            Exception: Whatever `merge` raises, if most of the replies alone make it raise that.
        """
        sizes: dict[int, Size] = {}
        state = self._merge(replies, sizes)  # most rounds have nothing to refuse
        if reasons := self._outside(replies, sizes, recent):
            self.refused.clear()  # others may have been blamed for what these did to the merge
            for reply in replies:
                if reply.client.id in reasons:
                    self._refuse(reply, "limit", reasons[reply.client.id])
            state = self._merge([reply for reply in replies if not self._out(reply)])
        norms = limits.remembered(sizes.values(), recent)
        rest = [reply for reply in replies if reply.event is not None and not self._out(reply)]
        while not self._sound(state):
            failed, reason = self.failed, self._reason()
            found = limits.culprits(rest, lambda some: self._sound(self._merge(some)))
            if failed is not None and 2 * len(found) >= len(rest):
                raise failed
            for reply in found:
                self._refuse(reply, "merge", reason)
            rest = [reply for reply in rest if not self._out(reply)]
            state = self._merge(rest) if rest else self.state
        return Merged(state, list(self.refused.values()), norms)

    @property
    def _limit(self) -> float:
        """How many times the usual norm a reply may have; 0: it is not measured."""
        # Private replies are clipped anyway, and what others sent must not decide.
        return 0 if self.guard else self.run.options.reply_limit

    def _outside(
        self, replies: Sequence[Reply], sizes: dict[int, Size], recent: Norms
    ) -> dict[int, str]:
        """Why replies are refused for their size, by client; measures those not merged too."""
        if not self._limit:
            return {}
        missed = [reply for reply in replies if reply.client.id not in sizes]
        for _ in limits.measured(self.read(missed, self.refused), sizes):
            pass
        return limits.outside(sizes, recent, self._limit)

    def _merge(self, replies: Sequence[Reply], sizes: dict[int, Size] | None = None) -> Any:
        """The method's merge; a reply that it refuses is left out. None if it raises.

        Args:
            replies: Of the clients.
            sizes: Where to note the sizes of replies on the way, while they are in the cache.
        """
        self.failed = None
        while True:
            reader = self.read(replies, self.refused)
            try:
                exchanges = self.guard.merged(self.ctx, reader) if self.guard else iter(reader)
                if sizes is not None and self._limit:
                    exchanges = limits.measured(exchanges, sizes)
                exchanges = map(self.rebased, exchanges) if self.rebased else exchanges
                with merge.by(self.run.rule):
                    return self.run.method.merge(self.ctx, self.state, exchanges)
            except WireError as problem:
                if reader.last is None:
                    raise
                self.refused[reader.last.client.id] = refusal(reader.last, problem)
            except Exception as problem:
                self.failed = problem
                return None

    def _sound(self, state: Any) -> bool:
        """Whether a state may be kept: it is finite, unless the one before was not either."""
        if self.failed is not None:
            return False
        return limits.is_finite(state, self.state) or not limits.is_finite(self.state)

    def _reason(self) -> str:
        if self.failed is not None:
            return f"merging it raises {one_line(self.failed)}"
        return "the merged state is not finite with it"

    def _refuse(self, reply: Reply, stage: str, reason: str) -> None:
        assert reply.event is not None
        event = ClientFailed(reply.event.round, reply.client.id, stage, reason, 0, 0)
        self.refused[reply.client.id] = event

    def _out(self, reply: Reply) -> bool:
        return reply.client.id in self.refused
