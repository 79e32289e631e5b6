"""The operations in the tables of the papers, from the layouts of their models."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gossamer import Task
from gossamer.accounting import FLOPS, Effort, FlopsModel
from gossamer.task.layout import Layout
from paper_models import COLOUR, GREY, flash, layout_of, pffdst


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


def test_gradients_of_all_weights_are_counted_by_default() -> None:
    """SpaFL's last epoch of three needs them: .15 of dense training at density .045, not .045."""
    layout = layout_of("lenet5_caffe", GREY, 10)
    kept = dict.fromkeys(layout.prunable, 0.045)
    trained = dict.fromkeys(layout.prunable, 0.045 + 0.955 / 3)
    dense = FLOPS["passes"](Effort(layout, {}, 1, 1, 1))
    found = FLOPS["passes"](Effort(layout, kept, 1, 1, 1, trained))
    assert found / dense == pytest.approx((2 * 0.045 + 0.045 + 0.955 / 3) / 3)
    assert FLOPS["passes"](Effort(layout, kept, 1, 1, 1)) / dense == pytest.approx(0.045)


@pytest.mark.parametrize(
    ("density", "wanted"), [(1.0, 4_128_907_330), (0.5, 3_441_007_330), (0.0, 2_753_107_330)]
)
def test_operations_of_spafl_by_its_equation_36(density: float, wanted: int) -> None:
    """To the letter, one epoch: 2 + d for each product, and 3.5 a weight and one a threshold."""
    assert spafl(density, 1, 1, "spafl-eq36") == wanted


@pytest.mark.parametrize(
    ("model", "shape", "classes", "epochs", "examples", "rounds", "wanted", "printed", "slack"),
    [
        ("lenet5_caffe", GREY, 10, 3, 600, 500, 6.191e11, 6.2044e11, 3e-3),
        ("resnet8", COLOUR, 100, 2, 500, 500, 1.876e12, 1.938e12, 0.035),
        ("resnet18", COLOUR, 100, 2, 500, 1000, 1.6664e14, 1.6626e14, 3e-3),
    ],
)
def test_printed_totals_of_dense_training_in_spafl(
    model: str,
    shape: tuple[int, ...],
    classes: int,
    epochs: int,
    examples: int,
    rounds: int,
    wanted: float,
    printed: float,
    slack: float,
) -> None:
    """Of one client, which takes part in a tenth of the rounds; without updates, as printed."""
    layout = layout_of(model, shape, classes)
    total = rounds / 10 * FLOPS["flash"](Effort(layout, {}, examples * epochs, 0, 0))
    assert total == pytest.approx(wanted, rel=1e-3)
    assert total == pytest.approx(printed, rel=slack)


def test_one_printed_total_of_spafl_belongs_to_another_model() -> None:
    """CIFAR-10: CNN-7 needs 1.856e13, two and a half times the 7.4729e12 that is printed."""
    layout = layout_of("cnn7", COLOUR, 10)
    total = 50 * FLOPS["flash"](Effort(layout, {}, 500 * 3, 0, 0))
    assert total == pytest.approx(1.856e13, rel=1e-3)
    assert 7.4729e12 / total == pytest.approx(0.40, abs=5e-3)


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
    layout = Task.of(
        nn.Sequential(layer, nn.Flatten()), torch.zeros(2, 3, 16, 16), start="seed"
    ).layout
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


def pffdst_work(layout: Layout, density: float, trained: float, examples: int = 1) -> float:
    """What the convention of PFFDST counts, every prunable tensor at one density."""
    kept, free = (dict.fromkeys(layout.prunable, share) for share in (density, trained))
    return FLOPS["pffdst"](Effort(layout, kept, examples, 0, 0, free))


@pytest.mark.parametrize("sparsity", [0.8, 0.9, 0.95])
def test_operations_of_pffdst(sparsity: float) -> None:
    """L2: over both phases two thirds of the density; the second one trains only what is free."""
    layout, first = pffdst(), (1 + sparsity) / 2
    phases = [
        pffdst_work(layout, 1 - first, 1 - first),
        pffdst_work(layout, 1 - sparsity, first - sparsity),
    ]
    mean = sum(phases) / 2 / pffdst_work(layout, 1.0, 1.0)
    assert mean == pytest.approx(2 / 3 * (1 - sparsity))
    assert sparsity != 0.9 or mean == pytest.approx(0.066667, abs=5e-7)


def test_readjusting_costs_pffdst_a_sixteenth_of_its_density() -> None:
    """P4: 0.7292 of the density on average, and so 0.851 of FedDST's work in 7/4 of its rounds."""
    layout, density = pffdst(), 0.1
    half, more = density / 2, density / 4
    work = [
        pffdst_work(layout, half + more, half + more),
        pffdst_work(layout, half, half),
        pffdst_work(layout, density + more, half + more),
        pffdst_work(layout, density, half),
    ]
    mean = (work[0] + 3 * work[1] + work[2] + 3 * work[3]) / 8
    feddst = pffdst_work(layout, density, density)
    assert mean / feddst == pytest.approx(0.7292, abs=5e-5)
    for rounds, wanted in ((2, 0.972), (7 / 4, 0.851)):
        assert 2 / 3 * rounds * mean / feddst == pytest.approx(wanted, abs=5e-4)


def test_printed_operations_of_pffdst() -> None:
    """At a tenth, three million examples: LeNet with the backward pass, ResNet-18 without."""
    lenet = layout_of("lenet_cifar", COLOUR, 10)
    effort = Effort(lenet, dict.fromkeys(lenet.prunable, 0.1), 3_000_000, 0, 0)
    assert FLOPS["flash"](effort) == pytest.approx(0.206e13, rel=3e-3)
    assert FLOPS["flash"](effort) == pytest.approx(0.23e13, rel=0.11)  # as printed
    tenth = dict.fromkeys(pffdst().prunable, 0.1)
    found = forward(pffdst(), tenth, 3_000_000)
    assert found == pytest.approx(16.66e13, rel=3e-3)
    assert found == pytest.approx(16e13, rel=0.05)  # as printed; three passes would be 50e13


def test_frozen_weights_cost_no_gradient_in_pffdst() -> None:
    """Phase 2: (1 - s2) forward and backward, (s1 - s2) for the gradient of the weights."""
    layout = Layout.trace(nn.Linear(10, 4, bias=False), torch.zeros(2, 10))
    kept, unfrozen = {"weight": 0.2}, {"weight": 0.1}
    effort = Effort(layout, kept, 100, 10, 10, unfrozen)
    assert FLOPS["pffdst"](effort) == pytest.approx(40 * 100 * (0.2 + 0.2 + 0.1))
    whole = Effort(layout, kept, 100, 10, 10)
    assert FLOPS["pffdst"](whole) == FLOPS["swat"](whole) == pytest.approx(40 * 100 * 0.6)


def test_a_search_for_masks_costs_a_pass_with_the_gradient_of_all_weights() -> None:
    layout = layout_of("lenet5_caffe", GREY, 10)
    kept = dict.fromkeys(layout.prunable, 0.1)
    dense = FLOPS["passes"](Effort(layout, {}, 1, 1, 1))
    found = FLOPS["passes"](Effort(layout, kept, 10, 5, 5, searched=2))
    assert found / dense == pytest.approx((10 * 3 * 0.1 + 2 * (2 * 0.1 + 1)) / 3)
    # Conventions of papers that do not know of it.
    assert FLOPS["swat"](Effort(layout, kept, 10, 5, 5, searched=2)) == pytest.approx(
        FLOPS["swat"](Effort(layout, kept, 10, 5, 5))
    )
