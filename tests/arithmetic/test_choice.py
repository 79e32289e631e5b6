"""The rule that chooses an arithmetic: shapes, batch and density alone."""

from __future__ import annotations

import pytest
from arithmetic_cases import KERNELS, plan_of, sequence
from torch import nn

from gossamer.arithmetic import choice
from gossamer.arithmetic.plan import Plan

pytestmark = KERNELS
SHAPE = (3, 32, 32)


def plan(kernel: int = 3, stride: int = 1, channels: int = 16) -> Plan:
    """A model of two convolutions, with more than the multiplications of a small one."""
    first, second = nn.Conv2d(3, channels, 3), nn.Conv2d(channels, 64, kernel, stride)
    return plan_of(sequence(first, nn.ReLU(), second, nn.ReLU(), shape=SHAPE), SHAPE)[1]


@pytest.mark.parametrize(
    ("batch", "wanted"), [(1, False), (7, False), (8, True), (10, True), (15, True), (16, False)]
)
def test_tiles_bring_a_dense_model_of_small_batches_to_the_kernels(
    batch: int, wanted: bool
) -> None:
    assert choice.native(plan(), {}, batch) is wanted


@pytest.mark.parametrize("other", [{"kernel": 5}, {"stride": 2}, {"channels": 15}])
def test_other_convolutions_have_no_tiles(other: dict[str, int]) -> None:
    model = plan(**other)
    assert not any(layer.tiled for layer in model.layers.values())
    assert not choice.native(model, {}, 10)


def test_a_sparse_layer_is_not_computed_by_tiles() -> None:
    model = plan()
    assert not choice.native(model, {"2.weight": 0.5}, 10)
    ways = [row.way for row in choice.choices(model, {"2.weight": 0.5}, 10, "native")]
    assert ways == ["native dense", "native sparse", "native dense"]


def test_choices_name_the_tiles() -> None:
    ways = [row.way for row in choice.choices(plan(), {}, 10, "auto")]
    assert ways == ["native dense", "native tiles", "native dense"]
    assert {row.way for row in choice.choices(plan(), {}, 10, "torch")} == {"torch"}
