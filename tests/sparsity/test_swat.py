"""SWAT's layers: which weights and inputs count in which pass, and what is remembered between."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from gossamer import Key, Task
from gossamer.core import Params
from gossamer.sparsity import swat
from helpers import batch_of, mlp, normed

X, W = torch.tensor([[3.0, -0.5, 2.0, 0.1]]), torch.tensor([[0.1, -0.4, 0.3, 0.2]])


def total(found: Tensor, wanted: Tensor) -> Tensor:
    return found.sum()


def cut_off(values: Tensor, share: float) -> Tensor:
    """Zeros but for the largest numbers, by a sort."""
    count = -int(-share * values.numel() // 1)
    least = values.abs().flatten().sort(descending=True).values[count - 1]
    return torch.where(values.abs() >= least, values, 0)


def linear_layer() -> Task:
    return Task.of(nn.Linear(4, 1, bias=False), X, criterion=total, start="seed")


# what is large ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "density", "wanted"),
    [
        ([3.0, -0.5, 2.0, 0.1], 0.5, 2.0),
        ([3.0, -0.5, 2.0, 0.1], 0.51, 0.5),  # a part of a weight is a weight
        ([3.0, -0.5, 2.0, 0.1], 1.0, 0.1),
        ([3.0, -0.5, 2.0, 0.1], 0.01, 3.0),
        ([3.0, -0.5, 2.0, 0.1], 1e-12, 3.0),
        ([1.0, -1.0, 1.0, 0.1], 0.25, 1.0),
        (list(range(30)), 0.1, 27.0),  # 0.1 * 30 is a little more than 3
        ([], 0.5, 0.0),
    ],
)
def test_the_cut_is_the_least_of_the_largest(
    values: list[float], density: float, wanted: float
) -> None:
    assert swat.cut(torch.tensor(values), density) == pytest.approx(wanted)


def test_weights_as_large_as_the_last_one_stay_too() -> None:
    params = {"a": torch.tensor([1.0, -1.0, 1.0, 0.1]), "b": torch.ones(3)}
    found = swat.active(params, ["a"], 0.25)
    assert found["a"].tolist() == [1, -1, 1, 0] and found["b"] is params["b"]
    assert swat.masks(params, ["a"], 0.25)["a"].tolist() == [True, True, True, False]


def test_zeros_are_no_weights_even_where_few_others_are_left() -> None:
    params = {"a": torch.tensor([1.0, 0.0, 0.0, 0.0])}
    assert swat.masks(params, ["a"], 0.5)["a"].tolist() == [True, False, False, False]


# passes -------------------------------------------------------------------------------------------


def test_a_neuron_small_enough_for_paper() -> None:
    """y = -.4 * -.5 + .3 * 2; the first weight is not used, and learns all the same."""
    task = swat.sparse_task(linear_layer(), 0.5)
    params = {"weight": W.clone(), **task.buffers()}
    x = X.clone().requires_grad_()
    out = task.logits(params, x, Key(0))
    assert out.tolist() == [[pytest.approx(0.8)]]
    out.sum().backward()
    assert x.grad is not None and x.grad[0].tolist() == pytest.approx([0, -0.4, 0.3, 0])
    found = task.gradients({"weight": W, **task.buffers()}, batch_of(X, torch.zeros(1)))
    assert found.loss.item() == pytest.approx(0.8)
    assert found.grads["weight"][0].tolist() == [3, 0, 2, 0]


LAYERS = {
    "linear": (lambda: nn.Linear(6, 4), (5, 6)),
    "linear of sequences": (lambda: nn.Linear(6, 4, bias=False), (5, 3, 6)),
    "conv1d": (lambda: nn.Conv1d(3, 4, 3, stride=2, padding=1), (5, 3, 9)),
    "conv2d": (lambda: nn.Conv2d(4, 6, 3, padding=1, groups=2, bias=False), (5, 4, 6, 6)),
    "conv2d apart": (lambda: nn.Conv2d(2, 3, (3, 2), dilation=2, stride=(1, 2)), (5, 2, 8, 8)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2), (4, 2, 4, 4, 4)),
    "padded alike": (lambda: nn.Conv2d(2, 3, (3, 5), padding="same"), (5, 2, 6, 6)),
    "padded in a circle": (
        lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"),
        (5, 2, 6, 6),
    ),
}


@pytest.mark.parametrize("density", [1.0, 0.3])
@pytest.mark.parametrize("name", LAYERS)
def test_gradients_are_those_of_layers_with_zeros_in_the_right_places(
    name: str, density: float
) -> None:
    make, shape = LAYERS[name]
    draw = Key(3).generator()
    x = torch.randn(shape, generator=draw)
    plain = Task.of(
        make(), x, criterion=lambda out, y: (out * out.detach().cos()).sum(), start="seed"
    )
    params = plain.init(Key(1))
    task = swat.sparse_task(plain, density)
    batch = batch_of(x, torch.zeros(len(x)))

    used = {**params, "weight": cut_off(params["weight"], density)}
    out = plain.logits(used, x)
    slope = out.detach().cos()
    mine = x.clone().requires_grad_()
    (plain.logits(used, mine) * slope).sum().backward()
    others: Params = {n: each.clone().requires_grad_() for n, each in params.items()}
    (plain.logits(others, cut_off(x, density)) * slope).sum().backward()

    found = task.gradients({**params, **task.buffers()}, batch)
    torch.testing.assert_close(found.loss, (out * slope).sum())
    for leaf, each in others.items():
        torch.testing.assert_close(found.grads[leaf], each.grad, rtol=1e-4, atol=1e-4)
    seen = x.clone().requires_grad_()
    (task.logits({**params, **task.buffers()}, seen, Key(0)) * slope).sum().backward()
    torch.testing.assert_close(seen.grad, mine.grad, rtol=1e-4, atol=1e-4)


def test_a_test_computes_with_the_same_weights_and_remembers_nothing() -> None:
    plain = normed()
    params = plain.init(Key(1))
    task = swat.sparse_task(plain, 0.2)
    x = torch.randn(7, 5, generator=Key(2).generator())
    own = {**params, **task.buffers()}
    wanted = plain.logits(swat.active(params, plain.layout.prunable, 0.2), x)
    torch.testing.assert_close(task.logits(own, x), wanted)
    assert all(own[name].tolist() == [-1, -1] for name in swat.cuts(task))


def test_half_precision_is_close() -> None:
    x = torch.randn(6, 3, 8, 8, generator=Key(1).generator())
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(288, 3))
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    found = {}
    for precision in ("f32", "bf16"):
        plain = Task.of(module, x, precision=precision, start="seed")  # type: ignore[arg-type]
        task = swat.sparse_task(plain, 0.5)
        params = plain.init(Key(4))
        found[precision] = task.gradients({**params, **task.buffers()}, batch_of(x, y))
        assert all(grad.dtype == torch.float32 for grad in found[precision].grads.values())
    torch.testing.assert_close(found["bf16"].loss, found["f32"].loss, rtol=0.02, atol=0.02)
    for name, grad in found["f32"].grads.items():
        assert (
            functional.cosine_similarity(grad.flatten(), found["bf16"].grads[name].flatten(), dim=0)
            > 0.98
        )


# what is remembered -------------------------------------------------------------------------------


def test_cuts_stay_until_they_are_forgotten_and_live_with_the_parameters() -> None:
    task = swat.sparse_task(linear_layer(), 0.5)
    assert swat.cuts(task) == ["swat_cuts"]
    mine = {"weight": W.clone(), **task.buffers()}
    other = {"weight": 2 * W, **task.buffers()}
    batch = batch_of(X, torch.zeros(1))
    task.gradients(mine, batch)
    assert mine["swat_cuts"].tolist() == pytest.approx([0.3, 2.0])
    assert other["swat_cuts"].tolist() == [-1, -1]
    task.gradients(other, batch)
    assert other["swat_cuts"].tolist() == pytest.approx([0.6, 2.0])
    # All weights but one fall below the cut that is remembered, and no input does.
    mine["weight"] = torch.tensor([[0.1, -0.1, 0.3, 0.2]])
    grads = task.gradients(mine, batch_of(2 * X, torch.zeros(1)))
    assert grads.loss.item() == pytest.approx(0.3 * 4)
    assert grads.grads["weight"][0].tolist() == [6, 0, 4, 0]
    swat.forget(task, mine)
    assert task.gradients(mine, batch).loss.item() == pytest.approx(0.3 * 2 + 0.2 * 0.1)
    assert mine["swat_cuts"].tolist() == pytest.approx([0.2, 2.0])


def test_a_task_is_made_once_for_a_density_and_goes_with_the_one_it_was_made_of() -> None:
    plain = mlp()
    one = swat.sparse_task(plain, 0.5)
    assert swat.sparse_task(plain, 0.5) is one
    assert swat.sparse_task(plain.copy(), 0.5) is not one
    assert swat.sparse_task(plain, 0.25) is not one
    gone = weakref.ref(one)
    del one, plain
    assert gone() is None


# which layers -------------------------------------------------------------------------------------


def test_only_prunable_layers_are_sparse_and_names_stay() -> None:
    module = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    plain = Task.of(module, torch.zeros(2, 5), prunable=["2.weight"], start="seed")
    task = swat.sparse_task(plain, 0.5)
    assert type(task.module[0]) is nn.Linear and isinstance(task.module[2], swat.SparseLayer)
    assert task.layout.names == (*plain.layout.names, "2.swat_cuts")
    assert task.layout.parameters == plain.layout.parameters
    assert type(module[2]) is nn.Linear  # that of the user is as it was


class Twice(nn.Module):
    """One layer with two names, and another that has its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.again = self.first
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.tied(self.again(self.first(x)))
        return out


def test_a_layer_with_two_names_and_a_weight_with_two_layers_are_sparse_throughout() -> None:
    plain = Task.of(Twice(), X, start="seed")
    task = swat.sparse_task(plain, 0.25)
    assert task.module.first is task.module.again
    assert swat.cuts(task) == ["first.swat_cuts", "tied.swat_cuts"]
    params = plain.init(Key(0))
    own = {**params, **task.buffers()}
    wanted = plain.logits(swat.active(params, ["first.weight"], 0.25), X)
    torch.testing.assert_close(task.logits(own, X, Key(0)), wanted)


def test_what_is_no_plain_layer_is_refused_by_name() -> None:
    task = Task.of(
        nn.Sequential(nn.Linear(4, 4), nn.PReLU(4), nn.Linear(4, 2)),
        X,
        prunable=["0.weight", "1.weight"],
        start="seed",
    )
    with pytest.raises(ValueError, match=r"1\.weight is not a weight of a plain .* `prunable=`"):
        swat.sparse_task(task, 0.5)
