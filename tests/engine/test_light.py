"""Clients that take next to nothing may take turns; that changes only the time."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from gossamer import Batch, Ctx, FedAvg, Options, run
from gossamer.arithmetic import turns
from gossamer.arithmetic.library import library
from gossamer.engine import workers as threads
from gossamer.engine.workers import AGAIN, Pace
from gossamer.methods.parts.dense_model import Work
from helpers import Toy, normed

SEEN: dict[int, bool] = {}


@dataclass(frozen=True)
class Seen(FedAvg):
    """FedAvg that notes in which rounds clients have turns."""

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        SEEN[ctx.round] = turns.mine() is not None
        return super().step(ctx, work, batch)


def train(light: float, workers: int, monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[bool]]:
    """The hash of a run, and for each round whether its clients took turns."""
    monkeypatch.setattr(threads, "LIGHT", light)
    done = run(Seen(clients=4), normed(), Toy(), rounds=3, options=Options(workers=workers))
    return done.state_hash, [SEEN[number] for number in (1, 2, 3)]


@pytest.mark.skipif(library() is None, reason="the kernels are not compiled here")
def test_only_light_clients_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    threaded, where = train(0.0, 3, monkeypatch)
    assert where == [False, False, False]
    light, where = train(60.0, 3, monkeypatch)
    assert where == [False, False, True]
    assert light == threaded == train(60.0, 1, monkeypatch)[0]


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr(threads, "LIGHT", 1.0)
    return 0.5


def paced(threads: float, in_turns: float, effort: float) -> Pace:
    """After a first round that says nothing, and one of either way."""
    pace = Pace()
    for seconds in (100.0, threads, in_turns):
        pace.note(pace.in_turns(), effort, seconds)
    return pace


def test_the_faster_way_is_taken(light: float) -> None:
    assert paced(threads=2.0, in_turns=1.0, effort=light).in_turns()
    assert not paced(threads=1.0, in_turns=2.0, effort=light).in_turns()


def test_the_slower_way_gets_another_chance(light: float) -> None:
    pace = paced(threads=2.0, in_turns=1.0, effort=light)
    ways = []
    for _ in range(2 * AGAIN):
        ways.append(pace.in_turns())
        pace.note(ways[-1], light, 1.0 if ways[-1] else 0.5)
    assert ways.count(False) > AGAIN / 2 and not ways[-1]


def test_clients_that_grow_come_back_to_threads(light: float) -> None:
    pace = paced(threads=2.0, in_turns=1.0, effort=light)
    pace.note(pace.in_turns(), 3.0, 1.0)
    assert not pace.in_turns()
    pace.note(False, light, 2.0)
    assert pace.in_turns()
