"""A client of FedSparse: its gradients, the sign of every term, its steps, and what it sends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from fedsparse_cases import (
    begun,
    close,
    drawn,
    gradients,
    groups_of,
    net,
    paper,
    pictures,
    pruned,
    pure,
    sent,
    toy,
    trained,
)
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy, logsigmoid, softplus
from torch.optim.adamax import _single_tensor_adamax

from gossamer import (
    METHODS,
    Batch,
    Client,
    Exchange,
    FedOpt,
    Key,
    Params,
    Task,
    Training,
    fields,
    optim,
)
from gossamer.engine.client import batches, train
from gossamer.methods.as_published.fedsparse import FedSparseVariants
from gossamer.methods.fedsparse import FedSparse
from gossamer.sparsity import gated_training, hard_concrete
from gossamer.sparsity.gated_training import Work
from gossamer.submodels.compaction import part_of
from helpers import batch_of, client_ctx, server_ctx

DOUBLE = torch.float64
SHIFT = -1.5985968485

# O4 -----------------------------------------------------------------------------------------------

X = torch.tensor([[1.0, 2.0], [0.0, -1.0]])
Y = torch.tensor([1, 0])
SERVER = torch.tensor([[0.3, 0.4], [0.1, -0.2]], dtype=DOUBLE)
CLIENT = torch.tensor([[0.31, 0.40], [0.11, -0.20]], dtype=DOUBLE)
DRAWS = torch.tensor([0.3, 0.6], dtype=DOUBLE)


def raw_of(*thresholds: float) -> Tensor:
    return torch.log(torch.expm1(torch.tensor(thresholds, dtype=DOUBLE)))


def tiny(relaxation: str) -> tuple[FedSparseVariants, Work]:
    """The client of O4, in the midst of its training."""
    method = toy(
        relaxation=relaxation, gate_head="gated", lambda0=0.01, cross_entropy=0.5, drift=0.1
    )
    task = Task.of(nn.Linear(2, 2, bias=False), torch.zeros(2, 2), start="seed")
    alive = {"weight": torch.ones(2, dtype=torch.bool)}
    part = part_of(task, groups_of(method, task), alive, {"weight": SERVER}, {})
    work = gated_training.begin(part, raw_of(0.499, 0.223), 1e-3, drift=0.1)
    work.concrete = method.concrete
    work.price = pure(method).price(work.sizes, work.start)
    work.params = {"weight": CLIENT.clone()}
    work.raw = raw_of(0.505, 0.228)
    return method, work


@pytest.mark.parametrize(
    ("relaxation", "gates", "nll", "rest", "weights", "thresholds"),
    [
        (
            "natural",
            [0.5963319138, 0.7748021494],
            1.0703926694,
            1.5543129594 - 1.0703926694,
            [0.2120935963, 0.6003595689, -0.2734900301, -0.7800352013],
            [-77.46943628, -5.00421277],
        ),
        (
            "matched",
            [0.0339812498, 0.1357968660],
            0.7230854423,
            1.3842596116 - 0.7230854423,
            [0.0095659545, 0.0263136800, -0.0346940947, -0.1051554990],
            [8.68899075, 6.89476809],
        ),
    ],
)
def test_the_clients_gradients(
    relaxation: str,
    gates: list[float],
    nll: float,
    rest: float,
    weights: list[float],
    thresholds: list[float],
) -> None:
    """O4; the loss is formed in float32."""
    method, work = tiny(relaxation)
    found = gradients(method, work, batch_of(X.double(), Y), DRAWS)
    opened = work.gated["weight"] / CLIENT
    assert opened.T.flatten().tolist() == pytest.approx([*gates, *gates], abs=1e-9)
    assert float(found.loss) == pytest.approx(nll, rel=1e-6)
    term = method.pure.regulariser(work, work.sizes)
    assert float(term) == pytest.approx(rest, abs=2e-10)
    assert found.weights["weight"].flatten().tolist() == pytest.approx(weights, rel=2e-6)
    assert found.thresholds.tolist() == pytest.approx(thresholds, rel=2e-6)


# against autograd ---------------------------------------------------------------------------------


def objective(
    method: Any,
    work: Work,
    batch: Batch,
    params: Params,
    raw: Tensor,
    draws: Tensor,
    server: Tensor,
) -> Tensor:
    """The clients' objective, written out anew from the paper for autograd to differentiate."""
    setting, names = pure(method), work.part.groups.names
    frozen = {name: params[name].detach() for name in names}
    norms = torch.cat([frozen[name].flatten(1).norm(dim=1) for name in names])
    logits = (norms - softplus(raw)) / setting.temperature
    location = logits + SHIFT if work.concrete.relaxation == "matched" else logits
    soft = torch.sigmoid((torch.log(draws) - torch.log(1 - draws) + location) / (2 / 3))
    gates = (soft * 1.2 - 0.1).clamp(0, 1) * work.alive
    positive = torch.sigmoid(location - SHIFT) * work.alive
    parts = dict(zip(names, gates.split([len(params[name]) for name in names]), strict=True))
    effective = dict(params)
    drift = []
    for name in names:
        column = parts[name].view(-1, *[1] * (params[name].dim() - 1))
        effective[name] = params[name] * column
        drift.append((params[name] - work.part.received[name]).square().flatten(1).sum(1))
    nll = cross_entropy(functional_call(work.part.task.module, effective, batch.x), batch.y)
    received = [work.part.received[name].flatten(1).norm(dim=1) for name in names]
    theta = (torch.cat(received) - softplus(server)) / setting.temperature
    sizes = torch.cat([torch.full((len(params[n]),), params[n][0].numel()) for n in names])
    kept = work.alive > 0
    crossed = positive * logsigmoid(theta) + (1 - positive) * logsigmoid(-theta)
    return nll + (
        setting.drift / 2 * (positive * torch.cat(drift)).sum()
        + setting.lambda0 * (positive * sizes).sum()
        - setting.cross_entropy * crossed[kept].sum()
    )


