"""Clients that train as they should, and then send something else: in values, masks or claims."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle
from typing import Any

import torch
from torch import Tensor

from gossamer import fields
from gossamer.conformance.toys import CLASSES, SIDE, small
from gossamer.core import AnyMethod, Client, Ctx, Data, Examples, Key
from gossamer.engine import Options
from gossamer.engine.client import Answer, Completed
from gossamer.engine.conversation import Conversations, Visit
from gossamer.engine.events import ClientFinished
from gossamer.engine.expected import Replies, Reply
from gossamer.engine.loop import start
from gossamer.engine.run_record import Run
from gossamer.engine.summary import Summary
from gossamer.engine.workers import Threads, Workers
from gossamer.task import Task
from gossamer.wire import Packed, Revision, Schema, encode, flatten, pack

POOL, COHORT, ROUNDS = 12, 8, 6
TINY, MODEST = 1e-40, 50.0
HOSTILE = frozenset({1, 5, 10})
"""Fewer than half of any cohort."""

Attack = Callable[["Occasion"], Completed]


@dataclass(frozen=True)
class Occasion:
    """An honest answer, as its client could change it."""

    answer: Completed
    up: Any
    wire: Any
    past: Sequence[bytes]
    """What the client sent in earlier rounds."""

    def instead(self, up: Any) -> Completed:
        """The answer with another record."""
        schema = Schema.of(up)
        data = encode(up, schema, self.wire, self.answer.received)
        return replace(self.answer, data=data, schema=schema)

    def claiming(self, **claims: Any) -> Completed:
        """The answer with another account."""
        return replace(self.answer, account=replace(self.answer.account, **claims))


# attacks -----------------------------------------------------------------------------------------


def filled(field: int, value: float) -> Attack:
    """All numbers of one field of the record become `value`; the field is counted round."""

    def attack(occasion: Occasion) -> Completed:
        leaves = flatten(occasion.up)
        names = [path.partition("[")[0] for path, _ in Schema.of(occasion.up).leaves]
        numeric = [n for n, leaf in zip(names, leaves, strict=True) if _is_numeric(leaf)]
        if not numeric:
            return occasion.answer
        known = list(dict.fromkeys(numeric))
        wanted = known[field % len(known)]
        changed = [
            _filled(leaf, value) if name == wanted else leaf
            for name, leaf in zip(names, leaves, strict=True)
        ]
        return occasion.instead(Schema.of(occasion.up).rebuild(iter(changed)))

    return attack


def _is_numeric(leaf: object) -> bool:
    if isinstance(leaf, Packed):
        return True
    return isinstance(leaf, float) or (isinstance(leaf, Tensor) and leaf.is_floating_point())


def _filled(leaf: Any, value: float) -> Any:
    if isinstance(leaf, Packed):
        return replace(leaf, values={n: torch.full_like(v, value) for n, v in leaf.values.items()})
    if isinstance(leaf, Tensor) and leaf.is_floating_point():
        return torch.full_like(leaf, value)
    return value if isinstance(leaf, float) else leaf


def dense_masks(occasion: Occasion) -> Completed:
    """Masks that keep everything, and values to go with them."""
    shapes: dict[str, tuple[int, ...]] = {}

    def ones(masks: dict[str, Tensor]) -> dict[str, Tensor]:
        shapes.update({name: tuple(mask.shape) for name, mask in masks.items()})
        return {name: torch.ones_like(mask) for name, mask in masks.items()}

    changed: list[Any] = []
    for leaf in flatten(occasion.up):
        match leaf:
            case Revision():
                changed.append(Revision(ones(leaf.masks)))
            case dict():
                changed.append(ones(leaf))
            case Tensor() if leaf.dtype == torch.bool:
                changed.append(torch.ones_like(leaf))
            case _:
                changed.append(leaf)
    for place, leaf in enumerate(changed):
        if isinstance(leaf, Packed) and shapes.keys() >= leaf.values.keys():
            whole = {name: torch.ones(shapes[name]) for name in leaf.values}
            changed[place] = pack(whole, {name: x > 0 for name, x in whole.items()})
    return occasion.instead(Schema.of(occasion.up).rebuild(iter(changed)))


def unknown_base(occasion: Occasion) -> Completed:
    """Masks as changes of masks that the server never had."""
    changed = []
    for leaf in flatten(occasion.up):
        if isinstance(leaf, Revision):
            flips = {name: torch.rand(m.shape) < 0.3 for name, m in leaf.masks.items()}
            leaf = replace(leaf, base={n: m ^ flips[n] for n, m in leaf.masks.items()})
        changed.append(leaf)
    return occasion.instead(Schema.of(occasion.up).rebuild(iter(changed)))


def replayed(occasion: Occasion) -> Completed:
    """The very bytes of an earlier round."""
    return replace(occasion.answer, data=occasion.past[0]) if occasion.past else occasion.answer


def claims(**changed: Any) -> Attack:
    """A false account of the client's work."""
    return lambda occasion: occasion.claiming(**changed)


