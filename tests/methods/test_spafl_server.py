"""SpaFL's server: who is told what, what clients do with it, and what they are tested with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from spafl_cases import Told, again, data, followed, kept, masks_of, toy, up, weights
from torch import Tensor

import gossamer as gs
from gossamer import Client, Ctx, Exchange, Key, Params, Result, Task
from gossamer.accounting import paper_bits, paper_rows
from gossamer.engine.client import train
from gossamer.methods.spafl import Local, SpaFL, Up, Work, by_layer, pruned
from gossamer.wire import HEADER, PLAIN, Mode, Schema, WireError, decode, dump, encode
from helpers import Toy, client_ctx, conv, linear, mlp, normed, same, server_ctx

TASKS = {"mlp": mlp(), "normed": normed(), "conv": conv()}


SCRIPT: list[tuple[set[int], set[int]]] = [
    ({0, 1}, set()),
    ({1}, set()),
    (set(), set()),
    ({2, 3}, {2}),
    ({0, 2}, set()),
    ({9}, set()),
    ({4}, {4}),
    ({1, 9}, {9}),
    ({0}, set()),
]
"""Clients that are asked, and those of them whose replies are refused, by round."""


# what is told -----------------------------------------------------------------------------------


def test_a_client_is_told_exactly_what_it_has_not_heard() -> None:
    run = Told(toy(), linear())
    everything = [torch.zeros(3)]
    for clients, refused in SCRIPT:
        knew = dict(run.last)
        run.next(clients, refused)
        for id, down in run.downs.items():
            assert torch.equal(down.thresholds, everything[-1])
            unheard = everything[knew.get(id, 0) + 1 : -1]
            assert down.missed.shape == (len(unheard), 3)
            assert all(map(torch.equal, down.missed, unheard))
        if clients - refused:
            everything.append(run.server.history[-1])
        assert torch.equal(run.server.history, torch.stack(everything))
        for id in range(12):
            seen = int(run.server.seen[id]) if id < len(run.server.seen) else -1
            assert seen == (run.last[id] + 1 if id in run.last else -1)
    assert len(everything) == 1 + 7  # neither the empty round nor the refused one counts


@pytest.mark.parametrize("mode", [PLAIN, Mode.parse("f16")], ids=str)
@pytest.mark.parametrize("changes", [{}, {"weight_start": "seed"}], ids=["spafl", "variants"])
def test_messages_hold_thresholds_and_nothing_else(mode: Mode, changes: dict[str, Any]) -> None:
    for name, count in (("mlp", 8 + 3), ("normed", 8 + 3), ("conv", 4 + 6 + 2)):
        run = Told(toy(**changes), TASKS[name])
        for clients, missed in (((0, 1), 0), ((1,), 0), ((1,), 0), ((0, 1, 5), None)):
            run.next(clients)
            for id, down in run.downs.items():
                unheard = {0: 2, 1: 0, 5: 2}[id] if missed is None else missed
                data = encode(down, mode=mode)
                assert len(data) == HEADER + 4 * count * (1 + unheard)
                again = decode(data, Schema.of(down), mode)
                assert torch.equal(again.thresholds, down.thresholds)  # not even rounded
                assert torch.equal(again.missed, down.missed)
                answer = up(down, torch.rand(count))
                sent = encode(answer, mode=mode, reference=down)
                assert len(sent) == HEADER + 4 * count
                got = decode(sent, Schema.of(answer), mode, reference=down)
                assert torch.equal(got.thresholds, answer.thresholds)
                assert paper_bits(down, run.method.accounting) == 32 * count
                assert paper_bits(answer, run.method.accounting) == 32 * count


@pytest.mark.parametrize("changes", [{}, {"weight_start": "seed"}], ids=["spafl", "variants"])
def test_a_reply_of_another_shape_is_refused(changes: dict[str, Any]) -> None:
    method, task = toy(**changes), linear()
    ctx = server_ctx(task)
    server = method.init(ctx)
    down = method.down(ctx, server, Client(0, 20))
    odd_ones = [up(down, torch.zeros(1))]
    if changes:
        odd_ones.append(replace(up(down, torch.zeros(3)), norm={"bias": torch.zeros(3)}))
    for odd in odd_ones:
        with pytest.raises(WireError):
            method.merge(ctx, server, [Exchange(Client(0, 20), down, odd)])
    for fine in method.replies(ctx, down):
        assert len(method.merge(ctx, server, [Exchange(Client(0, 20), down, fine)]).history) == 2


@dataclass(frozen=True)
class OneIsBroken(SpaFL):
    """The client with 21 examples sends too few thresholds."""

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        done = super().finish(ctx, work)
        if len(ctx.own.train) != 21:
            return done
        return replace(done, up=Up(done.up.thresholds[:-1]))


def test_a_run_goes_on_without_refused_replies() -> None:
    method = OneIsBroken(**vars(toy(clients=3)))
    found = gs.run(method, mlp(), Toy(3), rounds=3, options=gs.Options(eval_every=0))
    assert found.failed == 3
    assert found.state.history.shape == (4, 11)
    assert found.state.seen.tolist() == [3, -1, 3]


def test_the_mean_may_be_weighted_by_examples() -> None:
    method, task = toy(weighting="samples"), linear()
    ctx = server_ctx(task)
    server = method.init(ctx)
    down = method.down(ctx, server, Client(0, 30))
    sent = {30: torch.tensor([0.1, 0.2, 0.3]), 10: torch.tensor([0.5, 0.2, 0.7])}
    answers = [Exchange(Client(n, n), down, up(down, tau)) for n, tau in sent.items()]
    found = method.merge(ctx, server, answers).history[-1]
    torch.testing.assert_close(found, torch.tensor([0.2, 0.2, 0.4]))


# what clients make of it ------------------------------------------------------------------------


@pytest.mark.parametrize("name", TASKS)
def test_nothing_moves_before_the_first_aggregation(name: str) -> None:
    run = Told(toy(), TASKS[name])
    first = run.task.init(run.ctx.common.fold("init"))
    assert same(run.work(0, None).model.params, first)
    assert same(run.model(None), first)


def by_formula(task: Task, before: Params, old: Tensor, new: Tensor) -> Params:
    """A client's model after one broadcast, by the formula of section 2.4."""
    found = dict(before)
    changes, now = by_layer(task.layout, new - old), by_layer(task.layout, new)
    for name in task.layout.prunable:
        weight = before[name]
        shape = (-1, *[1] * (weight.dim() - 1))
        sign = weight.flatten(1).sum(1).sign()
        moved = weight - (sign * changes[name] / weight[0].numel()).view(shape)
        assert not torch.equal(moved, weight)
        found[name] = moved.clamp(-1, 1) * (moved.abs() > now[name].view(shape))
    return found


