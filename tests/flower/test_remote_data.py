"""Data that only nodes have: the server learns sizes and nothing else, and the run is the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from loopback import Loopback, log_of, served

from gossamer import export
from gossamer.cli import main
from gossamer.config import Config, Experiment
from gossamer.core import Key
from gossamer.data.arrays import as_asked
from gossamer.data.budgets import deal_budgets
from gossamer.engine import Options, Run, events
from gossamer.flower.node import Node
from gossamer.flower.project import PACKAGE
from gossamer.flower.server import at_node, at_server, read_sizes

POOL = 3


def written(path: Path, count: int, seed: int) -> str:
    random = np.random.default_rng(seed)
    y = random.integers(0, 3, count)
    x = random.normal(size=(count, 6)).astype(np.float32) + y[:, None]
    np.savez(path, x_train=x, y_train=y, x_test=x[:8], y_test=y[:8])
    return f"npz:{path}"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    data = written(tmp_path / "server.npz", 12, 9)
    wish = Experiment(data=data, pool=POOL, model="mlp:hidden=4", rounds=3, scale="raw")
    return Config("spafl", {"clients": 2}, wish)


def loop_of(config: Config, folder: Path, sizes: dict[int, int]) -> Loopback:
    nodes = {}
    for index, count in sizes.items():
        data = written(folder / f"own-{index}.npz", count, index)
        setup = at_node(config, {"partition-id": index, "data": data})
        nodes[100 + index] = Node(setup, folder / f"node-{index}", [index])
    return Loopback(nodes)


def run(setup: Run, loop: Loopback, out: Path, text: str = "") -> None:
    served(setup, loop, out, text=text, min_replies=0)


def test_a_server_without_training_data_runs_on_what_nodes_have(
    config: Config, tmp_path: Path
) -> None:
    loop = loop_of(config, tmp_path, {0: 20, 1: 30, 2: 40})
    server = at_server(config)
    assert [client.examples for client in server.federation.pool] == [0, 0, 0]
    assert not len(server.federation.client(1).train)
    run(server, loop, tmp_path / "run")
    log = events.read(tmp_path / "run" / "events.jsonl")
    assert log[0]["data"]["examples"] == [20, 30, 40] and log[0]["data"]["at"] == "nodes"
    assert log[-1]["event"] == "finished"
    seen = {e["client"]: e["examples"] for e in log if e["event"] == "client-finished"}
    assert set(seen) <= {0, 1, 2} and not [e for e in log if e["event"] == "client-failed"]
    assert read_sizes(tmp_path / "run") == {0: 20, 1: 30, 2: 40}
    tested = [e for e in log if e["event"] == "evaluated"][-1]
    assert tested["global_accuracy"] is not None and tested["clients"] > 0


def test_a_run_on_nodes_data_is_repeated_bit_for_bit_and_resumed_with_its_sizes(
    config: Config, tmp_path: Path
) -> None:
    sizes = {0: 20, 1: 30, 2: 40}
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        run(at_server(config), loop_of(config, tmp_path / name, sizes), tmp_path / name / "run")
    assert log_of(tmp_path / "one" / "run") == log_of(tmp_path / "two" / "run")
    smaller = loop_of(config, tmp_path, {**sizes, 2: 39})
    with pytest.raises(TimeoutError, match="missing: 2"):
        run(at_server(config), smaller, tmp_path / "one" / "run")


def test_all_clients_must_be_there_when_nobody_else_knows_their_sizes(
    config: Config, tmp_path: Path
) -> None:
    with pytest.raises(TimeoutError, match=r"2 of 3 clients came .* missing: 1"):
        run(at_server(config), loop_of(config, tmp_path, {0: 20, 2: 40}), tmp_path / "run")


def test_a_project_says_that_data_are_at_nodes(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wish = config.experiment
    words = ["flower", "init", "--data", wish.data, "--model", wish.model, "--own-data"]
    assert main([*words, str(tmp_path / "none")]) == 2
    assert "give the number of clients with --pool" in capsys.readouterr().err
    assert main([*words, str(tmp_path / "app"), "--pool", "10"]) == 0
    assert "at_server" in (tmp_path / "app" / PACKAGE / "server.py").read_text()


def test_a_node_has_the_data_of_one_client(config: Config, tmp_path: Path) -> None:
    data = written(tmp_path / "own.npz", 25, 1)
    setup = at_node(config, {"partition-id": 1, "data": data})
    assert [(client.id, client.examples) for client in setup.federation.pool] == [(1, 25)]
    assert len(setup.federation.client(1).train) == 25
    with pytest.raises(ValueError, match="data of client 1, not of client 0"):
        setup.federation.client(0)


def test_a_node_that_forgot_its_data_is_refused(config: Config, tmp_path: Path) -> None:
    loop = loop_of(config, tmp_path, {0: 20, 2: 40})
    loop.nodes_by_id[101] = Node(at_node(config, {"partition-id": 1}), tmp_path / "node-1", [1])
    with pytest.raises(TimeoutError, match="missing: 1"):
        run(at_server(config), loop, tmp_path / "run")


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["--pool", "2", "--clients", "5"], "5 clients per round asked for, but the pool has 2"),
        (["--pool", "2", "--clients", "1", "--network", "fast"], "network"),
    ],
)
def test_what_cannot_run_is_refused_where_data_are_at_nodes_too(
    config: Config, more: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wish = config.experiment
    words = ["flower", "init", "--data", wish.data, "--model", wish.model, "--own-data"]
    assert main([*words, str(tmp_path / "app"), *more]) == 2
    assert reason in capsys.readouterr().err and not (tmp_path / "app").exists()


def test_the_best_round_can_go_by_validation_data_of_nodes(config: Config, tmp_path: Path) -> None:
    wish, options = replace(config.experiment, valid=0.2), Options(select="valid")
    config = replace(config, experiment=wish, options=options)
    run(at_server(config), loop_of(config, tmp_path, {0: 20, 1: 30, 2: 40}), tmp_path / "run")
    last = events.read(tmp_path / "run" / "events.jsonl")[-1]
    assert last["select"] == "valid" and last["accuracy"]["valid_best"] is not None


def test_budgets_are_those_of_a_simulation(config: Config) -> None:
    wish = replace(config.experiment, pool=10, budgets="0.7:50%,1:50%", seed=3)
    found = [
        client.budget for client in at_server(replace(config, experiment=wish)).federation.pool
    ]
    key = Key(3).fold("data", "budgets")
    assert found == [as_asked(float(b)) for b in deal_budgets(wish.budgets, 10, key)]
    assert set(found) == {0.7, 1.0}


def test_models_can_be_exported_where_data_are_not(config: Config, tmp_path: Path) -> None:
    loop = loop_of(config, tmp_path, {0: 20, 1: 30, 2: 40})
    run(at_server(config), loop, tmp_path / "run", config.toml())
    client = next(
        event["client"]
        for event in events.read(tmp_path / "run" / "events.jsonl")
        if event["event"] == "client-finished"
    )
    for model in (export.take(tmp_path / "run"), export.take(tmp_path / "run", client, tmp_path)):
        assert len(model.test) == 8
        export.save(model, tmp_path / "model.safetensors")
        found = export.load(tmp_path / "model.safetensors")
        assert isinstance(found, dict) and found.keys() == model.members[0].keys()
