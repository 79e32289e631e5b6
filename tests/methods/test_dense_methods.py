"""The dense methods against numbers from their papers, driven by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from pair_cases import CLIENTS, START, Two, vector
from torch import Tensor, nn

from gossamer import (
    METHODS,
    Batch,
    Client,
    Ctx,
    Ensemble,
    Exchange,
    FedAvg,
    FedAvgM,
    FedOpt,
    FedProx,
    Key,
    Params,
    Task,
    Training,
)
from gossamer.engine.client import batches, train
from gossamer.methods import fedavg, fedavgm, fedopt
from gossamer.methods.parts import dense_model
from gossamer.methods.parts.dense_model import Down, Local, Up
from gossamer.methods.parts.server_optimiser import Moments, ServerOptimiser
from gossamer.wire import dump
from helpers import Toy, batch_of, client_ctx, linear, mlp, normed, same, server_ctx


@pytest.fixture
def ctx() -> Ctx:
    return server_ctx(Task.of(Two(), torch.zeros(2, 2, dtype=torch.float64), start="seed"))


def exchanges(
    values: Sequence[Sequence[float]],
    start: Sequence[float] = START,
    sizes: Sequence[int] = (10, 20, 30),
) -> list[Exchange[Down, Up]]:
    """Replies of clients that were sent `start` and came to `values`."""
    down = Down({"w": vector(start[: len(values[0])])})
    return [
        Exchange(Client(id, size), down, Up({"w": vector(value)}))
        for id, (value, size) in enumerate(zip(values, sizes, strict=False))
    ]


def weights(state: Any) -> list[float]:
    found: list[float] = state.params["w"].tolist()
    return found


def test_fedavg_takes_the_mean(ctx: Ctx) -> None:
    method = FedAvg(weighting="uniform")
    merged = method.merge(ctx, method.init(ctx), exchanges(CLIENTS))
    assert weights(merged) == pytest.approx([1.1, -0.9], abs=1e-15)


def test_fedavg_weights_by_samples(ctx: Ctx) -> None:
    merged = FedAvg().merge(ctx, FedAvg().init(ctx), exchanges(CLIENTS))
    wanted = [(12 + 18 + 36) / 60, -(10 + 12 + 33) / 60]
    assert weights(merged) == pytest.approx(wanted, abs=1e-15)


def test_fedavg_is_server_sgd_with_rate_one(ctx: Ctx) -> None:
    method = FedOpt(server="sgd", server_lr=1.0, beta1=0.0)
    merged = method.merge(ctx, method.init(ctx), exchanges(CLIENTS))
    assert weights(merged) == pytest.approx([1.1, -0.9], abs=1e-15)
    assert merged.moments.second == {}


@pytest.mark.parametrize("name", ["fedopt", "fedadam-kingma"])
def test_adam_of_fedsparse_takes_the_published_steps(ctx: Ctx, name: str) -> None:
    method = METHODS[name]
    state = method.merge(ctx, method.init(ctx), exchanges(CLIENTS))
    assert weights(state) == pytest.approx([1.0009999999, -0.9990000001], abs=5e-11)
    state = method.merge(ctx, state, exchanges(CLIENTS, weights(state)))
    assert weights(state) == pytest.approx([1.0019997252, -0.9980002748], abs=5e-11)
    assert state.moments.steps == 2


def test_adam_of_reddi_takes_the_published_step(ctx: Ctx) -> None:
    method = replace(METHODS["fedadam-reddi"], weighting="uniform")  # type: ignore[type-var]
    state = method.merge(ctx, method.init(ctx), exchanges(CLIENTS))
    assert weights(state) == pytest.approx([1.0090502831, -0.9909497169], abs=5e-11)


def test_what_was_rounded_on_the_way_down_is_no_change(ctx: Ctx) -> None:
    """Adam takes a whole step along any change, be it that of a last digit."""
    method = METHODS["fedopt"]
    state, rounded = method.init(ctx), (1.0004, -0.9996)
    still = method.merge(ctx, state, exchanges([rounded] * 3, rounded))
    assert weights(still) == list(START)
    moved = [[there + 1e-5 for there in rounded]] * 3
    after = method.merge(ctx, state, exchanges(moved, rounded))
    assert after.moments.first["w"].tolist() == pytest.approx([1e-6, 1e-6])


def pseudo_gradients(
    ctx: Ctx, method: Any, optimiser: Callable[..., Any], rate: float, **options: Any
) -> None:
    """Three rounds of the method against a torch optimiser fed with minus the mean change."""
    state = method.init(ctx)
    parameter = nn.Parameter(vector(START))
    steps = optimiser([parameter], lr=rate, **options)
    for shift in (0.0, 0.3, -0.2):
        values = [[value + shift for value in client] for client in CLIENTS]
        mean = vector([sum(column) / 3 for column in zip(*values, strict=True)])
        parameter.grad = parameter.detach() - mean
        steps.step()
        state = method.merge(ctx, state, exchanges(values, weights(state)))
        torch.testing.assert_close(state.params["w"], parameter.detach(), rtol=1e-12, atol=1e-12)


def test_adam_is_that_of_torch(ctx: Ctx) -> None:
    pseudo_gradients(ctx, FedOpt(), torch.optim.Adam, 1e-3, betas=(0.9, 0.999), eps=1e-8)


def test_adagrad_is_that_of_torch(ctx: Ctx) -> None:
    method = FedOpt(server="adagrad", server_lr=0.1, beta1=0.0, eps=1e-3, second_start=1e-6)
    pseudo_gradients(
        ctx, method, torch.optim.Adagrad, 0.1, eps=1e-3, initial_accumulator_value=1e-6
    )


def test_server_momentum_is_that_of_torch(ctx: Ctx) -> None:
    adaptive = FedOpt(server="sgd", server_lr=0.5, beta1=0.9)
    pseudo_gradients(ctx, adaptive, torch.optim.SGD, 0.5, momentum=0.9)
    method = FedAvgM(server_lr=0.5, weighting="uniform")
    pseudo_gradients(ctx, method, torch.optim.SGD, 0.5, momentum=0.9)
    method = FedAvgM(server_lr=0.5, weighting="uniform", nesterov=True)
    pseudo_gradients(ctx, method, torch.optim.SGD, 0.5, momentum=0.9, nesterov=True)


def test_yogi_moves_its_second_moment_by_a_bounded_amount(ctx: Ctx) -> None:
    method = replace(METHODS["fedyogi"], weighting="uniform")  # type: ignore[type-var]
    state = method.init(ctx)
    square = 0.1**2
    state = method.merge(ctx, state, exchanges(CLIENTS))
    second = 1e-6 + 0.01 * square  # it was smaller than the square, so it grows
    assert state.moments.second["w"].tolist() == pytest.approx([second, second], rel=1e-12)
    moved = 0.01 * 0.1 * 0.1 / (second**0.5 + 1e-3)
    assert weights(state) == pytest.approx([1 + moved, -1 + moved], rel=1e-12)
    still = method.merge(ctx, state, exchanges([weights(state)] * 3, weights(state)))
    assert still.moments.second["w"].tolist() == pytest.approx(
        [second, second]
    )  # no change, no decay
    moments = Moments(state.moments.first, {"w": vector([1.0, 1.0])}, 1)
    large = fedopt.Server(state.params, moments)
    values = [[value + 0.1 for value in weights(state)]] * 3
    shrunk = method.merge(ctx, large, exchanges(values, weights(state)))
    assert shrunk.moments.second["w"].tolist() == pytest.approx([1 - 0.01 * square] * 2)


def test_the_two_parameterisations_of_adam_are_presets() -> None:
    kingma, reddi = METHODS["fedadam-kingma"], METHODS["fedadam-reddi"]
    assert isinstance(kingma, FedOpt) and isinstance(reddi, FedOpt)
    assert kingma.adaptive == ServerOptimiser("adam", 1e-3, 0.9, 0.999, 1e-8, True, 0.0)
    assert reddi.adaptive == ServerOptimiser("adam", 0.01, 0.9, 0.99, 1e-3, False, 1e-3**2)


def test_fedavgm_accumulates_its_velocity(ctx: Ctx) -> None:
    """Oracle A2: 1 -> .8 (v .2) -> .52 (v .28)."""
    method = FedAvgM(server_momentum=0.9)
    state = fedavgm.Server({"w": vector([1.0])}, {"w": vector([0.0])})
    state = method.merge(ctx, state, exchanges([[0.8]]))
    assert weights(state) == pytest.approx([0.8])
    assert state.velocity["w"].tolist() == pytest.approx([0.2])
    state = method.merge(ctx, state, exchanges([[0.7]]))
    assert weights(state) == pytest.approx([0.52])
    assert state.velocity["w"].tolist() == pytest.approx([0.28])


@pytest.mark.parametrize("name", METHODS)
def test_nobody_answering_changes_nothing(name: str) -> None:
    method, ctx = METHODS[name], server_ctx(mlp())
    state = method.init(ctx)
    assert dump(method.merge(ctx, state, iter(()))) == dump(state)


# the client -------------------------------------------------------------------------------------


def plain_sgd(task: Task, params: Params, ctx: Ctx, training: Training) -> Params:
    """What a client should do, with torch's own module, autograd and optimiser."""
    module = linear().module if len(params) == 2 else mlp().module
    module.load_state_dict(params)
    optimiser = torch.optim.SGD(
        module.parameters(),
        lr=training.lr,
        momentum=training.momentum,
        weight_decay=training.weight_decay,
        foreach=False,
    )
    method = FedAvg(training=training)
    for batch in batches(ctx, method.begin(ctx, Down(params), None)):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(batch.x), batch.y).backward()
        if training.clip:
            nn.utils.clip_grad_norm_(module.parameters(), training.clip)
        optimiser.step()
    return {name: parameter.detach() for name, parameter in module.named_parameters()}


