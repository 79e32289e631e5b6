"""SCAFFOLD: its lines by hand, and where it ends up when clients disagree."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from quadratic_cases import one, slope, weight

from gossamer import Client, Exchange, FedAvg, Key, Scaffold, Training
from gossamer.engine.client import train
from gossamer.methods import fedavg
from gossamer.methods.parts import dense_model
from gossamer.methods.scaffold import Down, Local, Server, Up
from gossamer.wire import WireError
from helpers import Toy, client_ctx, normed, refused, same, server_ctx

METHOD = Scaffold(clients=2, training=Training(epochs=2, batch=1, lr=0.5))


def test_a_newcomer_takes_plain_steps_and_remembers_their_mean_gradient() -> None:
    """From 1 towards 4 at half the distance: 2.5, 3.25, along gradients of -3 and -1.5."""
    done = train(METHOD, one(slope(), 4.0), Down(weight(1.0), weight(0.0)), None).result
    assert done.up.params["w"].tolist() == [3.25]
    assert done.up.renewal["w"].tolist() == [-2.25]
    assert done.local == Local(done.local.control) and done.local.control["w"].tolist() == [-2.25]


def test_later_steps_are_corrected_by_the_difference_of_the_control_variates() -> None:
    """c - c_i = 2.75, so gradients of -3 and -2.875 become steps along -0.25 and -0.125."""
    down, local = Down(weight(1.0), weight(0.5)), Local(weight(-2.25))
    done = train(METHOD, one(slope(), 4.0), down, local).result
    assert done.up.params["w"].tolist() == [1.1875]
    assert done.up.renewal["w"].tolist() == [-0.6875]
    assert done.local is not None and done.local.control["w"].tolist() == [-2.9375]
    assert local.control["w"].tolist() == [-2.25]


@pytest.mark.parametrize(("rate", "wanted"), [(1.0, 1.75), (0.5, 1.375), (2.0, 2.5)])
def test_the_server_moves_to_the_mean_and_renews_its_control_by_the_whole_pool(
    rate: float, wanted: float
) -> None:
    ctx = replace(server_ctx(slope()), pool=4)
    down = Down(weight(1.0), weight(0.0))
    exchanges = [
        Exchange(Client(0, 10), down, Up(weight(3.25), weight(-2.25))),
        Exchange(Client(1, 90), down, Up(weight(0.25), weight(0.75))),
    ]
    state = Server(weight(1.0), weight(0.125))
    merged = replace(METHOD, server_lr=rate).merge(ctx, state, exchanges)
    assert merged.params["w"].tolist() == pytest.approx([wanted])
    assert merged.control["w"].tolist() == pytest.approx([0.125 + (-2.25 + 0.75) / 4])


def test_it_ends_at_the_optimum_where_fedavg_does_not() -> None:
    """Losses (w - 4)^2 / 2 and 4 w^2 / 2: the sum is least at 0.8.

    FedAvg with two steps of rate 0.2 rests where w = 0.34 w + 0.72.
    """
    task, training = slope(), Training(epochs=2, batch=1, lr=0.2)
    clients = [one(task, 4.0), one(task, 0.0, scale=2.0)]
    mean, method = FedAvg(training=training), Scaffold(training=training)
    plain, state = fedavg.Server(weight(1.0)), Server(weight(1.0), weight(0.0))
    ctx, kept = replace(server_ctx(task), pool=2), [None, None]
    for _ in range(120):
        sent = dense_model.Down(plain.params)
        replies = [train(mean, client, sent, None).result.up for client in clients]
        ends = [Exchange(Client(id, 1), sent, up) for id, up in enumerate(replies)]
        plain = mean.merge(ctx, plain, ends)
        down = method.down(ctx, state, Client(0, 1))
        done = [train(method, *each).result for each in zip(clients, [down] * 2, kept, strict=True)]
        state = method.merge(
            ctx, state, [Exchange(Client(id, 1), down, each.up) for id, each in enumerate(done)]
        )
        kept = [each.local for each in done]
    assert plain.params["w"].tolist() == pytest.approx([0.72 / 0.66], abs=1e-5)
    assert state.params["w"].tolist() == pytest.approx([0.8], abs=1e-5)
    assert state.control["w"].tolist() == pytest.approx([0.0], abs=1e-5)


def test_the_first_round_is_that_of_fedavg() -> None:
    task, training = normed(), Training(batch=8)
    params, ctx = task.init(Key(0)), client_ctx(task, Toy().make(Key(3), 20))
    state = replace(Scaffold().init(server_ctx(task)), params=params)
    down = Scaffold().down(ctx, state, Client(0, 20))
    assert set(down.control) == set(task.layout.parameters)
    mine = train(Scaffold(training=training), ctx, down, None).result.up
    theirs = train(FedAvg(training=training), ctx, dense_model.Down(params), None).result.up
    for name, tensor in theirs.params.items():
        torch.testing.assert_close(mine.params[name], tensor)
    assert same(
        Scaffold().merge(ctx, state, [Exchange(Client(0, 1), down, mine)]).params, mine.params
    )


def test_momentum_is_refused() -> None:
    with refused("momentum of 0.9 would stretch; use --momentum 0"):
        Scaffold(training=Training(momentum=0.9)).init(server_ctx(slope()))


def test_a_control_variate_of_another_shape_is_refused() -> None:
    down = Down(weight(1.0), weight(0.0))
    odd = Exchange(Client(0, 1), down, Up(weight(1.0), {"w": torch.zeros(2)}))
    with pytest.raises(WireError, match=r"w came back as torch\.float32 of shape \(2,\)"):
        METHOD.merge(server_ctx(slope()), Server(weight(1.0), weight(0.0)), [odd])
