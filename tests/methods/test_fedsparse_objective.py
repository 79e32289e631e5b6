"""What clients of FedSparse minimise beside their loss, and the closed forms of its server."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
import torch
from fedsparse_cases import begun, net, pure, toy
from torch import Tensor, nn

from gossamer import METHODS, Ctx, Task, fields
from gossamer.methods.as_published.fedsparse import FedSparseVariants, OtherGates, mean_of_open
from gossamer.methods.fedsparse import FedSparse
from gossamer.sparsity import gated_training
from gossamer.sparsity.gated_training import Work
from gossamer.sparsity.hard_concrete import HardConcrete
from gossamer.submodels.compaction import part_of
from helpers import server_ctx

LOW, MIDDLE, HIGH = 5e-7, 5e-6, 5e-5


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def raw_of(*thresholds: float) -> Tensor:
    """The inverse of softplus."""
    return torch.log(torch.expm1(vector(*thresholds)))


# terms --------------------------------------------------------------------------------------------

# O4: two groups of two weights.
SERVER = torch.tensor([[0.3, 0.4], [0.1, -0.2]], dtype=torch.float64)
CLIENT = torch.tensor([[0.31, 0.40], [0.11, -0.20]], dtype=torch.float64)
SIZES, SQUARES = vector(2, 2), (CLIENT - SERVER).square().sum(1)
LOGITS = vector(1.0, 0.60679775)


def of_o4(concrete: HardConcrete) -> Work:
    """The client in the midst of its training."""
    task = Task.of(nn.Linear(2, 2, bias=False), torch.zeros(2, 2), start="seed")
    groups = OtherGates(gate_head="gated").groups(task.layout)
    alive = {"weight": torch.ones(2, dtype=torch.bool)}
    part = part_of(task, groups, alive, {"weight": SERVER}, {})
    work = gated_training.begin(part, raw_of(0.499, 0.223), 1e-3, drift=0.1)
    work.concrete, work.params, work.raw = concrete, {"weight": CLIENT}, raw_of(0.505, 0.228)
    return work


@pytest.mark.parametrize(
    ("relaxation", "positive", "paid", "crossed"),
    [
        ("natural", (0.9347366375, 0.8644603309), 0.0359839394, 0.4479273547),
        ("matched", (0.7433086837, 0.5632208685), 0.0261305910, 0.6350370456),
    ],
)
def test_terms_of_the_objective(
    relaxation: Any, positive: tuple[float, float], paid: float, crossed: float
) -> None:
    """O4."""
    work = of_o4(HardConcrete(relaxation))
    assert work.start.tolist() == pytest.approx(LOGITS.tolist(), abs=1e-8)
    assert work.logits().tolist() == pytest.approx([1.0632371552, 0.2542442103], abs=1e-9)
    assert work.positive().tolist() == pytest.approx(positive, abs=1e-10)

    def value(lambda0: float = 0.0, cross_entropy: float = 0.0, drift: float = 0.0) -> float:
        method = FedSparse(lambda0=lambda0, cross_entropy=cross_entropy, drift=drift)
        return float(method.regulariser(work, work.sizes))

    assert value(lambda0=0.01) == pytest.approx(paid, abs=1e-10)
    assert value(cross_entropy=0.5) == pytest.approx(crossed, abs=1e-10)
    drift = 0.05 * float((work.positive() * SQUARES).sum())
    assert value(drift=0.1) == pytest.approx(drift, rel=1e-12)
    assert value(0.01, 0.5, 0.1) == pytest.approx(paid + crossed + drift, abs=2e-10)


def value_of(method: Any, ctx: Ctx, work: Work) -> float:
    if isinstance(method, FedSparseVariants):
        return float(method.value(ctx, work))
    return float(method.regulariser(work, work.sizes))


def moved(method: Any) -> tuple[Ctx, Work]:
    """A client in float64, away from where it began."""
    ctx, work, _ = begun(method, net(), method.init(server_ctx(net(), round=0)))
    for name in ("raw", "alive", "sizes", "start", "outside", "price"):
        setattr(work, name, getattr(work, name).double())
    work.params = {name: tensor.double() + 0.05 for name, tensor in work.params.items()}
    work.anchor = {name: tensor.double() for name, tensor in work.anchor.items()}
    norms = work.part.groups.norms(work.params)
    work.raw = raw_of(*(norms - 0.03 * torch.linspace(-1, 1, len(norms))).tolist())
    return ctx, work


NOTHING = {"lambda0": 0.0, "cross_entropy": 0.0, "drift": 0.0}
ALL = {"lambda0": 0.01, "cross_entropy": 0.5, "drift": 0.1}


@pytest.mark.parametrize(
    "settings",
    [
        {"lambda0": 0.01},
        {"lambda0": 0.01, "lambda0_per": "gate"},
        {"cross_entropy": 0.5},
        {"drift": 0.1},
        {"drift": 0.1, "drift_factor": "whole"},
        ALL,
        {**ALL, "regulariser": "per-example"},
    ],
    ids=str,
)
def test_what_opening_a_gate_costs_is_the_slope_of_the_objective(settings: dict[str, Any]) -> None:
    """By finite differences: every term has the sign of a loss."""
    method = toy(**{**NOTHING, **settings}, temperature=0.05, theta0=0.7, compact=False)
    ctx, work = moved(method)
    price, raw = work.price + work.drift / 2 * work.squares(), work.raw
    for group in range(0, len(raw), 3):
        ends = []
        for sign in (1, -1):
            work.raw = raw.clone()
            work.raw[group] += sign * 1e-6
            ends.append((value_of(method, ctx, work), float(work.positive()[group])))
        (high, more), (low, less) = ends
        assert (high - low) / (more - less) == pytest.approx(float(price[group]), rel=2e-5)


def test_signs_of_the_terms() -> None:
    """Open gates pay; the server's open gates are cheap; the cross-entropy is never negative."""
    assert (FedSparse(lambda0=0.01, cross_entropy=0).price(SIZES, LOGITS) > 0).all()
    crossed = FedSparse(lambda0=0.0, cross_entropy=0.5)
    assert (crossed.price(SIZES, LOGITS) < 0).all()
    assert (crossed.price(SIZES, -LOGITS) > 0).all()
    work = of_o4(HardConcrete())
    for raw in (raw_of(0.6, 0.3), work.raw, raw_of(0.4, 0.1)):
        work.raw = raw
        assert float(crossed.regulariser(work, work.sizes)) > 0


