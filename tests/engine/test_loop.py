"""The loop: what stops it, what goes wrong in clients, and what never changes a result."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from gossamer import (
    Batch,
    Client,
    Ctx,
    Exchange,
    FedAvg,
    Job,
    Key,
    Options,
    Result,
    Summary,
    Training,
    run,
)
from gossamer.core import Params
from gossamer.engine import ClientError, Run, Stop, events, replay, start
from gossamer.engine.processor import one_torch_thread
from gossamer.engine.workers import Workers
from gossamer.fields import option
from gossamer.methods.fedavg import Server
from gossamer.methods.parts.dense_model import Down, Local, Up, Work
from helpers import Toy, fedavg, lines, mlp, normed, same

STATEFUL = replace(fedavg(), buffers="local")


def who(ctx: Ctx) -> tuple[int, int]:
    """Round and client of a client's context."""
    client = ctx.key.path[-1]
    assert isinstance(client, int)
    return ctx.round, client


@dataclass(frozen=True)
class Fails(FedAvg):
    """FedAvg in which one client raises, in one round, at one stage."""

    stage: str = option("step", "where")
    when: int = option(2, "in which round")
    whom: int = option(3, "which client")
    slow: float = option(0.0, "seconds that all others take")

    def guard(self, ctx: Ctx, stage: str) -> None:
        if stage == self.stage and who(ctx) == (self.when, self.whom):
            raise ZeroDivisionError(f"round {ctx.round}\nsecond line")

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        self.guard(ctx, "begin")
        return super().begin(ctx, down, local)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        if batch.step == 1:
            self.guard(ctx, "step")
        if self.slow and ctx.round == self.when:
            time.sleep(self.slow)
        return super().step(ctx, work, batch)

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        self.guard(ctx, "finish")
        found = super().finish(ctx, work)
        if self.stage == "encode" and who(ctx) == (self.when, self.whom):
            return replace(found, up=Up({"w": object()}))  # type: ignore[dict-item]
        if self.stage == "store" and who(ctx) == (self.when, self.whom):
            return replace(found, local=Local({"w": object()}))  # type: ignore[dict-item]
        return found


def failing(**settings: object) -> Fails:
    return Fails(clients=6, training=Training(batch=8), buffers="local", **settings)  # type: ignore[arg-type]


# results ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [fedavg(), STATEFUL, fedavg(momentum=0.9, clip=0.5)])
def test_the_number_of_workers_never_changes_a_result(method: FedAvg) -> None:
    found = [
        run(method, normed(), Toy(), rounds=3, seed=2, options=Options(workers=workers))
        for workers in (1, 2, 5)
    ]
    assert len({summary.state_hash for summary in found}) == 1
    assert found[0].accuracy == found[1].accuracy == found[2].accuracy


def test_the_seed_changes_the_result() -> None:
    one, two = (run(fedavg(), normed(), Toy(), rounds=1, seed=seed) for seed in (1, 2))
    assert one.state_hash != two.state_hash


@dataclass(frozen=True)
class Still(FedAvg):
    """Its server never changes; its clients keep their statistics."""

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        return state


def test_the_hash_covers_the_states_of_clients() -> None:
    method = Still(clients=3, buffers="local")
    one, two = (run(method, normed(), Toy(), rounds=rounds) for rounds in (1, 2))
    assert same(one.state.params, two.state.params)
    assert one.state_hash != two.state_hash
    assert run(method, normed(), Toy(), rounds=1).state_hash == one.state_hash


def test_a_run_leaves_threads_and_generators_as_they_were() -> None:
    task = normed()
    torch.set_num_threads(2)
    state = torch.get_rng_state()
    run(fedavg(), task, Toy(), rounds=1)
    assert torch.get_num_threads() == 2
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.tensor(1e-40).mul(1).item() != 0  # denormal numbers count again


def test_global_seeds_do_not_matter() -> None:
    found = set()
    for seed in (1, 2):
        torch.manual_seed(seed)
        found.add(run(fedavg(), normed(), Toy(), rounds=2).state_hash)
    assert len(found) == 1


def test_a_run_without_a_folder_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    summary = run(fedavg(), mlp(), Toy(), rounds=1)
    assert list(tmp_path.iterdir()) == [] and Path(summary.run).parent == tmp_path


