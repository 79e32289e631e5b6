"""Which models the kernels can run, and where their values are in memory."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from arithmetic_cases import KERNELS, NETS, net
from torch import Tensor, nn

from gossamer import Task
from gossamer.arithmetic.memory import places
from gossamer.arithmetic.steps import Chain, chain_of
from gossamer.arithmetic.structs import NONE
from gossamer.models import build

pytestmark = KERNELS


class Twice(nn.Module):
    """A layer that is applied twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.relu(self.layer(x)))


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


class Last(nn.Module):
    """The last output of an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(4, 5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.cells(x)[0][:, -1]


class Scaled(nn.Module):
    """A parameter that no layer has."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(5, 3), nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.scale


def images(*parts: nn.Module) -> nn.Module:
    return nn.Sequential(*parts, nn.Flatten(), nn.LazyLinear(3))


IMAGE = torch.zeros(2, 4, 8, 8)
REFUSED = {
    "groups": (images(nn.Conv2d(4, 4, 3, groups=2)), IMAGE, "convolution 0 has groups"),
    "dilation": (images(nn.Conv2d(4, 4, 3, dilation=2)), IMAGE, "convolution 0 has groups, dilat"),
    "circular": (
        images(nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular")),
        IMAGE,
        "unusual padding",
    ),
    "same": (images(nn.Conv2d(4, 4, 3, padding="same")), IMAGE, "has padding='same'"),
    "far": (images(nn.Conv2d(4, 4, 3, padding=3)), IMAGE, "is padded by more than its kernel"),
    "ceil": (images(nn.MaxPool2d(3, ceil_mode=True)), IMAGE, "pooling 0 has dilation, ceil_mode"),
    "uneven": (images(nn.AdaptiveAvgPool2d(3)), IMAGE, "windows of different sizes"),
    "sigmoid": (images(nn.Sigmoid()), IMAGE, "it uses Sigmoid"),
    "lstm": (Last(), torch.zeros(2, 6, 4), "inputs of shape"),
    "integers": (
        nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(24, 3)),
        torch.zeros(2, 6, dtype=torch.int64),
        "torch.int64",
    ),
    "twice": (Twice(), torch.zeros(2, 5), "layer layer is used twice"),
    "tied": (Tied(), torch.zeros(2, 5), "second.weight is shared with another layer"),
    "free": (Scaled(), torch.zeros(2, 5), "it uses"),
    "pixels": (nn.Sequential(nn.Conv2d(4, 3, 3)), IMAGE, "not one vector of logits"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_cannot_be_planned_says_why(name: str) -> None:
    module, example, reason = REFUSED[name]
    with torch.no_grad():
        module(example)
    task = Task.of(module, example, arithmetic="native", start="seed")
    assert isinstance(task.planned, str)
    assert task.planned.startswith("the kernels cannot run this model: ")
    assert reason in task.planned


@pytest.mark.parametrize("name", NETS)
def test_models_of_supported_steps_are_planned(name: str) -> None:
    assert not isinstance(net(name).planned, str)


def test_a_model_for_another_criterion_is_left_to_torch() -> None:
    module = nn.Sequential(nn.Linear(5, 3))
    criterion = nn.functional.mse_loss
    task = Task.of(
        module, torch.zeros(2, 5), criterion=criterion, arithmetic="native", start="seed"
    )
    assert task.planned == "the kernels know no criterion but cross-entropy"


MODELS = {
    "lenet5_caffe": (1, 28, 28),
    "femnist_cnn": (1, 28, 28),
    "cnn7": (3, 32, 32),
    "resnet8": (3, 32, 32),
    "resnet20": (3, 32, 32),
}


def chain_named(name: str) -> Chain:
    if name in NETS:
        task = net(name)
    else:
        task = Task.of(build(name, MODELS[name], 10), torch.zeros(2, *MODELS[name]), start="seed")
    return chain_of(task.module, task.layout)


@pytest.mark.parametrize("name", [*NETS, *MODELS])
def test_gradients_never_share_memory_while_they_are_alive(name: str) -> None:
    chain = chain_named(name)
    where = places(chain)
    taken: dict[int, tuple[int, int]] = {}
    for index, value in enumerate(where.values):
        if value.grad_offset != NONE:
            size = value.channels * value.height * (value.width + 2 * value.grad_halo)
            taken[index] = (value.grad_offset, value.grad_offset + size)
            assert value.grad_offset + size <= where.floats
    # A gradient is alive from the last step that reads its value to the step that makes the value.
    last = {v: number for number, step in enumerate(chain.steps) for v in step.reads}
    made = {step.output: number for number, step in enumerate(chain.steps)}
    last[chain.output] = len(chain.steps)
    alive = {index: range(made.get(index, 0), last[index] + 1) for index in taken}
    for index, (begin, end) in taken.items():
        for other, (other_begin, other_end) in taken.items():
            together = set(alive[index]) & set(alive[other])
            if index < other and together:
                assert end <= other_begin or other_end <= begin, (index, other)


@pytest.mark.parametrize("name", [*NETS, *MODELS])
def test_activations_have_memory_of_their_own(name: str) -> None:
    chain = chain_named(name)
    where = places(chain)
    used = {chain.input, *(step.output for step in chain.steps)}
    spans = sorted(
        (
            value.offset,
            value.offset + value.channels * value.height * (value.width + 2 * value.halo),
        )
        for index, value in enumerate(where.values)
        if index in used
    )
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    gradients = [v.grad_offset for v in where.values if v.grad_offset != NONE]
    assert min(gradients) >= spans[-1][1]


def test_equal_masks_share_their_lists_and_others_do_not() -> None:
    task = Task.of(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), torch.zeros(2, 6))
    native = task._native
    assert native is not None
    mask = torch.rand(5, 6, generator=torch.Generator().manual_seed(1)) < 0.4
    lists = native.lists("0.weight", mask)
    assert native.lists("0.weight", mask.clone()) is lists
    moved = mask.roll(1)  # as many weights, in other places
    assert native.lists("0.weight", moved) is not lists
    fewer = moved & (torch.arange(30).view(5, 6) > moved.flatten().nonzero()[0])
    assert native.lists("0.weight", fewer).count == lists.count - 1
