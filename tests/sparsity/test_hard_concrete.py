"""Gates against numbers worked out by hand, against autograd and against their own limits."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, softplus

from gossamer import Key, Layout
from gossamer.methods.as_published.fedsparse import OtherGates
from gossamer.sparsity import hard_concrete
from gossamer.sparsity.grouping import Grouping
from gossamer.sparsity.groups import Groups
from gossamer.sparsity.hard_concrete import HardConcrete
from paper_models import COLOUR, GREY, layout_of

TEMPERATURE = 1e-3
NATURAL, MATCHED = HardConcrete(), HardConcrete(relaxation="matched")
SHIFT = -1.5985968485


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def raw_of(thresholds: Tensor) -> Tensor:
    """The inverse of softplus."""
    return torch.log(torch.expm1(thresholds))


# groups -------------------------------------------------------------------------------------------


def groups_of(layout: Layout, **settings: Any) -> Groups:
    return OtherGates(**settings).groups(layout)


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({}, 32 + 64 + 512),
        ({"gate_head": "gated"}, 32 + 64 + 512 + 10),
        ({"linear_axis": "in"}, 2208),
        ({"linear_axis": "in", "gate_head": "dense"}, 2208 - 512),
        ({"granularity": "weights"}, 878_538 - 618),
        ({"granularity": "weights", "gate_head": "dense"}, 878_538 - 618 - 5120),
    ],
)
def test_groups_of_lenet(settings: dict[str, Any], count: int) -> None:
    groups = groups_of(layout_of("lenet5", COLOUR, 10), **settings)
    assert groups.total == count == len(groups.sizes())
    assert ("fc2.weight" in groups.names) == (count not in (608, 1696, 872_800))


@pytest.mark.parametrize("granularity", ["groups", "weights"])
def test_the_paper_s_grouping_is_the_default_of_its_variants(granularity: Any) -> None:
    layout = layout_of("lenet5", COLOUR, 10)
    assert Grouping(granularity).groups(layout) == groups_of(layout, granularity=granularity)


def test_groups_of_resnet20_are_its_filters() -> None:
    groups = groups_of(layout_of("resnet20", COLOUR, 100))
    assert groups.total == 688
    assert sorted(set(groups.weights)) == [27, 144, 288, 576]


def test_groups_of_lenet_have_the_weights_of_their_filters_and_neurons() -> None:
    assert groups_of(layout_of("lenet5", COLOUR, 10)).weights == (75, 800, 1600)
    assert groups_of(layout_of("lenet5", GREY, 62)).weights == (25, 800, 1024)


def test_a_model_with_nothing_but_a_head_is_refused_until_that_is_gated() -> None:
    layout = Layout.trace(nn.Linear(3, 2), torch.zeros(2, 3))
    with pytest.raises(ValueError, match="`gate_head='gated'`"):
        groups_of(layout)
    assert groups_of(layout, gate_head="gated").shapes == ((2,),)


@pytest.fixture
def mixed() -> tuple[Groups, dict[str, Tensor]]:
    """A convolution by filters, a linear layer by inputs, and one by single weights."""
    names, axes = ("conv", "linear", "each"), (0, 1, None)
    groups = Groups(names, axes, ((3,), (4,), (2, 2)), (8, 5, 1))
    draw = Key(3).generator()
    shapes = {"conv": (3, 2, 2, 2), "linear": (5, 4), "each": (2, 2)}
    tensors = {
        n: torch.randn(shape, generator=draw, dtype=torch.float64) for n, shape in shapes.items()
    }
    tensors["conv"] = tensors["conv"].to(memory_format=torch.channels_last)
    return groups, tensors


def test_norms_and_sums_of_groups(mixed: tuple[Groups, dict[str, Tensor]]) -> None:
    groups, tensors = mixed
    slices = [*tensors["conv"], *tensors["linear"].T, *tensors["each"].flatten()]
    assert groups.norms(tensors).tolist() == pytest.approx([float(s.norm()) for s in slices])
    assert groups.sums(tensors).tolist() == pytest.approx([float(s.sum()) for s in slices])
    assert groups.sizes().tolist() == [8] * 3 + [5] * 4 + [1] * 4


def test_spreading_is_the_transpose_of_summing(mixed: tuple[Groups, dict[str, Tensor]]) -> None:
    groups, tensors = mixed
    gates = torch.rand(groups.total, generator=Key(4).generator(), dtype=torch.float64)
    spread = groups.spread(gates, tensors)
    whole = sum(float((tensors[name] * spread[name]).sum()) for name in groups.names)
    assert whole == pytest.approx(float((gates * groups.sums(tensors)).sum()))
    assert torch.equal(groups.join(groups.split(gates)), gates)
    masks = groups.masks(gates > 0.5, tensors)
    for name, mask in masks.items():
        assert torch.equal(mask, (spread[name] > 0.5).expand_as(tensors[name]))


def test_gates_of_a_part_are_those_with_weights_in_it() -> None:
    groups = Groups(("one", "two"), (0, 1), ((3,), (4,)), (2, 3))
    inside = {"one": torch.zeros(3, 2).bool(), "two": torch.zeros(3, 4).bool()}
    inside["one"][[0, 2], 1] = True
    inside["two"][:, 3] = True
    assert groups.places(inside).tolist() == [0, 2, 6]
    assert groups.within(inside).shapes == ((2,), (1,))


# thresholds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("norm", "threshold", "raw"),
    [
        (0.5, 0.4954048801, -0.4444722213),
        (1.0, 0.9954048801, 0.5340457296),
        (0.02, 0.0154048801, -4.1653585989),
    ],
)
def test_first_thresholds(norm: float, threshold: float, raw: float) -> None:
    """O1."""
    found = hard_concrete.thresholds_for(vector(norm), 0.99, TEMPERATURE)
    assert float(found) == pytest.approx(raw, abs=1e-10)
    assert float(softplus(found)) == pytest.approx(threshold, abs=1e-10)
    theta = torch.sigmoid(hard_concrete.logits(vector(norm), found, TEMPERATURE))
    assert float(theta) == pytest.approx(0.99, abs=1e-12)
    assert not hard_concrete.infeasible(vector(norm), 0.99, TEMPERATURE)


def test_a_small_group_starts_as_open_as_it_can() -> None:
    """O1: no threshold above zero opens a norm of 0.003 as far as that."""
    norms = vector(0.003, 0.0045951, 0.0045952)
    assert hard_concrete.infeasible(norms, 0.99, TEMPERATURE).tolist() == [True, True, False]
    found = hard_concrete.thresholds_for(norms, 0.99, TEMPERATURE)
    assert softplus(found).tolist()[:2] == pytest.approx([1e-6, 1e-6], rel=1e-6)
    theta = torch.sigmoid(hard_concrete.logits(norms, found, TEMPERATURE))
    assert 0.9 < float(theta[0]) < 0.96


def test_float32_keeps_the_digits_that_a_temperature_of_a_thousandth_needs() -> None:
    norms = torch.linspace(0.01, 30, 500)
    theta = torch.sigmoid(
        hard_concrete.logits(norms, hard_concrete.thresholds_for(norms, 0.99, 1e-3), 1e-3)
    )
    assert float((theta - 0.99).abs().max()) < 0.03
    assert float((theta - 0.99)[norms < 2].abs().max()) < 2e-3


# the relaxed gate ---------------------------------------------------------------------------------


def test_the_shift_of_the_default() -> None:
    assert NATURAL.shift == pytest.approx(SHIFT, abs=1e-10)


@pytest.mark.parametrize(
    ("concrete", "share", "location", "positive", "one"),
    [
        (NATURAL, 0.99, 4.5951, 0.99796, 0.95242),
        (NATURAL, 0.5, 0.0, 0.83182, 0.16818),
        (NATURAL, 0.1, -2.1972, 0.35466, 0.02197),
        (MATCHED, 0.99, 2.9965, 0.99, 0.80185),
        (MATCHED, 0.5, -1.5986, 0.5, 0.03927),
        (MATCHED, 0.1, -3.7958, 0.1, 0.00452),
    ],
)
def test_probabilities_of_the_relaxed_gate(
    concrete: HardConcrete, share: float, location: float, positive: float, one: float
) -> None:
    """O3."""
    found = concrete.location(torch.logit(vector(share)))
    assert float(found) == pytest.approx(location, abs=5e-5)
    assert float(concrete.positive(found)) == pytest.approx(positive, abs=5e-6)
    assert float(concrete.one(found)) == pytest.approx(one, abs=5e-6)


@pytest.mark.parametrize(
    ("concrete", "share", "soft", "gate"),
    [
        (NATURAL, 0.5, 0.219095, 0.162914),
        (MATCHED, 0.5, 0.024872, 0.0),
        (NATURAL, 0.99, None, 1.0),
        (MATCHED, 0.99, None, 1.0),
    ],
)
def test_a_draw_of_the_relaxed_gate(
    concrete: HardConcrete, share: float, soft: float | None, gate: float
) -> None:
    """O3, drawn at 0.3."""
    found = concrete.soft(concrete.location(torch.logit(vector(share))), vector(0.3))
    assert soft is None or float(found) == pytest.approx(soft, abs=5e-7)
    assert float(concrete.gate(found)) == pytest.approx(gate, abs=5e-7)


@pytest.mark.parametrize("concrete", [NATURAL, MATCHED])
@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
def test_draws_have_the_probabilities_that_are_told(concrete: HardConcrete, share: float) -> None:
    count = 40_000
    location = concrete.location(torch.logit(vector(share)))
    gates = concrete.gate(concrete.soft(location, hard_concrete.draw(Key(5), count).double()))
    for found, told in (
        ((gates > 0).double().mean(), concrete.positive(location)),
        ((gates == 1).double().mean(), concrete.one(location)),
    ):
        sigma = math.sqrt(float(told) * (1 - float(told)) / count)
        assert float(found) == pytest.approx(float(told), abs=3 * sigma)


@pytest.mark.parametrize(("share", "mean"), [(0.9, 0.879), (0.99, 0.987)])
def test_a_natural_gate_is_as_open_as_its_probability(share: float, mean: float) -> None:
    draws = (torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000
    gates = NATURAL.gate(NATURAL.soft(torch.logit(vector(share)), draws))
    assert float(gates.mean()) == pytest.approx(mean, abs=1e-3)
    matched = MATCHED.gate(MATCHED.soft(MATCHED.location(torch.logit(vector(share))), draws))
    assert float(matched.mean()) == pytest.approx({0.9: 0.628, 0.99: 0.939}[share], abs=1e-3)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_natural_gate_without_temperature_is_the_draw_that_is_sent(share: float) -> None:
    cold = replace(NATURAL, beta=1e-4)
    draws = hard_concrete.draw(Key(6), 20_000).double()
    gates = cold.gate(cold.soft(torch.logit(vector(share)), draws))
    # The relaxed gate opens for large draws, the Bernoulli draw for small ones.
    assert int((gates != (1 - draws < share)).sum()) <= 4
    assert float(cold.positive(torch.logit(vector(share)))) == pytest.approx(share, abs=1e-4)


@pytest.mark.parametrize("concrete", [NATURAL, MATCHED])
def test_the_slope_of_a_gate_is_autograds(concrete: HardConcrete) -> None:
    location = torch.linspace(-6, 6, 201, dtype=torch.float64, requires_grad=True)
    draws = hard_concrete.draw(Key(7), 201).double()
    soft = concrete.soft(location, draws)
    gate = (soft * 1.2 - 0.1).clamp(0, 1)
    (wanted,) = torch.autograd.grad(gate.sum(), location)
    found = concrete.slope(soft.detach())
    assert torch.allclose(found, wanted, atol=1e-15)
    assert 20 < int((found > 0).sum()) < 181


def test_draws_have_a_logit_and_come_from_the_key() -> None:
    draws = hard_concrete.draw(Key(1), 1000)
    assert torch.isfinite(torch.logit(draws)).all()
    assert torch.equal(draws, hard_concrete.draw(Key(1), 1000))
    assert not torch.equal(draws, hard_concrete.draw(Key(2), 1000))


# the server's step --------------------------------------------------------------------------------

# O2: three single weights, three clients.
WEIGHTS, THRESHOLDS = vector(0.5, -0.498, 0.5012), vector(0.4995, 0.499, 0.5005)
OPENED = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 1, 1]], dtype=torch.float64)
SENT = torch.tensor([[0.51, -0.47, 0], [0.48, 0, 0], [0, -0.5, 0.52]], dtype=torch.float64)


def test_the_servers_gradient_of_thresholds() -> None:
    """O2, and equal to autograd's."""
    raw = raw_of(THRESHOLDS).requires_grad_()
    logits = hard_concrete.logits(WEIGHTS.abs(), raw, TEMPERATURE)
    theta = torch.sigmoid(logits).detach()
    assert theta.tolist() == pytest.approx([0.6224593312, 0.2689414214, 0.6681877722], abs=1e-9)
    slope = torch.sigmoid(raw.detach())
    assert slope.tolist() == pytest.approx([0.3931659991, 0.3928625063, 0.3937725298], abs=1e-10)
    found = sum(hard_concrete.threshold_ascent(z, theta, raw.detach(), TEMPERATURE) for z in OPENED)
    assert isinstance(found, Tensor)
    wanted = [-52.14246365, -468.75401001, 395.56943850]
    assert found.tolist() == pytest.approx(wanted, abs=1e-6)
    likelihood = (OPENED * logsigmoid(logits) + (1 - OPENED) * logsigmoid(-logits)).sum()
    (autograd,) = torch.autograd.grad(likelihood, raw)
    assert torch.allclose(found, autograd, rtol=1e-12)


