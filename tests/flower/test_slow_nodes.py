"""Deadlines and oversampling on a network: the same clients are merged as in the simulator."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from loopback import NODES, Clock, Fault, Loopback, node_clients, served, set_up, simulated

from gossamer.engine import events
from gossamer.flower.carrier import Incoming, Outgoing
from gossamer.flower.messages import Message
from gossamer.flower.node import Node
from gossamer.flower.patience import Patience
from gossamer.flower.server import serve

SLOW = 2
"""The node that does not answer in time."""


def silent() -> Fault:
    """One node is never heard of while it should train."""

    def fault(sent: Outgoing, answer: Message | None) -> Message | str | None:
        if sent.node == 100 + SLOW and sent.message.kind == "train":
            return None
        return answer if answer is not None else Message({})

    return fault


def devices(folder: Path, pool: int) -> str:
    """The same as devices: clients of that node are slow, all others answer in order of ids."""
    lines = ["client,device,latency,flops,up,down"]
    for id in range(pool):
        latency = 60 if id % NODES == SLOW else 0.001 * (id + 1)
        lines.append(f"{id},phone-2024,{latency},1e15,1e15,1e15")
    path = folder / "devices.csv"
    path.write_text("\n".join(lines))
    return str(path)


def merged(out: Path) -> list[list[int]]:
    log = events.read(out / "events.jsonl")
    return [event["clients"] for event in log if event["event"] == "round-finished"]


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("fedavg", {}),
        ("fedavg", {"oversample": 1.5}),
        ("spafl", {"oversample": 1.5}),
    ],
)
def test_a_node_that_is_too_slow_is_left_out_as_in_the_simulator(
    method: str, more: dict[str, Any], tmp_path: Path
) -> None:
    setup = set_up(method, rounds=5)
    carrier = Loopback.of(setup, tmp_path, fault=silent())
    flown = served(setup, carrier, tmp_path / "flown", deadline=1.0, **more)
    options = replace(
        setup.options, devices=devices(tmp_path, len(setup.federation.pool)), deadline="1s", **more
    )
    simulation = simulated(replace(setup, options=options), tmp_path / "simulated")
    assert merged(tmp_path / "flown") == merged(tmp_path / "simulated")
    assert flown.state_hash == simulation.state_hash
    everyone = simulated(setup, tmp_path / "everyone")
    assert everyone.state_hash != flown.state_hash
    reasons = {
        event["reason"]
        for event in events.read(tmp_path / "flown" / "events.jsonl")
        if event["event"] == "client-failed"
    }
    assert reasons <= {"no answer within 1 s", "enough others had answered"} and reasons


@dataclass
class Expiring:
    """A network that drops requests to the slow node, and says so when their time is up."""

    inner: Loopback
    clock: Clock
    ends: dict[str, float] = field(default_factory=dict)

    def nodes(self) -> list[int]:
        return self.inner.nodes()

    def names(self) -> dict[int, str]:
        return self.inner.names()

    def send(self, outgoing: Sequence[Outgoing]) -> list[str]:
        ids = self.inner.send(outgoing)
        self.ends |= {
            id: self.clock.now() + sent.seconds for id, sent in zip(ids, outgoing, strict=True)
        }
        return ids

    def collect(self, ids: Sequence[str]) -> list[Incoming]:
        came = self.inner.collect(ids)
        known = {each.id for each in came}
        late = [id for id in ids if id not in known and self.clock.now() >= self.ends[id]]
        return came + [Incoming(id, None, "error 3: message unavailable") for id in late]


def test_a_request_that_the_network_drops_in_the_end_has_missed_the_deadline(
    tmp_path: Path,
) -> None:
    clock, setup = Clock(), set_up("fedavg", rounds=5)
    carrier = Expiring(Loopback.of(setup, tmp_path, fault=silent()), clock)
    patience = Patience(deadline=1.0, gather=5.0, poll=0.25)
    run = replace(setup, out=tmp_path / "out")
    serve(carrier, run, patience, now=clock.now, rest=clock.rest)
    reasons = {
        event["reason"]
        for event in events.read(tmp_path / "out" / "events.jsonl")
        if event["event"] == "client-failed"
    }
    assert reasons == {"no answer within 1 s"}


def test_nodes_that_start_slowly_register_whatever_the_deadline_of_a_round(tmp_path: Path) -> None:
    def fault(sent: Outgoing, answer: Message | None) -> Message | str | None:
        if sent.message.kind == "register" and sent.seconds < 20:
            return None  # they are not ready so soon
        return answer if answer is not None else Message({})

    setup = set_up("fedavg", rounds=1)
    carrier = Loopback.of(setup, tmp_path, fault=fault)
    served(setup, carrier, tmp_path / "out", deadline=1.0, gather=30.0)
    assert len(merged(tmp_path / "out")) == 1


class Slow:
    """The clock of a node on which a step takes nine tenths of a second."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        self.time += 0.9
        return self.time


