"""The Laplace prior against numbers worked out by hand, and against clients that send garbage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from pair_cases import CLIENTS, START, Two, vector
from torch import nn

import gossamer as gs
from gossamer import Client, Ctx, Exchange, FedAvg, Key, Laplace, Params, Result, Task, Training
from gossamer.accounting import paper_bits
from gossamer.data import federation
from gossamer.engine.client import train
from gossamer.methods import laplace
from gossamer.methods.as_published.priors import LaplaceVariants
from gossamer.methods.laplace import Local, Up, median, received, shrink
from gossamer.methods.parts import dense_model
from gossamer.methods.parts.dense_model import Down, Work
from gossamer.methods.parts.server_optimiser import ServerOptimiser
from gossamer.models import build
from gossamer.wire import WireError, encode, pack
from helpers import Toy, batch_of, client_ctx, mlp, normed, same, server_ctx


def two(criterion: Any = nn.functional.cross_entropy) -> Task:
    return Task.of(Two(), torch.zeros(2, 2, dtype=torch.float64), criterion=criterion, start="seed")


def exchanges(values: Sequence[Sequence[float]]) -> list[Exchange[Down, Up]]:
    """Replies of clients whose models ended at `values`."""
    found = []
    for id, value in enumerate(values):
        changes = {"w": vector(value) - vector(START)}
        moved = {"w": changes["w"] != 0}
        up = Up(moved, pack(changes, moved), {})
        found.append(Exchange(Client(id, 10 + id), Down({"w": vector(START)}), up))
    return found


def merged(method: Any, values: Sequence[Sequence[float]]) -> list[float]:
    ctx = server_ctx(two())
    found: list[float] = method.merge(ctx, method.init(ctx), exchanges(values)).params["w"].tolist()
    return found


# the server -------------------------------------------------------------------------------------


def test_the_server_takes_the_median() -> None:
    assert merged(Laplace(), CLIENTS) == pytest.approx([1.2, -1.0], abs=1e-15)


def test_the_median_of_an_even_number_is_half_way() -> None:
    assert median(vector([1.2, 0.9, 1.2, 0.5])).item() == pytest.approx(1.05)
    assert merged(Laplace(), [(each, -1.0) for each in (1.2, 0.9, 1.2, 0.5)])[0] == 1.05


def test_the_median_of_equal_weights_is_that_weight_to_the_bit_however_large() -> None:
    weights = torch.tensor([3.3e38, 0.1, -3.3e38, 1e-30])
    assert torch.equal(median(weights.expand(4, 4)), weights)


def test_signs_are_summed_and_go_through_the_optimiser() -> None:
    plain = ServerOptimiser("sgd", server_lr=1.0, beta1=0.0)
    method = Laplace(server="sign", strength=0.3, adaptive=plain)
    assert merged(method, CLIENTS) == pytest.approx([1.1, -1.0])
    assert merged(LaplaceVariants(method, reduction="sum"), CLIENTS) == pytest.approx([1.3, -1.0])
    adam = replace(method, adaptive=ServerOptimiser())
    for each in (adam, LaplaceVariants(adam, reduction="sum")):
        assert merged(each, CLIENTS) == pytest.approx([1.001, -1.0], abs=1e-8)


def test_rounding_on_the_way_down_is_no_vote() -> None:
    """Who moves nothing votes for nothing, though it has not quite the server's weights."""
    ctx, method = server_ctx(two()), Laplace(server="sign")
    replies = [
        replace(each, down=Down({"w": vector((1.0001, -0.9999))}))
        for each in exchanges([START] * 3)
    ]
    assert method.merge(ctx, method.init(ctx), replies).params["w"].tolist() == list(START)


def test_signs_without_a_price_are_refused() -> None:
    with pytest.raises(ValueError, match="`server='sign'` goes by the prior's gradient"):
        Laplace(server="sign", strength=0.0).init(server_ctx(two()))