def test_the_servers_gradient_of_thresholds_of_groups() -> None:
    """O2: two groups, one client that has the first open."""
    weights = torch.tensor([[0.3, 0.4], [0.1, -0.2]], dtype=torch.float64)
    raw = raw_of(vector(0.4995, 0.224))
    theta = torch.sigmoid(hard_concrete.logits(weights.norm(dim=1), raw, TEMPERATURE))
    assert theta.tolist() == pytest.approx([0.6224593312, 0.4029466625], abs=1e-9)
    found = hard_concrete.threshold_ascent(vector(1, 0), theta, raw, TEMPERATURE)
    assert found.tolist() == pytest.approx([-148.4361542597, 80.8652968132], abs=1e-6)


def test_gates_that_clients_open_lower_the_servers_threshold() -> None:
    found = hard_concrete.threshold_ascent(vector(1.0), vector(0.9), vector(-0.4), TEMPERATURE)
    assert float(found) < 0


def test_without_a_stop_the_gates_would_drown_the_weights() -> None:
    """O2: what the gradient of weights would be if gates followed their norms at the server."""
    weights = WEIGHTS.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(-0.5 * (OPENED * (SENT - weights) ** 2).sum(), weights)
    assert wanted.tolist() == pytest.approx([-0.01, 0.026, 0.0188], abs=1e-12)
    logits = hard_concrete.logits(weights.abs(), raw_of(THRESHOLDS), TEMPERATURE)
    gates = (OPENED * logsigmoid(logits) + (1 - OPENED) * logsigmoid(-logits)).sum()
    (extra,) = torch.autograd.grad(gates, weights)
    assert (wanted + extra).tolist() == pytest.approx([132.612, -1193.150, -1004.545], abs=1e-3)


def test_every_function_keeps_float32() -> None:
    values = torch.tensor([0.3, 0.6])
    functions: list[Callable[[], Tensor]] = [
        lambda: hard_concrete.thresholds_for(values, 0.9, 1e-3),
        lambda: hard_concrete.thresholds_for(values, values.double(), 1e-3),
        lambda: hard_concrete.logits(values, values, 1e-3),
        lambda: NATURAL.soft(values, values),
        lambda: NATURAL.slope(values),
        lambda: hard_concrete.threshold_ascent(values, values, values, 1e-3),
    ]
    assert {function().dtype for function in functions} == {torch.float32}
