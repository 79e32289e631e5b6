"""Devices by client from a CSV file: classes, and numbers that differ from those of the class."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gossamer.devices import presets
from gossamer.devices.device import Device

FORM = f"client,device and, if wanted, {', '.join(presets.NUMBERS)}"


@dataclass(frozen=True)
class Listed:
    """A table with a row for every client, kept as arrays."""

    classes: tuple[Device, ...]
    codes: npt.NDArray[np.int64]
    """By client: the place of its class."""
    numbers: Mapping[str, npt.NDArray[np.float64]]
    """By column and client: a number of its own, or NaN."""

    @classmethod
    def read(cls, path: Path, size: int) -> Listed:
        """Reads a file with the columns `client,device`, and others named as fields of `Device`.

        Raises:
            ValueError: A line is wrong, or a client is missing.
            FileNotFoundError: There is no such file.
        """
        if not path.is_file():
            raise FileNotFoundError(
                f"`devices=` {str(path)!r} is no file; its columns are to be {FORM}"
            )
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file)
            heading = [cell.strip().lower() for cell in next(rows, [])]
            if heading[:2] != ["client", "device"] or not set(heading[2:]) <= {*presets.NUMBERS}:
                raise ValueError(f"{path} begins with {','.join(heading)!r}; columns are {FORM}")
            codes = np.full(size, -1, np.int64)
            numbers = {name: np.full(size, math.nan) for name in heading[2:]}
            classes: dict[str, int] = {}
            for at, client, cells in _lines(path, rows, len(heading), size):
                if codes[client] >= 0:
                    raise ValueError(f"{at} has client {client} again; keep one of the two")
                if cells[0] not in presets.PRESETS:
                    presets.parse(cells[0])  # raises, and says what there is
                codes[client] = classes.setdefault(cells[0], len(classes))
                for name, cell in zip(numbers, cells[1:], strict=True):
                    numbers[name][client] = float(cell) if cell else math.nan
        if (codes < 0).any():
            raise ValueError(
                f"{path} has no device for client {int((codes < 0).argmax())}; add a line for each "
                f"of the {size} clients"
            )
        table = cls(tuple(presets.PRESETS[name] for name in classes), codes, numbers)
        table._check(path)
        return table

    def of(self, client: int) -> Device:
        """The device of a client: that of its class, with its own numbers."""
        device = self.classes[int(self.codes[client])]
        own: dict[str, Any] = {n: float(column[client]) for n, column in self.numbers.items()}
        return replace(device, **{name: x for name, x in own.items() if not math.isnan(x)})

    def column(self, name: str) -> npt.NDArray[np.float64]:
        """A number of all clients: their own, or that of their classes."""
        usual = np.array([getattr(each, name) for each in self.classes], np.float64)[self.codes]
        own = self.numbers.get(name)
        return usual if own is None else np.where(np.isnan(own), usual, own)

    def _check(self, path: Path) -> None:
        for name, column in self.numbers.items():
            low = 0 if name in ("latency", "failure") else np.nextafter(0, 1)
            high = np.nextafter(1, 0) if name == "failure" else np.finfo(float).max
            bad = (column < low) | (column > high)
            if bad.any():
                client = int(bad.argmax())
                raise ValueError(
                    f"{path} gives client {client} {name} {column[client]:g}; speeds and memory "
                    "are above 0, a latency is 0 or more, a failure rate from 0 up to 1"
                )


def _lines(
    path: Path, rows: Iterator[list[str]], columns: int, size: int
) -> Iterator[tuple[str, int, list[str]]]:
    """Where a line is, its client, and the other cells."""
    for number, row in enumerate(rows, 2):
        cells = [cell.strip() for cell in row]
        if not any(cells):
            continue
        at = f"line {number} of {path}"
        try:
            client = int(cells[0])
            for cell in cells[2:]:
                float(cell or 0)
        except ValueError:
            client = -1
        if len(cells) != columns or client < 0:
            raise ValueError(f"{at} is {','.join(cells)!r}; columns are {FORM}")
        if client >= size:
            raise ValueError(f"{at} has client {client}, but the pool has 0 to {size - 1}")
        yield at, client, cells[1:]
