"""Bits and operations against counts made by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gossamer import Task
from gossamer.cost import Cost, density, paper_bits, training_flops
from gossamer.methods.dense import Up
from helpers import conv, mlp


def test_papers_count_32_bits_a_number_and_one_a_mask_entry() -> None:
    record = Up({"w": torch.zeros(3, 4), "half": torch.zeros(5, dtype=torch.float16)})
    assert paper_bits(record) == 32 * 17
    assert paper_bits((torch.zeros(9, dtype=torch.bool), 1, 2.0, None)) == 9 + 64


def test_costs_add_up() -> None:
    assert Cost(1, 2, 3, 4, 5, 6) + Cost(10, 20, 30, 40, 50, 60) == Cost(11, 22, 33, 44, 55, 66)


def test_density_is_the_share_of_prunable_weights_kept() -> None:
    layout = mlp().layout  # 5 x 8 and 8 x 3 weights
    assert density(layout, {}) == 1.0
    half = torch.zeros(8, 5, dtype=torch.bool)
    half[:4] = True
    assert density(layout, {"0.weight": half}) == (20 + 24) / 64
    assert density(layout, {"0.weight": half, "3.weight": torch.zeros(3, 8) > 0}) == 20 / 64


def test_a_model_without_prunable_weights_is_dense() -> None:
    task = Task.of(nn.Linear(3, 2), torch.zeros(2, 3), prunable=[])
    assert density(task.layout, {}) == 1.0


def test_a_step_costs_three_passes_of_two_operations_per_product() -> None:
    assert training_flops(mlp().layout, {}, 1) == 2 * 3 * (5 * 8 + 8 * 3)
    # 6 x 6 positions of 27 x 4, 4 x 4 positions of 36 x 6, then 96 x 2
    macs = 36 * 27 * 4 + 16 * 36 * 6 + 96 * 2
    assert training_flops(conv().layout, {}, 10) == 2 * 3 * macs * 10


@pytest.mark.parametrize("kept", [0, 1, 20, 40])
def test_a_masked_layer_costs_its_density(kept: int) -> None:
    mask = (torch.arange(40) < kept).reshape(8, 5)
    assert training_flops(mlp().layout, {"0.weight": mask}, 7) == 2 * 3 * (kept + 24) * 7
