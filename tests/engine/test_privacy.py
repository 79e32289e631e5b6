"""Differential privacy in whole runs: epsilon is told, counted once, resumed, and hides sizes."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gossamer import FedAvg, Key, Options, Summary, Task, Training
from gossamer.engine import Run, Stop, events, start
from gossamer.engine.events import Clock, Event, PrivacySpent, RoundFinished
from gossamer.methods.fedpm import FedPM
from gossamer.methods.flash import Flash, pdst
from gossamer.methods.nst import NST
from gossamer.methods.spafl import SpaFL
from gossamer.trust.noise import System
from helpers import Toy, fedavg, lines, mlp, normed

CENTRAL = "clip=1.0,noise=0.8,delta=1e-5"
ADAPTIVE = "clip=adaptive:0.5,noise=2"
LOCAL = "local:clip=0.5,noise=4"
METHODS = {
    "fedavg": fedavg(3),
    "spafl": SpaFL(clients=3, training=Training(epochs=2, batch=8, lr=0.01)),
    "fedpm": FedPM(clients=3, training=Training(epochs=1, batch=8, lr=0.1)),
    "pdst": replace(pdst(), clients=3, density=0.5, training=Training(batch=8, lr=0.1)),
}


class Stopping:
    """Asks a run to stop after some rounds, and keeps its privacy events."""

    def __init__(self, stop: Stop, after: int = 10**9) -> None:
        self.stop, self.after, self.spent = stop, after, list[PrivacySpent]()

    def emit(self, event: Event, clock: Clock) -> None:
        if isinstance(event, PrivacySpent):
            self.spent.append(event)
        if isinstance(event, RoundFinished) and event.round == self.after:
            self.stop.request()

    def close(self) -> None:
        """Has nothing to close."""


def private(
    method: Any, dp: str, out: Path | None = None, after: int = 10**9, **more: Any
) -> tuple[Summary, list[PrivacySpent]]:
    stop = Stop()
    sink = Stopping(stop, after)
    rounds, resume = more.pop("rounds", 4), more.pop("resume", False)
    what = Run(
        method,
        more.pop("task", mlp()),
        more.pop("data", Toy()),
        rounds=rounds,
        dp=dp,
        out=out,
        **more,
    )
    return start(what, sinks=[sink], stop=stop, resume=resume), sink.spent


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("dp", [CENTRAL, ADAPTIVE, LOCAL])
def test_a_resumed_run_has_the_same_bits_epsilon_and_clip(
    name: str, dp: str, tmp_path: Path
) -> None:
    whole, spent = private(METHODS[name], dp, tmp_path / "whole")
    cut, first = private(METHODS[name], dp, tmp_path / "cut", after=2)
    assert cut.interrupted and len(first) == 2
    resumed, rest = private(METHODS[name], dp, tmp_path / "cut", resume=True)
    assert resumed.state_hash == whole.state_hash and [*first, *rest] == spent
    assert resumed.privacy == whole.privacy
    assert lines(tmp_path / "cut" / "events.jsonl") == lines(tmp_path / "whole" / "events.jsonl")


def test_workers_do_not_change_the_noise() -> None:
    hashes = {
        private(fedavg(3), dp, options=Options(workers=workers))[0].state_hash
        for workers in (1, 3)
        for dp in (CENTRAL,)
    }
    assert len(hashes) == 1


def test_epsilon_is_in_the_log_the_summary_and_the_json(tmp_path: Path) -> None:
    summary, spent = private(fedavg(3), CENTRAL, tmp_path / "run")
    epsilons = [event.epsilon for event in spent]
    assert len(epsilons) == 4 and epsilons == sorted(set(map(float, epsilons)))  # type: ignore[arg-type]
    assert summary.privacy is not None and summary.privacy["epsilon"] == epsilons[-1]
    logged = [e for e in events.read(tmp_path / "run" / "events.jsonl") if "epsilon" in e]
    assert [each["epsilon"] for each in logged] == epsilons
    assert {each["neighbours"] for each in logged} == {"one client replaced by another"}
    assert json.loads(json.dumps(summary.figures()))["privacy"]["delta"] == 1e-5


def test_without_dp_nothing_is_said_about_privacy(tmp_path: Path) -> None:
    summary, spent = private(fedavg(3), "", tmp_path / "run")
    assert not spent and summary.privacy is None and summary.figures()["privacy"] is None


def test_without_noise_epsilon_is_infinite_and_null_in_the_log(tmp_path: Path) -> None:
    summary, spent = private(fedavg(3), "clip=1,noise=0", tmp_path / "run")
    assert summary.privacy is not None and summary.privacy["epsilon"] == math.inf
    assert {event.epsilon for event in spent} == {None}
    resumed, _ = private(fedavg(3), "clip=1,noise=0", tmp_path / "run", resume=True)
    assert resumed.state_hash == summary.state_hash


def test_a_large_clip_without_noise_is_the_uniform_mean() -> None:
    """Sizes of clients weigh in the plain run, and nothing else differs."""
    method = FedAvg(clients=3, training=Training(batch=8), weighting="uniform")
    plain, _ = private(method, "")
    covered, _ = private(method, "clip=1e6,noise=0")
    by_size, _ = private(replace(method, weighting="samples"), "clip=1e6,noise=0")
    for name, tensor in plain.state.params.items():
        torch.testing.assert_close(covered.state.params[name], tensor)
    assert by_size.state_hash == covered.state_hash


def test_a_tiny_clip_keeps_the_model() -> None:
    """With noise of 1.0 times the clip, nothing moves by more than a few clips."""
    summary, _ = private(fedavg(3), "clip=1e-6,noise=1")
    first = Run(fedavg(3), mlp(), Toy(), rounds=1).task.init(Key(0).fold("common", "init"))
    for name, tensor in summary.state.params.items():
        assert float((tensor - first[name]).abs().max()) < 1e-5


def test_metrics_of_clients_do_not_leave_them(tmp_path: Path) -> None:
    private(fedavg(3), CENTRAL, tmp_path / "run")
    log = events.read(tmp_path / "run" / "events.jsonl")
    told = [e["metrics"] for e in log if e["event"] in ("client-finished", "round-finished")]
    assert len(told) == 16 and not any(told)


def test_batch_norm_statistics_are_covered() -> None:
    quiet, _ = private(fedavg(3), "clip=0.1,noise=0", task=normed())
    noisy, _ = private(fedavg(3), "clip=0.1,noise=1", task=normed())
    name = next(n for n in quiet.state.params if n.endswith("running_mean"))
    assert not torch.equal(quiet.state.params[name], noisy.state.params[name])


def test_dp_is_part_of_what_a_run_is() -> None:
    runs = [Run(fedavg(3), mlp(), Toy(), rounds=2, dp=dp) for dp in ("", CENTRAL, ADAPTIVE)]
    assert len({run.identity for run in runs}) == 3


def test_secret_noise_is_never_that_of_the_seed() -> None:
    first, second = (private(fedavg(3), CENTRAL, secret_noise=True)[0] for _ in range(2))
    assert first.state_hash != second.state_hash


def test_secret_cohorts_are_never_those_of_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    key = System.key
    monkeypatch.setattr(System, "key", lambda self, name: asked.append(name) or key(self, name))
    private(fedavg(3), CENTRAL, secret_noise=True)
    assert asked == ["cohort"] * 4


def test_local_epsilon_is_that_of_the_client_that_replied_most_often() -> None:
    """With everybody in every round, four rounds are four replies each."""
    _, spent = private(fedavg(6), LOCAL)
    assert [event.releases for event in spent] == [1, 2, 3, 4]
    few, counted = private(fedavg(1), LOCAL, rounds=3)
    assert counted[0].releases == 1 and counted[-1].releases <= 3
    assert few.privacy is not None and few.privacy["neighbours"] == "one client's data replaced"


def test_local_noise_is_in_what_clients_send(tmp_path: Path) -> None:
    """The server merges a plain mean: with clip 1e-9 and no noise, nothing moves."""
    summary, _ = private(fedavg(3), "local:clip=1e-9,noise=0")
    first = Run(fedavg(3), mlp(), Toy(), rounds=1).task.init(Key(0).fold("common", "init"))
    for name, tensor in summary.state.params.items():
        assert float((tensor - first[name]).abs().max()) < 1e-6


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        (NST(clients=3), "NST sends masks that clients choose by their data"),
        (Flash(clients=3), "Flash begins with a few clients that learn masks"),
        (replace(pdst(), clients=3, mask_every=1), "Flash sends masks"),
    ],
)
def test_methods_that_cannot_be_covered_are_refused_before_anything_runs(
    method: Any, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        private(method, CENTRAL)


def test_budgets_are_refused() -> None:
    class Poor(Toy):
        def __init__(self) -> None:
            super().__init__()
            self.pool = [replace(c, budget=0.5 if c.id % 2 else 1.0) for c in self.pool]

    with pytest.raises(ValueError, match="different `budgets=`"):
        private(METHODS["pdst"], CENTRAL, data=Poor())


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from gossamer.trust.accountant import _epsilon

    _epsilon.cache_clear()
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ValueError, match=r"pip install 'gossamer\[privacy\]'"):
        private(fedavg(3), "clip=1,noise=0.81")


def test_a_client_that_fails_counts_as_having_changed_nothing() -> None:
    """The mean is over the planned clients, so a failure halves what the other one changes."""

    class Odd(FedAvg):
        """Client 0 always fails."""

        def begin(self, ctx: Any, down: Any, local: Any) -> Any:
            if ctx.key.path[-1] == 0:
                raise ZeroDivisionError
            return super().begin(ctx, down, local)

    toy, skip = Toy(sizes=[20, 20]), Options(on_client_error="skip")
    method = Odd(clients=2, training=Training(batch=8))
    task: Task = mlp()
    found, _ = private(method, "clip=1e6,noise=0", rounds=1, data=toy, options=skip, task=task)
    alone, _ = private(method, "", rounds=1, data=toy, options=skip, task=task)
    first = task.init(Key(0).fold("common", "init"))
    for name, tensor in found.state.params.items():
        half = first[name] + (alone.state.params[name] - first[name]) / 2
        torch.testing.assert_close(tensor, half)
