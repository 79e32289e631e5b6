"""The mixture prior against numbers worked out by hand: chances, pulls, and the server's models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gossamer as gs
from gossamer import (
    Client,
    Ctx,
    Ensemble,
    Exchange,
    FedAvg,
    FedProx,
    Key,
    Mixture,
    Params,
    Task,
    Training,
)
from gossamer.accounting import paper_bits
from gossamer.engine.client import train
from gossamer.methods.as_published.priors import Chosen, MixtureVariants
from gossamer.methods.mixture import (
    Down,
    Local,
    Server,
    distance,
    loss_on_own_data,
    pull,
    responsibilities,
    surprise,
)
from gossamer.methods.parts import dense_model
from gossamer.methods.parts.dense_model import Up
from gossamer.methods.parts.server_optimiser import ServerOptimiser
from helpers import CLASSES, Toy, client_ctx, mlp, normed, same, server_ctx

MODELS = ((0.0, 0.0), (1.0, 1.0))
CLIENTS = ((0.2, 0.1), (0.9, 1.2), (0.6, 0.5))
STRENGTH = 4.0
CHANCES = (
    (0.9426758241, 0.0573241759),
    (0.0121284350, 0.9878715650),
    (0.4013123399, 0.5986876601),
)


def pair(values: Sequence[float]) -> Params:
    return {"w": torch.tensor(values, dtype=torch.float64)}


def distances(values: Sequence[float], models: Sequence[Sequence[float]] = MODELS) -> Tensor:
    return torch.stack([distance(pair(values), pair(each), ["w"]) for each in models])


class Two(nn.Module):
    """A module whose only tensor is a pair of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(pair(MODELS[0])["w"])

    def forward(self, x: Tensor) -> Tensor:
        return x * self.w


@pytest.fixture
def ctx() -> Ctx:
    return server_ctx(Task.of(Two(), torch.zeros(2, 2, dtype=torch.float64), start="seed"))


def exchanges(values: Sequence[Sequence[float]], sizes: Sequence[int] = (10, 20, 30)) -> Any:
    down = Down(tuple(map(pair, MODELS)))
    return [
        Exchange(Client(id, size), down, Up(pair(value)))
        for id, (value, size) in enumerate(zip(values, sizes, strict=False))
    ]


def weights(state: Server) -> list[list[float]]:
    return [each["w"].tolist() for each in state.models]


def state(method: Mixture) -> Server:
    models = tuple(map(pair, MODELS))
    if method.server == "mean":
        return Server(models, ())
    return Server(models, tuple(map(method.adaptive.start, models)))


# the prior --------------------------------------------------------------------------------------


def test_the_published_responsibilities() -> None:
    for values, wanted in zip(CLIENTS, CHANCES, strict=True):
        found = responsibilities(distances(values), STRENGTH).tolist()
        assert found == pytest.approx(wanted, abs=5e-11)


def test_the_published_prior_and_its_gradient() -> None:
    wanted = (0.7341143543, 0.7809445960, 1.0001319282)
    for values, value in zip(CLIENTS, wanted, strict=True):
        assert float(surprise(distances(values), STRENGTH)) == pytest.approx(value, abs=5e-11)
    grads = pair((0.0, 0.0))
    pull(grads, pair(CLIENTS[2]), list(map(pair, MODELS)), STRENGTH)
    assert grads["w"].tolist() == pytest.approx([0.0052493596, -0.3947506404], abs=5e-11)


def test_the_pull_is_the_gradient_of_the_prior_over_all_tensors() -> None:
    draw = Key(1).generator()
    shapes = {"a": (3, 4), "b": (5,)}
    models = [
        {n: torch.randn(s, generator=draw).double() for n, s in shapes.items()} for _ in range(3)
    ]
    here = {n: torch.randn(s, generator=draw).double() for n, s in shapes.items()}
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in here.items()}
    squares = torch.stack(
        [sum(((leaves[n] - each[n]) ** 2).sum() for n in shapes) for each in models]  # type: ignore[misc]
    )
    surprise(squares, 0.3).backward()
    grads = {name: torch.ones_like(tensor) for name, tensor in here.items()}
    pull(grads, here, models, 0.3)
    for name, leaf in leaves.items():
        assert leaf.grad is not None
        torch.testing.assert_close(grads[name], 1 + leaf.grad)
    assert 0.01 < float(responsibilities(squares.detach(), 0.3).min()) < 0.3


