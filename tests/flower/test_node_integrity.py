"""Damage to a node's files: the right bits, or an event in the log that names the client."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from loopback import Loopback, log_of, served, set_up, simulated

from damage import DAMAGES, contents, damaged, files
from gossamer.cli import main
from gossamer.engine import Run, Stop, events
from gossamer.engine.files import Damaged
from gossamer.flower import messages
from gossamer.flower.carrier import Outgoing
from gossamer.flower.messages import Message
from gossamer.flower.node_files import node_files

METHODS = ("lg_fedavg", "pffdst")
"""One that begins anew without its state, one that asks for what it lacks."""


class Stopped(NamedTuple):
    setup: Run
    home: Path
    """With the folders `nodes` and `served` after round 3, and `older` after round 2."""
    hash: str
    log: list[str]


def until(round: int, setup: Run, home: Path) -> None:
    """Serves until the end of a round."""
    loop, stop = Loopback.of(setup, home / "nodes"), Stop()

    def ask(sent: Outgoing, answer: Message | None) -> Message:
        if sent.round == round and not stop.after_round():
            stop.request()
        return answer or Message({})

    loop.fault = ask
    assert served(setup, loop, home / "served", stop).interrupted


@pytest.fixture(scope="module", params=METHODS)
def stopped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    setup = set_up(request.param, rounds=5, personal=False, eval_every=5)
    home = tmp_path_factory.mktemp(request.param)
    whole = simulated(setup, home / "threads")
    until(2, setup, home)
    shutil.copytree(home / "nodes", home / "older")
    until(3, setup, home)
    return Stopped(setup, home, whole.state_hash, log_of(home / "threads"))


def events_of(out: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in events.read(out / "events.jsonl") if event["event"] == kind]


@pytest.mark.parametrize("how", [how for how in DAMAGES if how != "foreign"])
@pytest.mark.parametrize("most", [5, pytest.param(1000, marks=pytest.mark.slow)])
def test_damage_to_any_file_of_a_node_is_cured_or_told(
    tmp_path: Path, stopped: Stopped, how: str, most: int
) -> None:
    names = files(stopped.home / "nodes")
    few = [names[0], next(name for name in names if name.suffix == ".json")]
    for place, name in enumerate(dict.fromkeys([*few, *names[:: max(1, len(names) // most)]])):
        home = tmp_path / str(place)
        for part in ("nodes", "served"):
            shutil.copytree(stopped.home / part, home / part)
        older = stopped.home / "older"
        if not damaged(home / "nodes", name, how, older, older):
            continue
        node = home / "nodes" / name.parts[0]
        assert how == "remove" or any(each.problem for each in node_files(node))
        loop = Loopback.of(stopped.setup, home / "nodes")
        summary = served(stopped.setup, loop, home / "served")
        lost = events_of(home / "served", "state-lost")
        assert summary.rounds == 5 and not summary.interrupted
        if not lost:
            assert (summary.state_hash, log_of(home / "served")) == (stopped.hash, stopped.log)
        else:
            hosted = {int(part) for part in name.parts if part.isdecimal()}
            assert {event["client"] for event in lost} <= hosted or how == "swap"
            assert all("node" in event["reason"] for event in lost)


def test_every_client_that_lost_its_state_is_in_the_log(tmp_path: Path, stopped: Stopped) -> None:
    for part in ("nodes", "served"):
        shutil.copytree(stopped.home / part, tmp_path / part)
    for path in (tmp_path / "nodes").glob("node-*/*-*/*/*.bin"):
        path.write_bytes(path.read_bytes()[:-1] + b"!")
    known = {path.parent.name for path in (tmp_path / "nodes").glob("node-*/*-*/*/*.bin")}
    loop = Loopback.of(stopped.setup, tmp_path / "nodes")
    summary = served(stopped.setup, loop, tmp_path / "served")
    lost = [event["client"] for event in events_of(tmp_path / "served", "state-lost")]
    asked = {event["client"] for event in events_of(tmp_path / "served", "client-finished")[-8:]}
    assert lost and len(lost) == len(set(lost))  # once: then they have new states
    assert set(lost) == {client for client in asked if str(client) in known}
    assert summary.failed == 0


def test_a_damaged_schema_is_asked_for_again(tmp_path: Path, stopped: Stopped) -> None:
    for part in ("nodes", "served"):
        shutil.copytree(stopped.home / part, tmp_path / part)
    for path in (tmp_path / "nodes").rglob("schemas/*.json"):
        text = path.read_text()
        path.write_text(text.replace("1", "2", 1))
    loop = Loopback.of(stopped.setup, tmp_path / "nodes")
    summary = served(stopped.setup, loop, tmp_path / "served")
    assert (summary.state_hash, log_of(tmp_path / "served")) == (stopped.hash, stopped.log)


@pytest.mark.parametrize("began", ["0" * 32, 7, None, ["x"]])
def test_a_client_that_begins_with_another_state_is_told_of(began: object) -> None:
    done = Message({"kind": "done", "began": began})
    assert messages.lost_state(done, "1" * 32)
    assert not messages.lost_state(Message({"kind": "done", "began": "1" * 32}), "1" * 32)
    assert not messages.lost_state(Message({"kind": "done", "began": ""}), "")
    assert not messages.lost_state(Message({"kind": "failed"}), "1" * 32)


def test_a_server_without_a_readable_checkpoint_does_not_begin_again(
    tmp_path: Path, stopped: Stopped
) -> None:
    for part in ("nodes", "served"):
        shutil.copytree(stopped.home / part, tmp_path / part)
    for path in (tmp_path / "served/rounds").rglob("meta.json"):
        path.write_bytes(b"")
    before = contents(tmp_path / "served")
    loop = Loopback.of(stopped.setup, tmp_path / "nodes")
    with pytest.raises(Damaged, match=r"served cannot be continued: .*meta.json is damaged"):
        served(stopped.setup, loop, tmp_path / "served")
    assert contents(tmp_path / "served") == before


def test_verify_checks_nodes(stopped: Stopped, tmp_path: Path, capsys: Any) -> None:
    shutil.copytree(stopped.home / "nodes", tmp_path / "nodes")
    assert main(["verify", str(tmp_path / "nodes")]) == 0
    assert main(["verify", str(tmp_path / "nodes/node-1")]) == 0
    path = next((tmp_path / "nodes/node-1").glob("*-*/*/*.bin"))
    twin = next((tmp_path / "nodes/node-2").glob("*-*/*/*.bin"))
    shutil.copy(twin, path)
    (tmp_path / "nodes/node-1/notes.txt").write_text("mine")
    capsys.readouterr()
    assert main(["verify", str(tmp_path / "nodes")]) == 1
    told = capsys.readouterr()
    assert f"{path} is not in its place: it is of client {twin.parent.name}" in told.err
    assert "notes.txt" in told.err and "1 of them damaged" in told.out


def test_only_the_owner_can_read_a_node(stopped: Stopped) -> None:
    for node in (stopped.home / "nodes").iterdir():
        for path in (node, *node.rglob("*")):
            mode = stat.S_IMODE(path.stat().st_mode)
            assert mode == (0o700 if path.is_dir() else 0o600), path
