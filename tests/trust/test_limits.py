"""Replies far from the usual are refused, and so are claims that cannot be true."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gossamer import Client, Exchange, Key, Params, fields
from gossamer.accounting import FLOPS, Entry
from gossamer.engine import Options, events
from gossamer.engine.acceptance import METRICS, bounded
from gossamer.engine.checkpoint import newest
from gossamer.engine.client import Account, server_ctx
from gossamer.engine.conversation import Conversations
from gossamer.engine.expected import Reply
from gossamer.engine.loop import start
from gossamer.engine.run_record import Run
from gossamer.engine.workers import Threads, Workers
from gossamer.trust import limits
from gossamer.trust.limits import ALLOWED, RECENT, Size
from gossamer.wire import Schema, WireError, decode, encode
from helpers import Toy, fedavg, linear, lines, mlp


@dataclass(frozen=True)
class Down:
    params: Params


@dataclass(frozen=True)
class Up:
    params: Params
    gradients: Params
    score: float


def sizes(*norms: float, sent: float = 0.0) -> dict[int, Size]:
    return {id: Size({"Up.params": norm}, {"Up.params": sent}) for id, norm in enumerate(norms)}


# norms -------------------------------------------------------------------------------------------


def test_a_reply_is_measured_field_by_field() -> None:
    down = Down({"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([12.0])})
    moved = {"a": torch.tensor([3.0, 1.0]), "b": torch.tensor([16.0])}
    up = Up(moved, {"a": torch.tensor([6.0, 8.0])}, -0.5)
    exchange, noted = Exchange(Client(7, 1), down, up), dict[int, Size]()
    assert list(limits.measured([exchange], noted)) == [exchange]
    measured = noted[7]
    assert measured.changes == {"Up.params": 5.0, "Up.gradients": 10.0, "Up.score": 0.5}
    # What has no counterpart in the request is compared with all of it.
    assert measured.sent == {"Up.params": 13.0, "Up.gradients": 13.0, "Up.score": 13.0}


def test_a_reply_that_was_measured_is_not_read_again() -> None:
    exchange = Exchange(Client(0, 1), Down({}), None)
    noted = before = sizes(5.0)
    assert list(limits.measured([exchange], noted)) == [exchange]
    assert noted == before


def test_a_reply_is_refused_above_the_multiple_of_the_median() -> None:
    assert limits.outside(sizes(1, 2, 3, 20.0), {}, 10) == {}
    assert list(limits.outside(sizes(1, 2, 3, 20.1), {}, 10)) == [3]
    assert list(limits.outside(sizes(1e30, 2, 3, math.inf), {}, 10)) == [0, 3]


def test_who_has_more_examples_may_change_more_in_proportion() -> None:
    found = sizes(1, 1, 1, 60.0)
    assert list(limits.outside(found, {}, 50)) == [3]
    for examples, refused in ((10, [3]), (12, []), (1000, [])):
        several = {id: replace(each, examples=10) for id, each in found.items()}
        several[3] = replace(found[3], examples=examples)
        assert list(limits.outside(several, {}, 50)) == refused


def test_of_two_replies_the_smaller_is_usual() -> None:
    assert list(limits.outside(sizes(1.0, 1e30), {}, 10)) == [1]


def test_a_change_not_much_larger_than_what_was_sent_is_never_refused() -> None:
    fitted = [1e-9] * 5
    assert limits.outside(sizes(*fitted, 3 * ALLOWED, sent=3.0), {}, 10) == {}
    assert list(limits.outside(sizes(*fitted, 3.1 * ALLOWED, sent=3.0), {}, 10)) == [5]


def test_recent_rounds_bound_a_cohort_of_one() -> None:
    recent = {"Up.params": [1.0, 1.2, 0.9]}
    assert list(limits.outside(sizes(1e3), recent, 10)) == [0]
    assert limits.outside(sizes(5.0), recent, 10) == {}
    assert limits.outside(sizes(1e3), {}, 10) == {}  # nothing to compare it with


def test_many_replies_may_grow_together_at_once_and_few_after_some_rounds() -> None:
    recent = {"Up.params": [1.0] * RECENT}
    assert limits.outside(sizes(100, 90, 110), recent, 10) == {}
    rounds = 0
    while limits.outside(sizes(100.0), recent, 10):
        recent = limits.remembered(sizes(100.0).values(), recent)
        rounds += 1
    assert rounds == 3 and len(recent["Up.params"]) == RECENT


def test_the_memory_survives_a_hostile_majority_of_one_round() -> None:
    recent = limits.remembered(sizes(1e30, 1e30, 1.0).values(), {"Up.params": [1.0, 1.0]})
    assert recent == {"Up.params": [1.0, 1.0, 1e30]}
    assert list(limits.outside(sizes(1.0, 1e30), recent, 10)) == [1]


# states ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_state_with_one_number_that_is_not_finite_is_not_finite(value: float) -> None:
    good = Up({"a": torch.full((3,), 3e38)}, {}, 1.0)
    assert limits.is_finite(good)
    assert not limits.is_finite(replace(good, score=value))
    bad = torch.tensor([1.0, value])
    assert not limits.is_finite(replace(good, gradients={"b": bad}))
    assert limits.is_finite(replace(good, gradients={"b": bad}), {"kept": bad})


def test_bisection_finds_all_that_are_unsound_alone_or_together() -> None:
    bad = {3, 11, 12}
    asked = []

    def sound(items: Any) -> bool:
        asked.append(items)
        return not bad & set(items)

    assert limits.culprits(list(range(16)), sound) == [3, 11, 12]
    assert len(asked) == 19  # of 2**16 sets
    assert limits.culprits([1, 2, 3, 4], lambda items: sum(items) < 5) == [4]
    assert limits.culprits([], lambda items: False) == []


# claims ------------------------------------------------------------------------------------------


def run_of(**options: Any) -> Run:
    return Run(fedavg(), linear(), Toy(), rounds=3, options=Options(**options))


def account(**claims: Any) -> Account:
    rows = (Entry("up", "Up", "params", 576.0, 576.0, 576.0),)
    return replace(Account(40, 5, 1.0, 6 * 15 * 40, {"loss": 1.0}, rows), **claims)


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"examples": 2**61}, "examples in 5 steps are claimed by a client that has 20"),
        ({"steps": 41}, "40 examples in 41 steps"),
        ({"density": 1.5}, "a density of 1.5 is claimed"),
        # Five batches of eight, and one more for a search.
        ({"flops": 2**61}, "where a dense model needs 4320"),
        ({"metrics": {f"m{n}": 1.0 for n in range(METRICS + 1)}}, "1001 metrics came"),
        ({"metrics": {"m" * 201: 1.0}}, "names of up to 201 characters"),
        ({"up": (Entry("up", "Up", "params", 8.0, 8.0, 2.0**61),)}, "bits of paper are claimed"),
        ({"up": (Entry("up", "Up", "params", 8.0, 2.0**61, 8.0),)}, "bits of information"),
    ],
)
def test_a_claim_out_of_bounds_is_refused_with_the_number(
    claims: dict[str, Any], reason: str
) -> None:
    run, client = run_of(), Client(0, 20)
    assert bounded(run, client, account()) == account()
    with pytest.raises(WireError, match=reason):
        bounded(run, client, account(**claims))


@pytest.mark.parametrize("model", FLOPS)
@pytest.mark.parametrize("epochs", [0.3, 1.0, 2.5])
def test_no_honest_count_of_flops_is_refused(model: Any, epochs: float) -> None:
    method = fields.replace(fedavg(2), {"epochs": epochs})
    options = Options(workers=1, flops_model=model, on_client_error="stop")
    done = start(Run(method, mlp(), Toy(2), rounds=1, options=options))
    assert done.failed == 0 and done.cost.flops > 0


def test_metrics_that_are_not_finite_are_left_out() -> None:
    claimed = account(metrics={"loss": math.nan, "kept": 0.5})
    assert bounded(run_of(), Client(0, 20), claimed).metrics == {"kept": 0.5}


def test_claimed_sizes_are_capped_at_a_multiple_of_their_median() -> None:
    pool = [Client(0, 10), Client(1, 12), Client(2, 10**12), Client(3, 0)]
    assert limits.capped(pool, 10) == {2: 120}
    assert limits.capped(pool, 0) == {}


def test_only_claims_are_capped() -> None:
    known = Toy(sizes=[10, 10, 10_000])
    assert Run(fedavg(), linear(), known, rounds=1).pool is known.pool
    claimed = Toy(sizes=[10, 10, 10_000])
    claimed.claimed = True  # type: ignore[attr-defined]
    run = Run(fedavg(), linear(), claimed, rounds=1)
    assert [client.examples for client in run.pool] == [10, 10, 100]
    off = replace(run, options=Options(weight_cap=0))
    assert off.pool is claimed.pool and off.identity != run.identity


# rounds ------------------------------------------------------------------------------------------


@dataclass
class Spoiling:
    """A transport that fills the replies of some clients with a number in some rounds."""

    inner: Threads
    value: float
    clients: frozenset[int]
    rounds: frozenset[int]

    def hold(self, conversations: Conversations, ctx: Any, state: Any, visits: Any) -> list[Reply]:
        replies = self.inner.hold(conversations, ctx, state, visits)
        return [self._spoilt(ctx.round, reply) for reply in replies]

    def _spoilt(self, number: int, reply: Reply) -> Reply:
        if number not in self.rounds or reply.client.id not in self.clients:
            return reply
        assert reply.schema is not None
        up = decode(reply.data, reply.schema)
        whole = {name: torch.full_like(each, self.value) for name, each in up.params.items()}
        return replace(reply, data=encode(replace(up, params=whole), Schema.of(up)))

    def receipt(self, kept: bytes) -> bytes:
        return self.inner.receipt(kept)

    def figures(self, *_: Any) -> None:
        return None


def spoilt(out: Path, value: float, *rounds: int, resume: bool = False, **options: Any) -> Any:
    task = linear()
    chosen = Options(workers=1, checkpoint_every=1, **options)
    run = Run(fedavg(6), task, Toy(), rounds=4, key=Key(1), options=chosen, out=out)
    inner = Threads(Workers(task, 1))
    transport = Spoiling(inner, value, frozenset({2}), frozenset(rounds))
    return start(run, transport=transport, resume=resume)


def refusals(out: Path) -> list[tuple[int, int, str]]:
    failed = [event for event in events.read(out / "events.jsonl") if "stage" in event]
    return [(event["round"], event["client"], event["stage"]) for event in failed]


def test_one_reply_of_1e30_costs_its_client_the_round_and_nothing_else(tmp_path: Path) -> None:
    done = spoilt(tmp_path, 1e30, 2)
    assert refusals(tmp_path) == [(2, 2, "limit")]
    assert done.failed == 1 and done.accuracy["global"] > 0.6
    assert all(bool(each.abs().max() < 10) for each in done.state.params.values())


def test_without_a_limit_a_state_that_is_not_finite_is_refused_by_bisection(tmp_path: Path) -> None:
    method = fields.replace(fedavg(6), {"weighting": "samples"})
    task = linear()
    chosen = Options(workers=1, reply_limit=0)
    run = Run(Overflowing(method), task, Toy(), rounds=4, options=chosen, out=tmp_path)
    inner = Threads(Workers(task, 1))
    done = start(run, transport=Spoiling(inner, 3e38, frozenset({2, 5}), frozenset({2, 3})))
    assert refusals(tmp_path) == [(r, c, "merge") for r in (2, 3) for c in (2, 5)]
    assert limits.is_finite(done.state)


@dataclass(frozen=True)
class Overflowing:
    """FedAvg whose server squares changes, as adaptive optimisers do."""

    inner: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def init(self, ctx: Any) -> Any:
        return self.inner.init(ctx)

    def down(self, ctx: Any, state: Any, client: Client) -> Any:
        return self.inner.down(ctx, state, client)

    def begin(self, ctx: Any, down: Any, local: Any) -> Any:
        return self.inner.begin(ctx, down, local)

    def finish(self, ctx: Any, work: Any) -> Any:
        return self.inner.finish(ctx, work)

    def merge(self, ctx: Any, state: Any, exchanges: Any) -> Any:
        merged = self.inner.merge(ctx, state, exchanges)
        return replace(merged, params={n: p + 0 * p.square() for n, p in merged.params.items()})


def test_if_all_replies_are_refused_the_state_stays(tmp_path: Path) -> None:
    task = linear()
    run = Run(
        Overflowing(fedavg(6)), task, Toy(), rounds=2, options=Options(reply_limit=0), out=tmp_path
    )
    everybody = Spoiling(Threads(Workers(task, 1)), 3e38, frozenset(range(6)), frozenset({1, 2}))
    done = start(run, transport=everybody)
    ctx = server_ctx(run.task, run.key, 0, run.rounds, run.budgets)
    first: Tensor = next(iter(run.method.init(ctx).params.values()))
    assert torch.equal(next(iter(done.state.params.values())), first)
    assert done.rounds == 2 and done.failed == 12


def test_a_merge_that_raises_for_most_replies_still_raises(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Broken(Overflowing):
        def merge(self, ctx: Any, state: Any, exchanges: Any) -> Any:
            if list(exchanges):
                raise ZeroDivisionError("a bug")
            return state

    run = Run(Broken(fedavg(6)), linear(), Toy(), rounds=2, out=tmp_path)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        start(run)


def fragile(clients: int, error: type[Exception], merged: list[int]) -> Any:
    """FedAvg whose merge fails on large numbers; it notes the rounds of all merges."""

    @dataclass(frozen=True)
    class Fragile(Overflowing):
        def merge(self, ctx: Any, state: Any, exchanges: Any) -> Any:
            kept = list(exchanges)
            merged.append(ctx.round)
            if any(bool((each.up.params["weight"] > 1e20).any()) for each in kept):
                raise error("too large")
            return self.inner.merge(ctx, state, kept)

    return Fragile(fedavg(clients))


@pytest.mark.parametrize("error", [OverflowError, WireError])
def test_a_merge_that_a_reply_outside_the_limit_breaks_is_repeated_without_it(
    tmp_path: Path, error: type[Exception]
) -> None:
    merged: list[int] = []
    run = Run(fragile(6, error, merged), linear(), Toy(), rounds=3, out=tmp_path)
    inner = Threads(Workers(run.task, 1))
    start(run, transport=Spoiling(inner, 1e30, frozenset({2}), frozenset({2})))
    # A refusal by the merge names the reply that was read last, which need not be the large one.
    assert refusals(tmp_path) == [(2, 2, "limit")]
    assert merged.count(1) == merged.count(3) == 1  # rounds without a refusal are merged once


def test_if_all_replies_are_outside_the_limit_the_run_goes_on(tmp_path: Path) -> None:
    run = Run(fragile(2, OverflowError, []), linear(), Toy(), rounds=3, out=tmp_path)
    inner = Threads(Workers(run.task, 1))
    everybody = Spoiling(inner, 1e30, frozenset(range(100)), frozenset({2}))
    assert start(run, transport=everybody).rounds == 3
    assert [(number, stage) for number, _, stage in refusals(tmp_path)] == [(2, "limit")] * 2


def test_a_run_resumes_with_the_norms_it_had(tmp_path: Path) -> None:
    whole = spoilt(tmp_path / "whole", 300.0, 3)
    saved = newest(tmp_path / "whole" / "rounds")
    assert saved is not None
    assert saved.progress.norms["Up.params"] and len(saved.progress.norms["Up.params"]) == 4
    spoilt(tmp_path / "cut", 300.0, 3)
    for path in (tmp_path / "cut" / "rounds" / "000004").iterdir():
        path.unlink()
    again = spoilt(tmp_path / "cut", 300.0, 3, resume=True)
    assert again.state_hash == whole.state_hash
    assert lines(tmp_path / "cut" / "events.jsonl") == lines(tmp_path / "whole" / "events.jsonl")


def test_protection_is_part_of_the_identity_only_if_changed() -> None:
    usual = run_of().identity
    others = [{"reply_limit": 0.0}, {"weight_cap": 2.0}, {"aggregate": "median"}]
    assert len({usual, *(run_of(**each).identity for each in others)}) == 4
    assert run_of(eval_every=7).identity == usual