def test_a_weight_moves_only_if_half_of_the_clients_move_it() -> None:
    moved, still = (2.0, -1.0), START
    assert merged(Laplace(), [moved] * 4 + [still] * 6)[0] == 1.0
    assert merged(Laplace(), [moved] * 5 + [still] * 5)[0] == 1.5
    assert merged(Laplace(), [moved] * 6 + [still] * 4)[0] == 2.0


def test_values_that_do_not_fit_their_mask_are_refused() -> None:
    good = exchanges(CLIENTS)[0]
    lie = replace(good.up, moved={"w": torch.tensor([True, True])})
    with pytest.raises(WireError, match="1 values for a mask that keeps 2"):
        received(good.down, lie)
    with pytest.raises(WireError, match="lacks or adds"):
        received(good.down, replace(good.up, buffers={"w2": vector(START)}))


# the client -------------------------------------------------------------------------------------


def test_the_proximal_step_lands_on_the_servers_weight_exactly() -> None:
    """At (1.003, -1.2), gradient (.1, 2), rate .05 and strength .2."""
    task = two(criterion=lambda out, y: (out * y[:, None]).sum())
    ctx = client_ctx(task, gs.Examples(vector([0.1, 2.0])[None], torch.ones(1).long()))
    method = Laplace(strength=0.2, training=Training(lr=0.05))
    work = method.begin(ctx, Down({"w": vector(START)}), None).work
    work.params["w"].copy_(vector([1.003, -1.2]))
    after = method.step(ctx, work, batch_of(ctx.own.train.x, ctx.own.train.y)).params["w"]
    assert after[0] == 1.0
    assert after[1].item() == pytest.approx(-1.29, abs=1e-15)
    up = method.finish(ctx, work).up
    assert up.moved["w"].tolist() == [False, True]
    assert up.changes.values["w"].tolist() == pytest.approx([-0.29])


def test_strict_bayes_divides_the_price_by_the_examples() -> None:
    task = two(criterion=lambda out, y: (out * 0).sum())
    ctx = client_ctx(task, gs.Examples(torch.zeros(4, 2).double(), torch.zeros(4).long()))
    for regulariser, moved in (("whole", 0.4), ("per-example", 0.1)):
        pure = Laplace(strength=4.0, training=Training(lr=0.1))
        method = LaplaceVariants(pure, regulariser=regulariser)  # type: ignore[arg-type]
        work = method.begin(ctx, Down({"w": vector(START)}), None).work
        work.params["w"].add_(1)
        after = method.step(ctx, work, batch_of(ctx.own.train.x, ctx.own.train.y)).params["w"]
        assert after.tolist() == pytest.approx([2 - moved, -moved])


def trained(method: Any, task: Task) -> tuple[Params, Result[Any, Any]]:
    params = task.init(Key(0))
    ctx = client_ctx(task, Toy().make(Key(3), 30))
    return params, train(method, ctx, Down(params), None).result


def test_only_what_moved_is_sent_and_the_server_has_it_to_the_bit() -> None:
    method = Laplace(strength=0.02, training=Training(batch=8, lr=0.1))
    start, done = trained(method, mlp())
    count = sum(tensor.numel() for tensor in start.values())
    moved = sum(int(mask.sum()) for mask in done.up.moved.values())
    assert 0 < moved < count and done.metrics["moved"] == moved / count
    whole = received(Down(start), done.up)
    assert done.local is not None and same(whole, done.local.params)
    for name, mask in done.up.moved.items():
        assert torch.equal(whole[name] != start[name], mask)
    assert paper_bits(done.up) == count + 32 * moved


def test_without_a_price_a_client_is_that_of_fedavg() -> None:
    training = Training(batch=8, lr=0.1, momentum=0.5)
    _, ours = trained(Laplace(strength=0.0, training=training), normed())
    _, theirs = trained(FedAvg(training=training), normed())
    for name, tensor in theirs.up.params.items():
        torch.testing.assert_close(ours.local.params[name], tensor, rtol=0, atol=1e-6)


def test_a_price_that_is_too_high_moves_and_sends_nothing() -> None:
    start, done = trained(Laplace(strength=1e3), mlp())
    assert same(done.local.params, start)
    assert len(encode(done.up)) < 20 + len(start)
    ctx = server_ctx(mlp())
    state = laplace.Server(start, None)
    after = Laplace().merge(ctx, state, [Exchange(Client(0, 30), Down(start), done.up)])
    assert same(after.params, start)


