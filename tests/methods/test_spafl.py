"""SpaFL's clients: what moves when, what the options change, and what is kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from spafl_cases import (
    TAU,
    again,
    copy,
    data,
    exact,
    feed,
    kept,
    layer,
    spafl,
    start,
    state,
    tell,
    told,
    toy,
    watched,
    weights,
)

from gossamer import Batch, Key
from gossamer.engine.client import train
from gossamer.wire import dump
from helpers import client_ctx, conv, mlp, normed, same

TASKS = {"mlp": mlp(), "normed": normed(), "conv": conv()}


# what moves when --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes", [{}, {"momentum_state": "reset"}, {"momentum_state": "persist"}], ids=str
)
@pytest.mark.parametrize("structured", [False, True])
@pytest.mark.parametrize("name", TASKS)
def test_weights_train_under_their_mask_and_then_thresholds_alone(
    name: str, structured: bool, changes: dict[str, Any]
) -> None:
    """Masked weights keep every bit, and no momentum carries on what is at rest."""
    task = TASKS[name]
    method = toy(structured=structured, **changes)
    ctx = client_ctx(task, data(task))
    stages = watched(method, ctx, tell(told(task, method)), None)
    _, work = next(stages)
    before, thresholds = copy(weights(work)), work.thresholds.clone()
    masks = {each: mask.clone() for each, mask in work.model.masks.items()}
    assert any(not mask.all() and mask.any() for mask in masks.values())
    kinds = []
    for kind, work in stages:
        kinds.append(kind)
        if kind == "weights":
            assert torch.equal(work.thresholds, thresholds)
            for each, mask in masks.items():
                assert torch.equal(work.model.masks[each], mask)
                assert torch.equal(weights(work)[each][~mask], before[each][~mask])
                assert not torch.equal(weights(work)[each][mask], before[each][mask])
            trained = copy(weights(work))
        else:
            assert not torch.equal(work.thresholds, thresholds)
            thresholds = work.thresholds.clone()
            for each in task.layout.parameters:
                assert torch.equal(weights(work)[each], trained[each])
        assert work.thresholds.min() >= 0 and work.thresholds.max() <= 1
        assert all(weights(work)[each].abs().max() <= 1 for each in masks)
    assert kinds == ["weights"] * 6 + ["thresholds"] * 3
    for each in task.layout.buffers:  # batch statistics are still gathered
        assert not torch.equal(weights(work)[each], trained[each])
    for each in task.layout.dense:
        if each != "0.bias" or name != "normed":  # which batch normalisation takes away again
            assert not torch.equal(weights(work)[each], before[each])


def test_a_mask_of_the_last_epoch_follows_the_thresholds() -> None:
    method = spafl(alpha=0.0, lr=1.0)
    ctx, work = start(method, layer(), exact(TAU))
    feed(method, ctx, work, [2], per_epoch=2)
    assert work.model.masks["weight"].tolist() == [[True, True, False], [True, False, True]]
    feed(method, ctx, work, [3], per_epoch=2)  # thresholds were .19 and .67
    assert work.model.masks["weight"].tolist() == [[True, True, False], [False, False, False]]


def test_masks_that_are_declared_are_those_that_weights_were_trained_with() -> None:
    method = spafl(alpha=0.0, lr=1.0)
    ctx, work = start(method, layer(), exact(TAU))
    active = work.model.masks["weight"].clone()
    feed(method, ctx, work, [2, 3], per_epoch=2)
    done = method.finish(ctx, work)
    assert torch.equal(done.masks["weight"], active)
    assert done.metrics["layer_density"] == pytest.approx(2 / 3)
    assert done.metrics["threshold.weight"] == pytest.approx(float(work.thresholds.mean()))


@pytest.mark.parametrize(
    ("refresh", "follows"),
    [("round", [False, False]), ("first-epoch", [True, False]), ("batch", [True, True])],
)
def test_masks_in_weight_epochs_are_renewed_when_asked_for(
    refresh: str, follows: list[bool]
) -> None:
    """A weight that falls below its threshold leaves at once, in the first epoch, or next round."""
    for epoch, wanted in enumerate(follows):
        method = spafl(mask_refresh=refresh)
        ctx, work = start(method, layer([[0.5, 0.3]], (1.0,)), exact([0.2]))
        weights(work)["weight"][0, 1] = 0.1  # as if trained
        place = (2 * epoch, 6, epoch, 3.0, 2)
        batch = Batch(exact([[0.1, 0.2]]), torch.zeros(1, dtype=torch.int64), Key(0), *place)
        method.step(ctx, work, batch)
        assert work.model.masks["weight"].tolist() == [[True, not wanted]]
        assert work.active is work.model.masks


def test_biases_and_norms_train_in_the_last_epoch_when_asked_for() -> None:
    """All that has no threshold does; momentum of weights at rest stays as it is."""
    task, method = normed(), toy(norm_in_tau_epoch=True)
    ctx = client_ctx(task, data(task))
    for kind, work in watched(method, ctx, tell(told(task, method)), None):
        if kind == "weights":
            trained = copy(weights(work))
    for name, leaf in task.layout.leaves.items():
        if name != "0.bias":  # which batch normalisation takes away again
            assert torch.equal(weights(work)[name], trained[name]) == leaf.prunable


def test_everything_trains_at_once_when_joint() -> None:
    task, method = mlp(), toy(phases="joint", epochs=1.0)
    ctx = client_ctx(task, data(task))
    stages = watched(method, ctx, tell(told(task, method)), None)
    _, work = next(stages)
    before, thresholds = copy(weights(work)), work.thresholds.clone()
    next(stages)
    assert not torch.equal(work.thresholds, thresholds)
    for name in task.layout.parameters:
        assert not torch.equal(weights(work)[name], before[name])


def test_overwritten_weights_are_lost_when_weights_train_and_only_then() -> None:
    method = spafl(overwrite_masked=True, lr=0.5, alpha=0.0)
    ctx, work = start(method, layer(), exact(TAU))
    assert torch.equal(weights(work)["weight"], state(layer())["weight"])
    feed(method, ctx, work, [1], per_epoch=1)
    feed(method, ctx, work, [1], per_epoch=1)  # more is masked now, and still there
    assert torch.equal(weights(work)["weight"], state(layer())["weight"])
    assert work.model.masks["weight"].tolist()[1] == [False, False, True]


@pytest.mark.parametrize("clip", [0.05, 100.0])
def test_clipping_takes_weights_and_thresholds_together(clip: float) -> None:
    plain, clipped = spafl(phases="joint", alpha=0.0), spafl(phases="joint", alpha=0.0, clip=clip)
    moves = []
    for method in (plain, clipped):
        ctx, work = start(method, layer(), exact(TAU))
        feed(method, ctx, work, [0])
        moves.append(
            torch.cat(
                [
                    weights(work)["weight"].flatten() - state(layer())["weight"].flatten(),
                    work.thresholds - exact(TAU),
                ]
            )
        )
    norm = float(moves[0].norm()) / 0.1
    wanted = moves[0] * min(1.0, clip / (norm + 1e-6))
    torch.testing.assert_close(moves[1], wanted, rtol=1e-6, atol=1e-9)
    assert (norm > clip) == (clip == 0.05)


def test_weight_decay_leaves_masked_weights_alone() -> None:
    method = spafl(weight_decay=0.5)
    ctx, work = start(method, layer(), exact(TAU))
    feed(method, ctx, work, [0])
    wanted = [[0.49 - 0.025, -0.22 + 0.01, 0.1], [-0.38 + 0.02, 0.3, -0.54 + 0.03]]
    torch.testing.assert_close(weights(work)["weight"], exact(wanted), rtol=0, atol=1e-8)


# what is kept -----------------------------------------------------------------------------------


def test_momentum_begins_anew_or_is_kept() -> None:
    task = conv()
    ctx = client_ctx(task, data(task))
    for momentum_state in ("reset", "persist"):
        method = toy(momentum_state=momentum_state, norm_in_tau_epoch=True)
        down = tell(told(task, method))
        first = train(method, ctx, down, None).result
        assert first.local is not None
        keeps = momentum_state == "persist"
        assert set(first.local.velocity) == (set(task.layout.parameters) if keeps else set())
        assert len(first.local.pace) == (len(down.thresholds) if keeps else 0)
        second = train(method, ctx, down, again(first.local)).result
        without = replace(first.local, velocity={}, pace=torch.zeros(0))
        other = train(method, ctx, down, again(without)).result
        assert same(second.local.params, other.local.params) != keeps
        assert torch.equal(second.up.thresholds, other.up.thresholds) != keeps


def test_kept_momentum_goes_on_where_it_stopped() -> None:
    """Two jobs are one long one, where nothing comes in between: as torch's optimiser has it."""
    method = spafl(momentum=0.9, momentum_state="persist", phases="joint", alpha=0.0)
    ctx, work = start(method, layer(), exact(TAU))
    feed(method, ctx, work, [0, 1])
    local = method.finish(ctx, work).local
    assert local is not None
    local = replace(local, known=work.thresholds)
    second = method.begin(ctx, tell(work.thresholds), local).work
    feed(method, ctx, second, [0])
    ctx, whole = start(method, layer(), exact(TAU))
    feed(method, ctx, whole, [0, 1, 0])
    assert torch.equal(second.model.params["weight"], whole.model.params["weight"])
    assert torch.equal(second.thresholds, whole.thresholds)