@pytest.mark.parametrize("relaxation", ["natural", "matched"])
@pytest.mark.parametrize("dead", [{}, {"0.weight": [1], "5.weight": [0, 3, 7]}])
def test_gradients_are_autograds(relaxation: str, dead: dict[str, list[int]]) -> None:
    method = toy(
        relaxation=relaxation, lambda0=1e-3, cross_entropy=0.03, drift=0.2, temperature=0.02,
        compact=False, theta0=0.8,
    )  # fmt: skip
    state = pruned(method, net(), dead)
    _, work, batch = begun(method, net(), state)
    for _ in range(3):  # away from where all began
        work.step(batch, drawn(method, work, batch), pure(method).training, 1e-2)
    draws = hard_concrete.draw(Key(8), work.part.groups.total)
    found = gradients(method, work, batch, draws)
    params = {name: tensor.clone().requires_grad_() for name, tensor in work.params.items()}
    raw = work.raw.clone().requires_grad_()
    value = objective(method, work, batch, params, raw, draws, state.thresholds)
    *wanted, thresholds = torch.autograd.grad(value, [*params.values(), raw])
    assert close(found.weights, dict(zip(params, wanted, strict=True)), 2e-5)
    assert torch.allclose(found.thresholds, thresholds, rtol=2e-4, atol=2e-4)
    assert int((found.thresholds != 0).sum()) == int(work.alive.sum())
    for name, places in dead.items():
        assert not found.weights[name][places].any()


# the sign of every term, by finite differences ----------------------------------------------------

TERMS: dict[str, dict[str, float]] = {
    "loss": {},
    "price": {"lambda0": 1e-2},
    "cross-entropy": {"cross_entropy": 0.1},
    "drift": {"drift": 3.0},
}