def test_chances_of_large_models_are_all_or_nothing_and_still_numbers() -> None:
    weights = torch.zeros(1_000_000)
    apart = torch.stack(
        [distance({"w": weights}, {"w": weights + shift}, ["w"]) for shift in (0.1, -0.101)]
    )
    assert apart.dtype == torch.float64
    assert apart.tolist() == pytest.approx([1e4, 1.0201e4], rel=1e-6)
    assert responsibilities(apart, 100.0).tolist() == [1.0, 0.0]
    assert float(surprise(apart, 100.0)) == pytest.approx(5e5, rel=1e-5)


# the server -------------------------------------------------------------------------------------


def test_models_are_the_published_means_of_their_clients(ctx: Ctx) -> None:
    method = Mixture(strength=STRENGTH)
    merged = method.merge(ctx, state(method), exchanges(CLIENTS))
    first, second = weights(merged)
    assert first == pytest.approx([0.3246314960, 0.2282088978], abs=5e-11)
    assert second == pytest.approx([0.7663328427, 0.9067079361], abs=5e-11)


def test_models_take_the_published_step(ctx: Ctx) -> None:
    plain = ServerOptimiser("sgd", server_lr=1.0, beta1=0.0)
    method = Mixture(strength=STRENGTH, server="ascent", adaptive=plain)
    wanted = ((1.7609526410, 1.2379114973), (1 - 1.5364862451, 1 - 0.6134451014))
    summed = MixtureVariants(method, reduction="sum")
    merged = summed.merge(ctx, state(method), exchanges(CLIENTS))
    for found, values in zip(weights(merged), wanted, strict=True):
        assert found == pytest.approx(values, abs=5e-10)
    merged = method.merge(ctx, state(method), exchanges(CLIENTS))
    assert weights(merged)[0] == pytest.approx([each / 3 for each in wanted[0]], abs=5e-10)
    method = replace(method, adaptive=ServerOptimiser())
    merged = method.merge(ctx, state(method), exchanges(CLIENTS))
    assert weights(merged)[1] == pytest.approx([0.999, 0.999], abs=1e-8)
    assert [each.steps for each in merged.moments] == [1, 1]


def test_what_was_rounded_on_the_way_down_is_no_change(ctx: Ctx) -> None:
    """A client that sends a model back as it came moves that model nowhere."""
    method = Mixture(strength=1e3, server="ascent")
    rounded = ((0.0004, -0.0004), (1.0004, 0.9996))
    down = Down(tuple(map(pair, rounded)))
    replies = [Exchange(Client(id, 9), down, Up(pair(value))) for id, value in enumerate(rounded)]
    assert weights(method.merge(ctx, state(method), replies)) == [list(each) for each in MODELS]


def test_clients_may_count_by_their_examples(ctx: Ctx) -> None:
    method = Mixture(components=1, weighting="samples")
    models = Server((pair(MODELS[0]),), ())
    replies = [replace(each, down=Down(models.models)) for each in exchanges(CLIENTS)]
    merged = method.merge(ctx, models, replies)
    assert weights(merged)[0] == pytest.approx([(2 + 18 + 18) / 60, (1 + 24 + 15) / 60])


@pytest.mark.parametrize("server", ["mean", "ascent"])
def test_a_model_that_nobody_is_near_stays_as_it_is(ctx: Ctx, server: Any) -> None:
    method = Mixture(strength=100.0, server=server)
    before = state(method)
    merged = method.merge(ctx, before, exchanges([(0.1, 0.0), (0.0, 0.1)]))
    assert merged.models[1] is before.models[1]
    assert weights(merged)[0] != list(MODELS[0])
    if server == "ascent":
        assert [each.steps for each in merged.moments] == [1, 0]


def test_models_begin_apart_and_the_first_where_other_methods_do() -> None:
    ctx = server_ctx(mlp())
    first, second, third = Mixture(components=3).init(ctx).models
    assert same(first, FedAvg().init(ctx).params)
    assert not any(torch.equal(second[n], t) or torch.equal(third[n], t) for n, t in first.items())
    assert not same(second, third)


# the client -------------------------------------------------------------------------------------


def ready(task: Task, method: Any) -> tuple[Ctx, Down]:
    ctx = server_ctx(task)
    down = method.down(ctx, method.init(ctx), Client(0, 30))
    return client_ctx(task, Toy().make(Key(3), 30)), down


