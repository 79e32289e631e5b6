"""FedMef: weights that are emptied before they go, and activations that are forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from math import exp, isfinite, sqrt
from typing import Any

import pytest
import torch
from flash_cases import LAYERS, bench, equal, heard, net, total, worked, zero_outside
from torch import Tensor, nn
from torch.nn import functional

from gossamer import Client, Key, Task, fields, sparsity
from gossamer.conformance.bench import Round
from gossamer.conformance.toys import CLASSES, SIDE
from gossamer.methods.as_published.fedmef import FedMefVariants
from gossamer.methods.fedmef import FedMef, Work, sparing
from gossamer.methods.fedtiny import FedTiny
from gossamer.methods.parts.mask_adjustment import Seeded
from gossamer.sparsity import activations as act
from helpers import batch_of, server_ctx

SMALL: dict[str, Any] = {
    "clients": 4,
    "batch": 8,
    "epochs": 1.0,
    "density": 0.25,
    "adjust_every": 2,
    "adjust_until": 20,
}


def toy(**changes: Any) -> FedMef:
    return fields.replace(FedMef(), {**SMALL, **changes})


def variant(**changes: Any) -> FedMefVariants:
    return fields.replace(FedMefVariants(), {**SMALL, **changes})


@cache
def played(method: FedMef | FedMefVariants, rounds: int = 3, norm: bool = False) -> list[Round]:
    return list(bench(method, rounds, norm=norm).history())


# activations --------------------------------------------------------------------------------------


def leaves(*tensors: Tensor) -> list[Tensor]:
    return [tensor.clone().requires_grad_() for tensor in tensors]


def forgetful(layer: nn.Module, share: float, example: Tensor) -> nn.Module:
    """The layer as it stands in a task that forgets, behind one that does not count as data."""
    task = act.pruned(Task.of(nn.Sequential(layer), example, start="seed"), share)
    return task.module[0]  # type: ignore[index]


def test_a_layer_is_exact_and_its_weights_see_the_largest_inputs_only() -> None:
    """Inputs [3, -.5, 2, .1], of which half is kept: the weights' gradient is [3, 0, 2, 0]."""
    layer = forgetful(nn.Linear(4, 1), 0.5, torch.zeros(2, 4))
    x, weight, bias = leaves(
        torch.tensor([[3.0, -0.5, 2.0, 0.1]]), torch.tensor([[0.1, -0.4, 0.3, 0.2]]), torch.ones(1)
    )
    layer._parameters.update(weight=weight, bias=bias)
    out = layer(x)
    assert float(out.detach()) == pytest.approx(3 * 0.1 + 0.5 * 0.4 + 2 * 0.3 + 0.1 * 0.2 + 1)
    out.backward()
    assert x.grad is not None and torch.equal(x.grad, weight.detach())
    assert weight.grad is not None and weight.grad.tolist() == [[3, 0, 2, 0]]
    assert bias.grad is not None and bias.grad.tolist() == [1]


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv1d(4, 6, 3, padding=1, bias=False), (3, 4, 9)),
        (nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), (3, 4, 9, 9)),
        (nn.Conv2d(4, 6, 3, dilation=2), (3, 4, 9, 9)),
        (nn.Conv3d(2, 3, 2), (2, 2, 4, 4, 4)),
        (nn.Linear(7, 5), (3, 4, 7)),
    ],
)
def test_gradients_are_those_of_the_pruned_input(layer: nn.Module, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=Key(3).generator())
    found = forgetful(layer, 0.7, torch.zeros(shape))
    mine, plain, small = leaves(x, x, x * act.remembered(x, 0.7))
    out, wanted = found(mine), layer(plain)
    torch.testing.assert_close(out, wanted)
    up = torch.randn(out.shape, generator=Key(4).generator())
    names = dict(layer.named_parameters())
    got = torch.autograd.grad(out, [mine, *(getattr(found, name) for name in names)], up)
    (to_input,) = torch.autograd.grad(wanted, plain, up)
    rest = torch.autograd.grad(layer(small), list(names.values()), up)
    for one, other in zip(got, (to_input, *rest), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("share", "kept"), [(0.5, 18), (0.9, 4), (0.1, 32), (0.99, 1)])
def test_exactly_so_many_entries_are_remembered_under_ties(share: float, kept: int) -> None:
    assert int(act.remembered(torch.ones(5, 7), share).sum()) == kept
    big = torch.arange(35.0).reshape(5, 7) - 17
    mask = act.remembered(big, share)
    assert big[mask].abs().min() >= big[~mask].abs().max()


