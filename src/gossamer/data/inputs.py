"""Inputs as models take them: images, features, tokens, and windows of text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gossamer.arithmetic.inputs import scaled
from gossamer.data.augment import CropAndFlip
from gossamer.data.federation import Augment
from gossamer.task.goal import KINDS

Ints: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Floats: TypeAlias = npt.NDArray[np.float32]
Scale: TypeAlias = Literal["normalised", "unit", "raw"]
SCALES: tuple[str, ...] = get_args(Scale)
Layout: TypeAlias = Literal["auto", "nhwc", "nchw"]
LAYOUTS: tuple[str, ...] = get_args(Layout)


@dataclass(frozen=True)
class Inputs:
    """How your own files are read, and how stored examples become inputs of a model."""

    scale: Scale = "normalised"
    """`normalised`, `unit` for [0, 1], or `raw` for 0..255."""
    augment: bool = False
    """Whether training images are cropped and mirrored."""
    label: str = ""
    """The columns of a `csv:` that are labels: a name, a number from 1, or several of them."""
    size: str = ""
    """To which pictures of a `folder:` are resized: `32`, or WIDTHxHEIGHT."""
    layout: Layout = "auto"
    """Whether channels of images in an `npz:` are last (`nhwc`) or first (`nchw`)."""
    task: str = ""
    """What labels are: classification, regression, multilabel or language; empty: by the data."""

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise ValueError(f"no scale {self.scale!r}; use one of {', '.join(SCALES)}")
        if self.layout not in LAYOUTS:
            raise ValueError(f"no layout {self.layout!r}; use one of {', '.join(LAYOUTS)}")
        if self.task and self.task not in KINDS:
            raise ValueError(f"no task {self.task!r}; use one of {', '.join(KINDS)}")
        if self.size:
            _ = self.width_and_height

    @property
    def width_and_height(self) -> tuple[int, int] | None:
        """The size of pictures, if one is asked for."""
        if not self.size:
            return None
        sides = self.size.lower().split("x")
        if len(sides) > 2 or not all(side.isdecimal() and int(side) for side in sides):
            raise ValueError(f"a size is 32 or WIDTHxHEIGHT such as 64x48, not {self.size!r}")
        return int(sides[0]), int(sides[-1])


class Rows(Protocol):
    """Examples that an array of row numbers selects; a NumPy array is one."""

    def __len__(self) -> int: ...
    def __getitem__(self, rows: Ints, /) -> np.ndarray: ...


class Kind(Protocol):
    """How chosen rows become tensors; `shape` is one input without the batch dimension."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    def tensor(self, stored: Rows, places: Ints, scale: Scale) -> Tensor: ...
    def augment(self, scale: Scale) -> Augment | None: ...
    def facts(self, scale: Scale) -> dict[str, object]: ...


@dataclass(frozen=True)
class Images:
    """Bytes of shape (rows, height, width, channels), which become channels-last NCHW floats."""

    size: tuple[int, int, int]
    """Height, width, channels, as stored."""
    mean: tuple[float, ...]
    """Per channel, of values in [0, 1]."""
    std: tuple[float, ...]
    flips: bool = False
    """Whether a mirrored image is still of its class; only then there is an augmentation."""

    @property
    def shape(self) -> tuple[int, ...]:
        height, width, channels = self.size
        return (channels, height, width)

    def affine(self, scale: Scale) -> tuple[Tensor, Tensor]:
        """Factor and offset per channel that turn a byte into an input."""
        return _affine(self, scale)

    def tensor(self, stored: Rows, places: Ints, scale: Scale) -> Tensor:
        factor, offset = _affine_rows(self, scale)
        rows = np.asarray(stored).reshape(-1, math.prod(self.size))
        return scaled(rows, places, factor, offset).view(-1, *self.size).permute(0, 3, 1, 2)

    def augment(self, scale: Scale) -> Augment | None:
        black = self.affine(scale)[1]
        return CropAndFlip(padding=4, fill=tuple(black.tolist())) if self.flips else None

    def facts(self, scale: Scale) -> dict[str, object]:
        return {"mean": self.mean, "std": self.std} if scale == "normalised" else {}


@lru_cache(maxsize=64)
def _affine(images: Images, scale: Scale) -> tuple[Tensor, Tensor]:
    channels = images.size[2]
    match scale:
        case "normalised":
            std, mean = torch.tensor(images.std), torch.tensor(images.mean)
            return 1 / (255 * std), -mean / std
        case "unit":
            return torch.full((channels,), 1 / 255), torch.zeros(channels)
        case "raw":
            return torch.ones(channels), torch.zeros(channels)


@lru_cache(maxsize=64)
def _affine_rows(images: Images, scale: Scale) -> tuple[Tensor, Tensor]:
    """The same for every number of an image: long rows are multiplied seven times as fast."""
    height, width, _ = images.size
    factor, offset = _affine(images, scale)
    return factor.repeat(height * width), offset.repeat(height * width)


@dataclass(frozen=True)
class Features:
    """Rows of floats of any shape, standardised per feature unless asked otherwise."""

    shape: tuple[int, ...]
    mean: Floats
    std: Floats

    @staticmethod
    def of(train: np.ndarray) -> Features:
        """Mean and deviation of the training rows; a constant feature keeps deviation 1."""
        mean, std = train.mean(axis=0), train.std(axis=0)
        std = np.where(std > 0, std, 1.0)
        return Features(train.shape[1:], mean.astype(np.float32), std.astype(np.float32))

    def tensor(self, stored: Rows, places: Ints, scale: Scale) -> Tensor:
        values = stored[places].astype(np.float32)
        if scale == "normalised":
            values = (values - self.mean) / self.std
        return torch.from_numpy(values)

    def augment(self, scale: Scale) -> Augment | None:
        return None

    def facts(self, scale: Scale) -> dict[str, object]:
        return {}


@dataclass(frozen=True)
class AsGiven:
    """Rows that reach the model as they are: somebody has prepared them."""

    shape: tuple[int, ...]
    dtype: str

    def tensor(self, stored: Rows, places: Ints, scale: Scale) -> Tensor:
        rows = stored[places]
        values = rows.astype(np.float32) if rows.dtype == np.float64 else rows
        return torch.from_numpy(np.ascontiguousarray(values))

    def augment(self, scale: Scale) -> Augment | None:
        return None

    def facts(self, scale: Scale) -> dict[str, object]:
        return {}


@dataclass(frozen=True)
class Tokens:
    """Rows of token numbers, all of one length, which become int64."""

    length: int
    vocabulary: Sequence[str]

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.length,)

    def tensor(self, stored: Rows, places: Ints, scale: Scale) -> Tensor:
        return torch.from_numpy(stored[places].astype(np.int64))

    def augment(self, scale: Scale) -> Augment | None:
        return None

    def facts(self, scale: Scale) -> dict[str, object]:
        return {"vocabulary": len(self.vocabulary)}


@dataclass(frozen=True)
class Windows:
    """Overlapping windows of one long text: row i is `text[starts[i] : starts[i] + length]`."""

    text: Bytes
    starts: Ints
    length: int

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, rows: Ints, /) -> np.ndarray:
        return np.take(self.text, self.starts[rows][:, None] + np.arange(self.length))
