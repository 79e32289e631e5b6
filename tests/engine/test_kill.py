"""`kill -9` at any moment, then resume: the run ends with the same bits as an undisturbed one."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from gossamer.engine import events
from helpers import lines
from killable import ROUNDS, job, job_killed_at

Start = Callable[..., BaseProcess]


@pytest.fixture(scope="module")
def start() -> Start:
    """Starts the job in a new process, forked from one that has imported torch and done nothing."""
    # The server that forks does not get our sys.path (CPython issue 126538), but our environment.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["killable"])

    def started(folder: Path, every: int, resume: bool, *operation: int) -> BaseProcess:
        target = job_killed_at if operation else job
        process = context.Process(target=target, args=(folder, every, resume, *operation))
        process.start()
        return process

    return started


def killed_when_grown(process: BaseProcess, log: Path, growth: int) -> bool:
    """Kills the job once it has written so many bytes of events; False if it ended before.

    A resumed run cuts its log back to a checkpoint before it goes on: growth counts from there.
    """
    seen = log.stat().st_mtime_ns if log.exists() else 0
    least = sys.maxsize
    until = time.monotonic() + 60
    while process.is_alive():
        assert time.monotonic() < until, "the job writes no events"
        if log.exists() and log.stat().st_mtime_ns != seen:
            size = log.stat().st_size
            least = min(least, size)
            if size - least >= growth:
                process.kill()
                break
        time.sleep(0.0002)
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The events of the job when nothing disturbs it; the last one has the hash of all states."""
    folder = tmp_path_factory.mktemp("whole")
    job(folder, 0, False)
    found = lines(folder / "events.jsonl")
    assert '"event": "finished"' in found[-1] and "state_hash" in found[-1]
    return found


# Bytes of events between one kill and the next: an event has 150 to 400 of them and a round 1500,
# so kills fall between the events of a round, into checkpoints, and right behind a resumption.
@pytest.mark.parametrize(
    ("every", "growths"),
    [
        (0, [0, 700, 5001, 11111]),
        (1, [9999, 1600, 800, 350]),
        (3, [4321, 100, 12345]),
    ],
    ids=["by the clock", "every round", "every third round"],
)
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bits(
    tmp_path: Path, whole: list[str], start: Start, every: int, growths: list[int]
) -> None:
    log = tmp_path / "events.jsonl"
    kills = 0
    for attempt, growth in enumerate(growths):
        kills += killed_when_grown(start(tmp_path, every, attempt > 0), log, growth)
        assert all("event" in event for event in events.read(log))
    assert kills == len(growths), f"{ROUNDS} rounds are too few to be killed that often"
    last = start(tmp_path, every, True)
    last.join(60)
    assert last.exitcode == 0
    assert lines(log) == whole
    assert not list(tmp_path.rglob("*.partial"))


@pytest.mark.parametrize(
    ("seed", "kills"), [(1, 6), pytest.param(2, 100, marks=pytest.mark.slow)], ids=["short", "long"]
)
def test_kills_at_random_operations_of_the_file_system_change_no_bit(
    tmp_path: Path, whole: list[str], start: Start, seed: int, kills: int
) -> None:
    draw = random.Random(seed)
    killed = ended = 0
    while killed < kills:
        folder = tmp_path / str(ended)
        resume = False
        while True:
            operation = draw.randrange(1, draw.choice((12, 60, 400)))
            process = start(folder, draw.choice((1, 2)), resume, operation)
            process.join(60)
            assert process.exitcode in (0, -signal.SIGKILL)
            if process.exitcode == 0:
                break
            killed += 1
            resume = True
        assert lines(folder / "events.jsonl") == whole
        ended += 1
    assert ended, "no run came to its end"
