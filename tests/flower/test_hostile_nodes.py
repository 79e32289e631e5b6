"""What a hostile node may claim, and what it costs: its own rounds, never the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loopback import Loopback, node_clients, served, set_up
from test_remote_data import POOL, loop_of, written

from gossamer.config import Config, Experiment
from gossamer.engine import Options, events
from gossamer.flower.carrier import Outgoing
from gossamer.flower.messages import Message
from gossamer.flower.node import Node
from gossamer.flower.server import at_server
from gossamer.wire import HEADER

BAD = 1
"""The hostile node."""


def failures(out: Path) -> list[dict[str, Any]]:
    return [e for e in events.read(out / "events.jsonl") if e["event"] == "client-failed"]


def finished(out: Path) -> dict[str, Any]:
    last = events.read(out / "events.jsonl")[-1]
    assert last["event"] == "finished"
    return last


# sizes -------------------------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path: Path) -> Config:
    data = written(tmp_path / "server.npz", 12, 9)
    wish = Experiment(data=data, pool=POOL, model="mlp:hidden=4", rounds=2, scale="raw")
    return Config("fedavg", {"clients": POOL}, wish, Options())


def claimed(config: Config, folder: Path, examples: int, **options: Any) -> Path:
    """A run in which node 2, which has 30 examples like the others, claims another number."""
    folder.mkdir()
    loop = loop_of(config, folder, {0: 30, 1: 30, 2: 30})

    def boast(sent: Outgoing, answer: Message | None) -> Message | str | None:
        if answer is None:
            return Message({})
        if answer.kind == "registered" and sent.node == 102:
            return Message({**answer.head, "clients": [[2, examples]]})
        return answer

    loop.fault = boast
    server = at_server(config)
    server = replace(server, options=replace(server.options, **options))
    served(server, loop, folder / "run", min_replies=0)
    return folder / "run"


def test_a_claim_of_10_to_the_12_examples_weighs_ten_times_the_median(
    config: Config, tmp_path: Path
) -> None:
    boast = claimed(config, tmp_path / "boast", 10**12)
    cap = claimed(config, tmp_path / "cap", 300)
    assert finished(boast)["state_hash"] == finished(cap)["state_hash"]
    assert events.read(boast / "events.jsonl")[0]["data"]["weighted as"] == {"2": 300}
    assert "weighted as" not in events.read(cap / "events.jsonl")[0]["data"]
    off = claimed(config, tmp_path / "off", 10**12, weight_cap=0.0)
    assert finished(off)["state_hash"] != finished(cap)["state_hash"]


def test_a_claim_of_no_examples_is_refused_at_registration(config: Config, tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match=r"2 of 3 clients came .* missing: 2"):
        claimed(config, tmp_path / "none", 0)


# answers -----------------------------------------------------------------------------------------


def attacked(tmp_path: Path, change: Any) -> Path:
    """A run of FedAvg in which one node changes the head and the body of its answers."""
    setup = set_up("fedavg", rounds=3)
    nodes = {
        index: Node(setup, tmp_path / f"node-{index}", node_clients(setup, index))
        for index in range(4)
    }

    def fault(sent: Outgoing, answer: Message | None) -> Message | str | None:
        if answer is None or answer.kind != "done" or sent.node != BAD:
            return Message({}) if answer is None else answer
        head, body = change(dict(answer.head), answer.body)
        return Message(head, body)

    served(setup, Loopback(nodes, fault), tmp_path / "run")
    return tmp_path / "run"


def claims(**changed: Any) -> Any:
    return lambda head, body: ({**head, **changed}, body)


def extreme(head: Mapping[str, Any], body: bytes) -> tuple[Mapping[str, Any], bytes]:
    """All numbers become 1e30; FedAvg's reply is a header and float32."""
    count = (len(body) - HEADER) // 4
    return head, body[:HEADER] + torch.full((count,), 1e30).numpy().tobytes()


@pytest.mark.parametrize(
    ("change", "stage", "reason"),
    [
        (claims(flops=2**61), "claim", "FLOPs are claimed"),
        (claims(examples=2**61), "claim", "examples in"),
        (claims(steps=2**61), "claim", "steps are claimed"),
        (claims(metrics={f"m{n}": 0.0 for n in range(60_000)}), "claim", "60000 metrics came"),
        (claims(density=1.01), "network", "is not a fraction"),
        (claims(client=0), "network", "the answer is for client 0"),
        (claims(round=1), "network", "the answer is for round 1"),
        (claims(run="another"), "network", "the answer is for run another"),
        (extreme, "limit", "params changed by a norm of"),
    ],
)
def test_a_false_answer_costs_its_node_the_round_and_is_named(
    tmp_path: Path, change: Any, stage: str, reason: str
) -> None:
    out = attacked(tmp_path, change)
    failed = failures(out)
    assert failed and {each["client"] % 4 for each in failed} == {BAD}
    assert {each["stage"] for each in failed} == {stage}
    assert all(reason in each["reason"] for each in failed)
    finished(out)


def test_a_replayed_answer_is_refused_by_its_round(tmp_path: Path) -> None:
    kept: list[tuple[Mapping[str, Any], bytes]] = []

    def replayed(head: Mapping[str, Any], body: bytes) -> tuple[Mapping[str, Any], bytes]:
        kept.append((head, body))
        return kept[0]

    failed = failures(attacked(tmp_path, replayed))
    assert failed and all("the answer is for" in each["reason"] for each in failed)


def test_numbers_of_the_wire_are_little_endian_as_this_test_assumes() -> None:
    assert np.float32(1).tobytes() == b"\0\0\x80?"
