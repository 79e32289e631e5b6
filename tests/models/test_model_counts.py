"""The models have the sizes and costs that the papers' figures follow from."""

from __future__ import annotations

import pytest
import torch

from gossamer.models import build
from gossamer.task.layout import Layout

GREY, COLOUR = (1, 28, 28), (3, 32, 32)


def layout(name: str, shape: tuple[int, ...], classes: int) -> Layout:
    dtype = torch.long if len(shape) == 1 else torch.float32
    return Layout.trace(build(name, shape, classes), torch.zeros(2, *shape, dtype=dtype))


@pytest.mark.parametrize(
    ("name", "shape", "classes", "count"),
    [
        ("lenet5_caffe", GREY, 10, 430_500),
        ("lenet5", COLOUR, 10, 878_538),
        ("lenet5:dropout=true", COLOUR, 10, 878_538),
        ("lenet5", GREY, 62, 608_702),
        ("lenet_cifar", COLOUR, 10, 782_006),
        ("lenet_cifar:hidden=120", COLOUR, 100, 783_092),
        ("mnistnet", GREY, 10, 261_840),
        ("femnist_cnn", GREY, 62, 6_603_710),
        ("cnn7", COLOUR, 10, 806_080),
        ("conv6", COLOUR, 10, 2_261_184),
        ("vgg16", COLOUR, 10, 33_646_666),
        ("resnet8", COLOUR, 100, 83_700),
        ("resnet18", COLOUR, 10, 11_173_962),
        ("resnet18", COLOUR, 100, 11_220_132),
        ("resnet18", (3, 64, 64), 200, 11_271_432),
        ("resnet20", COLOUR, 100, 275_572),
        ("lstm", GREY, 10, 210_944 + 2_048 + 1_290),
        ("mlp", GREY, 10, 159_010),
        ("char_lstm", (80,), 80, 819_920),
    ],
)
def test_trained_parameters(name: str, shape: tuple[int, ...], classes: int, count: int) -> None:
    module = build(name, shape, classes)
    assert sum(parameter.numel() for parameter in module.parameters()) == count


@pytest.mark.parametrize(
    ("name", "shape", "classes", "macs"),
    [
        ("lenet5_caffe", GREY, 10, 288_000 + 1_600_000 + 400_000 + 5_000),
        ("lenet_cifar", COLOUR, 10, 2_293_320),
        ("mnistnet", GREY, 10, 2_020_500),
        ("femnist_cnn", GREY, 62, 17_211_904),
        ("cnn7", COLOUR, 10, 82_489_600),
        ("resnet8", COLOUR, 100, 12_507_392),
        # The papers' two figures for ResNet-18 differ by the head: 512x90.
        ("resnet18", COLOUR, 10, 555_422_720),
        ("resnet18", COLOUR, 100, 555_468_800),
        ("resnet18:width=32", COLOUR, 100, 139_322_368),
        ("resnet18:width=32,preact=true", COLOUR, 100, 139_322_368),
        ("lstm", GREY, 10, 28 * 210_944 + 1_280),
        ("mlp", GREY, 10, 158_800),
    ],
)
def test_multiply_accumulates(name: str, shape: tuple[int, ...], classes: int, macs: int) -> None:
    assert layout(name, shape, classes).macs == macs


@pytest.mark.parametrize(
    ("name", "shape", "classes", "prunable", "weights", "rows"),
    [
        ("lenet5_caffe", GREY, 10, None, 430_500, 580),
        ("cnn7", COLOUR, 10, None, 804_800, 650),
        ("conv6", COLOUR, 10, None, 2_261_184, 1_418),
        ("resnet8", COLOUR, 100, None, 83_120, 436),
        ("lstm", GREY, 10, ["lstm.*"], 210_944, 2_048),
        ("resnet18", COLOUR, 100, ["*conv*"], 11_159_232, 4_800),
        ("resnet18:width=32,preact=true", COLOUR, 100, ["*conv*"], 2_790_240, 2_400),
        ("resnet18", COLOUR, 10, None, 11_164_352, 4_810),
        ("lenet_cifar", COLOUR, 10, None, 781_770, 236),
        ("mnistnet", GREY, 10, ["conv2.*", "fc1.*"], 261_000, 70),
        ("femnist_cnn", GREY, 62, ["conv2.*", "fc1.*"], 6_473_728, 2_112),
        ("vgg16", COLOUR, 10, ["conv*"], 14_710_464, 4_224),
    ],
)
def test_prunable_weights_and_rows(
    name: str,
    shape: tuple[int, ...],
    classes: int,
    prunable: list[str] | None,
    weights: int,
    rows: int,
) -> None:
    found = layout(name, shape, classes)
    found = found if prunable is None else found.choose(prunable)
    assert found.total("count", found.prunable) == weights
    assert found.rows == rows


def test_dense_leftovers_of_flash() -> None:
    for name, classes, dense in (("resnet18", 10, 14_730), ("resnet18", 100, 60_900)):
        found = layout(name, COLOUR, classes).choose(["*conv*"])
        assert found.total("count", found.dense) == dense
        assert found.total("count", found.buffers) == 9_600
    found = layout("vgg16", COLOUR, 10).choose(["conv*"])
    assert found.total("count", found.dense) == 18_936_202
    assert found.total("count", found.buffers) == 8_448


def test_tiny_imagenet_leaves_the_projections_dense() -> None:
    found = layout("resnet18", (3, 64, 64), 200).choose(
        lambda leaf: leaf.kind == "conv" and "shortcut" not in leaf.name
    )
    assert found.total("count", found.prunable) == 10_987_200
    assert found.total("count", found.dense) == 284_232
    assert len(found.prunable) == 17


@pytest.mark.parametrize(
    ("name", "classes", "state", "buffers"),
    [("cnn7", 10, 807_366, 1_280), ("resnet8", 100, 84_187, 480)],
)
def test_whole_state_with_statistics_and_counters(
    name: str, classes: int, state: int, buffers: int
) -> None:
    module = build(name, COLOUR, classes)
    assert sum(tensor.numel() for tensor in module.state_dict().values()) == state
    found = layout(name, COLOUR, classes)
    assert found.total("count", found.buffers) == buffers


def test_norms_of_resnet18() -> None:
    assert layout("resnet18:width=8,norm=batch", COLOUR, 10).buffers
    static = layout("resnet18:width=8,norm=static", COLOUR, 10)
    assert (static.buffers, static.batch_norm) == ((), True)
    group = layout("resnet18:width=8,norm=group", COLOUR, 10)
    assert (group.buffers, group.batch_norm) == ((), False)
    assert group.count == static.count