@contextmanager
def kept_bytes() -> Iterator[list[int]]:
    """The sizes of all that is remembered for a backward pass."""
    found: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        found.append(tensor.numel() * tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield found


def test_a_layer_holds_less_memory_than_its_input() -> None:
    """A tenth of the values, of 4 bytes, and a byte for each place: 1.4 of 4 bytes."""
    layer, x = nn.Conv2d(8, 2, 1, bias=False), torch.randn(4, 8, 16, 16, requires_grad=True)
    found = forgetful(layer, 0.9, torch.zeros(2, 8, 16, 16))
    sizes = []
    for each in (layer, found):
        with kept_bytes() as kept:
            each(x)
        sizes.append(sum(kept) - layer.weight.numel() * 4)
    assert sizes[0] == 4 * x.numel()
    assert sizes[1] == pytest.approx(1.4 * x.numel(), rel=0.01)


def test_a_task_that_forgets_predicts_the_same_and_trains_a_little_differently() -> None:
    task = replace(net(norm=True), arithmetic="torch")
    small = act.pruned(task, 0.5)
    assert small.layout is task.layout and act.pruned(task, 0.5) is small
    assert act.pruned(task, 0.0) is task
    params = task.init(Key(0))
    x = torch.randn(6, 1, SIDE, SIDE, generator=Key(1).generator())
    assert torch.equal(small.logits(params, x), task.logits(params, x))
    batch = batch_of(x, torch.arange(6) % CLASSES)
    exact, near = (each.gradients(params, batch) for each in (task, small))
    assert torch.equal(exact.loss, near.loss)
    for name in ("0.weight", "1.weight", "2.bias", "5.bias"):
        torch.testing.assert_close(near.grads[name], exact.grads[name])  # the data are not pruned
    for name in ("2.weight", "5.weight"):
        assert not torch.allclose(near.grads[name], exact.grads[name])
        cosine = functional.cosine_similarity(
            near.grads[name].flatten(), exact.grads[name].flatten(), dim=0
        )
        assert cosine > 0.9
    with pytest.raises(ValueError, match="at least 0 and below 1"):
        act.pruned(task, 1.0)


def test_arithmetic_of_16_bits_and_other_paddings_work_too() -> None:
    parts = [nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 3, padding="same"), nn.Flatten()]
    module = nn.Sequential(*parts, nn.Linear(32, 3))
    x = torch.randn(4, 1, SIDE, SIDE, generator=Key(1).generator())
    batch = batch_of(x, torch.arange(4) % 3)
    exact = Task.of(module, x, start="seed")
    params = exact.init(Key(0))
    small = act.pruned(Task.of(module, x, precision="bf16", start="seed"), 0.5)
    kinds = [type(part).__name__ for part in small.module.children()]  # type: ignore[union-attr]
    assert kinds == ["_Conv2d", "Conv2d", "Flatten", "_Linear"]
    found = small.gradients(params, batch).grads
    wanted = act.pruned(exact, 0.5).gradients(params, batch).grads
    for name, grad in found.items():
        assert grad.dtype == torch.float32
        torch.testing.assert_close(grad, wanted[name], rtol=0.1, atol=0.02)


# standardised weights -----------------------------------------------------------------------------


def test_filters_have_mean_zero_and_one_norm_over_their_active_weights() -> None:
    """Weights 1 and 3 of four: mean 2, variance 1, so -1 and 1 over the root of two."""
    task = Task.of(
        nn.Sequential(nn.Conv2d(1, 3, 2, bias=False)), torch.zeros(2, 1, 4, 4), start="seed"
    )
    weight = torch.tensor([[1.0, 3.0, 0, 0], [0.5, 0, 0, 0], [0, 0, 0, 0]]).reshape(3, 1, 2, 2)
    mask = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0]]).reshape(3, 1, 2, 2) > 0
    found = act.standardised(task.layout, {"0.weight": weight}, {"0.weight": mask}, gain=2.0)
    rows = found["0.weight"].reshape(3, 4)
    torch.testing.assert_close(rows[0], torch.tensor([-1.0, 1, 0, 0]) * sqrt(2), atol=1e-5, rtol=0)
    assert rows[1].tolist() == [0.5, 0, 0, 0]
    assert rows[2].tolist() == [0, 0, 0, 0]
    (leaf,) = leaves(weight)
    out = act.standardised(task.layout, {"0.weight": leaf}, {"0.weight": mask})["0.weight"]
    (grad,) = torch.autograd.grad((out * torch.arange(12.0).reshape(3, 1, 2, 2)).sum(), leaf)
    assert grad.isfinite().all() and grad[2].any()  # what was just grown can move


