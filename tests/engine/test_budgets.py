"""Servers know how many clients there are, and their budgets, in runs, checks and prices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pytest

from gossamer import Client, Ctx, Exchange, FedAvg, Job, Options, run, sample_by_budget
from gossamer.conformance.bench import Bench
from gossamer.conformance.toys import Tiny, plain_task
from gossamer.engine import check
from gossamer.methods.fedavg import Server
from gossamer.methods.parts.dense_model import Down, Local, Up, Work
from helpers import Toy, mlp


@dataclass(frozen=True)
class Picky(FedAvg):
    """FedAvg that refuses a server without, or a client with, the budgets of the pool."""

    def init(self, ctx: Ctx) -> Server:
        assert ctx.budgets == (0.1, 0.5), ctx.budgets
        return super().init(ctx)

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        assert ctx.budgets == (0.1, 0.5), ctx.budgets
        return sample_by_budget(ctx.key, pool, self.clients)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        assert ctx.pool == 6, ctx.pool
        return super().merge(ctx, state, exchanges)

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        assert ctx.budgets == (1.0,) and ctx.pool == 0, ctx
        return super().begin(ctx, down, local)


def uneven(pool: Sequence[Client]) -> list[Client]:
    return [Client(each.id, each.examples, 0.1 if each.id % 2 else 0.5) for each in pool]


def test_a_server_knows_the_budgets_of_the_pool_in_every_round() -> None:
    toy = Toy()
    method = Picky(clients=4)
    with pytest.raises(AssertionError, match=r"\(1\.0,\)"):
        check(method, mlp(), toy, rounds=2)
    toy.pool = uneven(toy.pool)
    check(method, mlp(), toy, rounds=2)
    assert run(method, mlp(), toy, rounds=2, options=Options(workers=1)).rounds == 2


def test_the_bench_of_conformance_checks_tells_them_too() -> None:
    tiny = Tiny()
    tiny.pool = uneven(tiny.pool)
    bench = Bench(Picky(clients=4), plain_task(), tiny, 1)
    assert bench.server(1).budgets == (0.1, 0.5) and bench.server(1).pool == len(tiny.pool)
    assert len(bench.cohort(1, bench.init())) == 4
