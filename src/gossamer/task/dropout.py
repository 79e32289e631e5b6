"""Dropout that draws from a key, for modules whose own dropout draws from a shared generator."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gossamer.core import Key


class SeededDropout(nn.Module):
    """Dropout that draws from a key, so that results do not depend on the order of threads."""

    def __init__(self, rate: float, whole_channels: bool) -> None:
        super().__init__()
        self.rate = self.p = rate  # modules of others read the p of their dropouts
        self.whole_channels = whole_channels
        self.reset(Key(0))

    def reset(self, key: Key) -> None:
        """Starts a new stream; a module may call one dropout several times."""
        self.key = key
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        draw = self.key.fold(self.calls).generator()
        self.calls += 1
        shape = x.shape[:2] + (1,) * (x.dim() - 2) if self.whole_channels else x.shape
        kept = torch.empty(shape).bernoulli_(1 - self.rate, generator=draw)
        return x * (kept / max(1 - self.rate, 1e-12)).to(x.device, x.dtype)


def seed_dropouts(module: nn.Module) -> list[SeededDropout]:
    """Replaces every dropout of a module by one that draws from a key."""
    dropouts = []
    for part in list(module.modules()):
        # Not named_children, which omits the second name of a dropout that has two.
        for name, child in list(part._modules.items()):
            if isinstance(child, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
                seeded = SeededDropout(child.p, not isinstance(child, nn.Dropout))
                setattr(part, name, seeded)
                dropouts.append(seeded)
    return dropouts