@pytest.mark.parametrize("name", TASKS)
def test_clients_that_were_not_sampled_change_through_importance_alone(name: str) -> None:
    run = Told(toy(), TASKS[name])
    run.next([1])
    first = run.task.init(run.ctx.common.fold("init"))
    wanted = by_formula(run.task, first, torch.zeros_like(run.server.history[0]), run.now)
    torch.testing.assert_close(run.model(None), wanted, rtol=0, atol=1e-6)
    local = train(run.method, run.ctx, run.down(0), None).result.local
    assert local is not None
    run.next([1])
    wanted = by_formula(run.task, local.params, local.known, run.now)
    torch.testing.assert_close(run.model(local), wanted, rtol=0, atol=1e-6)
    dense = [each for each in wanted if each not in run.task.layout.prunable]
    assert all(torch.equal(run.model(local)[each], local.params[each]) for each in dense)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"importance_rule": "xor01"},
        {"importance_rule": "xorpm", "importance_divisor": "kernel"},
        {"clamp": False, "importance_divisor": "kernel"},
        {"structured": True},
    ],
    ids=["default", "xor01", "xorpm", "unclamped", "structured"],
)
@pytest.mark.parametrize("name", TASKS)
def test_a_test_after_missed_rounds_shows_what_the_client_will_begin_with(
    name: str, changes: dict[str, Any]
) -> None:
    """Bit for bit, and as if it had received every broadcast when it was sent."""
    task, method = TASKS[name], toy(reset_density=0.0, **changes)
    run = Told(method, task)
    run.next([0, 1, 2])
    run.next([0, 1])
    local = again(train(method, run.ctx, run.down(0), None).result.local)
    received, known = local.params, local.known
    run.next([0, 1, 3])
    for missed in range(5):
        step = torch.stack([known, run.now])
        received = followed(method, task, received, step)
        known = run.now
        down, model = run.down(0), run.model(local)
        assert len(down.missed) == missed
        work = run.work(0, local)
        masks = {each: mask.float() for each, mask in work.model.masks.items()}
        assert any((mask == 0).any() for mask in masks.values())
        assert same(model, pruned(weights(work), masks))
        for each, tensor in received.items():
            torch.testing.assert_close(weights(work)[each], tensor, rtol=0, atol=1e-6)
        run.next([1, 2])


