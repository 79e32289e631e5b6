"""Conversations with clients that train nothing, and what each direction of them costs."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from gossamer.accounting import FLOPS, Effort
from gossamer.accounting.bits import Entry
from gossamer.accounting.forecast import Learned
from gossamer.accounting.forecasts import forecast_of
from gossamer.accounting.prices import Bits, Line, by_line
from gossamer.accounting.ranges import Bounds
from gossamer.core import Client, Ctx
from gossamer.engine.client import Stop, server_ctx
from gossamer.engine.conversation import Conversations, Visit
from gossamer.engine.events import ClientFinished
from gossamer.engine.expected import Reply
from gossamer.engine.processor import one_torch_thread
from gossamer.engine.run_record import Run
from gossamer.engine.store import Store
from gossamer.wire import Schema, record_types

WAYS = ("down", "up")


@dataclass(frozen=True)
class Part:
    """One direction of a conversation: its rows as they are, at least and at most."""

    rows: tuple[dict[Line, Bits], ...]
    flops: tuple[int, int, int] = (0, 0, 0)

    @property
    def sent(self) -> int:
        """The bits that are sent at most."""
        return round(sum(bits.sent for bits in self.rows[2].values()))

    def grown(self, other: Part, times: int) -> Part:
        """This part with the difference from `other` added a number of times."""
        rows = tuple(
            {line: here + (there[line] + here * -1) * times for line, here in mine.items()}
            for mine, there in zip(self.rows, other.rows, strict=True)
        )
        return replace(self, rows=rows)


@dataclass(frozen=True)
class Played:
    """A conversation that was held."""

    down: Part
    up: Part


class Rehearsal:
    """A run whose rounds are held one by one with some of their clients, without training."""

    def __init__(self, run: Run, folder: Path) -> None:
        options = replace(run.options, reply_limit=0.0)  # replies are all alike
        self.run = replace(run, dry=True, out=folder, options=options)
        (folder / "rounds").mkdir(parents=True, exist_ok=True)
        store = Store(folder / "rounds", record_types(run.method), run=run.identity)
        self._conversations = Conversations(self.run, store, Stop())
        self.forecast = forecast_of(run.method)
        self._learned = self.forecast.learned(run.method, self.ctx(0))
        self.state: Any = run.method.init(self.ctx(0))

    @property
    def learned(self) -> Learned | None:
        """What of the method's messages depends on training."""
        return self._learned

    def ctx(self, number: int) -> Ctx:
        """Where the server stands in a round."""
        run = self.run
        pool = len(run.federation.pool)
        return server_ctx(run.task, run.key, number, run.rounds, run.budgets, pool)

    def cohort(self, number: int) -> list[Client]:
        """The clients of a round, in the order of their ids."""
        chosen = self.run.method.cohort(self.ctx(number), self.state, self.run.federation.pool)
        return sorted(chosen, key=lambda client: client.id)

    def charged(self, cohort: Sequence[Client]) -> float:
        """How many times a paper counts a message to a client of the cohort."""
        everybody = self.run.accounting.recipients == "all"
        return len(self.run.federation.pool) / len(cohort) if everybody else 1.0

    def play(
        self, number: int, clients: Sequence[Client], charged: float, merges: bool = True
    ) -> list[Played]:
        """Holds a round with these clients.

        Args:
            number: The round.
            clients: With whom it is held.
            charged: How many times a paper counts a message to them.
            merges: Whether their replies are merged; otherwise nobody keeps anything.
        """
        ctx, method, replies, downs = self.ctx(number), self.run.method, list[Reply](), []
        self.state = self.forecast.forwarded(method, ctx, self.state)
        for client in clients:
            down = method.down(ctx, self.state, client)
            resend = getattr(method, "resend", None)
            again = partial(resend, ctx, self.state, client) if resend else None
            visit = Visit(client, down, charged, again)
            replies.append(self._conversations.hold(self.run.task, number, visit))
            downs.append(Schema.of(down))
        if merges:
            self.state = self._conversations.merge(ctx, self.state, replies, {}).state
        pairs = zip(replies, downs, strict=True)
        return [self._priced(reply, down, charged) for reply, down in pairs]

    def _priced(self, reply: Reply, down: Schema, charged: float) -> Played:
        event = reply.event
        assert event is not None and reply.schema is not None
        rows = {
            way: [row for row in event.traffic if row.direction == way] for way in ("down", "up")
        }
        return Played(
            Part(self._rows(rows["down"], down, charged)),
            Part(self._rows(rows["up"], reply.schema, 1.0), self._flops(reply.client, event)),
        )

    def _rows(
        self, rows: Sequence[Entry], schema: Schema, charged: float
    ) -> tuple[dict[Line, Bits], ...]:
        if self._learned is None:
            known = by_line(rows)
            return known, known, known
        run = self.run
        bounds = Bounds(self._learned, run.task.layout, run.accounting, run.wire)
        least, most = bounds.rows(rows, schema, charged)
        return by_line(rows), by_line(least), by_line(most)

    def _flops(self, client: Client, event: ClientFinished) -> tuple[int, int, int]:
        learned, layout = self._learned, self.run.task.layout
        if learned is None or not learned.flops:
            return event.flops, event.flops, event.flops
        count = FLOPS[self.run.options.flops_model]
        per_epoch = max(1, math.ceil(client.examples / self.run.batch))
        low, high = (
            round(
                count(
                    Effort(
                        layout,
                        dict.fromkeys(layout.prunable, density),
                        event.examples,
                        event.steps,
                        per_epoch,
                    )
                )
            )
            for density in (learned.least, learned.most)
        )
        return event.flops, low, high


@contextmanager
def rehearsing(run: Run) -> Iterator[Rehearsal]:
    """A rehearsal in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="gossamer-") as folder, one_torch_thread():
        yield Rehearsal(run, Path(folder))
