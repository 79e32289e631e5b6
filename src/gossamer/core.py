"""The vocabulary: the values that methods, engines and users exchange.

A method is a frozen dataclass with eight pure functions (`Method`). What it sends is in the types
of its records, what it draws comes from a `Key`, and what it computes goes through a `Task`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from gossamer.task import Task

Params: TypeAlias = dict[str, Tensor]
Masks: TypeAlias = dict[str, Tensor]

S = TypeVar("S")
C = TypeVar("C")
D = TypeVar("D")
W = TypeVar("W")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class Key:
    """Randomness as a path from a seed: nothing to advance, nothing to checkpoint.

    >>> int(Key(1).fold("round", 3, "client", 17).numpy().integers(100))
    59
    """

    seed: int
    path: tuple[str | int, ...] = ()

    def fold(self, *parts: str | int) -> Key:
        """A key further down the path; different paths give independent randomness."""
        for part in parts:
            if not isinstance(part, str | int):
                raise TypeError(f"a key's path has text and whole numbers, not {part!r}")
        return Key(self.seed, (*self.path, *parts))

    def digest(self) -> int:
        """128 bits that are a function of seed and path alone."""
        text = hashlib.blake2b(digest_size=16)
        for part in (self.seed, *self.path):
            kind, body = ("i", str(int(part))) if not isinstance(part, str) else ("s", part)
            encoded = body.encode()
            text.update(f"{kind}{len(encoded)}:".encode() + encoded)
        return int.from_bytes(text.digest(), "little")

    def generator(self) -> torch.Generator:
        """A fresh torch generator (torch's CPU generator keeps 32 bits of its seed)."""
        return torch.Generator().manual_seed(self.digest() & 0xFFFFFFFF)

    def numpy(self) -> np.random.Generator:
        """A fresh NumPy generator that uses all 128 bits."""
        return np.random.Generator(np.random.Philox(key=self.digest()))


@dataclass(frozen=True, slots=True)
class Client:
    """All a server may know of a client."""

    id: int
    examples: int
    budget: float = 1.0


@dataclass(frozen=True, slots=True)
class Examples:
    """Inputs and labels, ready for the module: the first dimension counts examples."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return int(self.y.shape[0])


@dataclass(frozen=True, slots=True)
class Data:
    """A client's own examples; they never leave it."""

    train: Examples
    valid: Examples
    test: Examples


@dataclass(frozen=True, slots=True)
class Ctx:
    """Where a call stands: task, round, randomness and, on a client, its data."""

    task: Task
    round: int
    rounds: int
    key: Key
    """Private randomness of this side in this round."""
    common: Key
    """Randomness both sides derive from the seed: never sent, never charged."""
    data: Data | None = None
    budgets: tuple[float, ...] = (1.0,)
    """Of all clients in the pool, each value once, ascending; a client sees only this default."""

    @property
    def own(self) -> Data:
        """The client's data; an error where there is none."""
        if self.data is None:
            raise ValueError("a server has no data of its own; ctx.own is for clients")
        return self.data


@dataclass(frozen=True, slots=True)
class Batch:
    """One mini-batch, and where it stands in the client's job."""

    x: Tensor
    y: Tensor
    key: Key
    """Randomness of this step alone."""
    step: int
    steps: int
    """Steps in the whole job."""
    epoch: int
    epochs: float
    per_epoch: int
    """Steps in one full pass over the data."""

    @property
    def ends_epoch(self) -> bool:
        """Whether a full pass over the client's data ends with this batch."""
        return (self.step + 1) % self.per_epoch == 0


@dataclass(frozen=True, slots=True)
class Job(Generic[W]):
    """Where a client starts and how long it works; `epochs` may be fractional."""

    work: W
    epochs: float
    batch: int


@dataclass(frozen=True, slots=True)
class Result(Generic[U, C]):
    """What a client sends, what it keeps, and which masks were active (for FLOPs and density)."""

    up: U
    local: C | None = None
    masks: Masks = field(default_factory=dict)
    trained: Masks = field(default_factory=dict)
    """What of the masks was trained, where a part of them is frozen; absent: all of it."""
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Exchange(Generic[D, U]):
    """One finished conversation with a client, as the server sees it."""

    client: Client
    down: D
    up: U


@dataclass(frozen=True, slots=True)
class Measures:
    """What a server has to show of its state: masks of the global model, and other figures."""

    masks: Masks = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ensemble:
    """A model that is several: it predicts the weighted mean of its members' probabilities."""

    members: tuple[Params, ...]
    weights: tuple[float, ...]


class Method(Protocol[S, C, D, W, U]):
    """A federated method: four functions of the server, three of a client, one of anyone.

    All are pure, except that `step` may update its `work` in place: it consumes it.

    A method whose replies take several forms, or cannot be told from a first visit, may also have
    `replies(ctx, down)`: an example of each `up` that may answer `down`. Others are refused.

    A method with masks at the server may have `measures(ctx, state) -> Measures`: the engine then
    tells after every round how dense they are and how far they moved, layer by layer.
    """

    # server
    def init(self, ctx: Ctx) -> S: ...
    def cohort(self, ctx: Ctx, state: S, pool: Sequence[Client]) -> Sequence[Client]: ...
    def down(self, ctx: Ctx, state: S, client: Client) -> D: ...
    def merge(self, ctx: Ctx, state: S, exchanges: Iterable[Exchange[D, U]]) -> S: ...

    # client
    def begin(self, ctx: Ctx, down: D, local: C | None) -> Job[W]: ...
    def step(self, ctx: Ctx, work: W, batch: Batch) -> W: ...
    def finish(self, ctx: Ctx, work: W) -> Result[U, C]: ...

    # anyone: the model to evaluate or export; local=None asks for the global one
    def model(self, ctx: Ctx, state: S, local: C | None) -> Params | Ensemble: ...


def sample(key: Key, pool: Sequence[Client], count: int) -> list[Client]:
    """`count` clients drawn uniformly without replacement, in the order of their ids."""
    if not 0 < count <= len(pool):
        raise ValueError(
            f"{count} clients per round asked for, but the pool has {len(pool)}; "
            f"use --clients {len(pool)} or fewer, or a larger --pool"
        )
    chosen = key.fold("cohort").numpy().choice(len(pool), size=count, replace=False, shuffle=False)
    return [pool[index] for index in sorted(chosen.tolist())]
