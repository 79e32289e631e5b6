"""Runs go on from any folder, damaged ones say what is wrong, and commands can be pasted."""

import shlex
from pathlib import Path

import numpy as np
import pytest

from .conftest import SMALL, events
from .test_stopping import FAULTY, Command

MODEL = """
from torch import nn

def build(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(6, classes))
"""
OWN = ["--data", "npz:mine.npz", "--model", "my.py:build", "--pool", "4", "--clients", "2"]


def pasted(text: str, start: str) -> list[str]:
    """The words of a command that a message tells to type."""
    return shlex.split(text.partition(start)[2].splitlines()[0].partition("`")[0])


def test_a_run_on_own_files_resumes_from_another_folder(
    gossamer: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = np.random.default_rng(0)
    np.savez("mine.npz", x=draw.normal(size=(80, 6)), y=draw.integers(0, 3, 80))
    Path("my.py").write_text(MODEL)
    first = gossamer("run", "fedavg", *OWN, "--rounds", "2", "--out", "a", "--json").json
    there = Path.cwd() / "a"
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert gossamer("resume", str(there), "--json").json["state_hash"] == first["state_hash"]
    again = gossamer("run", str(there / "config.toml"), "--out", "b", "--json").json
    assert again["state_hash"] == first["state_hash"] and events("b") == events(there)


def test_commands_that_messages_tell_can_be_pasted(gossamer: Command) -> None:
    assert gossamer("cp", "fedavg", "faulty.py").code == 0
    path = Path("faulty.py")
    head = FAULTY.splitlines()[1]
    path.write_text(path.read_text().replace(f"\n{head}\n", FAULTY))
    found = gossamer("run", "faulty.py:FedAvg", *SMALL, "--out", "my run")
    path.write_text(path.read_text().replace("ctx.round == 2", "ctx.round == 99"))
    command = pasted(found.err, "the run is saved; `gossamer ")
    assert command == ["resume", "my run"]
    assert gossamer(*command, "--json").json["rounds"] == 3
    refused = gossamer("run", "fedavg", *SMALL, "--out", "my run")
    assert pasted(refused.err, "already holds a run; `gossamer ") == command


def test_a_skipped_client_is_reported_with_the_command_that_replays_it(gossamer: Command) -> None:
    assert gossamer("cp", "fedavg", "faulty.py").code == 0
    path = Path("faulty.py")
    head = FAULTY.splitlines()[1]
    path.write_text(path.read_text().replace(f"\n{head}\n", FAULTY))
    skipping = [*SMALL, "--on-client-error", "skip"]
    found = gossamer("run", "faulty.py:FedAvg", *skipping, "--out", "my run")
    assert found.code == 0
    with pytest.raises(ArithmeticError, match="this client cannot divide"):
        gossamer(*pasted(found.out, "replay it with: gossamer "))
    path.write_text(path.read_text().replace("ctx.round == 2", "ctx.round == 99"))
    mended = gossamer(*pasted(found.out, "replay it with: gossamer "), "--json").json
    assert mended["round"] == 2 and mended["steps"] > 0 and mended["metrics"]["loss"] > 0


def test_a_log_that_lost_lines_is_not_filled_with_nothing(gossamer: Command) -> None:
    gossamer("run", "fedavg", *SMALL, "--out", "a", "--quiet")
    log = Path("a/events.jsonl")
    kept = log.read_bytes()[:100]
    log.write_bytes(kept)
    found = gossamer("resume", "a")
    assert found.code == 1 and "a/events.jsonl is cut: it has 100 bytes" in found.err
    assert log.read_bytes() == kept
    log.unlink()
    assert gossamer("resume", "a").code == 1 and not log.exists()


def test_a_run_with_other_settings_is_not_resumed(gossamer: Command) -> None:
    gossamer("run", "fedavg", *SMALL, "--out", "a", "--quiet")
    path = Path("a/config.toml")
    path.write_text(path.read_text().replace("lr = 0.05", "lr = 0.06"))
    found = gossamer("resume", "a")
    assert found.code == 1 and "a/config.toml was changed since the run began" in found.err
    assert len(found.err.splitlines()) == 1


@pytest.mark.parametrize("meta", ["null", "[]", "{}", '{"version": 1}', "{"])
def test_a_checkpoint_with_damaged_facts_falls_back(gossamer: Command, meta: str) -> None:
    first = gossamer("run", "fedavg", *SMALL, "--out", "a", "--json").json
    newest = sorted(Path("a/rounds").iterdir())[-1]
    (newest / "meta.json").write_text(meta)
    assert gossamer("resume", "a", "--json").json["state_hash"] == first["state_hash"]


def test_a_disk_too_small_for_the_checkpoints_leaves_no_run_behind(
    gossamer: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Small:
        free = 2**21

    large = ["--model", "mlp:hidden=500", "--pool", "20", "--rounds", "1", "--out", "a"]
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda path: Small)
        found = gossamer("run", "fedavg", *large)
    assert found.code == 2 and "2 MiB free" in found.err and "resume" not in found.err
    assert gossamer("run", "fedavg", *SMALL, "--out", "a").code == 0
