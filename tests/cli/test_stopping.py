"""Runs that are interrupted, killed, or fail: nothing is lost, and what happened is said."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import SMALL, Outcome, events

Command = Callable[..., Outcome]

LONG = [*SMALL, "--rounds", "40", "--model", "mlp:hidden=64"]
PATIENCE = 120


def start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "gossamer", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


def wait_for_rounds(process: subprocess.Popen[str], run: Path, count: int) -> None:
    """Returns as soon as the log tells of `count` rounds."""
    until = time.monotonic() + PATIENCE
    log = run / "events.jsonl"
    while time.monotonic() < until and process.poll() is None:
        if log.exists() and log.read_bytes().count(b'"round-finished"') >= count:
            return
        time.sleep(0.005)  # gossamer has no other way to be watched from outside
    raise AssertionError(f"round {count} never came: {process.communicate()}")


def test_interrupted_runs_save_say_how_to_resume_and_end_the_same(gossamer: Command) -> None:
    whole = gossamer("run", "fedavgm", *LONG, "--out", "whole", "--json", "--quiet").json
    process = start("run", "fedavgm", *LONG, "--out", "cut", "--json")
    wait_for_rounds(process, Path("cut"), 3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, err
    assert "gossamer resume cut" in err and '"interrupted": true' in out.splitlines()[-1]
    resumed = gossamer("resume", "cut", "--json", "--quiet", "--workers", "1").json
    assert resumed["state_hash"] == whole["state_hash"] and not resumed["interrupted"]
    assert events("cut") == events("whole")


def test_killed_runs_resume_to_the_same_bits(gossamer: Command) -> None:
    whole = gossamer("run", "fedopt", *LONG, "--out", "whole", "--json", "--quiet").json
    process = start("run", "fedopt", *LONG, "--out", "cut")
    for count in (1, 7, 20):
        wait_for_rounds(process, Path("cut"), count)
        process.kill()
        process.communicate(timeout=PATIENCE)
        process = start("resume", "cut", "--json")
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert whole["state_hash"] in out.splitlines()[-1]
    assert events("cut") == events("whole")


def test_resuming_a_finished_run_changes_nothing(gossamer: Command) -> None:
    first = gossamer("run", "fedavg", *SMALL, "--out", "a", "--json").json
    before = events("a")
    again = gossamer("resume", "a", "--json").json
    assert again["state_hash"] == first["state_hash"] and events("a") == before


FAULTY = """
    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        if ctx.round == 2 and len(ctx.own.train) % 2:
            raise ArithmeticError("this client cannot divide")
"""


@pytest.fixture
def faulty(gossamer: Command) -> Path:
    """A method whose clients with an odd number of examples fail in round 2."""
    assert gossamer("cp", "fedavg", "faulty.py").code == 0
    path = Path("faulty.py")
    head = "\n    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:\n"
    source = path.read_text()
    assert head in source
    path.write_text(source.replace(head, FAULTY))
    return path


def test_a_failing_client_stops_the_run_and_can_be_replayed(
    gossamer: Command, faulty: Path
) -> None:
    found = gossamer("run", f"{faulty}:FedAvg", *SMALL, "--out", "a")
    assert found.code == 1
    assert "failed in step of round 2: ArithmeticError: this client cannot divide" in found.err
    command = found.err.partition("replay it with: gossamer ")[2].splitlines()[0]
    words = command.split()
    assert words[0] == "replay" and f"client {words[-1]} failed" in found.err
    with pytest.raises(ArithmeticError, match="this client cannot divide"):
        gossamer(*words)


def test_failing_clients_can_be_skipped(gossamer: Command, faulty: Path) -> None:
    words = ["run", f"{faulty}:FedAvg", *SMALL, "--on-client-error", "skip"]
    found = gossamer(*words, "--out", "a", "--json")
    assert found.code == 0 and found.json["rounds"] == 3
    failed = [event for event in events("a") if event["event"] == "client-failed"]
    assert failed and all(event["round"] == 2 for event in failed)
    assert all(event["stage"] == "step" for event in failed)
    second = next(e for e in events("a") if e["event"] == "round-finished" and e["round"] == 2)
    assert second["failed"] == [event["client"] for event in failed]
    assert not set(second["failed"]) & set(second["clients"])


def test_a_mended_method_resumes_after_a_failure(gossamer: Command, faulty: Path) -> None:
    whole = gossamer("run", "fedavg", *SMALL, "--out", "whole", "--json").json
    assert gossamer("run", f"{faulty}:FedAvg", *SMALL, "--out", "a").code == 1
    faulty.write_text(faulty.read_text().replace("ctx.round == 2", "ctx.round == 99"))
    mended = gossamer("resume", "a", "--json").json
    assert mended["accuracy"] == whole["accuracy"]