@pytest.mark.parametrize(
    "training",
    [
        Training(epochs=2, batch=8, lr=0.1),
        Training(epochs=2.5, batch=8, lr=0.1, momentum=0.9),
        Training(epochs=1, batch=7, lr=0.1, weight_decay=0.05),
        Training(epochs=1, batch=7, lr=0.1, momentum=0.5, weight_decay=0.01, clip=0.2),
    ],
)
@pytest.mark.parametrize("task", [linear(), mlp()], ids=["linear", "mlp"])
def test_a_client_does_what_a_plain_loop_does(task: Task, training: Training) -> None:
    ctx = client_ctx(task, Toy().make(Key(3), 30))
    params = task.init(Key(0))
    trained = train(FedAvg(training=training), ctx, Down(params), None)
    wanted = plain_sgd(task, params, ctx, training)
    assert not same(trained.result.up.params, params)
    for name, tensor in wanted.items():
        torch.testing.assert_close(trained.result.up.params[name], tensor)


def test_a_client_uses_the_rate_of_its_round() -> None:
    task, examples = linear(), Toy().make(Key(3), 8)
    params = task.init(Key(0))
    halved = Training(batch=8, lr=0.4, schedule="exponential", decay=0.5)
    third = train(FedAvg(training=halved), client_ctx(task, examples, 3), Down(params), None)
    plain = train(
        FedAvg(training=Training(batch=8, lr=0.1)),
        client_ctx(task, examples, 3),
        Down(params),
        None,
    )
    assert same(third.result.up.params, plain.result.up.params)


