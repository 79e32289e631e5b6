"""The client of methods with masks: what a step leaves alone, and what a mask update does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import pytest
import torch
from flash_cases import equal, net, total, zero_outside
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gossamer import Batch, Client, Ctx, Examples, Job, Key, Masks, Task, Training, sparsity
from gossamer.conformance.toys import Tiny
from gossamer.engine.client import batches
from gossamer.methods.as_published import mask_learning
from gossamer.methods.as_published.mask_learning import Learning
from gossamer.methods.flash import Flash
from gossamer.methods.parts import mask_learning as paper
from gossamer.methods.parts import masked_training, sparse_model
from gossamer.methods.parts.masked_training import Work
from gossamer.wire import WireError
from helpers import client_ctx, server_ctx

TASKS = {"plain": net(), "normed": net(norm=True)}
PICTURES = Tiny().client(3).train


@dataclass(frozen=True)
class Case:
    """A sparse model and how it is trained."""

    task: Task
    training: Training
    learning: Learning
    prune_rate: float
    density: float
    group: int
    moves: bool
    seed: int

    @property
    def ctx(self) -> Ctx:
        return client_ctx(self.task, PICTURES, seed=self.seed)

    @property
    def exact(self) -> bool:
        return bool(self.group) or (self.learning.exact and self.learning.growth != "bernoulli")

    def begin(self) -> Work:
        layout, key = self.task.layout, Key(self.seed)
        counts = sparsity.apportion(layout, sparsity.uniform(layout, self.density))
        if self.group:
            masks = sparsity.random_groups(key, layout, counts, self.group)
        else:
            masks = sparsity.random_masks(key, layout, counts)
        params = sparsity.masked(self.task.init(key), masks)
        return masked_training.begin(self.ctx, params, masks, self.training.lr)

    def steps(self, intended: int | None = None) -> Iterator[tuple[Batch, Work]]:
        work = mask_learning.Work(self.begin(), self.moves, intended=intended)
        how = (self.training, self.learning, work)
        for batch in batches(self.ctx, Job(work, self.training.epochs, self.training.batch)):
            mask_learning.step(self.ctx, *how, batch, self.prune_rate, self.group)
            yield batch, work.model


def case(task: str = "plain", moves: bool = True, group: int = 0, **changes: Any) -> Case:
    """Two epochs of three batches, with momentum and weight decay."""
    training = Training(batch=8, lr=0.1, momentum=0.9, weight_decay=0.01, epochs=2.0)
    names = [name for name in changes if name in Training.__dataclass_fields__]
    training = replace(training, **{name: changes.pop(name) for name in names})
    rate, density = changes.pop("prune_rate", 0.25), changes.pop("density", 0.3)
    return Case(TASKS[task], training, Learning(**changes), rate, density, group, moves, 1)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    training = Training(
        epochs=draw(st.sampled_from([1.0, 2.0, 2.5])),
        batch=draw(st.sampled_from([5, 8, 30])),
        lr=0.1,
        momentum=draw(st.sampled_from([0.0, 0.9])),
        weight_decay=draw(st.sampled_from([0.0, 0.1])),
    )
    rate = draw(st.floats(0, 1, width=32))
    learning = Learning(
        prune_decay=draw(st.sampled_from(["constant", "linear", "cosine"])),
        update_at=draw(st.sampled_from(["middle", "end"] if training.epochs > 1 else ["middle"])),
        exact=draw(st.booleans()),
        redistribution=draw(st.sampled_from(["magnitude", "momentum", "none"])),
        growth=draw(st.sampled_from(["random", "bernoulli", "momentum", "gradient"])),
        momentum_of_inactive=draw(st.booleans()),
    )
    if "momentum" in (learning.redistribution, learning.growth):
        training = replace(training, momentum=0.9)
        learning = replace(learning, momentum_of_inactive=True)
    learning.check(training, rate)
    return Case(
        TASKS[draw(st.sampled_from(sorted(TASKS)))],
        training,
        learning,
        rate,
        draw(st.sampled_from([0.02, 0.2, 0.6, 1.0])),
        draw(st.sampled_from([0, 0, 4])),
        draw(st.booleans()),
        draw(st.integers(0, 2**16)),
    )


# what every step leaves -------------------------------------------------------------------------


@settings(max_examples=60)
@given(cases())
def test_masked_weights_are_zero_and_counts_are_kept_after_every_step(case: Case) -> None:
    start = case.begin()
    assert not start.params["2.weight"].is_contiguous()  # channels are last
    for _, work in case.steps():
        assert zero_outside(work.params, work.masks)
        assert equal(work.factors, {name: mask.float() for name, mask in work.masks.items()})
        if not case.moves:
            assert equal(work.masks, start.masks)
        if case.exact:
            assert total(work.masks) == total(start.masks)
        if case.group:
            now, then = (sparsity.group_counts(each.masks, case.group) for each in (work, start))
            assert equal(now, then)
        if not (case.moves and case.learning.momentum_of_inactive):
            velocity = masked_training.momentum(case.ctx, work)
            assert set(velocity) == (set(work.masks) if case.training.momentum else set())
            assert zero_outside(velocity, {name: work.masks[name] for name in velocity})
    assert equal(work.start, start.masks)
    sent = sparse_model.send(case.ctx, work.params, work.masks)
    assert equal(sparse_model.receive(case.ctx, sent, work.masks), work.params)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.9, 0.0), (0.9, 0.1), (0.0, 0.1)])
def test_masking_gradients_is_a_dense_step_masked_again(
    task: str, momentum: float, decay: float
) -> None:
    """Section 1.3 of the specification; momentum and decay as torch has them."""
    found = case(task, moves=False, momentum=momentum, weight_decay=decay)
    work = found.begin()
    params = {name: tensor.clone() for name, tensor in work.params.items()}
    velocity = {name: torch.zeros_like(params[name]) for name in found.task.layout.parameters}
    for batch, step in found.steps():
        for name, grad in found.task.gradients(params, batch).grads.items():
            velocity[name] = momentum * velocity[name] + grad + decay * params[name]
            params[name] -= found.training.lr * velocity[name]
            if name in step.masks:
                params[name] *= step.masks[name]
                assert velocity[name][~step.masks[name]].any()
        for name, tensor in params.items():
            torch.testing.assert_close(step.params[name], tensor)


# mask updates -----------------------------------------------------------------------------------


def updated(found: Case) -> tuple[Masks, Batch, Work]:
    """The first mask update: masks before, the batch, and the work after it."""
    before = found.begin().masks
    for batch, work in found.steps():
        if work.masks is not work.start and not equal(work.masks, before):
            return before, batch, work
    raise AssertionError("masks never moved")


def stopped(found: Case, step: int) -> Work:
    """The work after a step; it goes on changing if the job goes on."""
    return next(work for batch, work in found.steps() if batch.step == step)


def fresh(work: Work) -> Masks:
    """Weights that a mask update just grew: active and zero."""
    return {name: mask & (work.params[name] == 0) for name, mask in work.masks.items()}


@pytest.mark.parametrize("task", TASKS)
def test_momentum_begins_anew_where_weights_were_pruned_or_grown(task: str) -> None:
    found = case(task)
    before, _, work = updated(found)
    momentum = masked_training.momentum(found.ctx, work)
    assert set(momentum) == set(work.masks)
    for name, velocity in momentum.items():
        pruned, grown = before[name] & ~work.masks[name], fresh(work)[name]
        lives = work.masks[name] & ~grown
        assert pruned.any() and grown.any() and lives.any()
        assert not velocity[pruned].any() and not velocity[grown].any()
        assert velocity[lives].all()


def test_momentum_of_masked_weights_may_live_on() -> None:
    found = case(momentum_of_inactive=True)
    before, _, work = updated(found)
    for name, velocity in masked_training.momentum(found.ctx, work).items():
        pruned, grown = before[name] & ~work.masks[name], fresh(work)[name]
        assert velocity[pruned].all() and velocity[grown].any()
        assert velocity[~work.masks[name]].any()


def test_weights_grow_where_the_gradient_is_largest() -> None:
    """The gradient after the step, on the same batch."""
    found = case("normed", growth="gradient", epochs=1.0)
    _, batch, work = updated(found)
    unmoved = stopped(replace(found, moves=False), batch.step)
    grads = found.task.gradients(unmoved.params, batch).grads
    for name, grown in fresh(work).items():
        rest = ~work.masks[name]
        assert grown.any() and grads[name].abs()[grown].min() >= grads[name].abs()[rest].max()


def test_looking_at_gradients_leaves_running_statistics_alone() -> None:
    looks, draws = (case("normed", growth=growth, epochs=1.0) for growth in ("gradient", "random"))
    _, batch, work = updated(looks)
    plain = stopped(draws, batch.step)
    for name in looks.task.layout.buffers:
        assert torch.equal(work.params[name], plain.params[name])
        assert not torch.equal(work.params[name], looks.begin().params[name])


def test_masks_of_one_epoch_move_once_and_what_was_grown_trains_before_it_travels() -> None:
    moved = [equal(work.masks, work.start) for _, work in case(epochs=1.0).steps()]
    assert moved == [True, False, False]
    *_, (_, work) = case(epochs=1.0).steps()
    assert not any(grown.any() for grown in fresh(work).values())


def test_masks_may_move_at_the_end_of_every_epoch() -> None:
    found = case(update_at="end", prune_decay="constant")
    seen = [work.masks for _, work in found.steps()]
    changes = [not equal(*pair) for pair in zip([found.begin().masks, *seen], seen, strict=False)]
    assert changes == [False, False, True, False, False, True]
    *_, (_, work) = found.steps()
    assert all(grown.any() for grown in fresh(work).values())  # they travel as zeros


def test_masks_that_do_not_move_have_nothing_to_tell_but_the_loss() -> None:
    *_, (_, work) = case(moves=False).steps()
    assert set(masked_training.metrics(work)) == {"loss"}
    *_, (_, work) = case().steps()
    told = masked_training.metrics(work, moved=True)
    assert told["moved"] == sparsity.mismatch(work.start, work.masks) > 0
    dense = sparsity.layer_densities(work.masks)
    assert {name: told[f"sensitivity.{name}"] for name in dense} == {
        name: float(share) for name, share in dense.items()
    }


@pytest.mark.parametrize("group", [0, 4])
@pytest.mark.parametrize("task", TASKS)
def test_without_other_readings_it_is_the_papers_mask_learning(task: str, group: int) -> None:
    found = case(task, group=group)
    work = found.begin()
    for batch, other in found.steps():
        paper.step(found.ctx, found.training, work, batch, 0.25, group)
        assert equal(work.params, other.params) and equal(work.masks, other.masks)
    assert not equal(work.masks, work.start)


# rates ------------------------------------------------------------------------------------------


def grown(batches_of_epoch: int, kept: int, epochs: float, probe: bool) -> list[tuple[int, int]]:
    """One layer of 10,000 weights in FLASH's hands: when it grows weights, and how many."""
    task = Task.of(nn.Linear(100, 100, bias=False), torch.zeros(2, 100), start="seed")
    density = kept / 10_000
    method = Flash(
        training=replace(Flash().training, batch=2, epochs=epochs),
        density=density,
        allocation="sensitivity" if probe else "uniform",
        mask_every=1,
        probe_epochs=epochs,
    )
    count = 2 * batches_of_epoch
    x = torch.randn(count, 100, generator=Key(2).generator())
    data = Examples(x, torch.arange(count) % 100)
    server = server_ctx(task)
    down = method.down(server, method.init(server), Client(0, count))
    ctx = client_ctx(task, data)
    job = method.begin(ctx, down, None)
    work, found = job.work, []
    for batch in batches(ctx, job):
        work = method.step(ctx, work, batch)
        assert total(work.masks) == kept
        if number := int(fresh(work)["weight"].sum()):
            found.append((batch.step + 1, number))
    return found


