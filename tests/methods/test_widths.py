"""HeteroFL, FjORD and FedRolex: sub-models by budget, which units they have and who trains them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from quadratic_cases import half_square
from torch import nn

import gossamer as gs
from gossamer import (
    Client,
    Ctx,
    Examples,
    Exchange,
    FedAvg,
    FedRolex,
    FjORD,
    HeteroFL,
    Key,
    Options,
    Params,
    Task,
    Training,
)
from gossamer.accounting.dry_run import price
from gossamer.data import federation
from gossamer.engine.client import train
from gossamer.methods import fedrolex, fjord, heterofl
from gossamer.methods.fedavg import Server
from gossamer.methods.parts import dense_model, widths
from gossamer.methods.parts.dense_model import Up
from gossamer.methods.parts.widths import Down
from gossamer.models import build
from gossamer.submodels import trace
from helpers import Toy, batch_of, client_ctx, mlp, normed, refused, same, server_ctx

LEVELS = (0.25, 0.5, 1.0)
NAMES = ["heterofl", "fjord", "fedrolex"]


def net(hidden: int = 4) -> Task:
    """Two inputs, hidden units, one output; no biases."""
    layers = (nn.Linear(2, hidden, bias=False), nn.ReLU(), nn.Linear(hidden, 1, bias=False))
    return Task.of(nn.Sequential(*layers), torch.zeros(2, 2), criterion=half_square)


def params_of(task: Task) -> Params:
    """The numbers 1, 2, 3, ... in the order of the tensors."""
    found, first = {}, 1
    for name in task.layout.names:
        leaf = task.layout[name]
        found[name] = torch.arange(first, first + leaf.count).float().view(leaf.shape)
        first += leaf.count
    return found


def server(task: Task, round: int = 1) -> Ctx:
    return replace(server_ctx(task, round), budgets=LEVELS)


# which units ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "width", "kept"), [(4, 0.5, 2), (5, 0.25, 2), (3, 0.1, 1)])
def test_sizes_are_rounded_up(count: int, width: float, kept: int) -> None:
    assert widths.units(count, width) == kept


def test_a_width_of_a_decimal_is_not_rounded_up_by_its_binary_digits() -> None:
    assert widths.units(10, 0.3) == 3 and widths.units(100, 0.07) == 7


def test_ordered_sub_models_are_nested_and_have_the_first_units() -> None:
    task = net()
    small = widths.cut(task, 0.5).take(params_of(task))
    assert small["0.weight"].tolist() == [[1, 2], [3, 4]]
    assert small["2.weight"].tolist() == [[9, 10]]


@pytest.mark.parametrize(
    ("round", "rows"), [(1, [0, 1, 2]), (2, [1, 2, 3]), (3, [0, 2, 3]), (4, [0, 1, 3])]
)
def test_a_window_rolls_by_one_unit_and_around_the_end(round: int, rows: list[int]) -> None:
    task = net()
    kept = fedrolex.window(server(task, round), 0.75).keep["0.weight"]
    assert kept.nonzero().flatten().tolist() == rows
    assert torch.equal(kept, fedrolex.window(server(task, round + 4), 0.75).keep["0.weight"])


def test_every_unit_is_in_equally_many_windows() -> None:
    task = net()
    seen = sum(fedrolex.window(server(task, r), 0.5).keep["0.weight"].int() for r in range(1, 5))
    assert seen.tolist() == [2, 2, 2, 2]


def test_a_residual_network_is_cut_in_all_its_layers() -> None:
    task = Task.of(build("resnet8", (3, 32, 32), 10), torch.zeros(2, 3, 32, 32))
    half = widths.cut(task, 0.5)
    assert all(2 * int(flags.sum()) == len(flags) for flags in half.keep.values())
    assert half.layout.count < 0.27 * task.layout.count


def test_padded_shortcuts_keep_units_that_a_wider_layer_behind_them_has() -> None:
    task = Task.of(build("resnet20", (3, 32, 32), 10), torch.zeros(2, 3, 32, 32))
    half = widths.cut(task, 0.5)
    wide = [name for name, flags in half.keep.items() if 2 * int(flags.sum()) > len(flags)]
    assert wide and all(trace(task).tied[name] for name in wide)
    assert half.layout.count < 0.45 * task.layout.count


# the server -------------------------------------------------------------------------------------


def replies(method: Any, task: Task, changes: dict[float, float]) -> list[Exchange[Any, Up]]:
    """Clients of some budgets that add a number to all they received."""
    ctx, state = server(task), Server(params_of(task))
    found = []
    for id, (budget, change) in enumerate(changes.items()):
        down = method.down(ctx, state, Client(id, 10 * (id + 1), budget))
        up = Up({name: tensor + change for name, tensor in down.params.items()})
        found.append(Exchange(Client(id, 10 * (id + 1), budget), down, up))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_each_number_is_averaged_over_the_clients_that_have_it(name: str) -> None:
    """Half of the units: both clients, +1 and +3. The others: the second alone."""
    task, method = net(), replace(gs.METHODS[name], weighting="uniform")  # type: ignore[type-var]
    state = method.merge(
        server(task), Server(params_of(task)), replies(method, task, {0.5: 1, 1.0: 3})
    )
    assert (state.params["0.weight"] - params_of(task)["0.weight"]).tolist() == [
        *([[2, 2]] * 2),
        *([[3, 3]] * 2),
    ]
    assert (state.params["2.weight"] - params_of(task)["2.weight"]).tolist() == [[2, 2, 3, 3]]


def test_clients_may_be_weighted_by_their_examples() -> None:
    """10 and 20 examples: (1 * 10 + 4 * 20) / 30 = 3."""
    task, method = net(), FjORD()
    state = method.merge(
        server(task), Server(params_of(task)), replies(method, task, {0.5: 1, 1.0: 4})
    )
    assert (state.params["0.weight"] - params_of(task)["0.weight"]).tolist() == [
        *([[3, 3]] * 2),
        *([[4, 4]] * 2),
    ]


@pytest.mark.parametrize("name", NAMES)
def test_what_nobody_has_stays(name: str) -> None:
    task, method = net(), gs.METHODS[name]
    state = method.merge(server(task), Server(params_of(task)), replies(method, task, {0.25: 7}))
    moved = state.params["0.weight"] != params_of(task)["0.weight"]
    assert moved.tolist() == [[True, True], *([[False, False]] * 3)]


@pytest.mark.parametrize("method", [HeteroFL(), FjORD()])
def test_a_model_that_nobody_can_train_whole_is_refused(method: Any) -> None:
    ctx = replace(server_ctx(net()), budgets=(0.25, 0.5))
    with refused("the largest budget is 0.5, .* or use fedrolex"):
        method.init(ctx)
    FedRolex().init(ctx)


def test_a_model_without_units_to_lose_is_refused() -> None:
    lone = Task.of(nn.Linear(2, 1), torch.zeros(2, 2), criterion=half_square)
    with refused("no layer of this one may lose units"):
        FedRolex().init(replace(server_ctx(lone), budgets=(0.5, 1.0)))


# the client -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_with_a_budget_of_one_and_plain_training_it_is_fedavg(name: str) -> None:
    task, training = normed(), Training(batch=8, momentum=0.5)
    method = gs.fields.replace(gs.METHODS[name], {"bn": "running"})
    method = replace(method, training=training)  # type: ignore[type-var]
    ctx = client_ctx(task, Toy().make(Key(3), 40))
    state = Server(task.init(Key(0)))
    down = method.down(server_ctx(task), state, Client(0, 40))
    mine = train(method, ctx, down, None).result
    theirs = train(FedAvg(training=training), ctx, dense_model.Down(state.params), None).result
    for name, tensor in theirs.up.params.items():
        torch.testing.assert_close(mine.up.params[name], tensor)


@pytest.mark.parametrize("name", NAMES)
def test_a_client_trains_the_smaller_model_itself(name: str) -> None:
    task, method = mlp(), gs.METHODS[name]
    ctx = server(task)
    down = method.down(ctx, method.init(ctx), Client(0, 20, 0.25))
    job = method.begin(client_ctx(task, Toy().make(Key(3), 20)), down, None)
    work = job.work if name == "fedrolex" else job.work.inner
    assert [tuple(p.shape) for p in work.task.module.parameters()] == [(2, 5), (2,), (3, 2), (3,)]
    done = train(method, client_ctx(task, Toy().make(Key(3), 20)), down, None).result
    assert done.masks["0.weight"].sum() == 10 and done.masks["3.weight"].sum() == 6
    assert {n: t.shape for n, t in done.up.params.items()} == {
        n: t.shape for n, t in down.params.items()
    }


def test_the_scaler_divides_outputs_of_cut_layers_by_the_width_in_training() -> None:
    """x = (1, 1), w = (1, 1), v = 2, half of the units: the hidden unit gives 2 / 0.5 = 4.

    The output is 8, 7 too much: the gradient of v is 7 * 4 = 28, that of w 7 * 2 / 0.5 = 28.
    """
    task = net(2)
    method = HeteroFL(training=Training(batch=1, lr=0.01), own_classes=False)
    ctx = client_ctx(task, Examples(torch.ones(1, 2), torch.ones(1, 1)))
    small = {"0.weight": torch.ones(1, 2), "2.weight": torch.tensor([[2.0]])}
    done = train(method, ctx, Down(small, 0.5), None).result
    assert done.up.params["2.weight"].item() == pytest.approx(2 - 0.28)
    assert done.up.params["0.weight"].tolist() == [pytest.approx([1 - 0.28] * 2)]
    plain = train(replace(method, scaled=False), ctx, Down(small, 0.5), None).result
    assert plain.up.params["2.weight"].item() == pytest.approx(2 - 0.01 * 3 * 2)


# HeteroFL: classes that a client lacks ----------------------------------------------------------


def two_classes() -> tuple[Task, Ctx]:
    task, some = mlp(), Toy().make(Key(3), 40)
    here = some.y != 2
    return task, client_ctx(task, Examples(some.x[here], some.y[here]))


def test_rows_of_classes_that_a_client_lacks_come_back_as_they_were() -> None:
    task, ctx = two_classes()
    state = Server(task.init(Key(0)))
    down = HeteroFL().down(server(task), state, Client(0, 20, 0.5))
    reply = train(HeteroFL(), ctx, down, None).result.up.params
    for name in ("3.weight", "3.bias"):
        assert torch.equal(reply[name][2], down.params[name][2])
        assert not torch.equal(reply[name][:2], down.params[name][:2])
    other = train(replace(HeteroFL(), own_classes=False), ctx, down, None).result.up.params
    assert not torch.equal(other["3.bias"][2], down.params["3.bias"][2])


def test_the_masked_loss_has_logits_of_zero_for_classes_that_are_not_there() -> None:
    task, ctx = two_classes()
    present = heterofl.classes(ctx)
    assert present is not None and present.tolist() == [True, True, False]
    params, batch = task.init(Key(0)), batch_of(ctx.own.train.x, ctx.own.train.y)
    logits = task.logits(params, batch.x)
    logits[:, 2] = 0
    wanted = nn.functional.cross_entropy(logits, batch.y)
    torch.testing.assert_close(widths.masked_loss(task, present)(params, batch), wanted)


def test_the_server_averages_a_class_over_those_who_trained_it() -> None:
    """The first client lacks class 2: its unchanged row has no weight in the mean."""
    task, method = mlp(), HeteroFL()
    state = Server(task.init(Key(0)))
    down = method.down(server(task), state, Client(0, 20))
    ups = [Up({n: t + change for n, t in down.params.items()}) for change in (1.0, 3.0)]
    for name in ("3.weight", "3.bias"):
        ups[0].params[name][2] = down.params[name][2]
    exchanges = [Exchange(Client(id, 20), down, up) for id, up in enumerate(ups)]
    moved = method.merge(server(task), state, exchanges).params["3.bias"] - state.params["3.bias"]
    assert moved.tolist() == pytest.approx([2, 2, 3], abs=1e-6)
    all_rows = replace(method, own_classes=False).merge(server(task), state, exchanges)
    assert (all_rows.params["3.bias"] - state.params["3.bias"]).tolist() == pytest.approx(
        [2, 2, 1.5], abs=1e-6
    )


@pytest.mark.parametrize(
    "labels", [torch.rand(6), torch.tensor([0, 1, 2, 0, 1, 2]), torch.zeros(6, 3)]
)
def test_labels_that_are_no_classes_or_all_classes_mask_nothing(labels: torch.Tensor) -> None:
    assert heterofl.classes(client_ctx(mlp(), Examples(torch.zeros(6, 5), labels))) is None


# FjORD: ordered dropout -------------------------------------------------------------------------


def test_a_client_is_sent_the_widths_up_to_its_own() -> None:
    task = net()
    found = {
        budget: FjORD().down(server(task), Server(params_of(task)), Client(0, 1, budget))
        for budget in LEVELS
    }
    assert [down.widths.tolist() for down in found.values()] == [[0.25], [0.25, 0.5], [*LEVELS]]
    assert found[0.5].params["0.weight"].tolist() == [[1, 2], [3, 4]]


def stepped(method: FjORD, width: float, own: float) -> tuple[Params, Params]:
    """The client's largest sub-model before and after a step in which this width was drawn."""
    task = mlp()
    some = Toy().make(Key(3), 12)
    down = method.down(server(task), Server(task.init(Key(0))), Client(0, 12, own))
    ctx = client_ctx(task, some)
    work = method.begin(ctx, down, None).work
    levels = down.widths.tolist()
    draws = (Key(0).fold(number) for number in range(1000))
    key = next(
        key
        for key in draws
        if levels[int(key.fold("width").numpy().integers(len(levels)))] == width
    )
    after = method.step(ctx, work, batch_of(some.x, some.y, key)).inner.inner.params
    return down.params, after


