"""SSFL: scores by hand, the mask of the highest, and training on it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from quadratic_cases import chain, half_square
from torch import nn

from gossamer import SSFL, Client, Examples, Exchange, FedAvg, Key, Params, Task, Training
from gossamer.engine.client import train
from gossamer.methods.parts import dense_model, held_versions
from gossamer.methods.parts.held_versions import NOBODY
from gossamer.methods.ssfl import Score, Scores, Server, Train, Update, best
from gossamer.wire import WireError
from helpers import Toy, client_ctx, mlp, refused, server_ctx

METHOD = SSFL(clients=2, training=Training(batch=1, lr=0.1))


def two(first: float, second: float) -> Params:
    return {"0.weight": torch.tensor([[float(first)]]), "1.weight": torch.tensor([[float(second)]])}


# scores -----------------------------------------------------------------------------------------


def test_a_score_is_the_gradient_times_the_weight() -> None:
    """2 * 3 aims at 1: 5 too much. Gradients 5 * 3 and 5 * 2; both scores are 5 * 6 = 30."""
    ctx = client_ctx(chain(), Examples(torch.ones(1, 1), torch.ones(1, 1)))
    up = train(METHOD, ctx, Score(two(2.0, 3.0)), None).result.up
    assert isinstance(up, Scores)
    assert {name: score.item() for name, score in up.scores.items()} == {
        "0.weight": 30,
        "1.weight": 30,
    }


def test_scores_of_several_weights_by_hand() -> None:
    """x = (1, 2), w = (1, -1), aim 1: the output -1 is 2 too little, gradients are (-2, -4)."""
    task = Task.of(nn.Linear(2, 1, bias=False), torch.ones(2, 2), criterion=half_square)
    ctx = client_ctx(task, Examples(torch.tensor([[1.0, 2.0]]), torch.ones(1, 1)))
    up = train(METHOD, ctx, Score({"weight": torch.tensor([[1.0, -1.0]])}), None).result.up
    assert up.scores["weight"].tolist() == [[2, 4]]


@pytest.mark.parametrize(("batches", "examples"), [(1, 8), (2, 16), (9, 24)])
def test_weights_are_scored_on_a_few_batches(batches: int, examples: int) -> None:
    method = SSFL(probe_batches=batches, training=Training(batch=8))
    ctx = client_ctx(mlp(), Toy().make(Key(3), 24))
    done = train(method, ctx, Score(mlp().init(Key(0))), None)
    assert done.examples >= min(examples, 24) and done.result.local is None


def test_the_highest_scores_of_the_whole_model_are_kept() -> None:
    scores = {"a": torch.tensor([[1.0, 5, 2]]), "b": torch.tensor([[9.0, 8, 7]])}
    masks = best(scores, 0.5)
    assert masks["a"].tolist() == [[False, True, False]]  # a layer keeps at least one
    assert masks["b"].tolist() == [[True, True, False]]
    assert best(scores, 1.0)["a"].all()


# the server -------------------------------------------------------------------------------------


def scored(*scores: Params) -> Server:
    ctx, state = server_ctx(chain()), Server(two(2.0, 3.0), {}, NOBODY)
    down = METHOD.down(ctx, state, Client(0, 1))
    assert isinstance(down, Score)
    exchanges = [Exchange(Client(id, id + 1), down, Scores(each)) for id, each in enumerate(scores)]
    return METHOD.merge(ctx, state, exchanges)


def test_scores_are_averaged_with_equal_weights_and_choose_the_mask() -> None:
    task = Task.of(nn.Linear(4, 1, bias=False), torch.ones(2, 4), criterion=half_square)
    ctx = server_ctx(task)
    state = Server({"weight": torch.tensor([[1.0, 2, 3, 4]])}, {}, NOBODY)
    down = METHOD.down(ctx, state, Client(0, 1))
    scores = ([[9.0, 0, 4, 1]], [[0.0, 1, 4, 2]])
    merged = METHOD.merge(
        ctx,
        state,
        [
            Exchange(Client(id, 1 + 98 * id), down, Scores({"weight": torch.tensor(each)}))
            for id, each in enumerate(scores)
        ],
    )
    assert merged.masks["weight"].tolist() == [[True, False, True, False]]  # means 4.5 .5 4 1.5
    assert merged.params["weight"].tolist() == [[1, 0, 3, 0]]


def test_all_clients_score_and_some_train() -> None:
    pool = [Client(id, 5) for id in range(20)]
    before, after = Server(two(1, 1), {}, NOBODY), scored(two(1, 1))
    ctx = server_ctx(chain())
    assert len(METHOD.cohort(ctx, before, pool)) == 20
    assert len(replace(METHOD, probe_clients=3).cohort(ctx, before, pool)) == 3
    assert len(METHOD.cohort(ctx, after, pool)) == 2


def test_the_mask_goes_down_once_to_each_client() -> None:
    task = mlp()
    method, ctx = SSFL(density=0.25, training=Training(batch=8)), server_ctx(task, 2)
    params = task.init(Key(0))
    masks = best({n: params[n].abs() for n in task.layout.prunable}, 0.25)
    state = Server({**params, **{n: params[n] * m for n, m in masks.items()}}, masks, NOBODY)
    down = method.down(ctx, state, Client(3, 20))
    assert isinstance(down, Train) and down.mask is not None
    done = train(method, client_ctx(task, Toy().make(Key(3), 20)), down, None).result
    assert isinstance(done.up, Update) and done.masks is not None
    state = method.merge(ctx, state, [Exchange(Client(3, 20), down, done.up)])
    again = method.down(ctx, state, Client(3, 20))
    assert isinstance(again, Train) and again.mask is None
    other = method.down(ctx, state, Client(4, 20))
    assert isinstance(other, Train) and other.mask is not None
    assert held_versions.holds(state.held, Client(3, 20), 0)
    for name, mask in masks.items():
        assert not state.params[name][~mask].any() and state.params[name][mask].any()
    assert sum(int(mask.sum()) for mask in masks.values()) == int(0.25 * (40 + 24))


def test_with_all_weights_it_trains_as_fedavg_does() -> None:
    task, training = mlp(), Training(batch=8, lr=0.1)
    params = task.init(Key(0))
    ones = {name: torch.ones_like(params[name], dtype=torch.bool) for name in task.layout.prunable}
    method = SSFL(density=1.0, training=training)
    down = method.down(server_ctx(task, 2), Server(params, ones, NOBODY), Client(0, 20))
    ctx = client_ctx(task, Toy().make(Key(3), 20), round=2)
    mine = train(method, ctx, down, None).result.up
    theirs = train(FedAvg(training=training), ctx, dense_model.Down(params), None).result.up
    for name, values in mine.model.values.values.items():
        torch.testing.assert_close(values, theirs.params[name].flatten())


def test_the_first_learning_rate_is_that_of_the_first_round_that_trains() -> None:
    task = mlp()
    method = SSFL(training=Training(lr=0.4, schedule="exponential", decay=0.5))
    state = scored(two(1, 1))
    assert state.masks
    params = task.init(Key(0))
    ones = {name: torch.ones_like(params[name], dtype=torch.bool) for name in task.layout.prunable}
    down = method.down(server_ctx(task, 2), Server(params, ones, NOBODY), Client(0, 1))
    ctx = client_ctx(task, Toy().make(Key(3), 20), round=2)
    assert method.begin(ctx, down, None).work.rate == 0.4


# refusals ---------------------------------------------------------------------------------------


def test_a_model_in_place_of_scores_is_refused() -> None:
    ctx, state = server_ctx(chain()), Server(two(2.0, 3.0), {}, NOBODY)
    down = METHOD.down(ctx, state, Client(0, 1))
    after = scored(two(1, 1))
    model = METHOD.down(ctx, after, Client(0, 1))
    assert isinstance(model, Train)
    with pytest.raises(WireError, match="where scores were asked for"):
        METHOD.merge(ctx, state, [Exchange(Client(0, 1), down, Update(model.model))])
    with pytest.raises(WireError, match="where a model was asked for"):
        METHOD.merge(ctx, after, [Exchange(Client(0, 1), model, Scores(two(1, 1)))])


def test_one_round_is_too_few() -> None:
    with refused("scores the weights and trains none; use --rounds 2"):
        METHOD.init(server_ctx(chain(), rounds=1))
