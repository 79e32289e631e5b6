"""The operations in the tables of the papers, from the layouts of their models."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gossamer import Task
from gossamer.cost import FLOPS, Effort, FlopsModel
from gossamer.layout import Layout
from paper_models import COLOUR, CONVOLUTIONS, GREY, flash, layout_of, pffdst


def spafl(density: float | None, epochs: int, per_epoch: int, model: FlopsModel) -> float:
    layout = layout_of("lenet5_caffe", GREY, 10)
    chosen = {} if density is None else dict.fromkeys(layout.prunable, density)
    return FLOPS[model](Effort(layout, chosen, 600 * epochs, epochs * per_epoch, per_epoch))


@pytest.mark.parametrize(
    ("density", "wanted"),
    [(None, 12_386_505_000), (1.0, 12_387_587_050), (0.5, 5_162_484_550), (0.05, 424_355_800)],
)
def test_operations_of_spafl(density: float | None, wanted: int) -> None:
    assert round(spafl(density, 3, 10, "spafl")) == wanted


@pytest.mark.parametrize(
    ("density", "wanted"), [(1.0, 4_128_907_330), (0.5, 3_441_007_330), (0.0, 2_753_107_330)]
)
def test_operations_of_spafl_by_its_equation_36(density: float, wanted: int) -> None:
    """The equation updates every weight, ours the active ones: less by d for those that are not."""
    inactive = (1 - density) * 430_500
    assert spafl(density, 1, 1, "spafl-eq36") + inactive == wanted


def test_dense_totals_of_spafl() -> None:
    """Fifty participations of three epochs on 600 examples: 6.191e11, printed 6.2044e11."""
    layout = layout_of("lenet5_caffe", GREY, 10)
    total = 50 * FLOPS["flash"](Effort(layout, {}, 1800, 30, 10))
    assert total == pytest.approx(6.191e11, rel=1e-4) == pytest.approx(6.2044e11, rel=3e-3)
    large = layout_of("resnet18", COLOUR, 100)
    total = 100 * FLOPS["flash"](Effort(large, {}, 500 * 2, 0, 0))
    assert total == pytest.approx(1.6664e14, rel=1e-4)


@pytest.mark.parametrize(
    ("model", "density", "wanted"),
    [
        ("forward", 1.0, 55_296),
        ("flash", 0.1, 16_588.8),
        ("flash-dense-gradient", 0.1, 66_355.2),
        ("flash", 1.0, 165_888),
    ],
)
def test_operations_of_flash(model: FlopsModel, density: float, wanted: float) -> None:
    """L1: one convolution, 3 to 8 channels, 16 x 16 outputs."""
    layer = nn.Conv2d(3, 8, 3, padding=1, bias=False)
    layout = Task.of(nn.Sequential(layer, nn.Flatten()), torch.zeros(2, 3, 16, 16)).layout
    effort = Effort(layout, {"0.weight": density}, 1, 1, 1)
    assert FLOPS[model](effort) == pytest.approx(wanted, rel=1e-12)


def forward(layout: Layout, densities: dict[str, float], examples: int = 1) -> float:
    return FLOPS["forward"](Effort(layout, densities, examples, 0, 0))


def test_operations_of_resnet18() -> None:
    """L3: dense, all convolutions at a twentieth, and a twentieth spread by size and fan."""
    layout = flash()
    assert forward(layout, {}) == 555_422_720
    assert forward(layout, dict.fromkeys(layout.prunable, 0.05)) == 27_776_000
    assert forward(layout, erdos_renyi(layout, 0.05)) == pytest.approx(70_021_218, rel=1e-6)


def erdos_renyi(layout: Layout, density: float) -> dict[str, float]:
    """Densities in proportion to (in + out + height + width) / size; what passes one is dense."""
    dense: set[str] = set()
    raw = {name: sum(layout[name].shape) / layout[name].count for name in layout.prunable}
    while True:
        wanted = density * layout.total("count", layout.prunable) - layout.total("count", dense)
        factor = wanted / sum(
            raw[name] * layout[name].count for name in layout.prunable if name not in dense
        )
        largest = max(raw[name] for name in layout.prunable if name not in dense)
        if factor * largest <= 1:
            return {name: 1.0 if name in dense else factor * raw[name] for name in layout.prunable}
        dense |= {name for name in layout.prunable if raw[name] == largest}


def test_operations_of_pffdst() -> None:
    """L2: over both phases two thirds of the density; the second one trains only what is free."""
    layout, sparsity = flash(), 0.9
    first = (1 + sparsity) / 2

    def at(share: float) -> float:
        return forward(layout.choose(CONVOLUTIONS), dict.fromkeys(layout.prunable, share))

    head = forward(layout, dict.fromkeys(layout.prunable, 0.0))
    phases = [
        3 * (at(1 - first) - head),
        2 * (at(1 - sparsity) - head) + at(first - sparsity) - head,
    ]
    dense = 3 * (at(1.0) - head)
    assert sum(phases) / 2 / dense == pytest.approx(2 / 3 * (1 - sparsity)) == pytest.approx(1 / 15)


def test_printed_operations_of_pffdst() -> None:
    """At a tenth, three million examples: LeNet with the backward pass, ResNet-18 without."""
    lenet = layout_of("lenet_cifar", COLOUR, 10)
    effort = Effort(lenet, dict.fromkeys(lenet.prunable, 0.1), 3_000_000, 0, 0)
    assert FLOPS["flash"](effort) == pytest.approx(0.206e13, rel=3e-3)
    tenth = dict.fromkeys(pffdst().prunable, 0.1)
    assert forward(pffdst(), tenth, 3_000_000) == pytest.approx(16.66e13, rel=3e-3)


def test_frozen_weights_cost_no_gradient_in_pffdst() -> None:
    """Phase 2: (1 - s2) forward and backward, (s1 - s2) for the gradient of the weights."""
    layout = Layout.trace(nn.Linear(10, 4, bias=False), torch.zeros(2, 10))
    kept, unfrozen = {"weight": 0.2}, {"weight": 0.1}
    effort = Effort(layout, kept, 100, 10, 10, unfrozen)
    assert FLOPS["pffdst"](effort) == pytest.approx(40 * 100 * (0.2 + 0.2 + 0.1))
    whole = Effort(layout, kept, 100, 10, 10)
    assert FLOPS["pffdst"](whole) == FLOPS["swat"](whole) == pytest.approx(40 * 100 * 0.6)
