"""The vocabulary: the values that methods, engines and users exchange.

A method is a frozen dataclass with eight pure functions (`Method`). What it sends is in the types
of its records, what it draws comes from a `Key`, and what it computes goes through a `Task`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

if TYPE_CHECKING:
    from gossamer.task import Task

Params: TypeAlias = dict[str, Tensor]
"""Tensors by their names in the module: parameters, and buffers such as running statistics."""
Masks: TypeAlias = dict[str, Tensor]
"""Bool tensors by the same names, true where a weight is kept."""
Load: TypeAlias = Callable[[npt.NDArray[np.int64] | None], Tensor]
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
                raise TypeError(f"a key's path takes str and int, not {part!r}")
        return Key(self.seed, (*self.path, *parts))

    def digest(self) -> int:
        """128 bits that depend on seed and path alone."""
        return int.from_bytes(self._hash(), "little")

    def generator(self) -> torch.Generator:
        """A fresh torch generator (torch's CPU generator keeps 32 bits of its seed)."""
        return torch.Generator().manual_seed(self.digest() & 0xFFFFFFFF)

    def numpy(self) -> np.random.Generator:
        """A fresh NumPy generator that uses all 128 bits."""
        return np.random.Generator(np.random.Philox(_PhiloxKey(self._hash())))  # type: ignore[arg-type]

    def _hash(self) -> bytes:
        parts = (_encoded(part) for part in (self.seed, *self.path))
        return hashlib.blake2b(b"".join(parts), digest_size=16).digest()


@lru_cache(maxsize=4096)
def _encoded(part: str | int) -> bytes:
    """A part of a key's path: what it is, its length and its text."""
    kind, body = ("s", part) if isinstance(part, str) else ("i", str(int(part)))
    encoded = body.encode()
    return f"{kind}{len(encoded)}:".encode() + encoded


class _PhiloxKey(np.random.bit_generator.ISeedSequence):
    """A key as a seed: `Philox(key=...)` first asks the system for entropy that it never uses."""

    def __init__(self, key: bytes) -> None:
        self._words = np.frombuffer(key, "<u8").astype(np.uint64)

    def generate_state(self, n_words: int, dtype: npt.DTypeLike = np.uint32) -> npt.NDArray[Any]:
        """The two words of the key, which are all that Philox asks for."""
        return self._words


@dataclass(frozen=True, slots=True)
class Client:
    """All that a server may know about a client."""

    id: int
    examples: int
    budget: float = 1.0


class Examples:
    """Inputs and labels, ready for the module: the first dimension counts examples.

    Inputs may be given as a function that makes tensors of stored ones, at some places or of all;
    it is called when inputs are asked for, by `x` or in a new order by `take`.
    """

    __slots__ = ("_x", "y")

    def __init__(self, x: Tensor | Load, y: Tensor) -> None:
        self._x = x
        self.y = y

    @property
    def x(self) -> Tensor:
        if callable(self._x):
            self._x = self._x(None)
        return self._x

    def __len__(self) -> int:
        return self.y.shape[0]  # len() of a tensor takes longer

    def first(self, count: int) -> Examples:
        """The first `count` examples, or all if there are fewer."""
        return Examples(self.x[:count], self.y[:count])

    def take(self, order: npt.NDArray[np.int64]) -> Examples:
        """The examples at some places, in that order."""
        places = torch.from_numpy(order)
        x = self._x(order) if callable(self._x) else rows(self._x, places)
        return Examples(x, self.y.index_select(0, places))


def rows(x: Tensor, order: Tensor) -> Tensor:
    """Chosen inputs; images keep their channels innermost, where convolutions want them."""
    if x.dim() != 4:
        return x.index_select(0, order)
    return x.permute(0, 2, 3, 1).index_select(0, order).permute(0, 3, 1, 2)


@dataclass(frozen=True, slots=True)
class Data:
    """A client's own examples; they never leave it."""

    train: Examples
    valid: Examples
    test: Examples


@dataclass(frozen=True, slots=True)
class Ctx:
    """The context of a call: task, round, randomness and, on a client, its data."""

    task: Task
    round: int
    rounds: int
    key: Key
    """Private randomness of this party in this round."""
    common: Key
    """Randomness that server and clients derive from the seed: never sent, never charged."""
    data: Data | None = None
    budgets: tuple[float, ...] = (1.0,)
    """The distinct budgets in the pool, ascending; on a client, only this default."""
    pool: int = 0  # clients in all; on a client, only this default
    same: list[Any] = field(default_factory=list, compare=False, repr=False)
    """What a server computes for many clients of a round; see `parts.sparse_model.send`."""

    @property
    def own(self) -> Data:
        """The client's data.

        Raises:
            ValueError: on the server, which has no data.
        """
        if self.data is None:
            raise ValueError("a server has no data of its own; ctx.own is for clients")
        return self.data


@dataclass(frozen=True, slots=True)
class Batch:
    """One mini-batch, and its position in the client's job."""

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
    full: int = 0  # examples in a full batch of the job, if that is not the size of this one

    @property
    def ends_epoch(self) -> bool:
        """Whether a full pass over the client's data ends with this batch."""
        return (self.step + 1) % self.per_epoch == 0


@dataclass(frozen=True, slots=True)
class Job(Generic[W]):
    """Where a client starts and how long it trains; `epochs` may be fractional."""

    work: W
    epochs: float
    batch: int


@dataclass(frozen=True, slots=True)
class Result(Generic[U, C]):
    """What a client sends, what it keeps, and its active masks (for FLOPs and density)."""

    up: U
    local: C | None = None
    masks: Masks = field(default_factory=dict)
    trained: Mapping[str, Tensor | float] = field(default_factory=dict)
    """Weights that got a gradient, as masks or as mean shares; empty: the active ones."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    searched: int = 0
    """Examples that passed once more for a gradient of all weights, to move masks by it."""


@dataclass(frozen=True, slots=True)
class Exchange(Generic[D, U]):
    """A client's completed round, as the server sees it."""

    client: Client
    down: D
    up: U
    age: int = 0  # merges since the client was sent `down`, in an asynchronous run


@dataclass(frozen=True, slots=True)
class Measures:
    """What a method reports about its server state: masks of the global model, and metrics."""

    masks: Masks = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ensemble:
    """Several models as one: it predicts the weighted mean of their probabilities."""

    members: tuple[Params, ...]
    weights: tuple[float, ...]


class Missing(Exception):
    """Raised by `begin` if the client does not hold something that the server assumed it holds.

    This is not a failure: the client asks, the server answers with `resend`, and both are charged.
    """


class Method(Protocol[S, C, D, W, U]):
    """A federated method: four functions of the server, three of a client, and the model.

    All of them are pure, except that `step` consumes its `work` and may update it in place.

    Four more functions are optional:

    - `replies(ctx, down)`: example replies to `down`, from which the reply schema is derived. For
      methods whose replies take several forms. Replies of another form are refused.
    - `resend(ctx, state, client)`: the `down` for a client that kept nothing. For methods that do
      not send what clients already hold; used when `begin` raises `Missing`.
    - `holds(ctx, state, client) -> Masks | None`: the masks that a client holds. Masks in a reply
      are encoded as changes to masks in `down` or in the server's state; this is for methods that
      store them in another form.
    - `measures(ctx, state) -> Measures`: masks and metrics of the server's state. After every round
      the engine reports the density of these masks and how far they moved, layer by layer.
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

    # the model to evaluate or export; local=None: the global one
    def model(self, ctx: Ctx, state: S, local: C | None) -> Params | Ensemble: ...


AnyMethod: TypeAlias = Method[Any, Any, Any, Any, Any]
"""A method whose records are not known in advance."""


def sample(key: Key, pool: Sequence[Client], count: int) -> list[Client]:
    """`count` clients drawn uniformly without replacement, ordered by id."""
    _check_count(pool, count)
    chosen = key.fold("cohort").numpy().choice(len(pool), size=count, replace=False, shuffle=False)
    return [pool[index] for index in sorted(chosen.tolist())]


def sample_by_budget(
    key: Key, pool: Sequence[Client], count: int, most: float = 1.0
) -> list[Client]:
    """A stratified sample: every budget is represented in proportion to the pool; ordered by id.

    Remainders of rounding are assigned at random, in proportion, so that every client is drawn
    eventually. Budgets of `most` and above are one stratum; with a single stratum this is `sample`.
    """
    levels = levels_of(pool).up_to(most)
    if len(levels.budgets) < 2:
        return sample(key, pool, count)
    _check_count(pool, count)
    chosen: list[int] = []
    shares = _shares(key.fold("cohort"), count, [len(members) for members in levels.members])
    for budget, members, share in zip(levels.budgets, levels.members, shares, strict=True):
        if share:
            draw = key.fold("cohort", repr(budget)).numpy()
            picked = draw.choice(len(members), size=share, replace=False, shuffle=False)
            chosen += members[picked].tolist()
    return [pool[index] for index in sorted(chosen)]


def sample_richest(key: Key, pool: Sequence[Client], count: int, most: float = 1.0) -> list[Client]:
    """Up to `count` clients among those with the largest budget, ordered by id.

    All of them if there are fewer. Budgets of `most` and above count as equal; with a single budget
    and enough clients this is `sample`.
    """
    _check_count(pool, min(count, len(pool)))
    richest = levels_of(pool).up_to(most).members[-1]
    draw, size = key.fold("cohort").numpy(), min(count, len(richest))
    picked = draw.choice(len(richest), size=size, replace=False, shuffle=False)
    return [pool[index] for index in sorted(richest[picked].tolist())]


def _shares(key: Key, count: int, sizes: Sequence[int]) -> list[int]:
    """How many of `count` each group gets: the floor of its share, plus one by its remainder.

    Systematic sampling: a random start and equal steps give every group its expected share.
    """
    ends = np.cumsum(sizes)
    start = int(key.fold("shares").numpy().integers(ends[-1]))
    shares: list[int] = np.diff((count * ends + start) // ends[-1], prepend=0).tolist()
    return shares


def _check_count(pool: Sequence[Client], count: int) -> None:
    if not 0 < count <= len(pool):
        raise ValueError(
            f"{count} clients per round asked for, but the pool has {len(pool)}; "
            f"use `clients={len(pool)}` or fewer, or a larger `pool=`"
        )


@dataclass(frozen=True, slots=True)
class Levels:
    """Clients grouped by budget, ascending."""

    budgets: tuple[float, ...]
    members: tuple[npt.NDArray[np.int64], ...]
    """Indices into the pool, ascending."""

    @staticmethod
    def of(budgets: npt.NDArray[np.float64]) -> Levels:
        """From the budget of every client."""
        values, level, sizes = np.unique(budgets, return_inverse=True, return_counts=True)
        members = np.split(np.argsort(level, kind="stable"), np.cumsum(sizes)[:-1])
        return Levels(tuple(values.tolist()), tuple(members[: len(values)]))

    def up_to(self, most: float) -> Levels:
        """The same groups, with all budgets of `most` and above as one."""
        below = sum(budget < most for budget in self.budgets)
        if below >= len(self.budgets) - 1:
            return self
        top = np.sort(np.concatenate(self.members[below:]))
        return Levels((*self.budgets[:below], most), (*self.members[:below], top))


@runtime_checkable
class Levelled(Protocol):
    """A pool that knows its budget levels without creating a `Client` for every row."""

    def levels(self) -> Levels: ...


def levels_of(pool: Sequence[Client]) -> Levels:
    """The budget levels of any pool."""
    if isinstance(pool, Levelled):
        return pool.levels()
    return Levels.of(np.array([client.budget for client in pool], np.float64))


def budgets_of(pool: Sequence[Client]) -> tuple[float, ...]:
    """The distinct budgets in the pool, ascending."""
    return levels_of(pool).budgets
