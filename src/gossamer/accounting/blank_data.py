"""A federation without data, to price methods on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gossamer.core import Client, Data, Examples
from gossamer.data.arrays import Pool
from gossamer.data.budgets import facts
from gossamer.data.federation import Augment
from gossamer.data.inputs import Floats
from gossamer.task.layout import Input

NO_CLASS = torch.zeros(1, dtype=torch.int64)


@dataclass(frozen=True, eq=False)
class Blank:
    """A federation whose examples are all zero and take no memory."""

    input: Input
    classes: int
    size: int
    examples: int
    name: str = "blank"
    augment: Augment | None = None
    budgets: Floats | None = None
    label: Tensor = NO_CLASS
    """A label of zeros, as `Task.blank_labels` gives it for one example."""

    @cached_property
    def pool(self) -> Sequence[Client]:
        return Pool(np.full(self.size, self.examples), self._budgets)

    @property
    def _budgets(self) -> Floats:
        return np.ones(self.size, np.float32) if self.budgets is None else self.budgets

    @property
    def test(self) -> Examples:
        return self._blank(0)

    def describe(self) -> Mapping[str, Any]:
        known = {"name": self.name, "shape": self.input.shape, "classes": self.classes}
        return {**known, **facts(self._budgets)}

    def client(self, id: int) -> Data:
        return Data(self._blank(self.examples), self._blank(0), self._blank(0))

    def test_rows(self, id: int) -> np.ndarray | None:
        return None

    def _blank(self, count: int) -> Examples:
        labels = self.label.expand(count, *self.label.shape[1:])
        return Examples(self.input.blank(count), labels)