def test_a_node_that_runs_out_of_time_sends_what_it_has(tmp_path: Path) -> None:
    setup = set_up("fedavg", rounds=2)
    # 0.8 of a second is time for one step: the clock is looked at when a client begins, and
    # before every step but the first.
    nodes = {
        100 + index: Node(
            setup, tmp_path / f"node-{index}", node_clients(setup, index), now=Slow().now
        )
        for index in range(NODES)
    }
    whole = served(setup, Loopback(nodes), tmp_path / "whole", deadline=1.0)
    part = served(setup, Loopback(nodes), tmp_path / "part", deadline=1.0, partial=True)
    assert merged(tmp_path / "part") == merged(tmp_path / "whole")
    assert part.state_hash != whole.state_hash

    def steps(name: str) -> list[int]:
        log = events.read(tmp_path / name / "events.jsonl")
        return [event["steps"] for event in log if event["event"] == "client-finished"]

    assert max(steps("whole")) > 1
    assert steps("part") == [min(each, 1) for each in steps("whole")]


def test_methods_that_need_whole_jobs_refuse_parts_on_a_network(tmp_path: Path) -> None:
    setup = set_up("spafl", rounds=1)
    with pytest.raises(ValueError, match="spafl needs whole jobs of its clients"):
        served(setup, Loopback.of(setup, tmp_path), tmp_path / "out", partial=True)


def test_conditions_that_are_simulated_are_refused_for_a_network(tmp_path: Path) -> None:
    from gossamer.engine import Options
    from gossamer.engine.conditions import on_network

    given = Options(deadline="2m", oversample=1.3, partial=True)
    kept = {"deadline": 120.0, "oversample": 1.3, "partial": True}
    assert on_network(given) == (Options(), kept)
    for name, value in (("devices", "mcu"), ("asynchronous", "fedbuff"), ("sampling", "utility")):
        with pytest.raises(ValueError, match=f"`{name}=` is simulated; on a network devices are"):
            on_network(Options(**{name: value}))


ROUNDS = 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "reasons"),
    [
        (["--clients", 3, "--oversample", 1.3, "--deadline", "120s"], "enough others had answered"),
        (["--clients", 4, "--deadline", "20s"], "no answer within 20 s"),
    ],
    ids=["oversampling", "deadline"],
)
def test_a_stopped_process_is_not_waited_for_and_comes_back(
    more: list[Any], reasons: str, tmp_path: Path
) -> None:
    """SIGSTOP to one of four nodes for some rounds, then SIGCONT.

    Three replies are enough if more clients are asked; then another node is stopped instead, so
    that the first one is needed again.
    """
    pytest.importorskip("flwr", reason="needs Flower: pip install 'gossamer[flower]'")
    from deployment import Federation, Run, project

    how = ["--rounds", ROUNDS, "--eval-every", 0, *more]
    run = Run(project(tmp_path / "app", "fedavg", *how))
    with Federation(tmp_path / "federation", run.folder) as federation:
        federation.submit(run.folder)
        federation.until(lambda: run.rounds() >= 2)
        group, other = federation.nodes[1].pid, federation.nodes[2].pid
        try:
            os.killpg(group, signal.SIGSTOP)
            stopped = run.rounds()
            federation.until(lambda: run.rounds() >= stopped + 2)
            resumed = run.rounds()
            os.killpg(group, signal.SIGCONT)
            if "--oversample" in more:
                os.killpg(other, signal.SIGSTOP)
            federation.until(run.over)
        finally:
            os.killpg(group, signal.SIGCONT)
            os.killpg(other, signal.SIGCONT)
    clients = merged(run.out)
    assert len(clients) == ROUNDS
    # The round that was under way may still have had the node's reply.
    assert all(1 not in each for each in clients[stopped + 1 : resumed])
    assert any(1 in each for each in clients[resumed:])
    failed = [
        event
        for event in events.read(run.out / "events.jsonl")
        if event["event"] == "client-failed" and event["client"] == 1
    ]
    assert reasons in {event["reason"] for event in failed}