def test_a_client_that_lost_its_state_starts_again() -> None:
    """It is told what it missed since it was last heard, and goes from no threshold to these."""
    run = Told(toy(), mlp())
    for clients in ([0], [1], [1], [1]):
        run.next(clients)
    down = run.down(0)
    assert torch.equal(down.missed, run.server.history[1:-1])  # it was heard in the first round
    work = run.work(0, None)
    first = run.task.init(run.ctx.common.fold("init"))
    versions = torch.cat([torch.zeros(1, 11), down.missed, down.thresholds[None]])
    wanted = followed(run.method, run.task, first, versions)
    assert same(weights(work), wanted)
    assert torch.equal(work.known, run.server.history[-1])


# clients that hear of thresholds only when they train -------------------------------------------


def test_unavailable_clients_count_change_from_what_they_heard_last() -> None:
    run = Told(toy(downlink="sampled"), mlp())
    local, first = None, run.task.init(run.ctx.common.fold("init"))
    assert same(run.work(0, None).model.params, first)
    for clients in ([0, 1], [1], [1, 2], [0]):
        if 0 in clients:
            down = run.down(0)
            assert len(down.missed) == 0 and len(encode(down)) == HEADER + 4 * 11
            before = (local.params, local.known) if local else (first, torch.zeros(11))
            versions = torch.stack([before[1], down.thresholds])
            wanted = followed(run.method, run.task, before[0], versions)
            assert same(run.work(0, local).model.params, wanted)
            local = train(run.method, run.ctx, down, local).result.local
            assert torch.equal(local.known, down.thresholds)
        run.next(clients)
        assert len(run.server.history) == 2
    assert local is not None and not torch.equal(local.known, torch.zeros(11))


def test_unavailable_clients_may_be_told_the_last_step_of_the_server() -> None:
    run = Told(toy(downlink="sampled", delta_ref="last-server-step"), mlp())
    first = run.task.init(run.ctx.common.fold("init"))
    assert len(run.down(0).missed) == 0  # no step yet
    assert same(run.work(0, None).model.params, first)
    run.next([0, 1])
    run.next([1])
    local = kept(run.method, run.ctx, first, torch.full((11,), 0.5))
    run.next([1])
    down = run.down(0)
    assert torch.equal(down.missed, run.server.history[-2:-1])
    assert len(encode(down)) == HEADER + 2 * 4 * 11
    assert paper_bits(down, run.method.accounting) == 32 * 11
    wanted = followed(run.method, run.task, first, run.server.history[-2:])
    for held in (local, None):
        assert same(run.work(0, held).model.params, wanted)
    assert not same(wanted, first)


@pytest.mark.parametrize("delta_ref", ["last-received", "last-server-step"])
def test_unavailable_clients_are_tested_with_what_they_have(delta_ref: str) -> None:
    run = Told(toy(downlink="sampled", delta_ref=delta_ref), mlp())
    run.next([0])
    local = train(run.method, run.ctx, run.down(0), None).result.local
    assert local is not None and not torch.equal(local.own, local.known)
    masks = masks_of(run.method, run.task, local.params, local.own)
    for _ in range(3):
        run.next([1])
        assert same(run.model(local), pruned(local.params, masks))
    first = run.task.init(run.ctx.common.fold("init"))
    assert same(run.model(None), first)


# what is tested, shared and sent ----------------------------------------------------------------


