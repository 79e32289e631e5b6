"""Compressors: values that turn a change of tensors into a few bits, and back.

All take a dictionary of float32 tensors and return a payload, a record that can travel. What is
random is drawn from a key by the sender; the receiver needs the payload alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from gossamer.core import Key, Masks, Params
from gossamer.sparsity.select import top
from gossamer.wire import EXACT, Drawn, Levels, Packed, pack, unpack

FIRST_EXPONENT = -126
"""Of the smallest power of two that natural compression sends."""
BUCKET = 512
"""Values that share a norm in QSGD, as in its experiments."""


@dataclass(frozen=True)
class SparseValues:
    """Values at places that the sender chose."""

    masks: Masks
    values: Packed = field(metadata=EXACT)


@dataclass(frozen=True)
class SampledValues:
    """Values at random places, which the receiver draws again from a seed."""

    places: Drawn
    values: Packed = field(metadata=EXACT)


@dataclass(frozen=True)
class ScaledLevels:
    """Whole numbers, and what one unit of them is worth in each tensor or bucket."""

    levels: Levels
    scales: Params = field(metadata=EXACT)


@dataclass(frozen=True)
class MatrixFactors:
    """Matrices as products of thin ones; tensors that would not become smaller are whole."""

    left: Params = field(metadata=EXACT)
    right: Params = field(metadata=EXACT)
    whole: Params = field(metadata=EXACT)


Payload: TypeAlias = SparseValues | SampledValues | ScaledLevels | MatrixFactors
PAYLOADS: tuple[type, ...] = (SparseValues, SampledValues, ScaledLevels, MatrixFactors)


class Compressor(Protocol):
    """Two functions; `start` is what the compressor kept of the last payload, or empty."""

    def compress(self, change: Params, key: Key, start: Params) -> Payload: ...
    def restore(self, payload: Payload, like: Params) -> Params:
        """The change as it is received; `like` has tensors of the shapes of whole ones."""
        ...


@dataclass(frozen=True)
class TopK:
    """The values of largest magnitude, a share of all tensors together (Aji and Heafield 2017)."""

    share: float

    def compress(self, change: Params, key: Key, start: Params) -> SparseValues:
        masks = largest(change, self.share)
        return SparseValues(masks, pack(change, masks))

    def restore(self, payload: Payload, like: Params) -> Params:
        assert isinstance(payload, SparseValues)
        return unpack(payload.values, payload.masks)


@dataclass(frozen=True)
class RandK:
    """Random values, a share of each tensor; `unbiased` scales them up (Wangni et al. 2018)."""

    share: float
    unbiased: bool = True

    def compress(self, change: Params, key: Key, start: Params) -> SampledValues:
        shapes = {place: tuple(tensor.shape) for place, tensor in change.items()}
        kept = {place: self.count(tensor.numel()) for place, tensor in change.items()}
        drawn = Drawn.by(key, kept, shapes)
        scaled = {place: tensor * self._factor(tensor.numel()) for place, tensor in change.items()}
        return SampledValues(drawn, pack(scaled, drawn.masks()))

    def restore(self, payload: Payload, like: Params) -> Params:
        assert isinstance(payload, SampledValues)
        return unpack(payload.values, payload.places.masks())

    def count(self, size: int) -> int:
        """How many values of a tensor are kept: at least one."""
        return min(max(round(self.share * size), 1), size)

    def _factor(self, size: int) -> float:
        return size / self.count(size) if self.unbiased and size else 1.0


@dataclass(frozen=True)
class QSGD:
    """Random rounding to `levels` parts of the norm, each way (Alistarh et al. 2017, section 3.1).

    `bucket` values share a norm; 0: a whole tensor does.
    """

    levels: int
    bucket: int = BUCKET

    def compress(self, change: Params, key: Key, start: Params) -> ScaledLevels:
        levels, scales = {}, {}
        for place, tensor in change.items():
            rows = self._rows(tensor.flatten())
            norms = rows.norm(dim=1)
            parts = rows.abs() * (self.levels / norms.clamp_min(torch.finfo().tiny))[:, None]
            parts = parts.clamp(0, self.levels)
            draw = torch.from_numpy(key.fold(place).numpy().random(parts.shape, np.float32))
            # eq. 1: rounds up with the probability that makes the mean right
            level = (parts.floor() + (draw < parts - parts.floor())).clamp_max(self.levels)
            level = (level * rows.sign()).flatten()[: tensor.numel()].reshape(tensor.shape)
            levels[place], scales[place] = level.nan_to_num().to(torch.int16), norms / self.levels
        return ScaledLevels(Levels(levels, -self.levels, self.levels), scales)

    def restore(self, payload: Payload, like: Params) -> Params:
        assert isinstance(payload, ScaledLevels)
        restored = {}
        for place, level in payload.levels.values.items():
            rows = self._rows(level.flatten().float()) * payload.scales[place][:, None]
            restored[place] = rows.flatten()[: level.numel()].reshape(level.shape)
        return restored

    def _rows(self, flat: Tensor) -> Tensor:
        """The values in rows of one bucket each, padded with zeros."""
        size = self.bucket or max(flat.numel(), 1)
        count = -(-flat.numel() // size)
        padded = flat.new_zeros(count * size)
        padded[: flat.numel()] = flat
        return padded.reshape(count, size)


@dataclass(frozen=True)
class Natural:
    """Random rounding to a power of two (Horváth et al. 2022, definition 1)."""

    def compress(self, change: Params, key: Key, start: Params) -> ScaledLevels:
        levels = {}
        for place, tensor in change.items():
            fraction, exponent = torch.frexp(tensor.abs())  # fraction in [0.5, 1)
            draw = torch.from_numpy(key.fold(place).numpy().random(tensor.shape, np.float32))
            power = exponent - 1 + (draw < 2 * fraction - 1)
            known = (fraction > 0) & (power >= FIRST_EXPONENT)
            level = torch.where(known, power.clamp_max(127) - FIRST_EXPONENT + 1, 0)
            levels[place] = (level * tensor.sign().nan_to_num()).to(torch.int16)
        most = 127 - FIRST_EXPONENT + 1
        return ScaledLevels(Levels(levels, -most, most), {"": _finiteness(change)})

    def restore(self, payload: Payload, like: Params) -> Params:
        assert isinstance(payload, ScaledLevels)
        restored = {}
        for place, level in payload.levels.values.items():
            exponent = level.abs().numpy().astype(np.int32) - 1 + FIRST_EXPONENT
            power = torch.from_numpy(np.asarray(np.ldexp(np.float32(1), exponent)))
            restored[place] = power * level.sign()
        return restored


@dataclass(frozen=True)
class Sign:
    """Signs, scaled by the mean magnitude of their tensor (Karimireddy et al. 2019)."""

    def compress(self, change: Params, key: Key, start: Params) -> ScaledLevels:
        levels = {place: (tensor >= 0).to(torch.int8) for place, tensor in change.items()}
        scales = {place: _mean(tensor.abs()) for place, tensor in change.items()}
        return ScaledLevels(Levels(levels, 0, 1), scales)

    def restore(self, payload: Payload, like: Params) -> Params:
        assert isinstance(payload, ScaledLevels)
        scales = payload.scales
        return {p: (2.0 * bit - 1.0) * scales[p] for p, bit in payload.levels.values.items()}


@dataclass(frozen=True)
class Ternary:
    """The largest values, as their sign times their mean magnitude (Sattler et al. 2019, STC)."""

    share: float

    def compress(self, change: Params, key: Key, start: Params) -> ScaledLevels:
        masks = largest(change, self.share)
        kept = [tensor[masks[place]].abs() for place, tensor in change.items()]
        mean = _mean(torch.cat(kept)) if kept else torch.zeros(())  # Algorithm 1, mu
        levels = {p: (t.sign() * masks[p]).nan_to_num().to(torch.int8) for p, t in change.items()}
        return ScaledLevels(Levels(levels, -1, 1), {"": mean})

    def restore(self, payload: Payload, like: Params) -> Params:
        assert isinstance(payload, ScaledLevels)
        return {p: level * payload.scales[""] for p, level in payload.levels.values.items()}


@dataclass(frozen=True)
class LowRank:
    """One step of power iteration from the factors of last time (Vogels et al. 2019, PowerSGD)."""

    rank: int

    def compress(self, change: Params, key: Key, start: Params) -> MatrixFactors:
        left, right, whole = {}, {}, {}
        for place, tensor in change.items():
            if not self.smaller(tensor):
                whole[place] = tensor
                continue
            matrix = tensor.reshape(len(tensor), -1)
            old = start.get(place)
            if old is None:
                drawn = key.fold(place).numpy().standard_normal((matrix.shape[1], self.rank))
                old = torch.from_numpy(drawn.astype(np.float32))
            left[place] = orthogonal(matrix @ old)  # Algorithm 1, lines 4 to 6
            right[place] = matrix.T @ left[place]  # line 7
        return MatrixFactors(left, right, whole)

    def restore(self, payload: Payload, like: Params) -> Params:
        assert isinstance(payload, MatrixFactors)
        products = {place: left @ payload.right[place].T for place, left in payload.left.items()}
        matrices = {place: each.reshape(like[place].shape) for place, each in products.items()}
        return {**payload.whole, **matrices}  # line 10

    def smaller(self, tensor: Tensor) -> bool:
        """Whether a tensor takes fewer numbers as two factors."""
        if tensor.dim() < 2 or not tensor.numel():
            return False
        rows, columns = len(tensor), tensor.numel() // len(tensor)
        return self.rank * (rows + columns) < rows * columns


def largest(change: Params, share: float) -> Masks:
    """Masks of the values of largest magnitude, exactly a share of all tensors together."""
    size = sum(tensor.numel() for tensor in change.values())
    if not size:
        return {place: torch.zeros(t.shape, dtype=torch.bool) for place, t in change.items()}
    scores = torch.cat([tensor.abs().flatten() for tensor in change.values()])
    chosen = top(scores, min(max(round(share * size), 1), size))
    parts = torch.split(chosen, [tensor.numel() for tensor in change.values()])
    pairs = zip(change.items(), parts, strict=True)
    return {place: part.reshape(tensor.shape) for (place, tensor), part in pairs}


def orthogonal(matrix: Tensor) -> Tensor:
    """The columns made orthonormal one after another (Gram-Schmidt)."""
    columns: list[Tensor] = []
    for column in matrix.T:
        for known in columns:
            column = column - (known @ column) * known
        columns.append(column / column.norm().clamp_min(1e-8))
    return torch.stack(columns, dim=1)


def _mean(values: Tensor) -> Tensor:
    """The mean, in float64 on the way; zero of nothing."""
    return values.double().sum().div(max(values.numel(), 1)).float()


def _finiteness(change: Params) -> Tensor:
    """Zero, or not finite if some number is not: then a receiver refuses the payload."""
    total = math.fsum(float(tensor.double().sum()) for tensor in change.values())
    return torch.tensor(total * 0.0, dtype=torch.float32)