def test_half_of_the_rate_is_left_in_the_middle_of_an_epoch() -> None:
    """Oracle M2: 0.109375 of 6,400 weights after 9 of 16 batches, 0.25 * 9 / 19 after 10 of 19."""
    assert grown(16, 6_400, 1.0, probe=False) == [(9, 700)]
    assert grown(19, 7_600, 1.0, probe=False) == [(10, 900)]


def test_the_rate_falls_to_nothing_over_the_epochs_of_the_first_round() -> None:
    """Oracle M2: 0.225, 0.2 and so on to 0.025, after epochs 1 to 9."""
    wanted = [(3 * epoch, 100 * (10 - epoch)) for epoch in range(1, 10)]
    assert grown(3, 4_000, 10.0, probe=True) == wanted


# refusals and costs -----------------------------------------------------------------------------


@pytest.mark.parametrize("setting", [{"growth": "momentum"}, {"redistribution": "momentum"}])
def test_growth_by_momentum_needs_momentum_everywhere(setting: dict[str, Any]) -> None:
    fine = Learning(momentum_of_inactive=True, **setting)
    fine.check(Training(momentum=0.9), 0.25)
    for learning, momentum in ((fine, 0.0), (Learning(**setting), 0.9)):
        with pytest.raises(ValueError, match="`momentum=` above 0 and `momentum_of_inactive=True`"):
            learning.check(Training(momentum=momentum), 0.25)
    Learning().check(Training(), 0.25)


