"""Data whose inputs are several arrays by name: token ids, attention masks, and the like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gossamer.data.arrays import Arrays, Labels
from gossamer.data.federation import Augment
from gossamer.data.inputs import Ints, Rows, Scale
from gossamer.named import named


class Columns:
    """Arrays with one row for each example."""

    def __init__(self, columns: Mapping[str, np.ndarray]) -> None:
        self.columns = {name: np.asarray(column) for name, column in columns.items()}
        self.size = len(next(iter(self.columns.values())))
        for name, column in self.columns.items():
            if len(column) != self.size:
                raise ValueError(f"column {name!r} has {len(column)} rows, others {self.size}")

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, rows: Ints, /) -> np.ndarray:
        chosen = {name: column[rows] for name, column in self.columns.items()}
        return np.array(chosen, dtype=object)  # a box: `ByName` opens it


@dataclass(frozen=True)
class ByName:
    """Rows of `Columns`, which become tensors by name; whole numbers become int64."""

    shape: tuple[int, ...] = ()

    def tensor(self, stored: Rows, places: Ints, scale: Scale) -> Tensor:
        return named({name: _tensor(column) for name, column in stored[places].item().items()})

    def augment(self, scale: Scale) -> Augment | None:
        return None

    def facts(self, scale: Scale) -> dict[str, object]:
        return {}


def columns(
    name: str,
    train: tuple[Mapping[str, np.ndarray], Ints],
    test: tuple[Mapping[str, np.ndarray], Ints],
    classes: int,
) -> Arrays:
    """A data set whose module is called with several inputs as keywords.

    Args:
        name: of the data, in logs and reports.
        train: inputs by the names of the module's arguments, and labels from 0.
        test: the same for testing.
        classes: the number of labels.
    """
    labels = Labels(np.asarray(train[1], np.int64), np.asarray(test[1], np.int64), classes)
    return Arrays(name, ByName(), Columns(train[0]), Columns(test[0]), labels)


def _tensor(column: np.ndarray) -> Tensor:
    whole = np.issubdtype(column.dtype, np.integer)
    return torch.from_numpy(column.astype(np.int64 if whole else np.float32))
