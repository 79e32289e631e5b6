"""A method whose replies, and if asked its requests, are compressed: a method like any other.

Replies. The client compresses the change of what it was sent, with what it remembers of earlier
losses: `+ef` adds to a change what the last payload lost (Seide et al. 2014, Stich et al. 2018);
`+ef21` compresses the difference to an estimate that client and server both hold (Richtárik et
al. 2021). The server restores the reply and hands it to the method.

Requests. Clients hold a copy of the model. What is sent is the compressed difference between the
server's model and this copy, so that what one payload loses is in the next difference: that is
error feedback. A client that took no part for some rounds is sent the payloads it missed, or the
whole copy if that is shorter (Sattler et al. 2019, section V).

Running statistics, integers, masks and numbers without a counterpart in the request travel as they
are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import torch

from gossamer.accounting import Accounting
from gossamer.accounting.forecast import Forecast, Labels, Learned
from gossamer.compression import exchange as numbers
from gossamer.compression.compressors import PAYLOADS, Payload
from gossamer.compression.costs import accounting_of, learned
from gossamer.compression.records import (
    CompressedDown,
    CompressedLocal,
    CompressedServer,
    CompressedUp,
    CompressedWork,
)
from gossamer.compression.spec import HELP, Spec
from gossamer.core import (
    AnyMethod,
    Batch,
    Client,
    Ctx,
    Exchange,
    Job,
    Missing,
    Params,
    Result,
)
from gossamer.fields import option
from gossamer.trust.declared import Privacy
from gossamer.wire import encode, record_types

T = TypeVar("T")

PRIVATE = Privacy(
    refused="has its replies compressed, which noise cannot cover; use `compress=` or `dp=`"
)


def _averaging() -> AnyMethod:
    from gossamer.methods.fedavg import FedAvg  # whose package has compressed methods, too

    return FedAvg()


@dataclass(frozen=True)
class Compressed:
    method: AnyMethod = field(default_factory=_averaging)
    compress_up: str = option("", f"compressor of replies: {HELP}, with +ef or +ef21")
    compress_down: str = option("", "compressor of requests, which remembers what it lost; as up")

    def __post_init__(self) -> None:
        _ = self._down
        remembers = self._up is not None and bool(self._up.feedback)
        numbers.check(self.method, remembers, bool(self.compress_down))

    @cached_property
    def _up(self) -> Spec | None:
        return Spec.parse(self.compress_up) if self.compress_up else None

    @cached_property
    def _down(self) -> Spec | None:
        return Spec.parse(self.compress_down) if self.compress_down else None

    @property
    def ways(self) -> str:
        """Both compressors as `--compress` has them."""
        ways = (("up", self.compress_up), ("down", self.compress_down))
        return ",".join(f"{way}={text}" for way, text in ways if text)

    @property
    def accounting(self) -> Accounting:
        """How the method's paper counts bits, or the compressor's if that says nothing."""
        known = getattr(self.method, "accounting", None)
        if isinstance(known, Accounting):
            return known
        return accounting_of(self._up.compressor if self._up else None)

    @property
    def privacy(self) -> Privacy:
        """Compressed replies cannot be covered by noise."""
        return PRIVATE

    def records(self) -> dict[str, type]:
        """The types of all records that are sent or stored, by name."""
        own = (CompressedServer, CompressedLocal, CompressedDown, CompressedUp, *PAYLOADS)
        known = record_types(self.method)
        for kind in own:
            if known.setdefault(kind.__qualname__, kind) is not kind:
                raise TypeError(
                    f"a record of {type(self.method).__name__} is called {kind.__qualname__!r}, "
                    "as one of a compressed method is; rename it"
                )
        return known

    def __getattr__(self, name: str) -> Any:
        """Optional functions, which exist only if the method has them."""
        if name == "resend" and (self.compress_down or hasattr(self.method, "resend")):
            return self._resend
        if name == "replies" and (self.compress_down or hasattr(self.method, "replies")):
            return self._replies
        if name == "measures" and hasattr(self.method, "measures"):
            return self._measures
        if name in ("own_merge", "global_model"):
            return getattr(self.method, name)
        raise AttributeError(f"{type(self).__name__} has no {name}")

    # costs ----------------------------------------------------------------------------------------

    @property
    def priced_by_round(self) -> bool:
        """Whether rounds differ in what they cost: requests do, by what a client missed."""
        return bool(self.compress_down) or self._forecast.alike is None

    def alike(self, ctx: Ctx, last: int) -> Labels:
        known = self._forecast.alike
        assert known is not None
        return known(self.method, ctx, last)

    def learned(self, ctx: Ctx) -> Learned:
        inner = self._forecast.learned(self.method, ctx)
        return learned(inner, self._up.compressor if self._up else None)

    def forwarded(self, ctx: Ctx, state: CompressedServer) -> CompressedServer:
        inner = self._forecast.forwarded(self.method, ctx, state.inner)
        return replace(state, inner=inner)

    @property
    def _forecast(self) -> Forecast:
        from gossamer.accounting.forecasts import forecast_of  # which imports all methods

        return forecast_of(self.method)

    # server ---------------------------------------------------------------------------------------

    def init(self, ctx: Ctx) -> CompressedServer:
        return CompressedServer(self.method.init(ctx))

    def cohort(self, ctx: Ctx, state: CompressedServer, pool: Sequence[Client]) -> Sequence[Client]:
        if self.compress_down and state.copy is None:
            requests = (self.method.down(ctx, state.inner, each) for each in (pool[0], pool[-1]))
            numbers.check_shared(*(numbers.compressible(ctx, each) for each in requests))
        return self.method.cohort(ctx, state.inner, pool)

    def down(self, ctx: Ctx, state: CompressedServer, client: Client) -> Any:
        inner = self.method.down(ctx, state.inner, client)
        return inner if self._down is None else self._sent(ctx, state, client, inner, False)

    def _resend(self, ctx: Ctx, state: CompressedServer, client: Client) -> Any:
        again = getattr(self.method, "resend", self.method.down)
        inner = again(ctx, state.inner, client)
        return inner if self._down is None else self._sent(ctx, state, client, inner, True)

    def _sent(
        self, ctx: Ctx, state: CompressedServer, client: Client, inner: Any, whole: bool
    ) -> CompressedDown:
        """The request with payloads instead of numbers, or with the whole copy."""
        copy, payload = self._next(ctx, state, inner)
        record = numbers.emptied(inner, copy)
        next_version = state.version + (payload is not None)
        missed = state.version - state.seen.get(client.id, -1)
        if payload is None or whole or client.id not in state.seen or missed > len(state.news):
            return CompressedDown(record, next_version, (), copy)
        waiting = state.news[len(state.news) - missed :]
        taken = sum(state.sizes[len(state.news) - missed :]) + len(encode(payload))
        if taken >= sum(4 * tensor.numel() for tensor in copy.values()):
            return CompressedDown(record, next_version, (), copy)
        return CompressedDown(record, state.seen[client.id], (*waiting, payload), None)

    def _next(self, ctx: Ctx, state: CompressedServer, inner: Any) -> tuple[Params, Payload | None]:
        """The next copy of the model that clients hold, and the payload that leads to it."""
        assert self._down is not None
        exact = numbers.compressible(ctx, inner)
        if state.copy is None:
            return exact, None
        numbers.check_alike(exact, state.copy)
        change = {place: exact[place] - copy for place, copy in state.copy.items()}
        key = ctx.common.fold("compressed", ctx.round)
        payload = self._down.compressor.compress(change, key, {})
        lost = self._down.compressor.restore(payload, change)
        return {place: copy + lost[place] for place, copy in state.copy.items()}, payload

    def merge(
        self,
        ctx: Ctx,
        state: CompressedServer,
        exchanges: Iterable[Exchange[Any, CompressedUp]],
    ) -> CompressedServer:
        replies = _Restored(self, ctx, state, exchanges)
        inner = self.method.merge(ctx, state.inner, replies)
        if not replies.clients:
            return replace(state, inner=inner)
        estimates = _sorted(state.estimates | replies.estimates)
        after = replace(state, inner=inner, estimates=estimates)
        if self._down is None:
            return after
        copy, payload = replies.copy, replies.payload
        version = state.version + (payload is not None)
        news, sizes = state.news, state.sizes
        if payload is not None:
            news, sizes = (*news, payload), (*sizes, len(encode(payload)))
            most = sum(4 * tensor.numel() for tensor in (copy or {}).values())
            while sizes and sum(sizes) > most:
                news, sizes = news[1:], sizes[1:]
        seen = _sorted(state.seen | dict.fromkeys(replies.clients, version))
        return replace(after, copy=copy, version=version, seen=seen, news=news, sizes=sizes)

    def holds(self, ctx: Ctx, state: CompressedServer, client: Client) -> Any:
        known = getattr(self.method, "holds", None)
        return known(ctx, state.inner, client) if known else state.inner

    def _measures(self, ctx: Ctx, state: CompressedServer) -> Any:
        return self.method.measures(ctx, state.inner)  # type: ignore[attr-defined]

    def _replies(self, ctx: Ctx, down: Any) -> list[CompressedUp]:
        """Example replies, from which the reply schema is derived."""
        inner = down
        if isinstance(down, CompressedDown):
            inner = numbers.filled(down.record, down.copy or numbers.like(down.record))
        examples = getattr(self.method, "replies", None)
        if examples is not None:
            ups = examples(ctx, inner)
        else:
            blank = replace(ctx, budgets=(1.0,))
            work = self.method.begin(blank, inner, None).work
            ups = [self.method.finish(blank, work).up]
        return [self._compressed(ctx, inner, up, None)[0] for up in ups]

    # client ---------------------------------------------------------------------------------------

    def begin(self, ctx: Ctx, down: Any, local: CompressedLocal | None) -> Job[CompressedWork]:
        copy, version, inner = None, 0, down
        if isinstance(down, CompressedDown):
            copy, version = self._received(down, local)
            inner = numbers.filled(down.record, copy)
        job = self.method.begin(ctx, inner, local.inner if local else None)
        return Job(CompressedWork(job.work, inner, local, copy, version), job.epochs, job.batch)

    def _received(self, down: CompressedDown, local: CompressedLocal | None) -> tuple[Params, int]:
        """The copy after a request, and its version."""
        assert self._down is not None
        if down.copy is not None:
            return down.copy, down.base
        if local is None or local.copy is None or local.version != down.base:
            raise Missing
        copy = local.copy
        for payload in down.news:
            change = self._down.compressor.restore(payload, copy)
            copy = {place: tensor + change[place] for place, tensor in copy.items()}
        return copy, down.base + len(down.news)

    def step(self, ctx: Ctx, work: CompressedWork, batch: Batch) -> CompressedWork:
        work.inner = self.method.step(ctx, work.inner, batch)
        return work

    def finish(self, ctx: Ctx, work: CompressedWork) -> Result[CompressedUp, CompressedLocal]:
        result = self.method.finish(ctx, work.inner)
        up, memory, start = self._compressed(ctx, work.down, result.up, work.local)
        local: CompressedLocal | None = CompressedLocal(
            result.local, memory, start, work.copy, work.version
        )
        if result.local is None and not memory and not start and work.copy is None:
            local = None
        return Result(up, local, result.masks, result.trained, result.metrics)

    def _compressed(
        self, ctx: Ctx, down: Any, up: Any, local: CompressedLocal | None
    ) -> tuple[CompressedUp, Params, Params]:
        """The reply as it travels, what is remembered of the loss, and the next start."""
        memory = local.memory if local else {}
        change = numbers.change(ctx, down, up) if self._up is not None else {}
        if self._up is None or not change:
            return CompressedUp(up, None, False), memory, local.start if local else {}
        feedback, compressor = self._up.feedback, self._up.compressor
        fresh = feedback == "ef21" and memory.keys() != change.keys()
        known = {p: memory[p] if p in memory else torch.zeros_like(t) for p, t in change.items()}
        if feedback == "ef":
            change = {place: tensor + known[place] for place, tensor in change.items()}
        elif feedback == "ef21":
            change = {place: tensor - known[place] for place, tensor in change.items()}
        change = numbers.finite(change)
        start = local.start if local else {}
        payload = compressor.compress(change, ctx.key.fold("compressed"), start)
        restored = compressor.restore(payload, change)
        if feedback == "ef":
            memory = {place: tensor - restored[place] for place, tensor in change.items()}
        elif feedback == "ef21":
            memory = {place: known[place] + restored[place] for place in change}
        reply = CompressedUp(numbers.emptied(up, change), payload, fresh)
        return reply, memory, getattr(payload, "right", {})

    # anyone ---------------------------------------------------------------------------------------

    def model(self, ctx: Ctx, state: CompressedServer, local: CompressedLocal | None) -> Any:
        return self.method.model(ctx, state.inner, local.inner if local else None)


def _sorted(known: dict[int, T]) -> dict[int, T]:
    """By client, so that the order of replies changes nothing."""
    return dict(sorted(known.items()))


def compress(method: AnyMethod, *, up: str = "", down: str = "") -> Compressed:
    """A method with compressed messages.

    Args:
        method: One whose clients send changes of numbers that they were sent.
        up: The compressor of replies, such as `topk:0.01+ef`; empty: none.
        down: The compressor of requests; empty: none.

    Raises:
        ValueError: The method sends nothing that can be compressed, is compressed already, or there
            is no such compressor.
    """
    if isinstance(method, Compressed):
        raise ValueError("the method is compressed already; use `compress_up=` or `compress_down=`")
    if not (up or down):
        raise ValueError("`compress=` needs a compressor, e.g. topk:0.01+ef")
    return Compressed(method, up, down)


class _Restored:
    """Exchanges as the method would have had them without compression, one at a time."""

    def __init__(
        self,
        compressed: Compressed,
        ctx: Ctx,
        state: CompressedServer,
        exchanges: Iterable[Exchange[Any, CompressedUp]],
    ) -> None:
        self._compressed = compressed
        self._ctx = ctx
        self._state = state
        self._exchanges = exchanges
        self.clients: list[int] = []
        self.estimates: dict[int, Params] = {}
        self.copy: Params | None = None
        self.payload: Payload | None = None

    def __iter__(self) -> Iterator[Exchange[Any, Any]]:
        self.clients = []
        for each in self._exchanges:
            down = self._down(each)
            up = self._up(each, down)
            self.clients.append(each.client.id)
            yield Exchange(each.client, down, up)

    def _down(self, each: Exchange[Any, CompressedUp]) -> Any:
        if not isinstance(each.down, CompressedDown):
            return each.down
        if self.copy is None:
            inner = self._compressed.method.down(self._ctx, self._state.inner, each.client)
            self.copy, self.payload = self._compressed._next(self._ctx, self._state, inner)
        return numbers.filled(each.down.record, self.copy)

    def _up(self, each: Exchange[Any, CompressedUp], down: Any) -> Any:
        up, spec = each.up, self._compressed._up
        if spec is None or up.payload is None:
            return up.record
        change = spec.compressor.restore(up.payload, numbers.like(up.record))
        if spec.feedback == "ef21":
            known = self._state.estimates.get(each.client.id, {})
            if known.keys() == change.keys() and not up.fresh:
                change = {place: known[place] + tensor for place, tensor in change.items()}
            self.estimates[each.client.id] = change
        return numbers.restored(down, up.record, change, self._compressed.method)