def test_the_figures_of_a_run_add_up() -> None:
    summary = start(Run(fedavg(), mlp(), Toy(), rounds=3, name="mine"))
    figures = summary.figures()
    assert figures["method"] == "mine" and figures["rounds"] == 3
    assert figures["bits"]["paper_up"] == figures["bits"]["paper_down"] == 9 * 75 * 32
    assert figures["bits"]["up"] > figures["bits"]["paper_up"]
    assert figures["density"] == 1.0 and not figures["interrupted"]
    assert set(figures["accuracy"]) >= {"global", "personal_mean", "personal_worst_decile", "best"}


@pytest.mark.parametrize("rounds", [0, -3])
def test_a_run_of_no_rounds_is_refused(rounds: int) -> None:
    with pytest.raises(ValueError, match=f"at least 1 round, not {rounds}"):
        run(fedavg(), mlp(), Toy(), rounds=rounds)


def test_bad_settings_and_too_large_cohorts_are_refused() -> None:
    with pytest.raises(ValueError, match="--lr must be above 0"):
        run(fedavg(lr=-1.0), mlp(), Toy(), rounds=1)
    with pytest.raises(ValueError, match="7 clients per round asked for, but the pool has 6"):
        run(fedavg(7), mlp(), Toy(), rounds=1)


@dataclass(frozen=True)
class Backwards(FedAvg):
    """Names its cohort in the wrong order, and remembers the order of the exchanges."""

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return list(reversed(super().cohort(ctx, state, pool)))

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        listed = list(exchanges)
        assert [each.client.id for each in listed] == sorted(each.client.id for each in listed)
        return super().merge(ctx, state, listed)


def test_exchanges_are_merged_in_the_order_of_ids() -> None:
    found = run(Backwards(clients=4), mlp(), Toy(), rounds=2)
    assert found.state_hash == run(FedAvg(clients=4), mlp(), Toy(), rounds=2).state_hash


@dataclass(frozen=True)
class Nobody(FedAvg):
    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return []


def test_an_empty_cohort_leaves_the_state_alone() -> None:
    task = mlp()
    summary = run(Nobody(), task, Toy(), rounds=2)
    assert same(summary.state.params, task.init(Key(0).fold("common", "init")))
    assert summary.rounds == 2 and summary.cost.up == 0


# stopping ---------------------------------------------------------------------------------------


class StopsAt:
    """Requests a stop, some times, when an event of a round is heard."""

    def __init__(self, stop: Stop, round: int, times: int = 1) -> None:
        self.stop, self.round, self.times = stop, round, times

    def emit(self, event: events.Event, clock: events.Clock) -> None:
        if isinstance(event, events.RoundFinished) and event.round == self.round:
            for _ in range(self.times):
                self.stop.request()

    def close(self) -> None:
        pass


def test_requests_are_counted() -> None:
    stop = Stop()
    assert not stop.after_round() and not stop.at_once()
    assert stop.request() == 1 and stop.after_round() and not stop.at_once()
    assert stop.request() == 2 and stop.at_once()


def test_one_request_finishes_the_round_and_saves(tmp_path: Path) -> None:
    stop = Stop()
    summary = start(
        Run(STATEFUL, normed(), Toy(), rounds=9, out=tmp_path), sinks=[StopsAt(stop, 2)], stop=stop
    )
    assert summary.interrupted and summary.rounds == 2
    found = events.read(tmp_path / "events.jsonl")
    assert [event["event"] for event in found][-2:] == ["round-finished", "evaluated"]
    assert (tmp_path / "rounds/000002/meta.json").exists()
    two = start(Run(STATEFUL, normed(), Toy(), rounds=9, out=tmp_path), resume=True)
    assert two.state_hash == run(STATEFUL, normed(), Toy(), rounds=9).state_hash


def test_a_request_in_the_last_round_is_no_interruption() -> None:
    stop = Stop()
    summary = start(Run(fedavg(), mlp(), Toy(), rounds=2), sinks=[StopsAt(stop, 2)], stop=stop)
    assert not summary.interrupted and summary.rounds == 2


@dataclass(frozen=True)
class Impatient(FedAvg):
    """Its client 3 asks to stop at once, in the second step of round 3."""

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        if who(ctx) == (3, 3) and batch.step == 1:
            REQUESTS[0].request()
            REQUESTS[0].request()
        return super().step(ctx, work, batch)


REQUESTS = [Stop()]


