"""Shared by the image models: shape checks, sizes after convolutions, FLASH's initialisation."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from torch import nn


def image(model: str, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Channels, height and width of an example, or an error that names the model."""
    if len(shape) != 3:
        raise ValueError(
            f"{model} takes images of shape (channels, height, width), but an example of this data "
            f"has shape {shape}; try {'text or mlp' if len(shape) == 1 else 'lstm or mlp'}"
        )
    channels, height, width = shape
    return channels, height, width


def flat(model: str, shape: tuple[int, ...], layers: Iterable[nn.Module]) -> int:
    """The number of features after the layers, computed from their parameters."""
    channels, *sides = image(model, shape)
    for layer in layers:
        match layer:
            case nn.Conv2d():
                channels = layer.out_channels
                window = zip(layer.kernel_size, layer.stride, _pair(layer.padding), strict=True)
            case nn.MaxPool2d():
                window = zip(
                    _pair(layer.kernel_size), _pair(layer.stride), _pair(layer.padding), strict=True
                )
            case _:
                continue
        sides = [
            (side + 2 * padding - kernel) // stride + 1
            for side, (kernel, stride, padding) in zip(sides, window, strict=True)
        ]
        if min(sides) < 1:
            raise ValueError(
                f"{model} shrinks images of shape {shape} to nothing; "
                f"use larger images or a model for small ones such as resnet8 or mlp"
            )
    return channels * prod(sides)


def divides(model: str, part: str, count: int, whole: str, total: int) -> None:
    """Raises ValueError unless `count` divides `total`."""
    if total % count:
        raise ValueError(
            f"{model} cannot split {whole} {total} into {part}={count} equal parts; "
            f"choose {part} so that it divides {total}"
        )


def start_like_flash(module: nn.Module, norm: float = 1.0) -> None:
    """Initialises as FLASH's code does: Xavier-uniform convolutions at half gain, small heads."""
    for part in module.modules():
        match part:
            case nn.Conv2d():
                nn.init.xavier_uniform_(part.weight, gain=0.5)
                if part.bias is not None:
                    nn.init.zeros_(part.bias)
            case nn.BatchNorm2d() | nn.GroupNorm() if part.affine:
                nn.init.constant_(part.weight, norm)
                nn.init.zeros_(part.bias)
            case nn.Linear():
                nn.init.normal_(part.weight, 0.0, 0.01)
                nn.init.zeros_(part.bias)


def _pair(value: object) -> tuple[int, int]:
    match value:
        case int():
            return value, value
        case (int(first), int(second)):
            return first, second
    raise TypeError(f"a kernel, stride or padding is one or two integers, not {value!r}")
