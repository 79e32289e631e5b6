"""A real federation on loopback: SuperLink, SuperNodes, TLS, keys, and the bits of a simulation."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'gossamer[flower]'")

from deployment import (
    LIMIT,
    NODES,
    Federation,
    Run,
    free_ports,
    gossamer,
    project,
    running,
)

from gossamer import engine
from gossamer.cli import flower_processes
from gossamer.flower import certs, commands
from gossamer.flower.front import Front, facing, public_keys
from gossamer.methods import METHODS

ALL = [name for name in METHODS if "code" not in name and "release" not in name]
"""Presets of released codes aside."""
AT_ONCE, ROUNDS = 6, 20
NOISE = 0.05
"""Accuracy by which runs of twenty rounds on 5,000 pictures differ by their seed alone."""


def test_a_federation_of_processes_has_the_bits_of_a_simulation_and_outlives_its_parts(
    tmp_path: Path,
) -> None:
    """Two runs at once; the server and a node are killed, and one of the runs goes on."""
    shared = ["--eval-every", 3, "--deadline", 300]
    first = Run(project(tmp_path / "fedavg", "fedavg", "--rounds", 2, *shared))
    second = Run(project(tmp_path / "spafl", "spafl", "--rounds", 3, *shared, "--min-replies", 4))
    with Federation(tmp_path / "federation", first.folder, second.folder) as federation:
        for run in (second, first):
            federation.submit(run.folder)
        federation.until(lambda: first.over() and second.rounds() > 0)
        federation.kill_server()
        federation.kill_node(1)
        done = second.rounds()
        federation.join(1)
        federation.serve()
        if not second.over():
            federation.submit(second.folder)
        federation.until(second.over)
        states = second.states(federation.states)
    assert done < 3
    assert first.log == first.undisturbed()[1]
    assert second.log == second.undisturbed()[1]
    assert len(states) == NODES and None not in states.values()


@pytest.mark.slow
def test_the_commands_for_three_machines_run_a_federation_and_survive_kill_9(
    tmp_path: Path,
) -> None:
    """The server is killed alone, without what it started, and takes over at the first try."""
    run = Run(project(tmp_path / "app", "spafl", "--rounds", 3, "--deadline", 300))
    port, *own = free_ports(3)
    keys = tmp_path / "certs"
    certs.make(keys, ["127.0.0.1"], 2)
    serve = gossamer("serve", run.folder, "--port", port, "--certs", keys)
    nodes = []
    with ExitStack() as stack:
        server = stack.enter_context(running(serve, tmp_path / "server.log"))
        for index in range(2):
            how = ["--certs", keys, "--states", tmp_path / f"states-{index}", "--port", own[index]]
            words = gossamer("join", f"127.0.0.1:{port}", "--node", index, "--nodes", 2, *how)
            nodes.append(stack.enter_context(running(words, tmp_path / f"node-{index}.log")))
        until = time.monotonic() + LIMIT
        while not run.rounds() and time.monotonic() < until:
            time.sleep(0.1)
        server.kill()
        server = stack.enter_context(running(serve, tmp_path / "again.log"))
        told = tmp_path / "again.log"
        assert server.wait(LIMIT) == 0, told.read_text()[-3000:]
        for node in nodes:
            assert node.wait(LIMIT) == 0
    assert run.log == run.undisturbed()[1]
    assert "resumes after round" in told.read_text() and "round 3/3" in told.read_text()
    assert "the run has finished after 3 rounds" in (tmp_path / "node-0.log").read_text()


@pytest.mark.slow
def test_every_method_has_on_processes_the_bits_of_a_simulation(tmp_path: Path) -> None:
    """On one federation, a few runs at a time; all that differ are named."""
    how = ["--rounds", 3, "--eval-every", 3, "--deadline", 300, "--min-replies", NODES]
    runs = {name: Run(project(tmp_path / name, name, *how)) for name in ALL}
    waiting, different = list(ALL), {}
    apps = [run.folder for run in runs.values()]
    with Federation(tmp_path / "federation", *apps) as federation:
        while waiting:
            batch, waiting = waiting[:AT_ONCE], waiting[AT_ONCE:]
            for name in batch:
                federation.submit(runs[name].folder)
            federation.until(lambda: all(runs[name].over() for name in batch))  # noqa: B023
            for name in batch:
                wanted = runs[name].undisturbed()[1]
                if runs[name].log != wanted:
                    pairs = zip(runs[name].log, wanted, strict=False)
                    different[name] = next((pair for pair in pairs if pair[0] != pair[1]), "length")
    assert not different


@pytest.mark.slow
def test_twenty_rounds_in_which_nodes_and_the_server_are_killed(tmp_path: Path) -> None:
    """A node dies every third round, the server twice, all by SIGKILL and in the middle of work."""
    how = ["--rounds", ROUNDS, "--pool", 2 * NODES, "--eval-every", 5]
    run = Run(project(tmp_path / "app", "spafl", *how, "--deadline", 60, "--min-replies", 2))
    chance = random.Random(0)
    with Federation(tmp_path / "federation", run.folder) as federation:
        federation.submit(run.folder)
        for number in range(3, ROUNDS, 3):
            federation.until(lambda: run.rounds() >= number)  # noqa: B023
            victim = chance.randrange(NODES)
            federation.kill_node(victim)
            if number in (6, 15):
                federation.kill_server()
                federation.serve()
                federation.submit(run.folder)
            federation.join(victim)
        federation.until(run.over)
        states = run.states(federation.states)
    log = engine.events.read(run.out / "events.jsonl")
    assert [e["round"] for e in log if e["event"] == "round-finished"] == [*range(1, ROUNDS + 1)]
    failed = [event for event in log if event["event"] == "client-failed"]
    assert all(event["stage"] == "network" and event["reason"] for event in failed)
    assert states and None not in states.values()
    found = next(e for e in reversed(log) if e["event"] == "evaluated")["personal_mean"]
    wanted = run.undisturbed()[0].accuracy["personal_mean"]
    assert wanted is not None
    assert abs(found - wanted) < NOISE


@pytest.mark.slow
def test_strange_keys_strange_authorities_and_plain_text_are_refused(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    certs.make(own, ["127.0.0.1"], 1)
    certs.make(other, ["127.0.0.1"], 1)
    (tmp_path / "mixed").mkdir()
    for source, name in ((own, certs.CA), (own, certs.OPERATOR_PUBLIC), (other, "node-0")):
        (tmp_path / "mixed" / name).write_bytes((source / name).read_bytes())
    port, inner, node_port = free_ports(3)
    link = commands.Link("127.0.0.1", port, own, inner)
    (tmp_path / "home").mkdir()
    environment = commands.environment(tmp_path / "home")
    link_words = commands.superlink(link, tmp_path / "state.db")
    with (
        flower_processes.running(link_words, environment) as process,
        facing(Front(link, public_keys(own)), link),
    ):
        flower_processes.await_link(link, process)
        for name, security, told in (
            ("key", ["--certs", tmp_path / "mixed"], "the server does not know the key node-0"),
            ("authority", ["--certs", other], "the server's certificate is not of the CA in"),
            ("plain", ["--insecure"], "the server speaks TLS; use --certs instead of --insecure"),
        ):
            how = [*security, "--states", tmp_path / "states", "--port", node_port, "--wait", 0]
            words = gossamer("join", link.address, "--node", 0, "--nodes", 1, *how)
            log = tmp_path / f"{name}.log"
            with running(words, log) as node:
                assert node.wait(LIMIT) != 0
            assert f"gives up after 0 s: {told}" in log.read_text()