def test_linear_layers_and_unmasked_tensors_are_what_they_were() -> None:
    params = net().init(Key(0))
    found = act.standardised(net().layout, params, {})
    for name, tensor in params.items():
        assert torch.equal(found[name], tensor) == (not name.startswith(("0.weight", "2.weight")))
    norms = found["2.weight"].flatten(1).norm(dim=1)
    torch.testing.assert_close(norms, torch.full((6,), act.GAIN), rtol=1e-3, atol=0)


def test_clients_train_and_the_server_tests_standardised_weights() -> None:
    method = toy(standardise=True, adjust_every=1)
    found, (_, second) = bench(method, 2), played(method, 2)
    state = second.state
    model = method.model(found.server(2), state, None)
    assert equal(model, act.standardised(net().layout, state.params, state.masks))
    assert not torch.equal(model["2.weight"], state.params["2.weight"])
    for exchange in second.exchanges:
        said = exchange.up.gradients.values.values
        assert all(bool(values.any()) for values in said.values())
    ctx = found.client(2, second.exchanges[0].client)
    work = method.begin(ctx, second.exchanges[0].down, None).work
    data = ctx.own.train
    plain = ctx.task.criterion(ctx.task.logits(model, data.x), data.y)
    method.step(ctx, work, batch_of(data.x, data.y))
    trained = work.adjusting.model
    torch.testing.assert_close(trained.loss / trained.examples, plain)


# extrusion ----------------------------------------------------------------------------------------


def marked() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    params = {"a": torch.tensor([0.3, -0.4, 5.0]), "b": torch.tensor([[1.2, 7.0]])}
    return params, {"a": torch.tensor([1.0, 1.0, 0.0]), "b": torch.tensor([[1.0, 0.0]])}


@pytest.mark.parametrize("norm", ["squared", "plain"])
def test_the_pull_is_the_gradient_of_the_extra_term(norm: Any) -> None:
    params, low = marked()
    own = {name: tensor.clone().requires_grad_() for name, tensor in params.items()}
    parts = [(own[name] * low[name]).norm() for name in low]
    term = 0.01 * sum(part**2 if norm == "squared" else part for part in parts)
    wanted = torch.autograd.grad(term, list(own.values()))  # type: ignore[arg-type]
    method = variant(extrusion=0.01, extrusion_norm=norm)
    pull = method.pull(params, low)
    for (name, tensor), each in zip(params.items(), wanted, strict=True):
        torch.testing.assert_close(pull[name] * tensor * low[name], each)
    nothing = {name: torch.zeros_like(tensor) for name, tensor in params.items()}
    assert all(isfinite(factor) for factor in method.pull(nothing, low).values())


def test_the_rate_stays_up_as_long_as_there_is_time_and_something_left() -> None:
    """Of norm 1.3: p(t) (2 sigmoid(1.3) - 1), p(t) = (2T - 2t) / (2T - t): 1, 2/3, 2/11."""
    params, low = marked()
    left = 2 / (1 + exp(-1.3)) - 1
    batch = replace(batch_of(torch.zeros(1), torch.zeros(1)), steps=10)
    found = [toy().rate_floor(params, low, replace(batch, step=step)) for step in (0, 5, 9)]
    assert found == pytest.approx([left, 2 / 3 * left, 2 / 11 * left], rel=1e-5)
    empty = {name: torch.zeros_like(tensor) for name, tensor in params.items()}
    assert toy().rate_floor(empty, low, batch) == 0
    assert toy().rate_floor(params, {}, batch) == 0
    assert toy(extrusion_rate=False).rate_floor(params, low, batch) == 0


def test_clients_mark_the_smallest_weights_that_they_were_sent() -> None:
    for round in played(toy()):
        found = bench(toy(), 3).client(round.number, round.exchanges[0].client)
        local = None if round.number == 1 else round.results[0].local
        work = toy().begin(found, round.exchanges[0].down, local).work
        if round.number < 3:
            assert not work.low and not work.adjusting.due
            continue
        due = work.adjusting.due
        assert due == toy().adjustment.due(found, sparsity.count(round.state.masks))
        for name, count in due.items():
            low, params = work.low[name] > 0, round.state.params[name]
            others = round.state.masks[name] & ~low
            assert int(low.sum()) == count > 0
            assert not (low & ~round.state.masks[name]).any()
            assert params[low].abs().max() <= params[others].abs().min()


