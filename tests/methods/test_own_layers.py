"""FedBN and FedRep: which layers stay with clients, and how a head trains before the rest."""

from __future__ import annotations

import pytest
import torch
from quadratic_cases import chain, one
from torch import nn

from gossamer import Client, Exchange, FedAvg, FedBN, FedRep, Key, Params, Task, Training
from gossamer.engine.client import train
from gossamer.methods import fedbn, fedrep
from gossamer.methods.parts.dense_model import Down
from gossamer.methods.parts.own_layers import Local
from helpers import Toy, client_ctx, mlp, normed, refused, same, server_ctx
from paper_models import COLOUR, layout_of

NORM = {"1.weight", "1.bias", "1.running_mean", "1.running_var"}


# FedBN ------------------------------------------------------------------------------------------


def test_batch_norms_stay_and_other_norms_travel() -> None:
    layout = layout_of("cnn7", COLOUR, 10)
    sent = fedbn.shared(layout)
    assert set(layout.names) - set(sent) == {n for n in layout.names if n.startswith("norm")}
    grouped = Task.of(
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4)), torch.zeros(2, 1, 6, 6)
    )
    assert tuple(fedbn.shared(grouped.layout)) == grouped.layout.names


def test_fedbn_averages_all_but_the_norms_which_clients_keep() -> None:
    task = normed()
    method = FedBN(weighting="uniform", training=Training(batch=8, lr=0.1))
    ctx = server_ctx(task)
    state = method.init(ctx)
    down = method.down(ctx, state, Client(0, 20))
    assert set(down.params) == set(task.layout.names) - NORM
    done = [
        train(method, client_ctx(task, Toy().make(Key(9).fold(id), 20)), down, None).result
        for id in range(2)
    ]
    merged = method.merge(
        ctx, state, [Exchange(Client(id, 20), down, each.up) for id, each in enumerate(done)]
    )
    for name in down.params:
        one, two = (each.up.params[name] for each in done)
        torch.testing.assert_close(merged.params[name], (one + two) / 2)
    kept = [each.local for each in done]
    assert all(local is not None and set(local.params) == NORM for local in kept)
    assert not torch.equal(kept[0].params["1.weight"], kept[1].params["1.weight"])
    for local in kept:
        mine = method.model(ctx, merged, local)
        assert all(torch.equal(mine[name], local.params[name]) for name in NORM)
        assert torch.equal(mine["0.weight"], merged.params["0.weight"])
    again = train(method, client_ctx(task, Toy().make(Key(9).fold(0), 20)), down, kept[0]).result
    assert not torch.equal(again.local.params["1.weight"], kept[0].params["1.weight"])


def test_without_batch_norms_fedbn_is_fedavg() -> None:
    task, training = mlp(), Training(batch=8)
    ctx, down = client_ctx(task, Toy().make(Key(3), 20)), Down(task.init(Key(0)))
    mine = train(FedBN(training=training), ctx, down, None).result
    assert same(mine.up.params, train(FedAvg(training=training), ctx, down, None).result.up.params)
    assert mine.local is None


# FedRep -----------------------------------------------------------------------------------------


def two(representation: float, head: float) -> tuple[Params, Params]:
    return {"0.weight": torch.tensor([[representation]])}, {"1.weight": torch.tensor([[head]])}


def test_the_head_trains_first_and_the_representation_behind_it() -> None:
    """2 * 1 aims at 1. The head: 1 - 0.1 * 2 * 1 = 0.8. Then 2 - 0.1 * 0.8 * 0.6 = 1.952."""
    method = FedRep(head_epochs=1, training=Training(batch=1, lr=0.1))
    sent, own = two(2.0, 1.0)
    done = train(method, one(chain(), 1.0), Down(sent), Local(own)).result
    assert done.up.params["0.weight"].item() == pytest.approx(1.952)
    assert done.local is not None and done.local.params["1.weight"].item() == pytest.approx(0.8)
    assert list(done.up.params) == ["0.weight"] and list(done.local.params) == ["1.weight"]


def test_momentum_of_the_head_does_not_move_it_behind_its_epochs() -> None:
    """With momentum 0.5 two steps of the head: 0.8, then 0.8 - 0.1 * (1.2 + 0.5 * 2) = 0.58."""
    method = FedRep(head_epochs=2, training=Training(epochs=3, batch=1, lr=0.1, momentum=0.5))
    sent, own = two(2.0, 1.0)
    done = train(method, one(chain(), 1.0), Down(sent), Local(own)).result
    assert done.local is not None and done.local.params["1.weight"].item() == pytest.approx(0.58)
    assert done.up.params["0.weight"].item() != pytest.approx(2.0)


def test_epochs_of_both_parts_are_counted() -> None:
    method = FedRep(head_epochs=2, training=Training(epochs=1, batch=8))
    done = train(method, client_ctx(mlp(), Toy().make(Key(3), 20)), *start(method, mlp()))
    assert done.examples == 60 and done.steps == 9


def start(method: FedRep, task: Task) -> tuple[Down, None]:
    ctx = server_ctx(task)
    return method.down(ctx, method.init(ctx), Client(0, 1)), None


def test_a_newcomer_has_the_initial_head_and_later_its_own() -> None:
    task, method = mlp(), FedRep(training=Training(batch=8))
    ctx = server_ctx(task)
    state = method.init(ctx)
    first = method.model(ctx, state, None)
    assert same(first, task.init(ctx.common.fold("init")))
    local = Local({"3.weight": first["3.weight"] + 1, "3.bias": first["3.bias"] + 1})
    mine = method.model(ctx, state, local)
    assert torch.equal(mine["3.weight"], local.params["3.weight"])
    assert torch.equal(mine["0.weight"], first["0.weight"]) and list(mine) == list(first)


def test_heads_are_chosen_by_number_or_by_name() -> None:
    layout = layout_of("cnn7", COLOUR, 10)
    assert fedrep.own_head(layout, "2") == ("fc3.weight",)  # the last module is a norm
    assert fedrep.own_head(layout, "fc[23]*") == ("fc2.weight", "fc3.weight")
    assert not set(fedrep.representation(layout, "fc2")) & {"fc2.weight"}


@pytest.mark.parametrize(
    ("head", "words"),
    [
        ("9", "--head 9 leaves no representation to share; use fewer last layers"),
        ("0", "--head 0 leaves nothing to keep; use a larger number"),
        ("fc", "--head: no layer or tensor of this model is called 'fc'"),
    ],
)
def test_what_is_no_head_is_refused(head: str, words: str) -> None:
    with refused(words):
        FedRep(head=head).init(server_ctx(mlp()))