def double(work: Work) -> Work:
    """The same work in float64, where small differences have digits."""
    for name in ("raw", "alive", "sizes", "start", "outside", "price"):
        setattr(work, name, getattr(work, name).double())
    work.params = {name: tensor.double() for name, tensor in work.params.items()}
    work.anchor = {name: tensor.double() for name, tensor in work.anchor.items()}
    work.gated = {name: tensor.double() for name, tensor in work.gated.items()}
    return work


@pytest.mark.parametrize("term", TERMS)
def test_the_sign_of_every_term_by_finite_differences(term: str) -> None:
    nothing = {"lambda0": 0.0, "cross_entropy": 0.0, "drift": 0.0}
    method = toy(**{**nothing, **TERMS[term]}, temperature=0.05, theta0=0.7, compact=False)
    task = net()
    _, work, batch = begun(method, task, method.init(server_ctx(task, round=0)))
    work.params["0.weight"] += 0.05
    work = double(work)
    batch = replace(batch, x=batch.x.double())
    groups, concrete = work.part.groups, work.concrete
    draws = hard_concrete.draw(Key(8), groups.total).double()
    found = gradients(method, work, batch, draws)
    norms = groups.norms(work.params)  # constants of a step

    def value(raw: Tensor, weight: Tensor) -> float:
        params = {**work.params, "0.weight": weight}
        location = (norms - softplus(raw)) / 0.05
        gates = groups.spread(concrete.gate(concrete.soft(location, draws)), params)
        gated_params = {**params, **{name: params[name] * gates[name] for name in gates}}
        loss = cross_entropy(functional_call(task.module, gated_params, batch.x), batch.y)
        away = groups.squares({n: params[n] - work.part.received[n] for n in gates})
        share = concrete.positive(location)
        opened = share * (method.drift / 2 * away + method.lambda0 * work.sizes)
        agreed = share * logsigmoid(work.start) + (1 - share) * logsigmoid(-work.start)
        return float(loss) + float((opened - method.cross_entropy * agreed).sum())

    def slope(change: Callable[[float], tuple[Tensor, Tensor]], step: float = 1e-5) -> float:
        return (value(*change(step)) - value(*change(-step))) / (2 * step)

    weight = work.params["0.weight"]
    for place in range(groups.total):
        one = torch.zeros_like(work.raw)
        one[place] = 1
        numeric = slope(lambda far, one=one: (work.raw + far * one, weight))
        assert float(found.thresholds[place]) == pytest.approx(numeric, rel=1e-4, abs=2e-6)
    for place in range(0, weight.numel(), 5):
        one = torch.zeros(weight.numel(), dtype=DOUBLE)
        one[place] = 1
        one = one.view_as(weight)
        numeric = slope(lambda far, one=one: (work.raw, weight + far * one))
        at = float((found.weights["0.weight"] * one).sum())
        assert at == pytest.approx(numeric, rel=1e-4, abs=2e-6)
    assert float(found.thresholds.abs().max()) > 1e-3


def test_without_other_terms_thresholds_hear_of_the_loss_alone() -> None:
    """Where a gate is fully open or shut, its threshold then has no gradient at all."""
    method = toy(lambda0=0.0, cross_entropy=0.0)
    _, work, batch = begun(method, net(), method.init(server_ctx(net(), round=0)))
    draws = torch.full((work.part.groups.total,), 0.5)
    draws[0] = 0.02
    found = gradients(method, work, batch, draws)
    assert found.thresholds[0] != 0 and not found.thresholds[1:].any()


# steps --------------------------------------------------------------------------------------------


def test_adamax_is_torchs() -> None:
    """To the bit; the class that wraps this function takes seconds to import."""
    draw = Key(2).generator()
    mine = torch.randn(50, generator=draw)
    theirs, moments = mine.clone(), [torch.zeros(50) for _ in range(4)]
    settings = {"eps": 1e-8, "beta1": 0.9, "beta2": 0.999, "lr": 1e-2, "weight_decay": 0.0}
    never = dict.fromkeys(("maximize", "differentiable", "capturable", "has_complex"), False)
    count = torch.tensor(0.0)
    for step in range(1, 8):
        grad = torch.randn(50, generator=draw) * 10.0 ** (step - 4)
        mine, *moments[:2] = optim.adamax(mine, grad, moments[0], moments[1], step, 1e-2)
        _single_tensor_adamax(
            [theirs], [grad], moments[2:3], moments[3:], [count], **settings, **never
        )
    assert torch.equal(mine, theirs)


