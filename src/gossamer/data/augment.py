"""Augmentation of training inputs, drawn for every batch from the key of its step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gossamer.core import Key


@dataclass(frozen=True)
class CropAndFlip:
    """A random crop after padding with black, then a mirror image half of the time."""

    padding: int = 4
    fill: tuple[float, ...] = (0.0,)
    """Black after scaling, per channel."""

    def __call__(self, x: Tensor, key: Key) -> Tensor:
        count, channels, height, width = x.shape
        draw = key.fold("augment").numpy()
        top, left = draw.integers(0, 2 * self.padding + 1, size=(2, count))
        mirrored = draw.random(count) < 0.5
        across = np.arange(width)
        columns = left[:, None] + np.where(mirrored[:, None], across[::-1], across)
        rows = top[:, None] + np.arange(height)
        padded = torch.empty(
            (count, height + 2 * self.padding, width + 2 * self.padding, channels), dtype=x.dtype
        )
        padded[:] = torch.tensor(self.fill, dtype=x.dtype)
        inside = slice(self.padding, self.padding + height)
        beside = slice(self.padding, self.padding + width)
        padded[:, inside, beside] = x.permute(0, 2, 3, 1)
        chosen = padded[
            torch.arange(count)[:, None, None],
            torch.from_numpy(rows)[:, :, None],
            torch.from_numpy(columns)[:, None, :],
        ]
        return chosen.permute(0, 3, 1, 2)