def test_a_step_goes_down_loss_and_extra_term_at_the_larger_rate() -> None:
    method = toy(extrusion=0.5, schedule="exponential", decay=0.01)
    last = played(method)[-1]
    ctx = bench(method, 3).client(3, last.exchanges[0].client)
    down = replace(last.exchanges[0].down, mask=Seeded(0))
    before = method.begin(ctx, down, None).work
    seen: list[Any] = []
    worked(method, ctx, down, None, lambda work, batch: seen.append((_copied(work), batch)))
    after, batch = seen[0]
    model, low = before.adjusting.model, before.low
    params = model.params
    grads = ctx.task.gradients(params, batch, model.factors).grads
    norm = sqrt(sum(float((params[name] * low[name]).square().sum()) for name in low))
    rate = max(0.1 * 0.01**2, 0.1 * (2 / (1 + exp(-norm)) - 1))
    assert rate > 0.1 * 0.01**2
    for name, grad in grads.items():
        pull = 2 * 0.5 * params[name] * low[name] if name in low else 0
        torch.testing.assert_close(after[name], params[name] - rate * (grad + pull))


def _copied(work: Work) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in work.adjusting.model.params.items()}


def test_weights_are_small_when_they_are_pruned() -> None:
    """The pull of 1 halves what marked weights had; without it most of it is still there."""
    left = []
    for strength in (0.0, 1.0):
        last = played(toy(extrusion=strength))[-1]
        left.append(sum(result.metrics["marked_norm"] for result in last.results))
    assert left[1] < 0.7 * left[0]


def test_extrusion_may_act_in_every_round_until_adjustments_end() -> None:
    method = variant(extrude="always", adjust_until=2)
    marks = [
        [bool(result.metrics.get("marked_norm")) for result in r.results] for r in played(method)
    ]
    assert marks == [[True] * 4, [True] * 4, [False] * 4]


def test_rounds_that_adjust_may_be_longer() -> None:
    method = toy(adjust_epochs=2.5)
    for round in played(method):
        ctx = bench(method, 3).client(round.number, round.exchanges[0].client)
        job = method.begin(ctx, replace(round.exchanges[0].down, mask=Seeded(0)), None)
        assert job.epochs == (2.5 if round.number == 3 else 1.0)


# rounds -------------------------------------------------------------------------------------------


def test_the_first_mask_is_random_with_densities_by_erk_and_known_from_the_seed() -> None:
    ctx = server_ctx(net())
    state = FedMef(density=0.25).init(ctx)
    shares = sparsity.erk(net().layout, 0.25)
    assert sparsity.count(state.masks) == sparsity.apportion(net().layout, shares)
    assert total(state.masks) == 81
    first = net().init(ctx.common.fold("init"))
    biggest = sparsity.largest(first, sparsity.count(state.masks))
    assert not equal(state.masks, biggest) and zero_outside(state.params, state.masks)
    assert equal(variant(mask_start="magnitude").init(ctx).masks, biggest)
    assert FedMef().down(ctx, state, Client(0, 9)).mask == Seeded(0)


@pytest.mark.parametrize("changes", [{}, {"forget": 0.5, "standardise": True, "bn": "static"}])
def test_all_layers_are_adjusted_at_once_and_counts_stay(changes: dict[str, Any]) -> None:
    found = heard(toy(**changes), 6, norm=True)
    assert not found.failed and found.state.version == 2
    assert total(found.state.masks) == 81
    assert zero_outside(found.state.params, found.state.masks)
    before, after = (round.merged for round in played(toy(), 3)[1:])
    for name in LAYERS:
        moved = int((after.masks[name] & ~before.masks[name]).sum())
        active = int(before.masks[name].sum())
        assert (
            moved == toy().adjustment.due(server_ctx(net(), 3), sparsity.count(before.masks))[name]
        )
        assert int(after.masks[name].sum()) == active


def test_the_presets_are_those_of_the_paper() -> None:
    method = FedMef()
    assert method.training == FedTiny().training and method.allocation == "erk"
    assert (method.extrusion, FedMefVariants().extrude) == (1e-4, "adjusting")
    assert (method.forget, method.standardise) == (0.0, False)
    assert sparing() == replace(method, forget=0.5, standardise=True)


def test_variants_with_their_defaults_give_the_bits_of_the_method() -> None:
    plain, other = heard(toy(), 6, norm=True), heard(variant(), 6, norm=True)
    assert other.summary.state_hash == plain.summary.state_hash
    assert [event.up for event in other.finished] == [event.up for event in plain.finished]


def test_the_library_pulls_in_every_round_by_plain_norms_and_sends_all_gradients() -> None:
    library = {"extrusion": 1.0, "extrusion_norm": "plain", "extrude": "always"}
    found = heard(variant(**library, upload="all", prune_first=True), 6, norm=True)
    assert not found.failed and found.state.version == 2
    assert total(found.state.masks) == 81
