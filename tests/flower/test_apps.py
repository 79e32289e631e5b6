"""Flower's ServerApp and ClientApp, with its own messages, give the bits of a simulation."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from loopback import NODES, log_of, set_up, simulated

pytest.importorskip("flwr", reason="needs Flower: pip install 'gossamer[flower]'")

from flower_grid import InProcess
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from gossamer.engine import Run, events
from gossamer.flower import messages
from gossamer.flower.apps import (
    LOOK,
    SILENCE,
    GridCarrier,
    client_app,
    configured,
    from_record,
    server_app,
    to_record,
    where,
)
from gossamer.flower.carrier import Outgoing
from gossamer.flower.server_transport import Patience
from gossamer.wire import WireError


def flown(setup: Run, folder: Path, change: Any = None, **run: Any) -> None:
    """A whole run of both apps; everything that a message holds goes through Flower's encoding."""
    app = client_app(lambda: setup, watchdog=False)
    grid = InProcess(app, NODES, folder / "states", *([change] if change else []))
    config = {"out": str(folder / "flown"), "poll": 0.001, "deadline": 30.0, **run}
    context = Context(7, 1, {}, RecordDict(), config)
    server_app(lambda: setup)(grid, context)


@pytest.mark.parametrize("name", ["fedavg", "spafl"])
def test_flower_and_threads_give_equal_states_and_equal_logs(name: str, tmp_path: Path) -> None:
    setup = set_up(name)
    simulated(setup, tmp_path / "threads")
    flown(setup, tmp_path)
    assert log_of(tmp_path / "flown") == log_of(tmp_path / "threads")
    assert "state_hash" in log_of(tmp_path / "flown")[-1]


def test_messages_of_another_kind_cost_one_client_one_round(tmp_path: Path) -> None:
    setup = set_up("fedavg", eval_every=0)
    seen: list[int] = []

    def change(message: Message, answer: Message) -> Message | None:
        if message.metadata.message_type != "train" or message.metadata.group_id != "2":
            return answer
        seen.append(message.metadata.dst_node_id)
        match len(seen):
            case 1:
                raise ValueError("the disk is full")
            case 2:
                return Message(RecordDict({"x": ConfigRecord({"a": 1})}), reply_to=message)
            case 3:
                return None
        return answer

    flown(setup, tmp_path, change, deadline=0.5)
    log = events.read(tmp_path / "flown" / "events.jsonl")
    failed = [event["reason"] for event in log if event["event"] == "client-failed"]
    assert sorted(failed) == [
        "error 2: ValueError: the disk is full",
        "no answer within 0.5 s",
        "the record holds no message of Gossamer's",
    ]
    rounds = [event for event in log if event["event"] == "round-finished"]
    assert [len(event["clients"]) for event in rounds] == [4, 1, 4]


def test_a_message_comes_out_of_a_record_as_it_went_in() -> None:
    message = messages.Message({"kind": "train", "round": 3}, bytes(range(256)))
    assert from_record(to_record(message)) == message


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"gossamer": ConfigRecord({"head": b"{}"})}),
        RecordDict({"gossamer": ArrayRecord()}),
        RecordDict(
            {
                "gossamer": ArrayRecord(
                    {n: Array("uint8", (2,), "numpy.ndarray", b"{}") for n in ("head", "body")}
                )
            }
        ),
        RecordDict(
            {
                "gossamer": ArrayRecord(
                    {n: Array("uint8", (1,), "gossamer/1", b"[") for n in ("head", "body")}
                )
            }
        ),
    ],
)
def test_anything_else_in_a_message_is_refused(content: RecordDict) -> None:
    with pytest.raises(WireError):
        from_record(content)


def test_equal_bodies_are_one_object_to_flower() -> None:
    one, other = (to_record(messages.Message({"client": id}, b"x" * 1000)) for id in (1, 2))
    bodies = {each["gossamer"]["body"].object_id for each in (one, other)}
    assert len(bodies) == 1