def test_an_update_at_the_end_with_a_rate_that_fell_to_zero_is_refused() -> None:
    late = Learning(update_at="end")
    with pytest.raises(ValueError, match="`prune_decay='constant'`"):
        late.check(Training(epochs=1), 0.25)
    late.check(Training(epochs=2), 0.25)
    Learning(update_at="end", prune_decay="constant").check(Training(epochs=1), 0.25)
    replace(late, prune_end=0.005).check(Training(epochs=1), 0.25)
    with pytest.raises(ValueError, match=r"to `prune_end=0\.3`, which is more"):
        Learning(prune_end=0.3).check(Training(), 0.25)


def test_the_rate_falls_to_its_end() -> None:
    """After the last step of a round; it would be zero otherwise."""
    for end, moves in ((0.0, False), (0.2, True)):
        start = case(update_at="end", prune_rate=0.5, prune_end=end, epochs=2.0)
        *_, before, after = [work.masks for _, work in start.steps()]
        assert equal(before, after) != moves


@pytest.mark.parametrize("growth", ["gradient", "momentum", "random"])
def test_what_is_grown_in_groups_goes_by_scores_where_asked(growth: str) -> None:
    """Another job that is stopped before its update would make the same one by hand."""
    everywhere = growth == "momentum"
    changes = {"prune_rate": 0.5, "epochs": 1.0, "momentum_of_inactive": everywhere}
    start = case(group=4, growth=growth, **changes)
    moved = [(batch, work.masks) for batch, work in start.steps()]
    batch, masks = next((b, m) for b, m in moved if not equal(m, start.begin().masks))
    work, ctx = start.begin(), start.ctx
    for early in batches(ctx, Job(work, 1.0, 8)):
        if early.step <= batch.step:
            masked_training.step(ctx, start.training, work, early, momentum_everywhere=everywhere)
    velocity = dict(zip(ctx.task.layout.parameters, work.velocity, strict=True))
    by = {
        "gradient": masked_training.dense_gradient(ctx, work, batch),
        "momentum": velocity,
        "random": batch.key.fold("masks"),
    }
    rate = sparsity.as_fraction(sparsity.decayed(0.5, "linear", batch.step + 1, batch.steps))
    removed = {name: ceil(rate * kept) for name, kept in sparsity.count(work.masks).items()}
    for name, scores in by.items():
        found = sparsity.regrow_in_groups(scores, work.params, work.masks, removed, 4)
        assert equal(found.masks, masks) == (name == growth)