@pytest.mark.parametrize("size", [1e-5, 1.0, 400.0])
def test_a_first_step_of_adamax_has_the_length_of_its_rate(size: float) -> None:
    """O9."""
    param = torch.zeros(2, dtype=DOUBLE)
    grad = torch.tensor([size, -size], dtype=DOUBLE)
    zeros = torch.zeros(2, dtype=DOUBLE)
    param, _, _ = optim.adamax(param, grad, zeros, zeros, 1, 1e-2)
    assert param.tolist() == pytest.approx([-1e-2, 1e-2], rel=2e-3)


def test_a_step_moves_weights_by_sgd_and_thresholds_by_adamax() -> None:
    method = toy()
    ctx, work, batch = begun(method, net(), method.init(server_ctx(net(), round=0)))
    before = {name: tensor.clone() for name, tensor in work.params.items()}
    raw = work.raw.clone()
    found = gradients(method, work, batch)
    wanted = {n: before[n] - 0.05 * grad for n, grad in found.weights.items()}
    signs = found.thresholds.sign()
    method.step(ctx, work, batch)
    assert close(work.params, wanted, 1e-7)
    assert torch.allclose(work.raw - raw, -1e-3 * signs, atol=2e-6)


def test_gates_may_be_drawn_for_each_example() -> None:
    """The gradient is the mean over examples of those at their own gates."""
    method = toy(gate_sample="example", lambda0=0.0, cross_entropy=0.0)
    state = method.init(server_ctx(net(), round=0))
    _, work, batch = begun(method, net(), state)
    parts = drawn(method, work, batch)
    assert [len(part.y) for part, _ in parts] == [1] * len(batch.y)
    assert not torch.equal(parts[0][1], parts[1][1])
    found = gradients(method, work, batch)
    each = [work.gradients([part]) for part in parts]
    for name, grad in found.weights.items():
        mean = torch.stack([single.weights[name] for single in each]).mean(0)
        assert torch.allclose(grad, mean, atol=1e-6)
    thresholds = torch.stack([single.thresholds for single in each]).mean(0)
    assert torch.allclose(found.thresholds, thresholds, rtol=1e-4, atol=1e-5)


def test_batch_normalisation_takes_no_gates_for_each_example() -> None:
    method = toy(gate_sample="example")
    with pytest.raises(ValueError, match="`gate_sample='batch'`"):
        method.init(server_ctx(net("batch"), round=0))


@pytest.mark.parametrize("regulariser", ["whole", "per-example"])
def test_terms_beside_the_loss_may_be_divided_by_the_examples(regulariser: str) -> None:
    method = toy(regulariser=regulariser, lambda0=1e-3, drift=0.5)
    task = net()
    _, work, _ = begun(method, task, method.init(server_ctx(task, round=0)))
    scale = 1.0 if regulariser == "whole" else 1 / 24
    assert torch.allclose(work.price, scale * (1e-3 * work.sizes - 1e-4 * work.start))
    assert work.drift == pytest.approx(scale * 0.5)


# what it sends ------------------------------------------------------------------------------------


def test_gates_that_are_sent_have_the_probability_of_the_client() -> None:
    method = toy()
    _, work, _ = begun(
        method, paper((1, 28, 28), 10), method.init(server_ctx(paper((1, 28, 28), 10), round=0))
    )
    work.raw = hard_concrete.thresholds_for(work.part.groups.norms(work.params), 0.7, 1e-3)
    found = torch.stack([work.opened(Key(3).fold(index)) for index in range(30)])
    sigma = (0.7 * 0.3 / found.numel()) ** 0.5
    assert float(found.float().mean()) == pytest.approx(0.7, abs=4 * sigma)
    assert torch.equal(found[0], work.opened(Key(3).fold(0)))


