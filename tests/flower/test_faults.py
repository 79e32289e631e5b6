"""Nodes fail: the round goes on, the reason is in the log, and who comes back is asked again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from loopback import Fault, Loopback, log_of, served, set_up, simulated

from gossamer.core import Key
from gossamer.engine import ClientError, events
from gossamer.flower import messages
from gossamer.flower.carrier import Incoming, Outgoing
from gossamer.flower.messages import Message
from gossamer.flower.node import Node, agreement
from gossamer.flower.registration import Registry

ROUND = 2


def spoiled(change: Any) -> Fault:
    """Client 3, or whoever else has the lowest id, answers something else in the second round."""
    victims: list[int] = []

    def fault(sent: Outgoing, answer: Message | None) -> Any:
        if sent.purpose != "train" or sent.round != ROUND:
            return answer or Message({})
        client = sent.message.head["client"]
        victims[:] = victims or [client]
        if client != victims[0]:
            return answer or Message({})
        return change(answer)

    return fault


def head(answer: Message | None, **changes: Any) -> Message:
    return Message({}) if answer is None else replace(answer, head={**answer.head, **changes})


def body(answer: Message | None, data: bytes) -> Message:
    """Other bytes, of which the account is right."""
    rows = [["header", 8 * len(data), 0, 0]]
    return Message({}) if answer is None else replace(head(answer, rows=rows), body=data)


@pytest.mark.parametrize(
    ("change", "stage", "reason"),
    [
        (lambda answer: None, "network", "no answer within 1 s"),
        (lambda answer: "error 3: ValueError: out of data", "network", "out of data"),
        (lambda answer: head(answer, round=1), "network", "the answer is for round 1, 2 was asked"),
        (lambda answer: head(answer, run="other"), "network", "the answer is for run other"),
        (lambda answer: head(answer, client=99), "network", "the answer is for client 99"),
        (lambda answer: head(answer, kind="nonsense"), "network", "of no known kind"),
        (lambda answer: head(answer, kept="../../etc"), "network", "has no valid fingerprint"),
        (lambda answer: head(answer, flops=-1), "network", "-1 is not a count"),
        (lambda answer: head(answer, flops=10**400), "network", "is not a count"),
        (lambda answer: head(answer, metrics={"loss": 10**400}), "network", "are not numbers"),
        (
            lambda answer: head(answer, rows=[["a", 1.5, 0, 0], ["b", 10**400, 0, 0]]),
            "network",
            "not a number of bits",
        ),
        (
            lambda answer: head(answer, kind="failed", stage="step", reason="No\ud800\x1b[2J: x"),
            "step",
            "No  [2J: x",
        ),
        (lambda answer: head(answer, density=2.0), "network", "2.0 is not a fraction"),
        (
            lambda answer: head(answer, rows=[["all", 8.0, 0, 0]]),
            "network",
            "account does not match",
        ),
        (lambda answer: head(answer, rows=[["all", -1, 0, 0]]), "network", "not a number of bits"),
        (
            lambda answer: head(answer, kind="failed", stage="step", reason="Oops: no"),
            "step",
            "Oops",
        ),
        (lambda answer: body(answer, b"garbage, garbage"), "wire", "the message has version"),
        (lambda answer: body(answer, b""), "wire", "shorter than its header"),
    ],
)
def test_a_fault_costs_one_client_one_round(
    change: Any, stage: str, reason: str, tmp_path: Path
) -> None:
    setup = set_up("fedavg", rounds=3, eval_every=0)
    loop = Loopback.of(setup, tmp_path / "nodes", fault=spoiled(change))
    summary = served(setup, loop, tmp_path / "served")
    log = events.read(tmp_path / "served" / "events.jsonl")
    (failed,) = [event for event in log if event["event"] == "client-failed"]
    assert (failed["round"], failed["stage"]) == (ROUND, stage) and reason in failed["reason"]
    rounds = [event for event in log if event["event"] == "round-finished"]
    assert [len(event["clients"]) for event in rounds] == [4, 3, 4]
    assert rounds[1]["failed"] == [failed["client"]] and summary.failed == 1
    journal = (tmp_path / "served" / "messages.jsonl").read_text().splitlines()
    (told,) = [line for line in map(json.loads, journal) if "reason" in line]
    assert told["client"] == failed["client"] and reason in told["reason"]


def test_a_round_with_too_few_replies_is_repeated_for_those_that_failed(tmp_path: Path) -> None:
    setup = set_up("spafl", rounds=3)
    simulated(setup, tmp_path / "threads")
    silent = [2]

    def fault(sent: Outgoing, answer: Message | None) -> Message | None:
        if sent.purpose == "train" and sent.round == ROUND and silent[0] and answer is None:
            silent[0] -= 1
            return None
        return answer or Message({})

    loop = Loopback.of(setup, tmp_path / "nodes", fault=fault)
    served(setup, loop, tmp_path / "served", min_replies=3)
    trained = [p for p in loop.sent if p.purpose == "train" and p.round == ROUND]
    assert len(trained) == 4 + 2
    wanted, found = (
        [json.loads(line) for line in log_of(tmp_path / name)] for name in ("threads", "served")
    )
    # What was sent in vain is in the ledger and nowhere else.
    assert wanted[-1] == found[-1] and wanted[-1]["event"] == "finished"
    for one, other in zip(wanted, found, strict=True):
        if one["event"] == "client-finished":
            assert other["down"] in (one["down"], 2 * one["down"])
            assert other["paper_down"] == one["paper_down"] and other["up"] == one["up"]
        if one["event"] == "evaluated":
            assert other == one
    down = {
        name: [e for e in log if e["event"] == "round-finished"][-1]["down"]
        for name, log in (("threads", wanted), ("served", found))
    }
    assert down["served"] > down["threads"]


def test_a_run_without_enough_replies_is_given_up_and_can_be_resumed(tmp_path: Path) -> None:
    setup = set_up("spafl", rounds=3)
    simulated(setup, tmp_path / "threads")
    loop = Loopback.of(setup, tmp_path / "nodes")
    mute = [True]

    def fault(sent: Outgoing, answer: Message | None) -> Message | None:
        silent = mute[0] and sent.purpose == "train" and sent.round == ROUND
        return None if silent else answer or Message({})

    loop.fault = fault
    with pytest.raises(ClientError, match=r"0 of 2 replies after 3 attempts .*--min-replies"):
        served(setup, loop, tmp_path / "served", min_replies=2, attempts=3)
    mute[0] = False
    served(setup, loop, tmp_path / "served", min_replies=2)
    assert log_of(tmp_path / "served") == log_of(tmp_path / "threads")


def test_a_node_that_goes_away_is_missed_by_name_and_used_when_it_returns(tmp_path: Path) -> None:
    setup = set_up("fedavg", rounds=3, eval_every=0)
    loop = Loopback.of(setup, tmp_path / "nodes")

    def leave(sent: Outgoing, answer: Message | None) -> Message:
        if sent.purpose == "train" and answer is not None:
            loop.offline = {100} if sent.round == 1 else set()
        return answer or Message({})

    loop.fault = leave
    served(setup, loop, tmp_path / "served", min_replies=0)
    log = events.read(tmp_path / "served" / "events.jsonl")
    failed = [event for event in log if event["event"] == "client-failed"]
    assert failed and {event["round"] for event in failed} == {ROUND}
    for event in failed:
        told = f"no connected node hosts client {event['client']}"
        assert event["reason"] == told and event["stage"] == "network"
        assert event["down"] == 0  # nothing was sent
    assert len([e for e in log if e["event"] == "round-finished"][-1]["clients"]) == 4


def test_a_client_that_moves_to_another_node_is_found_there(tmp_path: Path) -> None:
    setup = set_up("fedavg", rounds=2, eval_every=0)
    simulated(setup, tmp_path / "threads")
    loop = Loopback.of(setup, tmp_path / "nodes")
    trained: list[int] = []

    def move(sent: Outgoing, answer: Message | None) -> Message:
        if sent.purpose == "train" and answer is not None:
            trained.append(sent.node)
            if len(trained) == 4:  # the first round is over
                loop.nodes_by_id[200] = loop.nodes_by_id.pop(100)
        return answer or Message({})

    loop.fault = move
    served(setup, loop, tmp_path / "served")
    assert log_of(tmp_path / "served") == log_of(tmp_path / "threads")
    assert 200 in trained


def test_nobody_takes_a_client_from_a_node_that_is_connected() -> None:
    setup = set_up("fedavg")
    registry = Registry.of(setup.federation.pool, agreement(setup))
    for node, clients in ((7, [0, 1]), (5, [1, 2])):
        sizes = {id: setup.federation.pool[id].examples for id in clients}
        registry.enter(
            node, Incoming("", messages.registered(messages.NodeInfo(sizes, agreement(setup))))
        )
    assert [registry.node(id, [5, 7]) for id in (0, 1, 2, 3)] == [7, 7, 5, None]
    assert [registry.node(id, [5]) for id in (0, 1, 2, 3)] == [None, 5, 5, None]
    assert registry.present([5, 7]) == {0, 1, 2}
    registry.enter(
        9, Incoming("", messages.registered(messages.NodeInfo({3: 1}, agreement(setup))))
    )
    assert registry.node(3, [9]) is None
    assert registry.reason(3) == "node 9 is refused: client 3 has 1 examples, not 20"


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("node-1", ""),
        ("node-2", "its key is that of node-2, which does not host client 1"),
        ("node-4", "its key is registered as 'node-4', which is not one of 4 nodes"),
        ("", "its key is registered as '', which is not one of 4 nodes"),
    ],
)
def test_a_key_hosts_its_own_clients_and_no_others(key: str, reason: str) -> None:
    setup = set_up("fedavg")
    registry = Registry.of(setup.federation.pool, agreement(setup))
    sizes = {id: setup.federation.pool[id].examples for id in (1, 5)}
    answer = Incoming("", messages.registered(messages.NodeInfo(sizes, agreement(setup))))
    registry.enter(7, answer, key, 4)
    assert registry.present([7]) == (set() if reason else {1, 5})
    assert reason in registry.reason(1)


def test_keys_are_looked_up_when_the_roll_is_called(tmp_path: Path) -> None:
    setup = set_up("fedavg", rounds=2, eval_every=0)
    loop = Loopback.of(setup, tmp_path / "nodes")
    loop.keys = {100 + index: f"node-{index}" for index in range(4)}
    assert served(setup, loop, tmp_path / "served", nodes=4).failed == 0
    loop.keys[103] = "node-2"
    told = r"clients 3, 7, 11: node-2 is refused: its key is that of node-2"
    with pytest.raises(TimeoutError, match=told):
        served(setup, loop, tmp_path / "other", nodes=4)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"rounds": 9}, "differ from the server's"),
        ({"name": "fedprox"}, "differ from the server's"),
    ],
)
def test_a_node_with_other_settings_is_refused_and_the_reason_is_told(
    other: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    setup = set_up("fedavg", rounds=3, eval_every=0)
    strange = set_up(**{"name": "fedavg", "rounds": 3, "eval_every": 0, **other})
    loop = Loopback.of(setup, tmp_path / "nodes")
    loop.nodes_by_id[101] = Node(strange, tmp_path / "strange", [1, 5, 9])
    told = r"9 of 12 clients came within 5 s; clients 1, 5, 9: node 101 is refused: its method.*"
    with pytest.raises(TimeoutError, match=told) as stopped:
        served(setup, loop, tmp_path / "served")
    assert "missing" not in str(stopped.value) and "start their nodes" not in str(stopped.value)
    texts = (tmp_path / "strange" / "network.jsonl").read_text().splitlines()
    notes = [json.loads(line)["text"] for line in texts]
    assert notes[0].startswith("the server refuses this node: its method, settings, rounds, seed")
    assert notes[-1].startswith("the server stopped the run with an error")
    served(setup, loop, tmp_path / "served", min_present=9, min_replies=0)
    log = events.read(tmp_path / "served" / "events.jsonl")
    failed = [event for event in log if event["event"] == "client-failed"]
    assert failed and {event["client"] for event in failed} <= {1, 5, 9}
    assert all(reason in event["reason"] for event in failed)


def test_who_cannot_be_evaluated_is_left_out_of_the_figures(tmp_path: Path) -> None:
    setup = set_up("spafl", rounds=2)

    def fault(sent: Outgoing, answer: Message | None) -> Any:
        if sent.purpose == "evaluate" and sent.node == 101:
            return None if answer is None else Message({"kind": "measured", "figures": [[1, [7]]]})
        return answer or Message({})

    loop = Loopback.of(setup, tmp_path / "nodes", fault=fault)
    served(setup, loop, tmp_path / "served")
    log = events.read(tmp_path / "served" / "events.jsonl")
    evaluated = [event["clients"] for event in log if event["event"] == "evaluated"]
    assert evaluated[0] == 12 and evaluated[-1] < 12


def test_a_node_that_is_silent_at_registration_costs_nobody_else_the_round(tmp_path: Path) -> None:
    setup = set_up("fedavg", rounds=3, eval_every=0)

    def fault(sent: Outgoing, answer: Message | None) -> Message | None:
        return None if sent.node == 103 else answer or Message({})

    loop = Loopback.of(setup, tmp_path / "nodes", fault=fault)
    served(setup, loop, tmp_path / "served", min_present=3, min_replies=0)
    log = events.read(tmp_path / "served" / "events.jsonl")
    failed = [event for event in log if event["event"] == "client-failed"]
    assert failed and all(event["client"] % 4 == 3 for event in failed)
    assert log[-1]["event"] == "finished" and log[-1]["round"] == 3


def test_a_node_that_was_refused_and_started_anew_takes_part(tmp_path: Path) -> None:
    setup = set_up("fedavg", rounds=3, eval_every=0)
    loop = Loopback.of(setup, tmp_path / "nodes")
    right, asked = loop.nodes_by_id[103], [0]
    loop.nodes_by_id[103] = Node(replace(setup, key=Key(1)), tmp_path / "wrong", [3])

    def fault(sent: Outgoing, answer: Message | None) -> Message:
        if sent.node == 103 and answer is None:
            asked[0] += 1
            if asked[0] == 2:
                loop.nodes_by_id[103] = right
        return answer or Message({})

    loop.fault = fault
    served(setup, loop, tmp_path / "served", gather=100.0)
    log = events.read(tmp_path / "served" / "events.jsonl")
    assert not [event for event in log if event["event"] == "client-failed"]
    calls = [sent for sent in loop.sent if sent.node == 103 and sent.message.kind == "register"]
    assert len(calls) == 2  # and not at every look at the post


def test_messages_say_how_long_an_answer_is_of_use(tmp_path: Path) -> None:
    setup = set_up("spafl", rounds=2)
    loop = Loopback.of(setup, tmp_path / "nodes")
    served(setup, loop, tmp_path / "served")
    assert {sent.purpose for sent in loop.sent} == {"query", "train", "evaluate"}
    assert all(0 < sent.message.head["seconds"] <= sent.seconds for sent in loop.sent)
