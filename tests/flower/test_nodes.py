"""A run whose clients are nodes has the bits of a simulation: server, clients, ledger, accuracy."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from loopback import NODES, Loopback, log_of, node_clients, served, set_up, simulated

from gossamer import export
from gossamer.cli import main
from gossamer.config import read
from gossamer.engine import Stop, events
from gossamer.flower.carrier import Outgoing
from gossamer.flower.messages import Message
from gossamer.flower.node import Node
from gossamer.flower.server import set_up as from_config
from gossamer.methods import METHODS
from gossamer.report import read_run
from gossamer.wire import HEADER, Mode


def equal(name: str, folder: Path, **how: Any) -> None:
    setup = set_up(name, **how)
    wanted = simulated(setup, folder / "threads")
    found = served(setup, Loopback.of(setup, folder / "nodes"), folder / "served")
    assert found.state_hash == wanted.state_hash
    assert log_of(folder / "served") == log_of(folder / "threads")
    assert found.accuracy == wanted.accuracy and found.cost == wanted.cost


@pytest.mark.parametrize(
    ("name", "mode"),
    [("fedavg", "f32"), ("spafl", "f32"), ("pffdst", "f16")],
)
def test_nodes_and_threads_give_equal_states_and_equal_logs(
    name: str, mode: str, tmp_path: Path
) -> None:
    equal(name, tmp_path, mode=Mode.parse(mode))


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_every_method_gives_on_nodes_what_it_gives_in_threads(name: str, tmp_path: Path) -> None:
    for mode in ("f32", "f16+zstd"):
        equal(name, tmp_path / mode, rounds=6, mode=Mode.parse(mode))


def test_a_schema_goes_along_once_to_each_node_and_again_when_it_asks(tmp_path: Path) -> None:
    setup = set_up("fedavg", rounds=4, eval_every=0)
    loop = Loopback.of(setup, tmp_path / "nodes")

    def forget(sent: Outgoing, answer: Message | None) -> Message:
        if answer is None and sent.round == 3:
            shutil.rmtree(tmp_path / "nodes", ignore_errors=True)
        return answer or Message({})

    loop.fault = forget
    served(setup, loop, tmp_path / "served")
    trained = [sent for sent in loop.sent if sent.purpose == "train"]
    for node in loop.nodes():
        mine = [sent for sent in trained if sent.node == node and sent.round < 3]
        assert ["schema" in sent.message.head for sent in mine] == [True] * sum(
            sent.round == mine[0].round for sent in mine
        ) + [False] * sum(sent.round != mine[0].round for sent in mine)
    again = [sent for sent in trained if sent.round == 3]
    assert sum("schema" in sent.message.head for sent in again) >= 4
    assert len(again) > 4  # they asked
    failed = [event for event in log_of(tmp_path / "served") if "client-failed" in event]
    assert not failed


def test_messages_are_counted_beside_the_log_and_bodies_are_what_the_ledger_has(
    tmp_path: Path,
) -> None:
    setup = set_up("fedavg", rounds=2, personal=False)
    summary = served(setup, Loopback.of(setup, tmp_path / "nodes"), tmp_path / "served")
    text = (tmp_path / "served" / "messages.jsonl").read_text()
    tallies = [json.loads(line) for line in text.splitlines()]
    assert [tally["round"] for tally in tallies] == [1, 2]
    assert 8 * sum(tally["body"] for tally in tallies) == summary.cost.up + summary.cost.down
    assert all(tally["messages"] == 8 and tally["head"] > 0 for tally in tallies)


# a server that dies ------------------------------------------------------------------------------


class Dies(Exception):
    """The server is gone."""


def test_a_server_that_dies_in_a_round_goes_on_with_clients_that_lived_on(tmp_path: Path) -> None:
    setup = set_up("spafl", rounds=4)
    simulated(setup, tmp_path / "threads")
    loop = Loopback.of(setup, tmp_path / "nodes")
    seen: list[int] = []

    def die(sent: Outgoing, answer: Message | None) -> Message:
        if sent.purpose == "train" and answer is not None:
            seen.append(sent.round)
            if seen.count(3) == 4:  # all have trained, and keep what the server never hears of
                raise Dies
        return answer or Message({})

    loop.fault = die
    with pytest.raises(Dies):
        served(setup, loop, tmp_path / "served")
    served(setup, replace(loop, fault=Loopback.of(setup, tmp_path).fault), tmp_path / "served")
    assert log_of(tmp_path / "served") == log_of(tmp_path / "threads")
    for path in (tmp_path / "nodes").glob("node-*/*-*/*"):
        assert len(list(path.glob("*.bin"))) <= 2


def test_a_server_that_is_stopped_resumes_to_the_same_log(tmp_path: Path) -> None:
    setup = set_up("spafl", personal=False)
    simulated(setup, tmp_path / "threads")
    loop, stop = Loopback.of(setup, tmp_path / "nodes"), Stop()

    def ask(sent: Outgoing, answer: Message | None) -> Message:
        if sent.round == 2 and not stop.after_round():
            stop.request()
        return answer or Message({})

    loop.fault = ask
    assert served(setup, loop, tmp_path / "served", stop).interrupted
    assert not served(setup, loop, tmp_path / "served").interrupted
    assert log_of(tmp_path / "served") == log_of(tmp_path / "threads")


# clients that lose what they had -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["nst", "pffdst", "prunefl"])
def test_a_client_restarted_from_nothing_is_given_what_it_lacks(name: str, tmp_path: Path) -> None:
    setup = set_up(name, rounds=4, eval_every=0)
    loop = Loopback.of(setup, tmp_path / "nodes")
    lost: list[int] = []

    def lose(sent: Outgoing, answer: Message | None) -> Message:
        if sent.round == 4 and not lost:
            lost.append(sent.node)
            for node in loop.nodes():
                folder = tmp_path / "new" / str(node)
                clients = node_clients(setup, node - 100)
                loop.nodes_by_id[node] = Node(setup, folder, clients)
        return answer or Message({})

    loop.fault = lose
    summary = served(setup, loop, tmp_path / "served")
    assert summary.rounds == 4 and summary.failed == 0
    log = events.read(tmp_path / "served" / "events.jsonl")
    done = [event for event in log if event["event"] == "client-finished" and event["round"] == 4]
    asked = [row for event in done for row in event["traffic"] if row["message"] == "Missing"]
    assert len(done) == NODES
    assert all(row["sent"] == 8 * HEADER and row["direction"] == "up" for row in asked)
    if name != "nst":
        assert asked


def test_the_folder_of_a_run_on_a_network_has_its_settings_and_is_resumed_by_its_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = 'method = "fedavg"\n\n[experiment]\nmodel = "lenet"\n'
    setup = set_up("fedavg", rounds=1)
    served(setup, Loopback.of(setup, tmp_path / "nodes"), tmp_path / "served", text=text)
    found = read_run(tmp_path / "served")
    assert found.networked and found.table("experiment") == {"model": "lenet"}
    assert not found.notices
    here = str(tmp_path / "served")
    for words in (
        ["resume", here],
        ["replay", here, "--round", "1", "--client", "1"],
        ["run", "fedavg", "--rounds", "0", "--out", here],
    ):
        assert main(words) == 2
        told = capsys.readouterr().err
        assert "is the run of a Flower project; `gossamer serve` continues it" in told


def test_a_client_of_a_network_has_the_model_that_it_has_here_and_its_node_keeps_it(
    tmp_path: Path,
) -> None:
    small = ["--data", "fmnist-mini", "--model", "mlp:hidden=16", "--pool", "4", "--clients", "4"]
    run = tmp_path / "run"
    more = ["--rounds", "2", "--eval-every", "0", "--quiet", "--out", str(run)]
    assert main(["run", "spafl", *small, *more]) == 0
    setup, text = from_config(read(run / "config.toml")), (run / "config.toml").read_text()
    served(setup, Loopback.of(setup, tmp_path / "nodes"), tmp_path / "served", text=text)
    with pytest.raises(ValueError, match="is at its node; `states=` names"):
        export.take(tmp_path / "served", 2)
    with pytest.raises(FileNotFoundError, match="does not have what client 2 kept by round 2"):
        export.take(tmp_path / "served", 2, tmp_path)
    found, own = export.take(tmp_path / "served", 2, tmp_path / "nodes"), export.take(run, 2)
    assert isinstance(found.params, dict) and isinstance(own.params, dict)
    assert all(torch.equal(found.params[name], own.params[name]) for name in own.params)
    assert found.facts == own.facts
