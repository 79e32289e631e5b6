"""Layouts of the models of the papers, traced once."""

from __future__ import annotations

from functools import cache

import torch

from gossamer.models import build
from gossamer.task.layout import Layout

GREY, COLOUR = (1, 28, 28), (3, 32, 32)
CONVOLUTIONS = ("*conv*",)


@cache
def layout_of(
    name: str, shape: tuple[int, ...], classes: int, prunable: tuple[str, ...] = ()
) -> Layout:
    """The layout of a built-in model, by default with all that is prunable."""
    module = build(name, shape, classes)
    return Layout.trace(module, torch.zeros(2, *shape), prunable or None)


def flash() -> Layout:
    """ResNet-18 as FLASH prunes it: all convolutions, and the head dense."""
    return layout_of("resnet18", COLOUR, 10, CONVOLUTIONS)


def pffdst() -> Layout:
    """ResNet-18 as PFFDST prunes it: all convolutions and the head."""
    return layout_of("resnet18", COLOUR, 10)