def test_clients_may_be_tested_before_they_hear_of_new_thresholds() -> None:
    """Who trained, with its own; who did not, with those of the round's start."""
    after, before = toy(eval_point="after"), toy(eval_point="before")
    run = Told(before, mlp())
    first = run.task.init(run.ctx.common.fold("init"))
    assert same(run.model(None), first)
    run.next([0])
    assert same(run.model(None), first)
    local = train(before, run.ctx, run.down(0), None).result.local
    assert local is not None
    run.next([0])
    own = masks_of(before, run.task, local.params, local.own)
    assert same(run.model(local), pruned(local.params, own))
    for _ in range(2):
        earlier = run.server
        run.next([1])
        wanted = after.model(server_ctx(run.task), earlier, local)
        assert same(run.model(local), wanted)
        assert not same(run.model(local), after.model(server_ctx(run.task), run.server, local))
        assert same(run.model(None), after.model(server_ctx(run.task), earlier, None))


NORMS = {"0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var", "4.bias"}


@pytest.mark.parametrize("downlink", ["all", "sampled"])
def test_biases_and_norms_may_be_shared(downlink: str) -> None:
    method, task = toy(share_norm=True, downlink=downlink), normed()
    ctx = server_ctx(task)
    server = method.init(ctx)
    first = task.init(ctx.common.fold("init"))
    down = method.down(ctx, server, Client(0, 20))
    assert set(down.norm) == NORMS and same(down.norm, {n: first[n] for n in down.norm})
    own = [client_ctx(task, Toy().make(Key(id), 20)) for id in range(2)]
    done = [train(method, each, down, None).result for each in own]
    assert all(set(result.up.norm) == NORMS for result in done)
    server = method.merge(
        ctx, server, [Exchange(Client(id, 20), down, each.up) for id, each in enumerate(done)]
    )
    for name in NORMS:
        one, two = (result.up.norm[name] for result in done)
        torch.testing.assert_close(server.norm[name], (one + two) / 2)
    told = method.down(ctx, server, Client(0, 20))
    assert same(told.norm, server.norm)
    model = method.model(ctx, server, done[0].local)
    shared = server.norm if downlink == "all" else done[0].up.norm  # as far as it has come
    assert same({n: model[n] for n in server.norm}, {n: shared[n] for n in server.norm})
    work = method.begin(own[0], told, done[0].local).work
    assert same({n: weights(work)[n] for n in server.norm}, server.norm)
    early = replace(method, eval_point="before").model(ctx, server, done[0].local)
    assert same({n: early[n] for n in server.norm}, {n: done[0].up.norm[n] for n in server.norm})


def test_nothing_but_thresholds_is_shared_otherwise() -> None:
    method, task = toy(share_norm=False), normed()
    done = train(method, client_ctx(task, data(task)), Told(method, task).down(0), None).result
    assert done.up.norm == {} and method.init(server_ctx(task)).norm == {}


@pytest.mark.parametrize("downlink", ["all", "sampled"])
def test_first_weights_may_be_sent_once_to_each_client(downlink: str) -> None:
    run = Told(toy(weight_start="sent", downlink=downlink), normed())
    weights = run.task.init(run.ctx.common.fold("init"))
    scalars = sum(tensor.numel() for tensor in weights.values())
    for clients, new in (([0], {0}), ([0, 1], {1}), ([1], set()), ([0, 7], {7})):
        run.next(clients)
        for id, down in run.downs.items():
            assert same(down.start, weights if id in new else {})
            sent = 4 * 11 * (1 + len(down.missed)) + (4 * scalars if id in new else 0)
            assert len(encode(down)) == HEADER + sent
            assert paper_bits(down, run.method.accounting) == 32 * 11
            assert {leaf for leaf, bits in paper_rows(down, run.method.accounting) if bits} == {
                "thresholds"
            }


def test_first_weights_that_were_sent_are_those_that_are_trained() -> None:
    run = Told(toy(weight_start="sent"), mlp())
    down = run.down(0)
    doubled = {name: 2 * tensor for name, tensor in down.start.items()}
    work = run.method.begin(run.ctx, replace(down, start=doubled), None).work
    assert same(weights(work), doubled)
    assert dump(weights(run.method.begin(run.ctx, down, None).work)) == dump(
        weights(toy().begin(run.ctx, replace(down, start={}), None).work)
    )