@pytest.mark.parametrize(("width", "units"), [(0.25, 2), (0.5, 4)])
def test_a_step_trains_the_drawn_width_as_if_there_were_no_more_units(
    width: float, units: int
) -> None:
    method = FjORD(training=Training(lr=0.1))
    before, after = stepped(method, width, own=1.0)
    changed = (after["0.weight"] != before["0.weight"]).any(1)
    assert not changed[units:].any() and changed[:units].any()
    alone, trained = stepped(replace(method), width, own=width)
    assert alone["0.weight"].shape == (units, 5)
    torch.testing.assert_close(after["0.weight"][:units], trained["0.weight"])
    torch.testing.assert_close(after["3.weight"][:, :units], trained["3.weight"])
    assert torch.equal(after["3.weight"][:, units:], before["3.weight"][:, units:])


def test_with_distillation_the_largest_model_trains_and_teaches() -> None:
    """The gradient is that of the whole on labels, and of the part on the whole's outputs."""
    task, rate = mlp(), 0.1
    before, after = stepped(FjORD(distill=True, training=Training(lr=rate)), 0.5, own=1.0)
    some = Toy().make(Key(3), 12)
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in before.items()}

    def outputs(units: int) -> torch.Tensor:
        hidden = (some.x @ leaves["0.weight"][:units].T + leaves["0.bias"][:units]).relu()
        return hidden @ leaves["3.weight"][:, :units].T + leaves["3.bias"]

    teacher = outputs(8)
    loss = nn.functional.cross_entropy(teacher, some.y) + nn.functional.cross_entropy(
        outputs(4), teacher.detach().softmax(1)
    )
    loss.backward()
    for name, leaf in leaves.items():
        assert leaf.grad is not None
        torch.testing.assert_close(after[name], before[name] - rate * leaf.grad)
    assert task.layout.names == tuple(before)


