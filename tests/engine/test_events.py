"""The event log: equal for equal runs but for the clock, and readable when it was cut short."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gossamer import FedAvg, Options, Training, run
from gossamer.accounting import Entry
from gossamer.engine import events
from gossamer.engine.events import (
    ClientFailed,
    ClientFinished,
    Clock,
    Evaluated,
    Event,
    EventLog,
    kind,
    read,
)
from gossamer.wire import HEADER
from helpers import Toy, fedavg, lines, mlp, normed


def test_kinds_have_hyphens() -> None:
    assert kind(ClientFailed(1, 2, "step", "why", 0, 0)) == "client-failed"


def test_a_line_is_one_json_object_with_the_clock_last() -> None:
    text = events.line(ClientFailed(1, 2, "step", 'a "quoted"\nreason', 8, 32), Clock(5.0, 0.5))
    assert text.endswith("\n") and text.count("\n") == 1
    found = json.loads(text)
    assert list(found)[:3] == ["event", "round", "client"] and list(found)[-1] == "clock"
    assert found["clock"] == {"time": 5.0, "seconds": 0.5}


def test_numbers_that_are_not_finite_are_null_however_deep() -> None:
    traffic = [Entry("up", "Up", "params", 8.0, float("inf"), 0.0)]
    event = ClientFinished(
        *(1, 2, 3, 4, 0.5, 6, 7, 8.0, 9.0, 10, 11, 12, None),
        metrics={"loss": float("nan"), "rate": 0.5},
        traffic=traffic,
    )
    found = json.loads(events.line(event, Clock(5.0, 0.5)))
    assert found["metrics"] == {"loss": None, "rate": 0.5}
    assert found["traffic"][0]["information"] is None and found["traffic"][0]["sent"] == 8.0


@pytest.mark.parametrize("cut", [1, 2, 40])
def test_a_last_line_that_was_cut_short_is_left_out(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    for round in range(3):
        log.emit(ClientFailed(round, 2, "step", "why", 8, 32), Clock(0.0, 0.0))
    log.close()
    path.write_bytes(path.read_bytes()[: -1 - cut])
    assert [event["round"] for event in read(path)] == [0, 1]


def test_a_log_goes_on_from_a_position_and_drops_what_lies_behind(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    log.emit(ClientFailed(1, 2, "step", "why", 0, 0), Clock(0.0, 0.0))
    position, chain = log.position, log.chain
    log.emit(ClientFailed(2, 2, "step", "why", 8, 32), Clock(0.0, 0.0))
    log.close()
    again = EventLog(path, position, chain)
    again.emit(ClientFailed(3, 2, "step", "why", 8, 32), Clock(0.0, 0.0))
    again.sync()
    assert [event["round"] for event in read(path)] == [1, 3]
    assert again.position == path.stat().st_size
    again.close()


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The logs of one run done three times: alone, again, and with two workers."""
    found = []
    for workers in (1, 1, 2):
        out = tmp_path_factory.mktemp("run")
        run(fedavg(), normed(), Toy(), rounds=4, seed=3, out=out, options=Options(workers))
        found.append(out / "events.jsonl")
    return found


def test_the_same_run_has_the_same_log_but_for_the_clock(logs: list[Path]) -> None:
    first, second, two_workers = map(lines, logs)
    assert first == second == two_workers
    assert logs[0].read_bytes() != logs[1].read_bytes()


def test_another_seed_has_another_log(logs: list[Path], tmp_path: Path) -> None:
    run(fedavg(), normed(), Toy(), rounds=4, seed=4, out=tmp_path)
    assert lines(tmp_path / "events.jsonl")[1:] != lines(logs[0])[1:]


def test_a_log_tells_the_whole_run_in_order(logs: list[Path]) -> None:
    kinds = [event["event"] for event in read(logs[0])]
    per_round = ["client-finished"] * 3 + ["round-finished", "evaluated"]
    assert kinds == ["started", "arithmetic-chosen", "evaluated", *per_round * 4, "finished"]
    started = read(logs[0])[0]
    assert started["schema"] == events.SCHEMA and started["seed"] == 3
    assert started["settings"]["batch"] == 8 and started["pool"] == 6
    assert started["data"] == {"name": "toy", "classes": 3}
    for clients in zip(*[iter(e for e in read(logs[0]) if "examples" in e)] * 3, strict=True):
        assert [c["client"] for c in clients] == sorted(c["client"] for c in clients)


def test_bits_are_those_of_the_messages(tmp_path: Path) -> None:
    """5 x 8 + 8 + 8 x 3 + 3 = 75 numbers each way, behind a header."""
    run(fedavg(2, 8, epochs=2), mlp(), Toy(), rounds=3, out=tmp_path)
    found = read(tmp_path / "events.jsonl")
    clients = [event for event in found if event["event"] == "client-finished"]
    assert all(each["up"] == each["down"] == 8 * (HEADER + 4 * 75) for each in clients)
    assert all(each["paper_up"] == each["paper_down"] == 32 * 75 for each in clients)
    for each in clients:
        size = 20 + each["client"]
        assert (each["examples"], each["steps"]) == (2 * size, 2 * -(-size // 8))
        assert each["flops"] == 6 * (5 * 8 + 8 * 3) * 2 * size
    rounds = [event for event in found if event["event"] == "round-finished"]
    assert [each["up"] for each in rounds] == [2 * n * 8 * (HEADER + 4 * 75) for n in (1, 2, 3)]
    assert rounds[-1]["flops"] == sum(each["flops"] for each in clients)
    loss = [each["metrics"]["loss"] for each in clients[:2]]
    assert rounds[0]["metrics"]["loss"] == pytest.approx(sum(loss) / 2)


class Listener:
    def __init__(self) -> None:
        self.found: list[Event] = []
        self.closed = False

    def emit(self, event: Event, clock: Clock) -> None:
        self.found.append(event)

    def close(self) -> None:
        self.closed = True


def test_sinks_hear_every_event_and_are_closed(tmp_path: Path) -> None:
    listener = Listener()
    run(fedavg(), mlp(), Toy(), rounds=2, out=tmp_path, sinks=[listener])
    assert [kind(event) for event in listener.found] == [
        event["event"] for event in read(tmp_path / "events.jsonl")
    ]
    assert listener.closed


def test_evaluations_come_every_so_many_rounds_and_after_the_last() -> None:
    listener = Listener()
    run(fedavg(), mlp(), Toy(), rounds=5, options=Options(eval_every=2), sinks=[listener])
    rounds = [event.round for event in listener.found if isinstance(event, Evaluated)]
    assert rounds == [0, 2, 4, 5]


def test_evaluation_can_be_left_out() -> None:
    listener = Listener()
    summary = run(
        FedAvg(3, Training(batch=8)),
        mlp(),
        Toy(),
        rounds=2,
        options=Options(eval_every=0),
        sinks=[listener],
    )
    assert not any(isinstance(event, Evaluated) for event in listener.found)
    assert set(summary.accuracy.values()) == {None}
    assert sum(isinstance(event, ClientFinished) for event in listener.found) == 6
