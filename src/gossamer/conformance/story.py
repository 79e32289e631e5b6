"""Two rounds of a method, call by call: what every call returned, and what it changed."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gossamer.arithmetic.model import Model
from gossamer.conformance.bench import Bench, Broken
from gossamer.core import (
    Ctx,
    Examples,
    Exchange,
    Result,
)
from gossamer.engine.client import batches
from gossamer.wire import dump


@dataclass
class Story:
    """Two rounds, call by call, and what each call returned, as bytes."""

    bench: Bench
    twice: bool = False
    """Whether every call is made twice and must return the same."""
    guard: bool = False
    """Whether every call must leave its arguments unchanged."""
    returned: dict[str, bytes] = field(default_factory=dict)

    def tell(self) -> dict[str, bytes]:
        """Plays the two rounds."""
        method, kept = self.bench.method, dict[int, Any]()
        state = self.call("init", method.init, self.bench.server(0))
        self.measure(0, state)
        for number in (1, 2):
            ctx, exchanges = self.bench.server(number), []
            pool = self.bench.federation.pool
            cohort = self.call(f"cohort of round {number}", method.cohort, ctx, state, pool)
            for client in sorted(cohort, key=lambda client: client.id):
                at = f"of client {client.id} in round {number}"
                down = self.call(f"down {at}", method.down, ctx, state, client)
                own, local = self.bench.client(number, client), kept.get(client.id)
                result = self.train(at, own, state, down, local)
                kept[client.id] = local if result.local is None else result.local
                self.call(f"model {at}", method.model, ctx, state, kept[client.id])
                exchanges.append(Exchange(client, down, result.up))
            state = self.call(f"merge of round {number}", method.merge, ctx, state, exchanges)
            self.call(f"model of round {number}", method.model, ctx, state, None)
            self.measure(number, state)
        return self.returned

    def measure(self, number: int, state: Any) -> None:
        """The method's measures of a state, if it has any."""
        if measures := getattr(self.bench.method, "measures", None):
            self.call(f"measures of round {number}", measures, self.bench.server(number), state)

    def train(self, at: str, ctx: Ctx, state: Any, down: Any, local: Any) -> Result[Any, Any]:
        """A client's job on the server's own records instead of decoded copies."""
        outside = (state, down, local)
        before = image(outside) if self.guard else b""
        job = self.call(f"begin {at}", self.bench.method.begin, ctx, down, local)
        work = job.work
        for batch in batches(ctx, job):
            name = f"step {batch.step} {at}"
            work = self.call(name, self.bench.method.step, ctx, work, batch, consumes=1)
            if self.guard and image(outside) != before:
                raise Broken(
                    f"{name} changes what the server sent or the client kept; "
                    "copy it in begin (ctx.task.own) before it is updated in place"
                )
        result: Result[Any, Any] = self.call(f"finish {at}", self.bench.method.finish, ctx, work)
        return result

    def call(self, name: str, function: Callable[..., Any], *given: Any, consumes: int = -1) -> Any:
        """One call; the argument at `consumes` may be used up by it."""
        before = [image(each) for each in given] if self.guard else []
        generators = global_states()
        result = function(*given)
        self.returned[name] = image(result)
        if self.twice and consumes < 0:
            restore(generators)
            if image(function(*given)) != self.returned[name]:
                raise Broken(f"{name} returns something else when it is called again")
        for index, (each, was) in enumerate(zip(given, before, strict=False)):
            if index != consumes and image(each) != was:
                raise Broken(f"{name} changes its argument number {index + 1}; return a new value")
        return result


def story(bench: Bench, seed: int) -> dict[str, bytes]:
    """What all calls return with the global generators seeded; computed once per seed."""
    if seed not in bench.stories:
        poison(seed)
        bench.stories[seed] = Story(bench).tell()
    return bench.stories[seed]


def image(value: object) -> bytes:
    """The bytes of any value; of a context only the data count."""
    match value:
        case Tensor():
            return f"{value.dtype}{tuple(value.shape)}".encode() + _bits(value)
        case None | bool() | int() | float() | str() | bytes():
            return repr(value).encode()
        case Ctx():
            return image(value.data)
        case Examples():
            return image([value.x, value.y])
        case Model():
            state = value.moments
            return image([value.params, state.first, state.second, value.masks, value.fixed])
        case dict():
            return image([each for pair in value.items() for each in pair])
        case list() | tuple():
            return b"".join(_framed(image(each)) for each in value)
        case Sequence():
            return b""  # a pool, which may have millions of clients
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, each.name) for each in dataclasses.fields(value)]
        return image([type(value).__qualname__, *parts])
    try:
        return dump(value)
    except TypeError:
        return type(value).__qualname__.encode()  # `Work` need not be a record


def _bits(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def _framed(data: bytes) -> bytes:
    return len(data).to_bytes(8, "little") + data


def poison(seed: int) -> None:
    """Seeds the global generators, which a method must not draw from."""
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)


def global_states() -> tuple[Any, ...]:
    """The states of the global generators."""
    return torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002


def restore(states: tuple[Any, ...]) -> None:
    """Restores the global generators."""
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    random.setstate(states[2])