ATTACKS: dict[str, Attack] = {
    **{
        f"field {place} of {value:g}": filled(place, value)
        for value in (1e30, -1e30, 3e38, TINY, MODEST)
        for place in range(3)
    },
    "masks too dense": dense_masks,
    "masks on an unknown base": unknown_base,
    "replayed": replayed,
    "cut short": lambda occasion: replace(occasion.answer, data=occasion.answer.data[:-1]),
    "examples claimed": claims(examples=2**61),
    "FLOPs claimed": claims(flops=2**61),
    "density claimed": claims(density=7.0),
    "metrics not finite": claims(metrics={"loss": math.inf, "other": math.nan}),
    "metrics many": claims(metrics={f"m{number}": 1.0 for number in range(2_000)}),
    "metrics long": claims(metrics={"m" * 100_000: 1.0}),
}


QUIET = {"masks too dense", "replayed"} | {
    name for name in ATTACKS if name.endswith((f"{TINY:g}", f"of {MODEST:g}"))
}
"""Attacks that may be within the limits: where no limit shows them, they do less harm."""


# runs --------------------------------------------------------------------------------------------


class Rows:
    """Small images whose class is the bright row: enough to learn in a few rounds."""

    name = "rows"
    classes = CLASSES
    augment = None

    def __init__(self) -> None:
        self.pool = [Client(id, 24 + id % 5) for id in range(POOL)]
        self.test = self._make(Key(3).fold("test"), 300)

    def describe(self) -> dict[str, object]:
        return {"name": self.name}

    def client(self, id: int) -> Data:
        key = Key(3).fold("client", id)
        parts = (("train", self.pool[id].examples), ("valid", 5), ("test", 30))
        return Data(*(self._make(key.fold(part), count) for part, count in parts))

    def test_rows(self, id: int) -> None:
        return None

    def _make(self, key: Key, count: int) -> Examples:
        x = torch.randn(count, 1, SIDE, SIDE, generator=key.generator())
        y = torch.randint(CLASSES, (count,), generator=key.fold("labels").generator())
        x[torch.arange(count), 0, 2 * y] += 2
        return Examples(x, y)


@dataclass
class Attacked:
    """The transport to clients of this process, some of them hostile."""

    task: Task
    attacks: Callable[[int, int], Attack]
    """By round and client."""
    past: dict[int, list[bytes]] = field(default_factory=dict)

    def hold(
        self, conversations: Conversations, ctx: Ctx, state: Any, visits: Sequence[Visit]
    ) -> list[Reply]:
        return [self._one(conversations, ctx, state, visit) for visit in visits]

    def _one(self, conversations: Conversations, ctx: Ctx, state: Any, visit: Visit) -> Reply:
        conversation = conversations.begin(ctx.round, visit)
        answer: Answer | None = None
        while True:
            try:
                request = conversation.send(answer)
            except StopIteration as end:
                reply: Reply = end.value
                return reply
            kept = partial(conversations.store.get, visit.client.id)
            answer = conversations.participant.answer(self.task, request, kept)
            if isinstance(answer, Completed) and visit.client.id in HOSTILE:
                answer = self._attacked(conversations, ctx, state, visit.client, answer)

    def _attacked(
        self, conversations: Conversations, ctx: Ctx, state: Any, client: Client, answer: Completed
    ) -> Completed:
        run, past = conversations.run, self.past.setdefault(client.id, [])
        up = decoded(conversations, ctx, state, client, answer)
        occasion = Occasion(answer, up, run.wire, tuple(past))
        past.append(answer.data)
        if up is None:  # an earlier attack separated the client's masks from the server's
            return answer
        return self.attacks(ctx.round, client.id)(occasion)

    def receipt(self, kept: bytes) -> bytes:
        return Threads(Workers(self.task, 1)).receipt(kept)

    def figures(self, *_: Any) -> None:
        return None


def decoded(
    conversations: Conversations, ctx: Ctx, state: Any, client: Client, answer: Completed
) -> Any:
    """The record in an answer, as the server reads it."""
    done = ClientFinished(ctx.round, client.id, *(0,) * 10, None, {}, [])
    reply = Reply(client, answer.received, 0.0, answer.schema, answer.data, event=done)
    reader = Replies(conversations.run, conversations.expected, ctx, state, [reply], {})
    exchange = next(iter(reader), None)
    return None if exchange is None else exchange.up


def trained(
    method: AnyMethod,
    task: Task,
    attacks: Callable[[int, int], Attack] | None = None,
    **options: Any,
) -> tuple[Summary, list[Any]]:
    """A run with or without attacks: its results, and all of its events."""
    known = {setting.name for setting in fields.settings(method)}
    wanted = {"clients": COHORT, "probe_clients": COHORT, "density": 0.5}
    wanted["lr"] = max(fields.value(method, "lr"), 0.05)
    method = fields.replace(
        small(method), {name: value for name, value in wanted.items() if name in known}
    )
    chosen = Options(
        workers=1,
        eval_every=ROUNDS,
        checkpoint_every=ROUNDS,
        on_client_error="skip",  # as on a network: a liar may fail by its own lie
        **options,
    )
    run = Run(method, task, Rows(), rounds=ROUNDS, key=Key(2), options=chosen)
    kept = Kept()
    transport = None if attacks is None else Attacked(task, attacks)
    return start(run, sinks=[kept], transport=transport), kept.events


@dataclass
class Kept:
    """A sink that keeps events."""

    events: list[Any] = field(default_factory=list)

    def emit(self, event: Any, clock: Any) -> None:
        self.events.append(event)

    def close(self) -> None: ...


def in_turn(names: Sequence[str]) -> Callable[[int, int], Attack]:
    """Attacks by name, one after another, and again."""
    order = cycle(names)
    return lambda round, client: ATTACKS[next(order)]
