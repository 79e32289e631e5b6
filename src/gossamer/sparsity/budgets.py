"""Clients with different budgets: the density that each trains, and nested masks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from gossamer.core import Client, Key, Masks, Params
from gossamer.sparsity.algebra import difference
from gossamer.sparsity.average import Averaging
from gossamer.sparsity.draw import nested

MOST = 16
"""The maximum number of densities for which a server keeps masks."""
TOLERANCE = 1e-6
"""Budgets have six decimals."""


@dataclass(frozen=True)
class Budgets:
    """The densities that clients train, ascending; the last is the model's."""

    densities: tuple[float, ...]

    @classmethod
    def of(cls, budgets: Iterable[float], density: float) -> Budgets:
        """The budgets for a model of this density; clients with larger budgets train all of it."""
        return cls(tuple(sorted({_affords(budget, density) for budget in budgets})))

    @property
    def several(self) -> bool:
        """Whether there is more than one density."""
        return len(self.densities) > 1

    def averaging(self, choice: Literal["auto", Averaging]) -> Averaging:
        """How client models are averaged; `auto`: each weight over those who can afford it."""
        return ("wfa" if self.several else "fedavg") if choice == "auto" else choice

    def level(self, client: Client) -> int:
        """The index of a client's density."""
        return self.densities.index(_affords(client.budget, self.densities[-1]))

    def part(self, client: Client) -> float | None:
        """The density of a client that cannot afford the whole model, otherwise None."""
        level = self.level(client)
        return self.densities[level] if level < len(self.densities) - 1 else None

    def masks(self, top: Masks, by: Key | Params) -> tuple[Masks, ...]:
        """Nested masks for all densities, ascending; the last is `top`.

        Args:
            by: a key for random masks, or parameters whose largest weights are kept.
        """
        return (*nested(top, self.densities[:-1], by), top)

    def unoffered(self, masks: Sequence[Masks], clients: Iterable[Client]) -> Masks:
        """The part of the model that none of some clients can afford; `masks` has all levels."""
        return difference(masks[-1], masks[max(self.level(client) for client in clients)])

    def check(self, density: float, group: int = 0) -> None:
        """Rejects budgets that leave a part of the model untrained, or that have no nested masks.

        Args:
            density: the density of the model.
            group: the size of the groups of N:M masks; 0 for unstructured masks.

        Raises:
            ValueError: the message says what to change.
        """
        if self.densities[-1] < density - TOLERANCE:
            raise ValueError(
                f"the largest budget is {self.densities[-1]:g} and the density {density:g}, so a "
                f"part of the model would never be trained; use `density={self.densities[-1]:g}`"
            )
        if len(self.densities) > MOST:
            raise ValueError(
                f"clients have {len(self.densities)} budgets up to the density, and the server "
                f"keeps masks for at most {MOST}; round them"
            )
        if group and self.several:
            raise ValueError(
                "N:M masks with the same groups cannot be nested; use `group=` or "
                "`budgets=`, not both"
            )


def _affords(budget: float, density: float) -> float:
    return budget if budget < density - TOLERANCE else density
