"""Clients that take next to nothing train one after another; that changes nothing but the time."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pytest

from gossamer import Batch, Ctx, FedAvg, Options, run
from gossamer.engine import transport
from gossamer.methods.dense import Work
from helpers import Toy, normed

HERE = threading.main_thread().name
SEEN: dict[int, set[str]] = {}


@dataclass(frozen=True)
class Seen(FedAvg):
    """FedAvg that notes which threads its clients train in, by round."""

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        SEEN.setdefault(ctx.round, set()).add(threading.current_thread().name)
        return super().step(ctx, work, batch)


def train(light: float, workers: int, monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[bool]]:
    """The hash of a run, and for each round whether its clients trained in this thread."""
    SEEN.clear()
    monkeypatch.setattr(transport, "LIGHT", light)
    done = run(Seen(clients=4), normed(), Toy(), rounds=3, options=Options(workers=workers))
    return done.state_hash, [SEEN[number] == {HERE} for number in (1, 2, 3)]


def test_light_clients_leave_the_threads_after_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, where = train(0.0, 3, monkeypatch)
    assert where == [False, False, False]
    light, where = train(60.0, 3, monkeypatch)
    assert where == [False, True, True]
    assert light == threads == train(60.0, 1, monkeypatch)[0]


def test_clients_that_grow_come_back_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 0.0, 100.0, 0.0, 1.0])
    monkeypatch.setattr(transport.time, "thread_time", lambda: next(clock))
    monkeypatch.setattr(transport, "LIGHT", 50.0)
    SEEN.clear()
    run(Seen(clients=1), normed(), Toy(), rounds=3, options=Options(workers=2))
    assert [SEEN[number] == {HERE} for number in (1, 2, 3)] == [False, True, False]