def test_all_widths_are_drawn_equally_often() -> None:
    draws = [int(Key(1).fold(n).fold("width").numpy().integers(3)) for n in range(3000)]
    assert all(abs(draws.count(level) - 1000) < 100 for level in range(3))


@pytest.mark.parametrize("method", [HeteroFL(), FjORD()])
def test_a_client_is_judged_by_the_part_of_the_model_that_it_can_afford(method: Any) -> None:
    task, x = mlp(), torch.randn(7, 5, generator=Key(4).generator())
    state = Server(task.init(Key(0)))
    kind = heterofl.Local if isinstance(method, HeteroFL) else fjord.Local
    part = method.model(server(task), state, kind(0.5))
    cut = widths.cut(task, 0.5)
    small = cut.task(task).logits(cut.take(state.params), x)
    torch.testing.assert_close(task.logits(part, x), small)
    assert method.model(server(task), state, None) is state.params
    assert method.model(server(task), state, kind(1.0)) is state.params


# whole runs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_run_with_three_budgets_learns_and_charges_by_budget(name: str) -> None:
    data = federation("synthetic", pool=9, budgets="1.0:34%,0.5:33%,0.25:33%", seed=2)
    example = torch.zeros(2, *data.test.x.shape[1:])
    task = Task.of(build("mlp:hidden=16", tuple(example.shape[1:]), data.classes), example)
    method = gs.fields.replace(gs.METHODS[name], {"clients": 6, "batch": 8, "lr": 0.1})
    done = [
        gs.run(method, task, data, rounds=4, seed=1, options=Options(workers=workers))
        for workers in (1, 2)
    ]
    assert done[0].state_hash == done[1].state_hash
    assert same(done[0].state.params, done[1].state.params)
    assert done[0].accuracy["global"] is not None


def test_a_price_is_that_of_the_budgets() -> None:
    task = net(8)
    found = [
        price(
            FedRolex(clients=2),
            task,
            classes=1,
            pool=2,
            examples=10,
            rounds=8,
            budgets=torch.tensor([budget] * 2, dtype=torch.float64).numpy(),
        )
        for budget in (1.0, 0.5, 0.25)
    ]
    assert found[0].flops == 2 * found[1].flops == 4 * found[2].flops