def test_a_client_sends_rows_of_open_gates_only() -> None:
    method = toy(theta0=0.5, compact=False)
    task = net()
    state = pruned(method, task, {"5.weight": [2, 4]})
    ctx = client_ctx(task, pictures())
    down = sent(method, task, state)
    job = method.begin(ctx, down, None)
    for batch in batches(ctx, job):
        method.step(ctx, job.work, batch)
    up = method.finish(ctx, job.work).up
    for name, opened in up.opened.items():
        alive = down.alive[name]
        assert opened.shape == (int(alive.sum()),)
        rows = alive.nonzero().flatten()[opened]
        wanted = job.work.params[name][rows].flatten()
        assert torch.equal(up.model.values.values[name], wanted)
    counts = sum(int(opened.sum()) for opened in up.opened.values())
    assert 0 < counts < sum(len(opened) for opened in up.opened.values())
    assert list(up.model.dense) == ["0.bias", "2.bias", "5.bias", "7.weight", "7.bias"]


def test_clients_begin_anew_in_every_round_or_keep_their_moments() -> None:
    task = net()
    for keeps in (False, True):
        method = toy(client_moments="keep" if keeps else "fresh")
        state = method.init(server_ctx(task, round=0))
        ctx = client_ctx(task, pictures())
        down = sent(method, task, state)
        first = train(method, ctx, down, None).result
        work = method.begin(ctx, down, first.local).work
        assert work.steps == (3 if keeps else 0)
        assert bool(work.second.any()) == keeps


# properties ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("server", ["sgd", "adam"])
def test_with_open_gates_it_is_fedopt_step_for_step(server: Any) -> None:
    """No temperature, and norms above their thresholds: gates are one and stay so.

    FedOpt rounds the mean before it subtracts, so epsilon is large enough not to see that.
    """
    task = net()
    sparse = toy(
        temperature=1e-9,
        theta0=0.999999,
        lambda0=0.0,
        cross_entropy=0.0,
        optimizer=server,
        eps=1e-4,
    )
    dense = FedOpt(clients=4, training=Training(batch=8), server=server, eps=1e-4)
    states: list[Any] = [each.init(server_ctx(task, round=0)) for each in (sparse, dense)]
    states[0] = replace(states[0], thresholds=states[0].thresholds - 1.0)
    for number in (1, 2, 3):
        ctx = server_ctx(task, round=number)
        for place, method in enumerate((sparse, dense)):
            exchanges = []
            for id in range(3):
                own = client_ctx(task, pictures(seed=id), round=number, seed=id)
                down = method.down(ctx, states[place], Client(id, 24))
                up = train(method, own, down, None).result.up
                exchanges.append(Exchange(Client(id, 24), down, up))
            states[place] = method.merge(ctx, states[place], exchanges)
        assert close(states[0].params, states[1].params, 2e-6)


def test_settings_are_checked_and_presets_are_the_papers() -> None:
    for bad in ({"theta0": 1.0}, {"temperature": 0.0}, {"prune_below": 1.0}, {"gamma": 0.1}):
        with pytest.raises(ValueError, match="must be"):
            fields.check(toy(**bad))
    presets = {name: each for name, each in METHODS.items() if isinstance(each, FedSparse)}
    assert presets == {
        "fedsparse-low": FedSparse(lambda0=5e-7),
        "fedsparse": FedSparse(lambda0=5e-6),
        "fedsparse-high": FedSparse(lambda0=5e-5),
    }


def test_metrics_tell_of_the_loss_and_the_gates() -> None:
    method = toy()
    found = trained(method, net(), method.init(server_ctx(net(), round=0)))
    assert found.metrics.keys() == {"loss", "regulariser", "open"}
    assert 0.8 < found.metrics["open"] <= 1