@pytest.mark.parametrize("make", [mlp, normed])
def test_a_mixture_of_one_is_fedprox(make: Any) -> None:
    task, training = make(), Training(epochs=2, batch=8, lr=0.1, momentum=0.5)
    method = Mixture(components=1, strength=0.3, training=training)
    own, down = ready(task, method)
    ours = train(method, own, down, None).result.up.params
    prox = FedProx(mu=0.3, training=training, weighting="uniform")
    theirs = train(prox, own, dense_model.Down(down.models[0]), None).result.up.params
    assert same(ours, theirs)
    ctx = server_ctx(task)
    merged = method.merge(ctx, method.init(ctx), [Exchange(Client(0, 30), down, Up(ours))])
    mean = prox.merge(
        ctx,
        prox.init(ctx),
        [Exchange(Client(0, 30), dense_model.Down(down.models[0]), dense_model.Up(ours))],
    )
    assert same(merged.models[0], mean.params)


def test_strict_bayes_divides_the_pull_by_the_examples() -> None:
    task, training = mlp(), Training(batch=8, lr=0.1)
    pure = Mixture(components=1, strength=3.0, training=training)
    bayes = MixtureVariants(pure, regulariser="per-example")
    own, down = ready(task, bayes)
    ours = train(bayes, own, down, None).result.up.params
    prox = FedProx(mu=3.0 / 30, training=training)
    theirs = train(prox, own, dense_model.Down(down.models[0]), None).result.up.params
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor)


def test_a_client_starts_from_the_model_of_least_loss() -> None:
    task, method = mlp(), Mixture(components=3)
    own, down = ready(task, method)
    learned = train(
        FedAvg(training=Training(epochs=9, batch=8, lr=0.3)),
        own,
        dense_model.Down(down.models[2]),
        None,
    )
    down = Down((*down.models[:2], learned.result.up.params))
    losses = [loss_on_own_data(own, each) for each in down.models]
    x, y = own.own.train.x, own.own.train.y
    wanted = [nn.functional.cross_entropy(task.logits(m, x), y).item() for m in down.models]
    assert losses == pytest.approx(wanted, rel=1e-6) and min(losses) == losses[2]
    assert same(method.begin(own, down, None).work.inner.params, down.models[2])
    starts = []
    for round in range(12):
        other = replace(own, key=Key(round))
        work = MixtureVariants(model_start="random").begin(other, down, None).work
        params = work.inner.inner.params
        starts += [n for n, each in enumerate(down.models) if same(params, each)]
    assert sorted(set(starts)) == [0, 1, 2]


def test_models_travel_all_of_them_down_and_one_up() -> None:
    task, method = mlp(), Mixture(components=3)
    own, down = ready(task, method)
    count = task.layout.count
    assert paper_bits(down) == 3 * 32 * count
    assert paper_bits(train(method, own, down, None).result.up) == 32 * count


def test_whose_model_is_whose() -> None:
    task, method = mlp(), Mixture()
    own, down = ready(task, method)
    ctx = server_ctx(task)
    server = method.init(ctx)
    everybody = method.model(ctx, server, None)
    assert isinstance(everybody, Ensemble)
    assert everybody.members == server.models and everybody.weights == (0.5, 0.5)
    sent = train(method, own, down, None).result
    assert isinstance(sent.local, Local) and same(sent.local.params, sent.up.params)
    assert method.model(ctx, server, sent.local) is sent.local.params
    by_loss = MixtureVariants(method, personal_model="best")
    best = train(by_loss, own, down, None).result.local
    losses = [loss_on_own_data(own, each) for each in down.models]
    assert best == Chosen(losses.index(min(losses)))
    assert by_loss.model(ctx, server, best) is server.models[best.model]
    nothing = MixtureVariants(method, personal_model="global")
    assert train(nothing, own, down, None).result.local is None


def test_a_run_is_evaluated_as_an_ensemble_and_by_what_clients_sent() -> None:
    method = Mixture(clients=3, training=Training(epochs=3, batch=8, lr=0.3))
    summary = gs.run(method, mlp(), Toy(), rounds=3, options=gs.Options(workers=1, eval_every=3))
    found = summary.accuracy
    assert found["global"] is not None and found["global"] > 1.3 / CLASSES
    assert found["personal_mean"] != found["global"]
