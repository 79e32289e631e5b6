"""Where a federation came from, so that another process can make it again."""

from __future__ import annotations

from dataclasses import dataclass

from gossamer.data.inputs import Inputs


@dataclass(frozen=True)
class Origin:
    """The arguments of `data.federation` that build a federation again."""

    name: str
    partition: str | None
    pool: int | None
    seed: int
    least: int | None
    valid: float
    inputs: Inputs
    budgets: str | None
