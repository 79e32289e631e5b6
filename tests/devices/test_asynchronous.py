"""The asynchronous server: order of events, staleness, merged changes, and the same bits always."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import killable
from gossamer import Options, Summary, run
from gossamer.compression import compress
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Key, Params, Result, sample
from gossamer.devices import Fleet
from gossamer.devices.asynchrony import Asynchronous, Staleness
from gossamer.devices.declared import ANY_TIME, Timing
from gossamer.engine import events
from gossamer.fields import option
from gossamer.fields import replace as with_settings
from gossamer.merge import mean
from gossamer.methods import METHODS
from helpers import Toy, lines, mlp, normed

DEVICES = "up=1e5,down=1e5,latency=0.01,flops=1e9"
MIXTURE = "phone-2024:50%,raspberry-pi-4:30%,mcu:20%"


@dataclass(frozen=True)
class Sum:
    params: Params


@dataclass(frozen=True)
class Adds:
    """A client adds its number, plus one, to the only weight that it is sent."""

    clients: int = option(2, "clients per round", least=1)
    timing: ClassVar[Timing] = ANY_TIME

    def init(self, ctx: Ctx) -> Sum:
        return Sum({"x": torch.zeros(1, dtype=torch.float64)})

    def cohort(self, ctx: Ctx, state: Sum, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Sum, client: Client) -> Sum:
        return state

    def merge(self, ctx: Ctx, state: Sum, exchanges: Iterable[Exchange[Sum, Sum]]) -> Sum:
        found = mean((each.up.params, 1.0) for each in exchanges)
        return Sum(found) if found else state

    def begin(self, ctx: Ctx, down: Sum, local: None) -> Job[Sum]:
        return Job(down, 1, 1000)

    def step(self, ctx: Ctx, work: Sum, batch: Batch) -> Sum:
        return work

    def finish(self, ctx: Ctx, work: Sum) -> Result[Sum, None]:
        id = ctx.key.path[-1]
        assert isinstance(id, int)
        return Result(Sum({"x": work.params["x"] + max(id, 0) + 1}))

    def model(self, ctx: Ctx, state: Sum, local: None) -> Params:
        return ctx.task.init(Key(0))


def adding(out: Path, how: str, rounds: int = 12, **options: Any) -> Summary:
    given = Options(**{"eval_every": 0, "devices": DEVICES, "spread": 0.7, **options})
    given = replace(given, asynchronous=how)
    return run(Adds(), mlp(), Toy(12), rounds=rounds, seed=5, out=out, options=given)


def timed(out: Path) -> list[dict[str, Any]]:
    return [each for each in events.read(out / "events.jsonl") if each["event"] == "round-timed"]


def test_events_happen_in_the_order_of_virtual_time(tmp_path: Path) -> None:
    adding(tmp_path, "buffer=3,concurrency=5")
    log = timed(tmp_path)
    fleet = Fleet.parse(DEVICES, Key(5), 12, spread=0.7)
    finished = {
        (each["round"], each["client"]): each
        for each in events.read(tmp_path / "events.jsonl")
        if each["event"] == "client-finished"
    }
    ends = [each["ended"] for each in log]
    assert ends == sorted(ends) and [each["began"] for each in log] == [0, *ends[:-1]]
    arrivals = []
    for row in log:
        assert len(row["clients"]) == 3
        for part in row["clients"]:
            assert row["began"] <= part["ended"] <= row["ended"]
            arrivals.append(part["ended"])
            event = finished[row["round"], part["client"]]
            took = fleet.of(part["client"]).seconds(event["up"], event["down"], event["flops"])
            assert part["ended"] == pytest.approx(part["began"] + took)
            # As many merges happened while it was under way as its staleness says.
            merges = sum(part["began"] < end < part["ended"] for end in ends)
            assert part["staleness"] == merges
        last = max(row["clients"], key=lambda part: part["ended"])
        assert (last["ended"], last["client"]) == (row["ended"], row["waited_for"])
    assert max(part["staleness"] for row in log for part in row["clients"]) >= 2
    # A client begins at the start, or when another one arrives.
    begins = {part["began"] for row in log for part in row["clients"]}
    assert begins <= {0.0, *arrivals}


def test_all_clients_of_a_pool_take_part(tmp_path: Path) -> None:
    adding(tmp_path, "buffer=2,concurrency=3", rounds=40)
    clients = Counter(part["client"] for row in timed(tmp_path) for part in row["clients"])
    assert len(clients) == 12


def test_a_client_is_never_under_way_twice(tmp_path: Path) -> None:
    adding(tmp_path, "buffer=3,concurrency=5", rounds=20)
    spans: dict[int, list[tuple[float, float]]] = {}
    for row in timed(tmp_path):
        for part in row["clients"]:
            spans.setdefault(part["client"], []).append((part["began"], row["ended"]))
    for each in spans.values():
        ordered = sorted(each)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(ordered))


@pytest.mark.parametrize("how", ["buffer=3,concurrency=5", "fedasync,concurrency=4"])
def test_the_state_is_what_the_log_and_the_formula_say(tmp_path: Path, how: str) -> None:
    """Worked from the log: x grows by the mean of rate * (1 + age) ** -0.5 * change."""
    summary = adding(tmp_path, how)
    asked = Asynchronous.parse(how)
    values = [0.0]
    for row in timed(tmp_path):
        now, moves = values[-1], []
        for part in row["clients"]:
            age = part["staleness"]
            weight = asked.rate * (1 + age) ** -0.5
            reply = values[len(values) - 1 - age] + part["client"] + 1
            base = values[len(values) - 1 - age] if asked.merge == "changes" else now
            moves.append(weight * (reply - base))
        values.append(now + sum(moves) / len(moves))
    assert float(summary.state.params["x"]) == pytest.approx(values[-1], rel=1e-12)
    assert summary.device_seconds == timed(tmp_path)[-1]["ended"]


@pytest.mark.parametrize("merge", ["changes", "models"])
def test_one_client_at_a_time_is_never_stale(tmp_path: Path, merge: str) -> None:
    summary = adding(tmp_path, f"buffer=1,concurrency=1,merge={merge}")
    rows = [part for row in timed(tmp_path) for part in row["clients"]]
    assert {part["staleness"] for part in rows} == {0}
    assert float(summary.state.params["x"]) == sum(part["client"] + 1 for part in rows)


def test_late_failing_and_leaving_clients_make_room_for_others(tmp_path: Path) -> None:
    adding(tmp_path, "buffer=3,concurrency=5", rounds=20, failures=0.2, deadline="0.2s")
    rows = [part for row in timed(tmp_path) for part in row["clients"]]
    kinds = {part["outcome"] for part in rows}
    assert {"merged", "failed"} <= kinds
    for row in timed(tmp_path):
        assert sum(part["outcome"] == "merged" for part in row["clients"]) == 3
    assert all(part["ended"] - part["began"] <= 0.2 + 1e-9 for part in rows)


def test_staleness_weights() -> None:
    assert [Staleness.parse("constant").weight(age) for age in (0, 9)] == [1, 1]
    assert [Staleness.parse("polynomial:0.5").weight(age) for age in (0, 3)] == [1, 0.5]
    hinge = Staleness.parse("hinge:10:4")
    assert [hinge.weight(age) for age in (0, 4, 6)] == [1, 1, 1 / 21]


def test_settings_are_read() -> None:
    one = Asynchronous.parse("buffer=2,concurrency=7,staleness=constant,rate=0.5,merge=models")
    assert one == Asynchronous(2, 7, Staleness("constant", 0.0), 0.5, "models")
    assert Asynchronous.parse("fedbuff,buffer=4").buffer == 4
    assert Asynchronous.parse("fedasync").buffer == 1
    for text in ("buffer=0", "buffer", "speed=1", "rate=-1", "merge=sums", "staleness=x", "fast"):
        with pytest.raises(ValueError, match="`asynchronous=`"):
            Asynchronous.parse(text)


# the same bits -----------------------------------------------------------------------------------

ASYNCHRONOUS = (
    *("fedavg", "fedavgm", "fedopt", "fedprox", "fedbn", "feddrop", "spafl", "fedpm"),
    *("pdst", "spdst", "random_mask", "ditto", "fedrep", "lg_fedavg", "fedavg+topk", "pdst+qsgd"),
)


COMPRESSORS = {"topk": "topk:0.2+ef", "qsgd": "qsgd:16"}
OFTEN = ("fedavg", "spafl", "fedpm", "spdst", "fedavg+topk")
"""Methods that are tried every time; others with the slow tests."""


@pytest.mark.parametrize(
    "name", [n if n in OFTEN else pytest.param(n, marks=pytest.mark.slow) for n in ASYNCHRONOUS]
)
def test_methods_have_the_same_bits_with_any_number_of_workers(name: str, tmp_path: Path) -> None:
    base, _, compressor = name.partition("+")
    method: Any = with_settings(METHODS[base], {"clients": 3})
    method = compress(method, up=COMPRESSORS[compressor]) if compressor else method
    task = normed() if name in ("fedavg", "fedbn") else mlp()

    def trained(workers: int) -> tuple[str, list[str]]:
        options = Options(eval_every=2, workers=workers, devices=MIXTURE, spread=0.5, failures=0.05)
        options = replace(options, asynchronous="buffer=3,concurrency=5")
        out = tmp_path / str(workers)
        summary = run(method, task, Toy(16), rounds=6, seed=2, out=out, options=options)
        return summary.state_hash, lines(out / "events.jsonl")

    first = trained(1)
    assert trained(2) == first and trained(3) == first
    ages = [part["staleness"] for row in timed(tmp_path / "1") for part in row["clients"]]
    assert max(ages) > 0


KILLS = 20


def test_an_asynchronous_run_that_is_killed_twenty_times_has_the_same_log(tmp_path: Path) -> None:
    killable.job(tmp_path / "whole", 1, False, True, 1)
    whole, out = lines(tmp_path / "whole" / "events.jsonl"), tmp_path / "killed"
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["killable"])
    draw, killed = random.Random(2), 0
    for attempt in range(100):
        if killed == KILLS:
            break
        words = (out, 1, attempt > 0, draw.randrange(3, 40), True, draw.choice((1, 2, 3)))
        process = context.Process(target=killable.job_killed_at, args=words)
        process.start()
        process.join(60)
        assert process.exitcode in (0, -signal.SIGKILL)
        killed += process.exitcode != 0
        if process.exitcode == 0:  # it came to its end: begin again
            assert lines(out / "events.jsonl") == whole
    assert killed == KILLS
    last = context.Process(target=killable.job, args=(out, 1, True, True, 3))
    last.start()
    last.join(60)
    assert last.exitcode == 0 and lines(out / "events.jsonl") == whole


def test_a_checkpoint_has_the_clients_under_way_and_what_they_were_sent(tmp_path: Path) -> None:
    from gossamer.engine import checkpoint, integrity

    adding(tmp_path, "buffer=3,concurrency=5", checkpoint_every=1)
    saved = checkpoint.newest(tmp_path / "rounds")
    assert saved is not None and len(saved.progress.underway) == 4  # the one that ended it arrived
    assert set(saved.past) == {number for _, number, _ in saved.progress.underway}
    assert not [each for each in integrity.run_files(tmp_path) if each.problem]
    (tmp_path / "rounds" / "000012" / "past.bin").unlink()
    problems = [each.problem for each in integrity.run_files(tmp_path) if each.problem]
    assert any("past.bin" in problem for problem in problems)
    older = checkpoint.newest(tmp_path / "rounds")
    assert older is not None and older.progress.round == 11