@pytest.mark.parametrize("workers", [1, 2])
def test_two_requests_abandon_the_round_and_leave_no_trace_of_it(
    tmp_path: Path, workers: int
) -> None:
    REQUESTS[0] = Stop()
    method = Impatient(clients=6, training=Training(batch=8), buffers="local")
    options = Options(workers=workers)
    summary = start(
        Run(method, normed(), Toy(), rounds=4, out=tmp_path, options=options), stop=REQUESTS[0]
    )
    assert summary.interrupted and summary.rounds == 2
    plain = FedAvg(clients=6, training=Training(batch=8), buffers="local")
    assert summary.state_hash == stopped(plain, 2).state_hash
    assert not (tmp_path / "rounds/000003").exists()
    REQUESTS[0] = Stop()
    again = start(
        Run(method, normed(), Toy(), rounds=4, out=tmp_path, options=options), resume=True
    )
    assert again.state_hash == run(plain, normed(), Toy(), rounds=4).state_hash


def stopped(method: FedAvg, round: int) -> Summary:
    stop = Stop()
    return start(Run(method, normed(), Toy(), rounds=4), sinks=[StopsAt(stop, round)], stop=stop)


# clients that fail ------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["begin", "step", "finish"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_failure_tells_stage_round_client_and_how_to_see_it_again(
    tmp_path: Path, stage: str, workers: int
) -> None:
    out = tmp_path / "my run"
    method = failing(stage=stage)
    with pytest.raises(ClientError) as caught:
        run(method, normed(), Toy(), rounds=4, out=out, options=Options(workers=workers))
    error = caught.value
    assert (error.stage, error.round, error.client) == (stage, 2, 3)
    assert isinstance(error.__cause__, ZeroDivisionError) and error.cause is error.__cause__
    assert error.reason == "ZeroDivisionError: round 2"
    assert str(error).startswith(f"client 3 failed in {stage} of round 2: ZeroDivisionError")
    command = str(error).partition("replay it with: ")[2]
    assert shlex.split(command) == [
        *("gossamer", "replay", str(out), "--round", "2", "--client", "3")
    ]


@pytest.mark.parametrize("stage", ["encode", "store"])
def test_records_that_cannot_travel_are_failures_of_the_client(stage: str) -> None:
    with pytest.raises(ClientError, match=f"client 3 failed in {stage} of round 2: TypeError"):
        run(failing(stage=stage), normed(), Toy(), rounds=3)


