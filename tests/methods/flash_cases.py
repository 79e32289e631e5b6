"""A small sparse federation, and FLASH's methods driven round by round or by the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import nn

import gossamer as gs
from gossamer import METHODS, Client, Ctx, Masks, Params, Task, fields, sparsity
from gossamer.accounting import Entry
from gossamer.conformance.bench import Bench, Round
from gossamer.conformance.toys import CLASSES, SIDE, Tiny
from gossamer.engine.client import AnyMethod, batches
from gossamer.engine.events import ClientFailed, ClientFinished, Clock, Event, Measured
from gossamer.methods import Flash
from gossamer.methods.as_published.flash import FlashVariants, NSTVariants
from gossamer.methods.parts.masked_training import Work

SMALL: dict[str, Any] = {
    "clients": 4,
    "batch": 8,
    "probe_clients": 3,
    "probe_epochs": 2.0,
    "density": 0.2,
}
"""Settings that make a round a matter of milliseconds."""
DENSITY = 0.2
LAYERS = {"0.weight": 36, "2.weight": 216, "5.weight": 72}
"""Prunable weights of `net`."""
KEPT = 65
"""A fifth of them, rounded."""


def toy(name: str = "spdst", **changes: Any) -> Any:
    """A method of the registry with small settings, and others by their flat names.

    An option that is not the paper's own makes it a variant of the method.
    """
    method: Any = METHODS[name]
    if changes.keys() - {setting.name for setting in fields.settings(method)}:
        method = FlashVariants(method) if isinstance(method, Flash) else NSTVariants(method)
    known = {setting.name for setting in fields.settings(method)}
    wanted = {each: value for each, value in SMALL.items() if each in known}
    return fields.replace(method, {**wanted, **changes})


@cache
def net(norm: bool = False) -> Task:
    """Two convolutions, the second with its channels last, and a head; a norm between, if asked."""
    middle = nn.BatchNorm2d(4) if norm else nn.ReLU()
    parts = [nn.Conv2d(1, 4, 3), middle, nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Flatten()]
    module = nn.Sequential(*parts, nn.Linear(24, CLASSES))
    return Task.of(module, torch.zeros(2, 1, SIDE, SIDE), start="seed")


def federation(*budgets: float, pool: int = 12) -> Tiny:
    """Clients of about twenty pictures; budgets are dealt out in turn."""
    found = Tiny()
    found.pool = [Client(id, 17 + id % 5) for id in range(pool)]
    if budgets:
        found.pool = [
            replace(client, budget=budgets[client.id % len(budgets)]) for client in found.pool
        ]
    return found


def bench(method: AnyMethod, rounds: int = 4, *budgets: float, norm: bool = False) -> Bench:
    return Bench(method, net(norm), federation(*budgets), rounds)


def played(method: AnyMethod, rounds: int = 4, *budgets: float, norm: bool = False) -> list[Round]:
    """All rounds, with records in place of bytes."""
    return list(bench(method, rounds, *budgets, norm=norm).history())


# in the engine ----------------------------------------------------------------------------------


@dataclass
class Heard:
    """The events of a run."""

    finished: list[ClientFinished] = field(default_factory=list)
    failed: list[ClientFailed] = field(default_factory=list)
    measured: list[Measured] = field(default_factory=list)
    summary: Any = None

    def emit(self, event: Event, clock: Clock) -> None:
        match event:
            case ClientFinished():
                self.finished.append(event)
            case ClientFailed():
                self.failed.append(event)
            case Measured():
                self.measured.append(event)
            case _:
                pass

    def close(self) -> None:
        pass

    @property
    def state(self) -> Any:
        return self.summary.state


def heard(
    method: AnyMethod,
    rounds: int,
    *budgets: float,
    norm: bool = False,
    pool: int = 12,
    **options: Any,
) -> Heard:
    """A run of the engine: every message is encoded and decoded."""
    found = Heard()
    options = {"workers": 1, "eval_every": 0, "checkpoint_every": 1000, **options}
    found.summary = gs.run(
        method,
        net(norm),
        federation(*budgets, pool=pool),
        rounds=rounds,
        sinks=[found],
        options=gs.Options(**options),
    )
    return found


def rows(event: ClientFinished, direction: str) -> dict[str, Entry]:
    """A client's ledger in one direction, by leaf."""
    return {entry.leaf: entry for entry in event.traffic if entry.direction == direction}


# clients by hand --------------------------------------------------------------------------------


def worked(
    method: AnyMethod, ctx: Ctx, down: Any, local: Any, seen: Callable[[Work, Any], None]
) -> Any:
    """A client's job, shown after every step with its batch; what it comes to."""
    job = method.begin(ctx, down, local)
    work = job.work
    for batch in batches(ctx, job):
        work = method.step(ctx, work, batch)
        seen(work, batch)
    return method.finish(ctx, work)


def model_of(work: Any) -> Work:
    """The model in training, also where a method keeps more beside it."""
    return work if isinstance(work, Work) else work.model


def total(masks: Masks) -> int:
    return sum(sparsity.count(masks).values())


def density(masks: Masks) -> float:
    return total(masks) / sum(mask.numel() for mask in masks.values())


def equal(first: Params, second: Params) -> bool:
    return first.keys() == second.keys() and all(
        torch.equal(tensor, second[name]) for name, tensor in first.items()
    )


def inside(first: Masks, second: Masks) -> bool:
    """Whether all that the first keeps is kept by the second."""
    return not any(bool((kept & ~second[name]).any()) for name, kept in first.items())


def zero_outside(params: Params, masks: Masks) -> bool:
    return not any(bool(params[name][~mask].any()) for name, mask in masks.items())


def unions(rounds: Sequence[Round]) -> Iterator[Masks]:
    """Where at least one client of a round has a weight."""
    for round in rounds:
        first, *others = (result.masks for result in round.results)
        for masks in others:
            first = sparsity.union(first, masks)
        yield first