def test_readings_of_the_paper_scale_the_terms() -> None:
    def value(**changes: Any) -> float:
        method = toy(**{**ALL, **changes}, temperature=0.05, theta0=0.7, compact=False)
        return value_of(method, *moved(method))

    work = moved(toy(**ALL, temperature=0.05, theta0=0.7, compact=False))[1]
    share = work.positive()
    assert value(regulariser="per-example") == pytest.approx(value() / 24)
    drift = 0.05 * float((share * work.squares()).sum())
    assert value(drift_factor="whole") - value() == pytest.approx(drift)
    paid = 0.01 * float((share * (work.sizes - 1)).sum())
    assert value() - value(lambda0_per="gate") == pytest.approx(paid)


def test_a_factor_of_no_drift_is_refused() -> None:
    with pytest.raises(ValueError, match="no effect with `drift=0`"):
        toy(drift=0.0, drift_factor="whole").init(server_ctx(net()))
    toy(drift=0.1, drift_factor="whole").init(server_ctx(net()))


@pytest.mark.parametrize(
    ("weights", "signs"),
    [
        (75, "--+"),
        (800, "-++"),
        (1600, "+++"),
        (25, "--+"),
        (27, "--+"),
        (144, "-++"),
        (288, "-++"),
        (576, "-++"),
    ],
)
def test_which_groups_the_first_gates_push_shut(weights: int, signs: str) -> None:
    """The price of an open gate changes its sign where the logit is `lambda0 * size / c`."""
    first = vector(math.log(99))
    for lambda0, sign in zip((LOW, MIDDLE, HIGH), signs, strict=True):
        method = FedSparse(lambda0=lambda0)
        assert (float(method.price(vector(weights), first)) > 0) == (sign == "+")
        turning = vector(lambda0 * weights / 1e-4)
        assert float(method.price(vector(weights), turning)) == pytest.approx(0)