@pytest.mark.parametrize(("how", "wanted"), [("median", 3.0), ("average", 36.0)])
def test_running_statistics_have_no_prior(how: Any, wanted: float) -> None:
    task = normed()
    ctx, method = server_ctx(task), LaplaceVariants(buffers=how)
    state = method.init(ctx)
    start, done = trained(method, task)
    names = task.layout.buffers
    ups = [
        replace(done.up, buffers={n: torch.full_like(start[n], value) for n in names})
        for value in (2.0, 3.0, 103.0)
    ]
    found = [Exchange(Client(id, 30), Down(start), up) for id, up in enumerate(ups)]
    after = method.merge(ctx, state, found)
    assert all((after.params[name] == wanted).all() for name in names)


def test_a_clients_own_model_is_the_one_it_sent() -> None:
    task = normed()
    ctx, method = server_ctx(task), Laplace()
    state = method.init(ctx)
    _, done = trained(method, task)
    assert (
        isinstance(done.local, Local) and method.model(ctx, state, done.local) is done.local.params
    )
    assert method.model(ctx, state, None) is state.params
    assert trained(LaplaceVariants(personal_model="global"), task)[1].local is None


def test_shrinking_stays_between_the_weight_and_its_anchor() -> None:
    weights, anchor = torch.randn(2, 1000, generator=Key(1).generator())
    before = weights.clone()
    shrink(weights, anchor, 0.5)
    assert ((weights - anchor) * (before - anchor) >= 0).all()
    assert torch.equal(weights == anchor, (before - anchor).abs() <= 0.5)


# garbage ----------------------------------------------------------------------------------------

LIARS = (2, 5, 8)
"""Three of ten."""


def garbage(ctx: Ctx, like: Params) -> Params:
    """Right in shape and type, and wrong in all else."""
    draw = ctx.key.fold("lie").generator()
    return {n: 20 * torch.randn(t.shape, generator=draw) for n, t in like.items()}


@dataclass(frozen=True)
class LyingFedAvg(FedAvg):
    def finish(self, ctx: Ctx, work: Work) -> Result[dense_model.Up, dense_model.Local]:
        done = super().finish(ctx, work)
        if ctx.key.path[-1] not in LIARS:
            return done
        return replace(done, up=dense_model.Up(garbage(ctx, done.up.params)))


@dataclass(frozen=True)
class LyingLaplace(Laplace):
    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        done = super().finish(ctx, work)
        if ctx.key.path[-1] not in LIARS:
            return done
        moved = {name: torch.ones_like(mask) for name, mask in done.up.moved.items()}
        return replace(done, up=Up(moved, pack(garbage(ctx, work.params), moved), {}))


@cache
def problem() -> tuple[Any, Task]:
    found = federation("fmnist-mini", "iid", 10)
    return found, Task.of(build("mlp:hidden=32", (1, 28, 28), 10), found.test.x[:2], start="seed")


def accuracy(method: Any) -> float:
    """Of the global model after four rounds of ten clients, all of whom are asked every time."""
    found, task = problem()
    usual: dict[str, Any] = {"workers": 1, "eval_every": 4, "personal": False}
    options = gs.Options(**usual, on_client_error="skip", reply_limit=0.0)  # liars get through
    summary = gs.run(method, task, found, rounds=4, options=options)
    assert summary.accuracy["global"] is not None
    return summary.accuracy["global"]


TRAINING = Training(epochs=0.3, batch=50, lr=0.3)


def test_the_median_withstands_three_liars_in_ten_that_the_mean_does_not() -> None:
    honest, lied_to = (accuracy(kind(training=TRAINING)) for kind in (FedAvg, LyingFedAvg))
    assert honest > 0.65 and lied_to < 0.3
    honest, lied_to = (accuracy(kind(training=TRAINING)) for kind in (Laplace, LyingLaplace))
    assert honest > 0.65 and lied_to > 0.65