def test_a_node_must_say_which_clients_it_has_and_where_it_keeps_them(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not name the node's clients"):
        where({}, tmp_path)
    with pytest.raises(ValueError, match="partition-id is 4, but there are 4 partitions"):
        where({"partition-id": 4, "num-partitions": 4}, tmp_path)
    with pytest.raises(ValueError, match="no folder for what its clients keep"):
        where({"partition-id": 0}, None)
    found = where({"partition-id": 1, "num-partitions": 4, "state-dir": str(tmp_path)}, None)
    assert found == (tmp_path / "node-1", 1, 4)


def test_a_run_says_how_patient_its_server_is(tmp_path: Path) -> None:
    found = configured(Patience(), {"deadline": 5, "min_replies": 2, "out": "x"})
    assert (found.deadline, found.min_replies, found.gather) == (5.0, 2, Patience().gather)
    with pytest.raises(ValueError, match="deadline"):
        configured(Patience(), {"deadline": 0})
    context = Context(7, 1, {}, RecordDict(), {})
    with pytest.raises(ValueError, match="name a folder for the run"):
        server_app(lambda: set_up("fedavg"))(None, context)  # type: ignore[arg-type]


def test_heads_are_small(tmp_path: Path) -> None:
    setup = set_up("fedavg", eval_every=0)
    flown(setup, tmp_path)
    text = (tmp_path / "flown" / "messages.jsonl").read_text()
    tallies = [json.loads(line) for line in text.splitlines()]
    assert all(tally["head"] / tally["messages"] < 800 for tally in tallies)


class Broken(Grid):
    """A grid on which one of the messages cannot be put together."""

    def __init__(self, good: Message, bad: str) -> None:
        self.good, self.bad = good, bad

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        if self.bad in message_ids:
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
        return [self.good] if self.good.metadata.reply_to_message_id in message_ids else []

    set_run = run = create_message = get_node_ids = push_messages = send_and_receive = None


def test_garbage_of_one_node_costs_the_others_nothing() -> None:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, 1, 3
    question = Message(to_record(messages.Message({"kind": "register"})), 5, "train")
    question.metadata.__dict__["_message_id"] = "good"
    answer = Message(to_record(messages.Message({"kind": "registered"})), reply_to=question)
    found = GridCarrier(Broken(answer, "bad")).collect(["good", "bad", "late"])
    assert [(each.id, each.message) for each in found] == [
        ("good", messages.Message({"kind": "registered"})),
        ("bad", None),
    ]
    assert found[1].reason.startswith("its answer cannot be read: UnicodeDecodeError")


def test_an_error_without_a_reason_is_one() -> None:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, 1, 3
    question = Message(to_record(messages.Message({"kind": "register"})), 5, "train")
    question.metadata.__dict__["_message_id"] = "good"
    answer = Message(Error(2, " \n"), reply_to=question)
    (found,) = GridCarrier(Broken(answer, "bad")).collect(["good"])
    assert found.reason == "error 2: no reason was given"


class Behind(InProcess):
    """Its first node sends an answer only when the next message comes."""

    held: Message | None = None
    sent = 0

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        names = []
        for message in messages:
            names += super().push_messages([message])
            if message.metadata.dst_node_id == min(self.contexts):
                self.sent += 1
                before, self.held = self.held, self.replies.pop(names[-1])
                if before is not None:
                    self.replies[before.metadata.reply_to_message_id] = before
        return names


def test_a_node_that_is_one_answer_behind_is_sent_one_message_more(tmp_path: Path) -> None:
    setup, time = set_up("fedavg"), [0.0]
    grid = Behind(client_app(lambda: setup, watchdog=False), NODES, tmp_path)
    carriage = GridCarrier(grid, lambda: time[0])
    late, other = min(grid.contexts), max(grid.contexts)

    def asked_both() -> list[str]:
        sent = [messages.register(60.0 + place) for place in range(2)]
        nodes = zip((late, other), sent, strict=True)
        return carriage.send([Outgoing(node, "query", each, 0, 60.0) for node, each in nodes])

    for _ in range(2):
        ids = asked_both()
        assert [arrival.id for arrival in carriage.collect(ids)] == ids[1:]
        before = grid.sent
        time[0] += SILENCE - 1
        assert not carriage.collect(ids[:1]) and grid.sent == before
        time[0] += 1
        assert not carriage.collect(ids[:1]) and grid.sent == before + 1
        assert [arrival.id for arrival in carriage.collect(ids[:1])] == ids[:1]
        time[0] += SILENCE
        assert not carriage.collect(ids) and grid.sent == before + 1


def test_a_message_to_a_node_that_was_restarted_is_not_waited_for(tmp_path: Path) -> None:
    setup = set_up("fedavg", rounds=1, eval_every=0)
    grid = InProcess(client_app(lambda: setup, watchdog=False), 1, tmp_path)
    grid.change = lambda message, answer: None  # its process was killed
    clock = [0.0]
    carrier = GridCarrier(grid, lambda: clock[0])
    (id,) = carrier.send([Outgoing(10, "query", messages.register(60.0), 0, 60.0)])
    assert carrier.collect([id]) == []
    grid.started = "2026-01-02"
    assert carrier.collect([id]) == []  # it has just looked
    clock[0] += LOOK
    (found,) = carrier.collect([id])
    assert (found.id, found.message, found.reason) == (id, None, "its node was restarted")
    (id,) = carrier.send([Outgoing(10, "query", messages.register(60.0), 0, 60.0)])
    clock[0] += LOOK
    assert carrier.collect([id]) == []  # it was sent after the restart
