"""Residual blocks, with their shortcuts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional

Shortcut = Literal["projection", "bare", "pad"]
"""The shortcut to a wider output: 1x1 convolution with norm, without norm, or zero padding."""
Layer = Callable[[int], nn.Module]


class Pad(nn.Module):
    """A shortcut without parameters: every other pixel, and zeros for the new channels."""

    def __init__(self, stride: int, channels: int) -> None:
        super().__init__()
        self.stride = stride
        self.channels = channels

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, :, :: self.stride, :: self.stride]
        return functional.pad(x, (0, 0, 0, 0, 0, self.channels - x.shape[1]))

    def extra_repr(self) -> str:
        return f"stride={self.stride}, channels={self.channels}"


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut; ReLU follows the sum."""

    def __init__(self, before: int, after: int, stride: int, norm: Layer, kind: Shortcut) -> None:
        super().__init__()
        self.conv1 = conv3x3(before, after, stride)
        self.norm1 = norm(after)
        self.relu1 = nn.ReLU()
        self.conv2 = conv3x3(after, after)
        self.norm2 = norm(after)
        self.shortcut = shortcut(before, after, stride, norm, kind)
        self.relu2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu1(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        total: Tensor = self.relu2(out + self.shortcut(x))
        return total


class PreBlock(nn.Module):
    """A pre-activation block: it normalises before it convolves."""

    def __init__(self, before: int, after: int, stride: int, norm: Layer, kind: Shortcut) -> None:
        super().__init__()
        self.norm1 = norm(before)
        self.relu1 = nn.ReLU()
        self.conv1 = conv3x3(before, after, stride)
        self.norm2 = norm(after)
        self.relu2 = nn.ReLU()
        self.conv2 = conv3x3(after, after)
        self.shortcut = shortcut(before, after, stride, norm, kind)
        self.plain = isinstance(self.shortcut, nn.Identity)

    def forward(self, x: Tensor) -> Tensor:
        ready = self.relu1(self.norm1(x))
        out = self.conv2(self.relu2(self.norm2(self.conv1(ready))))
        total: Tensor = out + (x if self.plain else self.shortcut(ready))
        return total


def conv3x3(before: int, after: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)


def shortcut(before: int, after: int, stride: int, norm: Layer, kind: Shortcut) -> nn.Module:
    if before == after and stride == 1:
        return nn.Identity()
    if kind == "pad":
        return Pad(stride, after)
    layers: dict[str, nn.Module] = {"conv": nn.Conv2d(before, after, 1, stride, bias=False)}
    if kind == "projection":
        layers["norm"] = norm(after)
    return nn.Sequential(OrderedDict(layers))
