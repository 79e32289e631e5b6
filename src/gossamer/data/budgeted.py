"""A federation whose clients have other density budgets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gossamer.data.arrays import Pool
from gossamer.data.budgets import facts
from gossamer.data.federation import Federation
from gossamer.data.inputs import Floats

BY_MEMORY = "by-memory"
"""What `--budgets` says if they follow the devices."""


@dataclass(frozen=True, eq=False)
class Budgeted:
    """The same clients and data, with a budget for each client."""

    federation: Federation
    budgets: Floats

    def __getattr__(self, name: str) -> Any:
        return getattr(self.federation, name)

    @cached_property
    def pool(self) -> Pool:
        known = self.federation.pool
        examples = getattr(known, "examples", None)
        if examples is None:
            examples = np.array([client.examples for client in known], np.int64)
        return Pool(examples, self.budgets)

    def describe(self) -> Mapping[str, object]:
        return {**self.federation.describe(), **facts(self.budgets)}
