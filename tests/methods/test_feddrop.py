"""Sub-models that clients really train: which units they have, what they cost, what they learn."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gossamer as gs
from gossamer import (
    METHODS,
    Client,
    Examples,
    FedDrop,
    Key,
    Options,
    Task,
    Training,
    fields,
    submodels,
)
from gossamer.accounting.dry_run import price
from gossamer.engine.client import train
from gossamer.engine.expected import Expected
from gossamer.methods.as_published.feddrop import Axes, FedDropVariants
from gossamer.methods.feddrop import Down, scales
from gossamer.methods.parts.server_optimiser import ServerOptimiser
from gossamer.models import build
from gossamer.submodels.dropping import Dropping, DropRates, cut, plan
from gossamer.wire import Schema
from helpers import Toy, batch_of, client_ctx, mlp, refused, same, server_ctx

GIB = 2**30
COLOUR, GREY = (3, 32, 32), (1, 28, 28)
PAPER = METHODS["feddrop-paper"]
HALF = Axes("units", Dropping(conv_rate=0.5, linear_rate=0.5))


@cache
def task_of(model: str, shape: tuple[int, ...], classes: int) -> Task:
    return Task.of(build(model, shape, classes), torch.zeros(2, *shape), start="seed")


def lenet() -> Task:
    return task_of("lenet5", COLOUR, 10)


def femnist() -> Task:
    return task_of("lenet5", GREY, 62)


def resnet() -> Task:
    return task_of("resnet20", COLOUR, 100)


def rates(conv: float, linear: float, edge_rate: float = 0.0, axes: str = "inputs") -> Axes:
    return Axes(axes, Dropping(conv, linear, edge_rate))


def size(task: Task, dropping: Dropping) -> int:
    return cut(dropping, task, 1).layout.count


def gibibytes(count: int, rounds: int) -> float:
    """Both ways, ten clients a round."""
    return count * 4 * 2 * 10 * rounds / GIB


# what it costs ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "dropping", "count", "rounds", "wanted"),
    [
        (lenet, rates(0.0, 0.0), 878_538, 1000, 65.46),
        (femnist, rates(0.0, 0.0), 608_702, 6000, 272.11),
        (resnet, rates(0.0, 0.0), 275_572, 6000, 123.19),
        (lenet, rates(0.1, 0.5), 463_910, 1000, 34.56),
        (femnist, rates(0.2, 0.4), 389_538, 6000, 174.14),
        (resnet, rates(0.1, 0.5), 250_888, 6000, 112.16),
        (lenet, rates(0.1, 0.5, axes="conv1.out,fc1.in"), 463_910, 1000, 34.56),
        (lenet, rates(0.0, 0.0, axes="conv1.out=0.1,fc1.in=0.5"), 463_910, 1000, 34.56),
        # With the last layer's inputs at the rate that the paper states beside its figures.
        (lenet, rates(0.1, 0.5, edge_rate=0.01), 459_855, 1000, 34.26),
        (femnist, rates(0.2, 0.4, edge_rate=0.01), 386_148, 6000, 172.6),
        (resnet, rates(0.1, 0.5, edge_rate=0.01), 250_888, 6000, 112.16),
        # All units of all layers.
        (lenet, rates(0.1, 0.5, axes="units"), 418_338, 1000, 31.17),
        (femnist, rates(0.2, 0.4, axes="units"), 310_250, 6000, 138.7),
    ],
)
def test_sub_models_of_the_paper(
    make: Any, dropping: DropRates, count: int, rounds: int, wanted: float
) -> None:
    assert size(make(), dropping) == count
    assert gibibytes(count, rounds) == pytest.approx(wanted, abs=0.025)


@pytest.mark.parametrize(
    ("make", "classes", "count", "rounds", "wanted"),
    [(lenet, 10, 463_910, 1000, 34.56), (resnet, 100, 250_888, 6000, 112.16)],
)
def test_messages_are_the_sub_model_and_a_seed_that_no_paper_counts(
    make: Any, classes: int, count: int, rounds: int, wanted: float
) -> None:
    method = fields.replace(PAPER, {"clients": 2})
    where: Any = {"classes": classes, "pool": 4, "examples": 20, "rounds": 1}
    found = price(method, make(), options=Options(workers=1, eval_every=0), **where)
    up, down = found.total("up"), found.total("down")
    assert up.paper == down.paper == 2 * 32 * count
    assert (up.paper + down.paper) / 8 * 5 * rounds / GIB == pytest.approx(wanted, abs=0.005)
    assert up.sent == 2 * (32 * count + 72)
    assert down.sent == up.sent + 2 * 64


def test_the_defaults_are_the_best_rates_of_the_paper() -> None:
    assert Dropping() == Dropping(0.1, 0.5, 0.01)
    assert FedDrop(dropping=Dropping(edge_rate=0.0)) == PAPER
    assert FedDrop().adaptive == ServerOptimiser("adam", 1e-3, 0.9, 0.999, 1e-8, True, 0.0)


# which units ------------------------------------------------------------------------------------


def test_the_paper_s_axes_are_filters_of_conv1_and_inputs_of_fc1() -> None:
    assert plan(PAPER.dropping, submodels.trace(lenet())) == {
        "conv1.weight": 29,
        "fc1.weight:in": 800,
    }  # type: ignore[attr-defined]


def test_residual_streams_stay_whole() -> None:
    kept = plan(Dropping(), submodels.trace(resnet()))
    inner = [name for name in resnet().layout.leaves if name.endswith(".conv1.weight")]
    assert list(kept) == inner and len(inner) == 9
    assert set(kept.values()) == {15, 29, 58}


def test_counts_are_exact_where_floating_point_is_not() -> None:
    assert 0.29 * 100 < 29
    wide = Task.of(
        nn.Sequential(nn.Linear(2, 100), nn.ReLU(), nn.Linear(100, 2)),
        torch.zeros(2, 2),
        start="seed",
    )
    kept = plan(Axes("units", Dropping(linear_rate=0.29)), submodels.trace(wide))
    assert kept == {"0.weight": 71}


def test_every_unit_is_dropped_as_often_as_any_other() -> None:
    task, draws = mlp(), 400
    kept = sum(cut(HALF, task, seed).keep["0.weight"].long() for seed in range(draws))
    assert isinstance(kept, Tensor) and int(kept.sum()) == 4 * draws
    # Each count is binomial with a deviation of ten.
    assert (kept - draws / 2).abs().max() < 4 * 10


def test_inputs_of_the_first_and_last_layer_have_a_rate_of_their_own() -> None:
    chain = [nn.Linear(100, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 3)]
    task = Task.of(nn.Sequential(*chain), torch.zeros(2, 100), start="seed")
    kept = plan(Dropping(edge_rate=0.2), submodels.trace(task))
    assert kept == {"0.weight:in": 80, "0.weight": 20, "2.weight": 32}


@pytest.mark.parametrize(
    ("make", "axes", "reason"),
    [
        (lenet, "conv1", "--axes is inputs, units, or a list .* not 'conv1'"),
        (lenet, " , ", "--axes is empty"),
        (lenet, "fc1.in, conv1.out, fc1.in=0.2", "at most one .in and one .out"),
        (lenet, "conv3.out", "no layer of this model is called 'conv3'; did you mean 'conv"),
        (lenet, "conv2.in", "in linear layers only; name the layer before it, with .out"),
        (lenet, "fc2.out", "its units stay, because they are the model's output"),
        (lenet, "fc1.in=1.0", "needs a rate of at least 0 and below 1"),
        (lenet, "fc1.in=half", "needs a rate of at least 0 and below 1"),
        (resnet, "conv.out", "its units are added to those of stages.0.0.conv2.weight"),
    ],
)
def test_what_cannot_be_dropped_is_refused_before_the_first_round(
    make: Any, axes: str, reason: str
) -> None:
    method = FedDrop(dropping=Axes(axes))
    with refused(reason):
        method.init(server_ctx(make()))


def test_clients_have_different_sub_models_unless_asked_otherwise() -> None:
    task = mlp()

    def seeds(method: Any, round: int) -> list[int]:
        ctx = server_ctx(task, round)
        return [method.down(ctx, method.init(ctx), Client(id, 9)).seed for id in range(3)]

    assert len({*seeds(FedDrop(), 1), *seeds(FedDrop(), 2)}) == 6
    alike = FedDropVariants(sub_models="same")
    assert len({*seeds(alike, 1), *seeds(alike, 2)}) == 2


# a client ---------------------------------------------------------------------------------------


def picture_net() -> Task:
    """Two convolutions, a norm, a pool, and linear layers behind a flattened image."""
    torch.manual_seed(0)
    features = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.ReLU()]
    head = [nn.MaxPool2d(2), nn.Flatten(), nn.Linear(24, 8), nn.ReLU(), nn.Linear(8, 3)]
    return Task.of(nn.Sequential(*features, *head), torch.zeros(2, 1, 8, 8), start="seed")


def pictures(count: int = 12) -> Examples:
    x = torch.randn(count, 1, 8, 8, generator=Key(5).generator())
    return Examples(x, torch.arange(count) % 3)


DROPPINGS = [HALF, Dropping(conv_rate=0.5, linear_rate=0.25, edge_rate=0.5)]


class Dropped(nn.Module):
    """The whole net, with activations of dropped units set to zero and the others made larger."""

    def __init__(self, net: nn.Sequential, factors: dict[int, Tensor]) -> None:
        super().__init__()
        self.net = net
        self.factors = factors

    def forward(self, x: Tensor) -> Tensor:
        for place, part in enumerate(self.net):
            x = part(x)
            if place in self.factors:
                factor = self.factors[place]
                x = x * (factor.view(-1, 1, 1) if x.dim() == 4 else factor)
        return x


@pytest.mark.parametrize("dropping", DROPPINGS, ids=["units", "inputs"])
def test_a_sub_model_learns_what_the_whole_one_does_with_activations_dropped(
    dropping: DropRates,
) -> None:
    """Gradients of the small net are those of inverted dropout on whole units."""
    task = picture_net()
    params = task.init(Key(1))
    part = cut(dropping, task, 3)
    flags = {name: mask.float() for name, mask in part.keep.items()}
    inverted = {name: each / each.mean() for name, each in flags.items()}
    # Where activations leave the layers: behind ReLU; behind flatten for single inputs.
    places = {"0.weight": 2, "3.weight": 4, "7.weight:in": 6, "7.weight": 8}
    net = task.module
    assert isinstance(net, nn.Sequential)
    net.load_state_dict(params, strict=False)
    whole = Dropped(net, {places[name]: inverted[name] for name in inverted}).train()
    examples = pictures()
    nn.functional.cross_entropy(whole(examples.x), examples.y).backward()
    wanted = part.take({name: p.grad for name, p in net.named_parameters() if p.grad is not None})

    ctx, rate = client_ctx(task, examples), 0.1
    method = FedDrop(dropping=dropping, training=Training(lr=rate))
    down = Down(part.take(params), 3)
    work = method.begin(ctx, down, None).work
    after = method.step(ctx, work, batch_of(examples.x, examples.y)).inner.params
    assert sum(tensor.numel() for tensor in after.values()) < 0.7 * sum(
        tensor.numel() for tensor in params.values()
    )
    for name, grad in wanted.items():
        found = (down.params[name] - after[name]) / rate
        torch.testing.assert_close(found, grad, rtol=1e-4, atol=2e-6)


def test_without_rescaling_it_is_the_whole_net_with_silent_units() -> None:
    task = picture_net()
    params, examples = task.init(Key(1)), pictures()
    part = cut(HALF, task, 3)
    ctx = client_ctx(task, examples)
    method = FedDropVariants(FedDrop(dropping=HALF), rescale=False)
    work = method.begin(ctx, Down(part.take(params), 3), None).work
    small = work.task.logits(work.inner.params, examples.x)
    torch.testing.assert_close(small, task.logits(part.silence(params), examples.x))
    assert work.scale == {}
    assert scales(part) == {"3.weight": 2.0, "7.weight": 2.0, "9.weight": 2.0}


def trained(method: FedDrop, task: Task, examples: Examples, round: int = 1) -> tuple[Down, Any]:
    ctx = server_ctx(task, round)
    down = method.down(ctx, method.init(ctx), Client(0, len(examples)))
    return down, train(method, client_ctx(task, examples, round), down, None).result


def test_a_client_declares_what_it_had_and_sends_it_back_in_the_same_shapes() -> None:
    task, method = picture_net(), FedDrop(dropping=HALF)
    down, done = trained(method, task, pictures())
    shapes = {name: tuple(tensor.shape) for name, tensor in down.params.items()}
    assert shapes == {name: tuple(tensor.shape) for name, tensor in done.up.params.items()}
    assert shapes["3.weight"] == (3, 2, 3, 3) and shapes["1.running_mean"] == (2,)
    for name, mask in done.masks.items():
        assert int(mask.sum()) == down.params[name].numel()
    assert not same(done.up.params, down.params)
    assert Expected(method)(server_ctx(task), down) == (Schema.of(done.up),)


def test_a_run_takes_less_work_than_with_all_units() -> None:
    def flops(dropping: DropRates) -> tuple[int, float]:
        method = FedDrop(clients=2, dropping=dropping)
        done = gs.run(method, mlp(), Toy(), rounds=1, options=Options(workers=1, eval_every=0))
        return done.cost.flops, done.density or 0.0

    half, whole = flops(HALF), flops(rates(0.0, 0.0))
    assert half == (whole[0] // 2, 0.5) and whole[1] == 1.0