@pytest.mark.parametrize("intended", [None, 60, 140])
def test_loose_counts_are_carried_to_what_is_intended(intended: int | None) -> None:
    """With 97 of 324 weights at the start, and four updates by the released code's rounding."""
    start = case(exact=False, epochs=5.0, prune_rate=0.4)
    assert total(start.begin().masks) == 97
    *_, (_, work) = start.steps(intended)
    wanted = 97 if intended is None else intended
    assert abs(total(work.masks) - wanted) < 25  # it swings around what it aims at


def test_masks_that_grew_on_the_way_are_refused() -> None:
    known = {"a": torch.arange(100) < 40, "b": torch.arange(60) < 24}
    more = {**known, "a": torch.arange(100) < 41}
    traded = {"a": torch.arange(100) < 30, "b": torch.arange(60) < 34}
    for affordable in (Learning().affordable, sparse_model.affordable):
        for fine in (known, traded):
            assert affordable(fine, 64) is fine
        with pytest.raises(WireError, match="65 weights, but 64 were allowed"):
            affordable(more, 64)


@pytest.mark.parametrize("learning", [Learning(exact=False), Learning(growth="bernoulli")])
def test_what_chance_adds_is_let_through_where_counts_are_loose(learning: Learning) -> None:
    """64 were allowed: a quarter more, eight deviations of 8, and one for each layer."""
    most = 64 + 16 + 64 + 2
    masks = {"a": torch.arange(400) < most - 24, "b": torch.arange(60) < 24}
    assert learning.affordable(masks, 64) is masks
    with pytest.raises(WireError):
        learning.affordable({**masks, "a": torch.arange(400) < most - 23}, 64)


@pytest.mark.parametrize(
    ("changes", "dense"),
    [
        ({}, False),
        ({"growth_needs_dense_grad": True}, True),
        ({"growth": "gradient"}, True),
        ({"momentum_of_inactive": True}, True),
    ],
)
def test_gradients_of_all_weights_are_counted_where_they_are_needed(
    changes: dict[str, Any], dense: bool
) -> None:
    learning = Learning(**changes)
    work = mask_learning.Work(case(**changes).begin(), moves=True)
    trained = mask_learning.trained(learning, work)
    assert trained.keys() == (work.model.masks.keys() if dense else set())
    assert all(mask.all() for mask in trained.values())
    assert mask_learning.trained(learning, replace(work, moves=False)) == {}


def test_a_model_travels_in_three_parts_that_are_all_of_it() -> None:
    """Masked weights, what is trained besides them, and running statistics if they are kept."""
    ctx = case("normed").ctx
    params = ctx.task.init(Key(0))
    masks = case("normed").begin().masks
    sent = sparse_model.send(ctx, params, masks)
    parts = [sent.values.values, sent.dense, sent.buffers]
    assert all(parts)
    assert sorted(name for part in parts for name in part) == sorted(ctx.task.layout.names)
    assert sparse_model.send(ctx, params, masks, "static").buffers == {}