def test_gates_that_pay_once_are_never_pushed_shut_at_first() -> None:
    """Which is why the price is one of weights: the paper's three would make no difference."""
    method = toy(lambda0_per="gate", lambda0=HIGH)
    _, work, _ = begun(method, net(), method.init(server_ctx(net(), round=0)))
    assert (work.price < 0).all()
    assert (pure(method).price(torch.full_like(work.sizes, 1600), work.start) > 0).all()


# closed forms -------------------------------------------------------------------------------------


def combined(gates: Tensor, weights: Tensor, old: float = 0.5) -> float:
    change = (gates * (weights - old)).sum()
    return float(mean_of_open(vector(old), change, gates.sum()))


def test_the_mean_of_open_weights() -> None:
    """O5 with gates: clients count where they have a weight open."""
    clients = torch.tensor([[1.2, -1.0], [0.9, -0.6], [1.2, -1.1]], dtype=torch.float64)
    gates = torch.tensor([[1, 0], [1, 1], [0, 1]], dtype=torch.float64)
    found = [combined(gates[:, place], clients[:, place]) for place in range(2)]
    assert found == pytest.approx([1.05, -0.85], abs=1e-12)


def test_the_ratio_of_means_is_not_the_mean_of_ratios() -> None:
    """O10: equation 10, and equation 13 over all draws in which somebody has it open."""
    shares, weights = vector(0.9, 0.1), vector(0.0, 1.0)
    assert combined(shares, weights) == pytest.approx(0.1, abs=1e-12)
    mean = total = 0.0
    for gates in product((0.0, 1.0), repeat=2):
        if any(gates):
            chance = math.prod(
                p if z else 1 - p for p, z in zip(shares.tolist(), gates, strict=True)
            )
            mean += chance * combined(vector(*gates), weights)
            total += chance
    assert mean / total == pytest.approx(0.055 / 0.91, abs=1e-9)
    assert mean / total == pytest.approx(0.0604396, abs=5e-8)


def test_what_nobody_has_open_stays() -> None:
    assert combined(vector(0, 0), vector(3, 4), old=0.25) == 0.25


@pytest.mark.parametrize(("relaxation", "size"), [("natural", 1239), ("matched", 919)])
def test_the_servers_gates_may_be_as_relaxed_as_the_clients(relaxation: str, size: int) -> None:
    """At the paper's lowest price, groups of up to 919 or 1239 weights are pushed open at first."""
    task, starts = net(bias=False), {}
    for theta in ("binary", "relaxed"):
        method = toy(theta=theta, relaxation=relaxation, lambda0=5e-7)
        state = method.init(server_ctx(task, round=0))
        starts[theta] = begun(method, task, state)[1].start
    assert torch.allclose(starts["binary"], torch.logit(torch.tensor(0.99)), atol=1e-3)
    turns = method.pure.cross_entropy / method.pure.lambda0 * starts["relaxed"]
    assert torch.allclose(turns, torch.tensor(float(size)), atol=1.0)


def test_the_preset_of_the_printed_sparsities() -> None:
    found = {each.name: each.default for each in fields.settings(METHODS["fedsparse-paper"])}
    usual = {each.name: each.default for each in fields.settings(METHODS["fedsparse-variants"])}
    differs = {name: value for name, value in found.items() if value != usual[name]}
    assert differs == {"gate_bias": True, "theta": "relaxed"}