def test_momentum_may_be_kept_of_a_part_of_the_weights() -> None:
    """A job cut short before its weights were trained has momentum of biases alone."""
    task = normed()
    method = toy(momentum_state="persist", norm_in_tau_epoch=True)
    ctx = client_ctx(task, data(task))
    down = tell(told(task, method))
    job = method.begin(ctx, down, None)
    examples = ctx.own.train
    method.step(ctx, job.work, Batch(examples.x, examples.y, Key(0), 0, 1, 0, 0.1, 3))
    local = method.finish(ctx, job.work).local
    assert local is not None and set(local.velocity) == set(task.layout.dense)
    done = train(method, ctx, down, local).result
    assert set(done.local.velocity) == set(task.layout.parameters)


@pytest.mark.parametrize("name", TASKS)
def test_a_client_changes_nothing_that_it_was_given(name: str) -> None:
    task, method = TASKS[name], toy(momentum_state="persist")
    ctx = client_ctx(task, data(task))
    down = tell(told(task, method), told(task, method, 0.5))
    local = train(method, ctx, down, None).result.local
    before = dump(local), dump(down)
    train(method, ctx, down, local)
    assert (dump(local), dump(down)) == before


@pytest.mark.parametrize("name", TASKS)
def test_no_importance_is_the_default_with_changes_forced_to_zero(name: str) -> None:
    task = TASKS[name]
    ctx = client_ctx(task, data(task))
    plain, without = toy(), toy(importance=False)
    local = None
    for value, missed in ((0.5, 0.2), (1.0, 2.0)):
        down = tell(told(task, plain, value), told(task, plain, missed))
        skipped = train(without, ctx, down, local).result
        held = local or kept(plain, ctx, task.init(ctx.common.fold("init")), down.thresholds)
        still = replace(held, known=down.thresholds)
        forced = train(plain, ctx, tell(down.thresholds), still).result
        assert dump(skipped) == dump(forced)
        changed = train(plain, ctx, down, local).result
        assert dump(skipped.up) != dump(changed.up)
        local = skipped.local