def test_a_client_without_training_data_fails_in_data() -> None:
    with pytest.raises(ClientError, match=r"failed in data of round 1: .*no training examples"):
        run(fedavg(3), mlp(), Toy(sizes=[20, 0, 20]), rounds=1)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failed_run_is_saved_as_it_was_before_the_round(
    tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are still at work when the failure is known; none of that may be left."""
    options = Options(workers=workers)
    method = failing(slow=0.05)
    with pytest.raises(ClientError):
        run(method, normed(), Toy(), rounds=3, out=tmp_path, options=options)
    assert not (tmp_path / "rounds/000002").exists()
    monkeypatch.setattr(Fails, "guard", lambda self, ctx, stage: None)  # its author mends it
    again = start(
        Run(method, normed(), Toy(), rounds=3, out=tmp_path, options=options), resume=True
    )
    assert again.state_hash == run(method, normed(), Toy(), rounds=3).state_hash


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failure_may_be_skipped(tmp_path: Path, workers: int) -> None:
    options = Options(workers=workers, on_client_error="skip")
    summary = run(failing(), normed(), Toy(), rounds=3, out=tmp_path, options=options)
    assert summary.rounds == 3 and not summary.interrupted
    found = events.read(tmp_path / "events.jsonl")
    failed = [event for event in found if event["event"] == "client-failed"]
    assert [(e["round"], e["client"], e["stage"], e["reason"]) for e in failed] == [
        (2, 3, "step", "ZeroDivisionError: round 2")
    ]
    rounds = [event for event in found if event["event"] == "round-finished"]
    assert [event["failed"] for event in rounds] == [[], [3], []]
    assert [len(event["clients"]) for event in rounds] == [6, 5, 6]
    finished = [e for e in found if e["event"] == "client-finished" and e["round"] == 2]
    assert [event["client"] for event in finished] == [0, 1, 2, 4, 5]
    # What it was sent is paid for all the same.
    assert failed[0]["down"] == finished[0]["down"] > failed[0]["paper_down"] > 0
    downs = [event["down"] for event in rounds]
    assert downs[1] - downs[0] == downs[2] - downs[1] == 6 * finished[0]["down"]


def test_skipping_gives_the_same_bits_with_any_number_of_workers(tmp_path: Path) -> None:
    for workers in (1, 2):
        options = Options(workers=workers, on_client_error="skip")
        run(failing(), normed(), Toy(), rounds=3, out=tmp_path / str(workers), options=options)
    one, two = (lines(tmp_path / name / "events.jsonl") for name in "12")
    assert one == two


def test_a_round_in_which_everyone_fails_leaves_the_state_alone() -> None:
    method = Fails(clients=1, whom=0, when=1)
    options = Options(on_client_error="skip")
    summary = run(method, mlp(), Toy(pool=1, sizes=[200]), rounds=1, options=options)
    assert same(summary.state.params, mlp().init(Key(0).fold("common", "init")))


@pytest.mark.parametrize("on_client_error", ["stop", "skip"])
def test_replaying_raises_the_same_error(tmp_path: Path, on_client_error: str) -> None:
    options = Options(workers=2, on_client_error=on_client_error)  # type: ignore[arg-type]
    method = failing()
    try:
        run(method, normed(), Toy(), rounds=3, seed=4, out=tmp_path, options=options)
    except ClientError:
        assert on_client_error == "stop"
    capsule = replay.read(tmp_path / "rounds", 2, 3, method)
    assert (capsule.round, capsule.client, capsule.seed, capsule.rounds) == (2, 3, 4, 3)
    assert isinstance(capsule.local, Local)  # all six clients took part in round 1
    with pytest.raises(ZeroDivisionError, match="round 2"):
        replay.again(method, normed(), Toy(), capsule)


def test_replaying_does_what_the_client_would_have_done(tmp_path: Path) -> None:
    """The repaired method, replayed, sends what it sends in a run without the failure."""
    options = Options(workers=1, on_client_error="skip")
    run(failing(), normed(), Toy(), rounds=2, out=tmp_path, options=options)
    capsule = replay.read(tmp_path / "rounds", 2, 3, failing())
    repaired = replay.again(failing(when=-1), normed(), Toy(), capsule)
    SENT.clear()
    spy = Spy(clients=6, training=Training(batch=8), buffers="local")
    run(spy, normed(), Toy(), rounds=2, options=options)
    assert same(SENT[2, 3], repaired.result.up.params)


SENT: dict[tuple[int, int], Params] = {}


@dataclass(frozen=True)
class Spy(FedAvg):
    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        found = super().finish(ctx, work)
        SENT[who(ctx)] = found.up.params
        return found


def test_replaying_who_did_not_fail_lists_those_who_did(tmp_path: Path) -> None:
    options = Options(on_client_error="skip")
    run(failing(), normed(), Toy(), rounds=2, out=tmp_path, options=options)
    with pytest.raises(FileNotFoundError, match=r"client 1 did not fail.*round-2-client-3"):
        replay.read(tmp_path / "rounds", 2, 1, failing())


# workers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3])
def test_results_come_in_the_order_of_the_items(count: int) -> None:
    workers = Workers(mlp(), count)

    def work(task: object, item: int) -> int:
        time.sleep(0.002 * (5 - item))
        return item * item

    assert workers.map(work, range(5)) == [0, 1, 4, 9, 16]
    assert workers.map(work, []) == []
    workers.close()


def test_an_error_is_raised_when_all_work_has_ended() -> None:
    workers = Workers(mlp(), 2)
    ended = []

    def work(task: object, item: int) -> None:
        if item == 0:
            raise ValueError("first")
        time.sleep(0.1)
        ended.append(item)

    with pytest.raises(ValueError, match="first"):
        workers.map(work, range(8))
    before = list(ended)
    time.sleep(0.25)
    assert ended == before and len(ended) < 7
    workers.close()


def test_each_thread_has_a_task_of_its_own() -> None:
    workers = Workers(mlp(), 3)

    def work(task: object, item: int) -> int:
        time.sleep(0.02)
        return id(task)

    assert len(set(workers.map(work, range(12)))) == 3
    workers.close()


def test_one_thread_is_given_back_after_an_error() -> None:
    torch.set_num_threads(2)
    with pytest.raises(KeyError), one_torch_thread():
        assert torch.get_num_threads() == 1
        raise KeyError
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("change", ["method", "settings", "rounds", "seed"])
def test_a_folder_of_another_run_is_not_resumed(tmp_path: Path, change: str) -> None:
    run(fedavg(), mlp(), Toy(), rounds=2, seed=1, out=tmp_path)
    method = replace(fedavg(), weighting="uniform") if change == "settings" else fedavg()
    name = "other" if change == "method" else ""
    rounds, seed = 3 if change == "rounds" else 2, 2 if change == "seed" else 1
    with pytest.raises(ValueError, match=r"is a run of (another method|2 rounds, not of 3)"):
        start(
            Run(method, mlp(), Toy(), rounds=rounds, key=Key(seed), out=tmp_path, name=name),
            resume=True,
        )
