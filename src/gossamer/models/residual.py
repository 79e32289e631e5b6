"""Residual networks for small images: ResNet-8, -18 and -20, with the papers' norms and shortcuts.

Every convolution's name contains `conv` (also the projections'), so `prunable=["*conv*"]` takes
all of them and leaves the head dense.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from torch import Tensor, nn

from gossamer.models.blocks import Block, Layer, PreBlock, Shortcut, conv3x3
from gossamer.models.convolutional import Init
from gossamer.models.parts import divides, image, start_like_flash

Norm = Literal["batch", "group", "static"]
"""`static` normalises by the current batch and keeps no running statistics (HeteroFL)."""


class ResNet(nn.Module):
    """A 3x3 stem, stages of blocks that halve the image from the second on, a mean and a head."""

    def __init__(
        self,
        channels: int,
        classes: int,
        widths: tuple[int, ...],
        depth: int,
        norm: Layer,
        shortcut: Shortcut,
        preact: bool = False,
        init: Init = "torch",
    ) -> None:
        super().__init__()
        block = PreBlock if preact else Block
        self.init = init
        self.conv = conv3x3(channels, widths[0])
        self.norm = nn.Identity() if preact else norm(widths[0])
        self.relu = nn.Identity() if preact else nn.ReLU()
        stages = []
        for index, (before, after) in enumerate(pairwise((widths[0], *widths))):
            first = block(before, after, 1 if index == 0 else 2, norm, shortcut)
            rest = [block(after, after, 1, norm, shortcut) for _ in range(depth - 1)]
            stages.append(nn.Sequential(first, *rest))
        self.stages = nn.Sequential(*stages)
        self.last = nn.Sequential(norm(widths[-1]), nn.ReLU()) if preact else nn.Identity()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(widths[-1], classes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Replaces the layers' initial values if `init` asks for it."""
        if self.init == "flash":
            start_like_flash(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm(self.conv(x)))
        x = self.pool(self.last(self.stages(x)))
        logits: Tensor = self.fc(self.flatten(x))
        return logits


def resnet8(
    shape: tuple[int, ...], classes: int, norm: Norm = "batch", groups: int = 2
) -> nn.Module:
    """ResNet-8 of SpaFL, bare projections: 83 700 trained parameters on 3x32x32, 100 classes."""
    channels, _, _ = image("resnet8", shape)
    return ResNet(channels, classes, (16, 32, 64), 1, _norm("resnet8", norm, groups, 16), "bare")


def resnet18(
    shape: tuple[int, ...],
    classes: int,
    width: int = 64,
    norm: Norm = "batch",
    groups: int = 2,
    preact: bool = False,
    init: Init = "torch",
) -> nn.Module:
    """ResNet-18 with a stem for small images: 11 173 962 parameters for 3 channels, 10 classes.

    SpaFL's released code uses width=32,preact=true; FLASH starts with init=flash.
    """
    channels, _, _ = image("resnet18", shape)
    widths = (width, 2 * width, 4 * width, 8 * width)
    layer = _norm("resnet18", norm, groups, width)
    shortcut: Shortcut = "bare" if preact else "projection"
    return ResNet(channels, classes, widths, 2, layer, shortcut, preact, init)


def resnet20(
    shape: tuple[int, ...], classes: int, norm: Norm = "group", groups: int = 2
) -> nn.Module:
    """ResNet-20 of FedSparse with GroupNorm and free shortcuts: 275 572 parameters, 100 classes."""
    channels, _, _ = image("resnet20", shape)
    return ResNet(channels, classes, (16, 32, 64), 3, _norm("resnet20", norm, groups, 16), "pad")


def _norm(model: str, norm: Norm, groups: int, width: int) -> Layer:
    match norm:
        case "batch":
            return nn.BatchNorm2d
        case "static":
            return lambda channels: nn.BatchNorm2d(channels, track_running_stats=False)
        case "group":
            divides(model, "groups", groups, "width", width)
            return lambda channels: nn.GroupNorm(groups, channels)
