"""A data set as arrays kept once: how rows become inputs, and which client owns which rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, Protocol, TypeAlias, get_args, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gossamer.core import Client, Levels
from gossamer.data.augment import CropAndFlip
from gossamer.data.federation import Augment

Ints: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Floats: TypeAlias = npt.NDArray[np.float32]
Scale: TypeAlias = Literal["normalised", "unit", "raw"]
SCALES: tuple[str, ...] = get_args(Scale)


@dataclass(frozen=True)
class Inputs:
    """How stored examples become inputs of a model."""

    scale: Scale = "normalised"
    """`normalised`, `unit` for [0, 1], or `raw` for 0..255."""
    augment: bool = False
    """Whether training images are cropped and mirrored."""

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise ValueError(f"no scale {self.scale!r}; use one of {', '.join(SCALES)}")


class Rows(Protocol):
    """Examples that an array of row numbers selects; a NumPy array is one."""

    def __len__(self) -> int: ...
    def __getitem__(self, rows: Ints, /) -> np.ndarray: ...


class Kind(Protocol):
    """How stored rows become tensors; `shape` is one input without the batch dimension."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    def tensor(self, rows: np.ndarray, scale: Scale) -> Tensor: ...
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

    def tensor(self, rows: np.ndarray, scale: Scale) -> Tensor:
        factor, offset = self.affine(scale)
        stored = torch.from_numpy(rows).reshape(-1, *self.size)
        return stored.to(torch.float32).mul_(factor).add_(offset).permute(0, 3, 1, 2)

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

    def tensor(self, rows: np.ndarray, scale: Scale) -> Tensor:
        values = rows.astype(np.float32)
        if scale == "normalised":
            values = (values - self.mean) / self.std
        return torch.from_numpy(values)

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

    def tensor(self, rows: np.ndarray, scale: Scale) -> Tensor:
        return torch.from_numpy(rows.astype(np.int64))

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


@dataclass(frozen=True)
class Labels:
    """All a partition may look at: labels, and groups and coarse classes where there are any."""

    train: Ints
    test: Ints
    classes: int
    groups: tuple[Ints, Ints] | None = None
    """For every training and every test row, the number of its writer or speaker."""
    coarse: Ints | None = None
    """For every class, the number of its coarse class."""


@dataclass(frozen=True)
class Arrays:
    """A whole data set in memory, before anyone has divided it."""

    name: str
    kind: Kind
    train: Rows
    test: Rows
    labels: Labels

    def __post_init__(self) -> None:
        labels = self.labels
        for split, x, y in (
            ("training", self.train, labels.train),
            ("test", self.test, labels.test),
        ):
            if len(x) != len(y):
                raise ValueError(
                    f"{self.name} has {len(x)} {split} examples but {len(y)} labels; "
                    f"give every example one label"
                )
            if len(y) and not 0 <= int(y.min()) <= int(y.max()) < labels.classes:
                raise ValueError(
                    f"{self.name} has {split} labels from {y.min()} to {y.max()} for "
                    f"{labels.classes} classes; number the classes from 0"
                )
        for split, group, y in zip(
            ("training", "test"), labels.groups or (), (labels.train, labels.test), strict=False
        ):
            if len(group) != len(y):
                raise ValueError(
                    f"{self.name} has {len(y)} {split} examples but groups of {len(group)}; "
                    f"give every example its writer or speaker"
                )
        if not len(labels.train):
            raise ValueError(f"{self.name} has no training examples; check its files")


# who owns which rows, in two arrays however many clients there are --------------------------------


@dataclass(frozen=True)
class Index:
    """Row numbers by client: those of client i are `rows[offsets[i] : offsets[i + 1]]`."""

    rows: Ints
    offsets: Ints

    @staticmethod
    def of(owner: Ints, pool: int) -> Index:
        """From the owner of every row; rows owned by -1 belong to nobody."""
        order = np.argsort(owner, kind="stable")
        sizes = np.bincount(owner + 1, minlength=pool + 1)
        return Index(order[sizes[0] :], np.concatenate([[0], np.cumsum(sizes[1:])]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, id: int) -> Ints:
        if not 0 <= id < len(self):
            raise IndexError(f"no client {id}; the pool has clients 0 to {len(self) - 1}")
        return self.rows[self.offsets[id] : self.offsets[id + 1]]

    @property
    def sizes(self) -> Ints:
        """How many rows each client owns."""
        return np.diff(self.offsets)

    @property
    def owners(self) -> Ints:
        """The owner of every entry of `rows`."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def keep(self, clients: Ints) -> Index:
        """The same rows for some of the clients, renumbered in the order given."""
        parts = [self[int(id)] for id in clients]
        rows = np.concatenate([*parts, np.empty(0, np.int64)])
        return Index(rows, np.concatenate([[0], np.cumsum(self.sizes[clients])]))

    def counts(self, labels: Ints, classes: int) -> Ints:
        """A table of clients by classes: how many examples of each class everyone owns."""
        cells = self.owners * classes + labels[self.rows]
        return np.bincount(cells, minlength=len(self) * classes).reshape(len(self), classes)


@dataclass(frozen=True)
class Split:
    """A partition drawn: the training and the test rows of every client."""

    train: Index
    test: Index

    def __len__(self) -> int:
        return len(self.train)


@dataclass(frozen=True)
class Pool(Sequence[Client]):
    """All clients, made when looked at: 100,000 of them are two small arrays."""

    examples: Ints
    budgets: Floats

    def __len__(self) -> int:
        return len(self.examples)

    @overload
    def __getitem__(self, index: int) -> Client: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Client]: ...
    def __getitem__(self, index: int | slice) -> Client | Sequence[Client]:
        if isinstance(index, slice):
            return [self[id] for id in range(*index.indices(len(self)))]
        id = range(len(self))[index]
        return Client(id, int(self.examples[id]), as_asked(float(self.budgets[id])))

    def levels(self) -> Levels:
        """Each budget once, as clients have it, and who has it."""
        return self._levels

    @cached_property
    def _levels(self) -> Levels:
        values, level = np.unique(self.budgets, return_inverse=True)
        return Levels.of(np.array([as_asked(value) for value in values.tolist()])[level])


def as_asked(budget: float) -> float:
    """A float32 budget such as 0.15 rounded back to the decimal that was asked for."""
    return round(budget, 6)