def test_the_reported_loss_is_the_mean_over_examples() -> None:
    task, examples = linear(), Toy().make(Key(3), 10)
    params = task.init(Key(0))
    done = train(
        FedAvg(training=Training(batch=4, lr=1e-12)), client_ctx(task, examples), Down(params), None
    )
    wanted = nn.functional.cross_entropy(task.logits(params, examples.x), examples.y)
    assert done.result.metrics["loss"] == pytest.approx(wanted.item(), rel=1e-5)


# FedProx ----------------------------------------------------------------------------------------


def test_the_fedprox_term_has_the_gradient_of_an_explicit_one() -> None:
    """Two published codes build the term from detached tensors, so that it does nothing."""
    task, mu, rate = mlp(), 0.5, 0.1
    anchor, here = task.init(Key(0)), task.init(Key(1))
    examples = Toy().make(Key(3), 12)
    ctx, batch = client_ctx(task, examples), batch_of(examples.x, examples.y)

    def explicit(leaves: Params, batch: Batch) -> Tensor:
        drift = sum(((leaves[n] - anchor[n]) ** 2).sum() for n in task.layout.parameters)
        return task.loss(leaves, batch) + mu / 2 * drift

    def stepped(mu: float) -> Params:
        """The gradient that one step of FedProx follows, away from its anchor."""
        method = FedProx(mu=mu, training=Training(lr=rate))
        work = method.begin(ctx, Down(anchor), None).work
        for name, tensor in here.items():
            work.params[name].copy_(tensor)
        after = method.step(ctx, work, batch).params
        return {name: (here[name] - after[name]) / rate for name in here}

    wanted = task.gradients(here, batch, loss=explicit).grads
    plain = task.gradients(here, batch).grads
    pulled, free = stepped(mu), stepped(0.0)
    for name, grad in wanted.items():
        torch.testing.assert_close(pulled[name], grad, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(free[name], plain[name], rtol=1e-3, atol=1e-5)
        extra = pulled[name] - free[name]
        torch.testing.assert_close(extra, mu * (here[name] - anchor[name]), rtol=1e-3, atol=1e-5)
        assert extra.abs().max() > 0.01


def test_fedprox_keeps_clients_nearer_to_the_server() -> None:
    task, examples = mlp(), Toy().make(Key(3), 40)
    params = task.init(Key(0))

    def distance(mu: float) -> float:
        method = FedProx(mu=mu, training=Training(epochs=5, batch=8, lr=0.1))
        after = train(method, client_ctx(task, examples), Down(params), None).result.up.params
        return float(sum(((after[name] - params[name]) ** 2).sum() for name in params))

    assert distance(1.0) < 0.5 * distance(0.0)


def test_fedprox_without_a_pull_is_fedavg() -> None:
    task, examples = normed(), Toy().make(Key(3), 20)
    params, training = task.init(Key(0)), Training(batch=8, momentum=0.9)
    ctx = client_ctx(task, examples)
    prox = train(FedProx(mu=0.0, training=training), ctx, Down(params), None)
    mean = train(FedAvg(training=training), ctx, Down(params), None)
    assert same(prox.result.up.params, mean.result.up.params)


# running statistics -----------------------------------------------------------------------------

STATISTICS = ("1.running_mean", "1.running_var")


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedavgm", "fedopt"])
def test_averaged_statistics_travel_and_are_averaged(name: str) -> None:
    method, task = METHODS[name], normed()
    ctx = server_ctx(task)
    state = method.init(ctx)
    down = method.down(ctx, state, Client(0, 20))
    assert set(down.params) == set(task.layout.names)
    done = [
        train(method, client_ctx(task, Toy().make(Key(9).fold(id), 20)), down, None).result
        for id in range(2)
    ]
    assert all(result.local is None for result in done)
    merged = method.merge(
        ctx, state, [Exchange(Client(id, 20), down, result.up) for id, result in enumerate(done)]
    )
    for statistic in STATISTICS:
        one, two = (result.up.params[statistic] for result in done)
        assert not torch.equal(one, two)
        torch.testing.assert_close(merged.params[statistic], (one + two) / 2)


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedavgm", "fedopt"])
def test_local_statistics_stay_with_the_client(name: str) -> None:
    method = replace(METHODS[name], buffers="local")  # type: ignore[type-var]
    task = normed()
    ctx = server_ctx(task)
    state = method.init(ctx)
    down = method.down(ctx, state, Client(0, 20))
    assert set(down.params) == set(task.layout.parameters)
    own = client_ctx(task, Toy().make(Key(9), 20))
    first = train(method, own, down, None).result
    assert set(first.up.params) == set(task.layout.parameters)
    assert first.local is not None and set(first.local.buffers) == set(STATISTICS)
    kept = {n: t.clone() for n, t in first.local.buffers.items()}
    second = train(method, own, down, first.local).result
    assert same(first.local.buffers, kept)
    assert not torch.equal(second.local.buffers[STATISTICS[0]], kept[STATISTICS[0]])
    merged = method.merge(ctx, state, [Exchange(Client(0, 20), down, second.up)])
    for statistic in STATISTICS:
        assert torch.equal(merged.params[statistic], state.params[statistic])
    mine = method.model(ctx, merged, second.local)
    assert torch.equal(mine[STATISTICS[0]], second.local.buffers[STATISTICS[0]])
    assert torch.equal(mine["0.weight"], merged.params["0.weight"])
    assert same(method.model(ctx, merged, None), merged.params)


def test_a_model_without_statistics_keeps_nothing() -> None:
    task = mlp()
    method = FedAvg(buffers="local")
    done = train(method, client_ctx(task, Toy().make(Key(9), 20)), Down(task.init(Key(0))), None)
    assert done.result.local is None


def test_statistics_are_no_part_of_the_servers_optimiser() -> None:
    task = normed()
    state = FedOpt().init(server_ctx(task))
    moments = state.moments
    assert set(moments.first) == set(moments.second) == set(task.layout.parameters)


def test_training_changes_neither_what_came_down_nor_what_was_kept() -> None:
    task = normed()
    params = task.init(Key(0))
    down = Down({name: params[name] for name in task.layout.parameters})
    local = Local(task.buffers())
    train(FedAvg(buffers="local"), client_ctx(task, Toy().make(Key(9), 20)), down, local)
    assert same(params, task.init(Key(0)))
    assert same(local.buffers, task.buffers())


def test_every_method_starts_from_the_same_model() -> None:
    """Comparisons of methods with one seed begin at the same point, where it is not masked.

    FedPM has weights of one size that are never trained. SparsyFed trains roots of weights, whose
    powers are the initial ones up to rounding. FLASC masks all that is trained.
    """
    ctx = server_ctx(normed(), 0)
    left_out = [n for n in METHODS if "fedpm" in n or n in ("flasc", "sparsyfed")]
    known = [method for name, method in METHODS.items() if name not in left_out]
    starts = (method.model(ctx, method.init(ctx), None) for method in known)
    # The first of several models is the one that all others start from.
    first, *others = (s.members[0] if isinstance(s, Ensemble) else s for s in starts)
    prunable = ctx.task.layout.prunable
    masked = 0
    for other in others:
        seen = {
            n: torch.where(other[n] != 0, t, 0) if n in prunable else t for n, t in first.items()
        }
        assert same(seen, other)
        masked += any(not torch.equal(seen[name], first[name]) for name in prunable)
    assert 0 < masked < len(others)
    assert isinstance(FedAvg().init(ctx), fedavg.Server)
    assert dense_model.model(first, None) is first
