"""Accuracy under hostile clients, for each way to average replies.

All clients take part in every round; none, a tenth or three tenths of them are hostile. They train
as they should and send something else, or they train on shuffled labels:

- `noise`: what they were sent plus Gaussian noise, ten times as large as their honest change;
- `flipped`: what they were sent minus their change;
- `scaled`: what they were sent plus twenty times their change;
- `labels`: an honest reply, after training on labels in random order.

Thresholds are kept in [0, 1], since others are refused. Of masks, noise is random bits, flipped is
their complement; bits cannot be scaled. `--reply-limit` is at its default throughout.
"""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import gossamer as gs
from benchmarks import files
from benchmarks.machine import machine
from gossamer import data, models
from gossamer.core import Ctx, Exchange
from gossamer.engine import Options, Run
from gossamer.engine.conversation import Conversations, Visit
from gossamer.engine.expected import Replies, Reply
from gossamer.engine.loop import start
from gossamer.engine.workers import Threads, Workers
from gossamer.task import Task
from gossamer.trust.changes import change, norm, with_change
from gossamer.wire import Schema, encode, flatten
from gossamer.wire.kinds import is_masks

Case = tuple[str, str, str, float]
"""A method, a rule, an attack, and the share of hostile clients."""
STUDY = Path(__file__).parents[1] / "results" / "robust.json"
POOL, ROUNDS, SEEDS = 20, 12, (0, 1)
MODEL, DATA, PARTITION = "mlp:hidden=32", "fmnist-mini", "dirichlet:1"
RULES = ("mean", "median", "trimmed:0.3", "clipped:1", "krum:6", "geometric-median")
ATTACKS = ("noise", "flipped", "scaled", "labels")
SHARES = (0.1, 0.3)
COMMON = {"clients": POOL, "batch": 50, "epochs": 1, "lr": 0.1, "momentum": 0.0}
METHODS = {
    "fedavg": {},
    "spafl": {"lr": 0.05, "momentum": 0.9, "epochs": 2, "batch": 100},
    "spdst": {"density": 0.2, "probe_clients": POOL},
    "fedpm": {"lr": 0.2, "epochs": 2, "batch": 100},
}


def measure() -> dict[str, object]:
    """The accuracy after the last round of every run: of personal models for SpaFL.

    What `results/robust.json` has of the same settings is not run again, and the file is written
    after every case: the command may be stopped, and continues where it was.
    """
    torch.set_num_threads(1)
    known = _known()
    for case in _cases():
        if (known.get(case) or {}).get("curves") is None:
            known[case] = _row(*case)
            STUDY.write_text(files.text(described(known)))
    return described(known)


def _cases() -> Iterator[Case]:
    attacks = [("none", 0.0), *((attack, share) for attack in ATTACKS for share in SHARES)]
    for method, rule, (attack, share) in product(METHODS, RULES, attacks):
        if (method, attack) != ("fedpm", "scaled"):
            yield method, rule, attack, share


def _known() -> dict[Case, dict[str, Any]]:
    """The rows of the file, if it has the settings of this study."""
    found = json.loads(STUDY.read_text()) if STUDY.exists() else {}
    if found.get("settings") != described({})["settings"]:
        return {}
    keys = ("method", "aggregate", "attack", "hostile")
    return {tuple(row[key] for key in keys): row for row in found["runs"]}


def described(known: dict[Case, dict[str, Any]]) -> dict[str, object]:
    """The study: what was run, and what came of it."""
    return {
        "benchmark": "robust",
        "machine": machine(),
        "command": "python -m benchmarks robust",
        "settings": {
            "data": DATA,
            "partition": PARTITION,
            "model": MODEL,
            "pool": POOL,
            "rounds": ROUNDS,
            "seeds": list(SEEDS),
            "methods": {name: {**COMMON, **own} for name, own in METHODS.items()},
        },
        "figure": "global accuracy; for spafl, the mean of clients' personal accuracies",
        "runs": [known[case] for case in _cases() if case in known],
    }


def _row(method: str, rule: str, attack: str, share: float) -> dict[str, Any]:
    began = time.process_time()
    found = [_accuracies(method, rule, attack, share, seed) for seed in SEEDS]
    print(method, rule, attack, share, [curve[-1] for curve, _ in found], flush=True)
    return {
        "method": method,
        "aggregate": rule,
        "attack": attack,
        "hostile": share,
        "accuracy": [curve[-1] for curve, _ in found],
        "refused": [refused for _, refused in found],
        "curves": [curve for curve, _ in found],
        "processor_seconds": round(time.process_time() - began, 1),
    }


def _accuracies(
    method: str, rule: str, attack: str, share: float, seed: int
) -> tuple[list[float], int]:
    """Accuracy every four rounds, and how many replies were refused."""
    known = {setting.name for setting in gs.fields.settings(gs.METHODS[method])}
    given = {n: v for n, v in {**COMMON, **METHODS[method]}.items() if n in known}
    if method == "fedpm":
        given.pop("momentum")
    chosen = gs.fields.replace(gs.METHODS[method], given)
    federation: Any = data.federation(DATA, PARTITION, POOL, seed=seed)
    hostile = frozenset(range(round(share * POOL)))
    if attack == "labels":
        federation = Shuffled(federation, hostile)
    example = federation.client(0).train.x[:2]
    task = Task.of(
        models.build(MODEL, tuple(example.shape[1:]), federation.classes), example, start="seed"
    )
    options = Options(workers=1, eval_every=4, personal=method == "spafl", aggregate=rule)
    kept = Kept(personal=method == "spafl")
    run = Run(chosen, task, federation, rounds=ROUNDS, key=gs.Key(seed), options=options)
    transport = Hostile(Threads(Workers(task, 1)), hostile, attack, gs.Key(seed).fold("hostile"))
    done = start(run, sinks=[kept], transport=transport)
    return kept.curve, done.failed


class Kept:
    """A sink that keeps accuracies."""

    def __init__(self, personal: bool) -> None:
        self.personal = personal
        self.curve: list[float] = []

    def emit(self, event: object, clock: object) -> None:
        if isinstance(event, gs.engine.events.Evaluated) and event.round:
            figure = event.personal_mean if self.personal else event.global_accuracy
            assert figure is not None
            self.curve.append(round(figure, 4))

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Shuffled:
    """A federation in which some clients have their labels in random order."""

    inner: Any
    clients: frozenset[int]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def client(self, id: int) -> gs.Data:
        """A client's data."""
        own: gs.Data = self.inner.client(id)
        if id not in self.clients:
            return own
        order = torch.from_numpy(gs.Key(id).fold("shuffled").numpy().permutation(len(own.train)))
        return replace(own, train=gs.Examples(own.train.x, own.train.y[order]))


@dataclass(frozen=True)
class Hostile:
    """The transport to clients of this process, some of which reply with something else."""

    inner: Threads
    clients: frozenset[int]
    attack: str
    key: gs.Key

    def hold(
        self, conversations: Conversations, ctx: Ctx, state: Any, visits: Sequence[Visit]
    ) -> list[Reply]:
        """All replies, those of hostile clients changed."""
        replies = self.inner.hold(conversations, ctx, state, visits)
        return [
            self._changed(conversations, ctx, state, reply)
            if reply.client.id in self.clients and self.attack not in ("none", "labels")
            else reply
            for reply in replies
        ]

    def _changed(self, conversations: Conversations, ctx: Ctx, state: Any, reply: Reply) -> Reply:
        reader = Replies(conversations.run, conversations.expected, ctx, state, [reply], {})
        (exchange,) = list(reader)
        key = self.key.fold(ctx.round, reply.client.id)
        up = ATTACK[self.attack](exchange, key).up
        schema = Schema.of(up)
        return replace(reply, schema=schema, data=encode(up, schema, reference=reply.down))

    def receipt(self, kept: bytes) -> bytes:
        """The fingerprint of a client's state."""
        return self.inner.receipt(kept)

    def figures(self, *_: Any) -> None:
        """None: the server has the states."""


def _times(exchange: Exchange[Any, Any], key: gs.Key, factor: float) -> Exchange[Any, Any]:
    parts = {place: factor * part for place, part in change(exchange).items()}
    flip = (lambda mask: ~mask) if factor < 0 else None
    return _bits(_within(with_change(exchange, parts)), flip)


def _noise(exchange: Exchange[Any, Any], key: gs.Key) -> Exchange[Any, Any]:
    own, generator = change(exchange), key.generator()
    drawn = {
        place: torch.randn(part.shape, generator=generator, dtype=torch.float64)
        for place, part in own.items()
    }
    factor = 10 * norm(own) / max(norm(drawn), 1e-30)
    noisy = with_change(exchange, {place: factor * part for place, part in drawn.items()})
    return _bits(_within(noisy), lambda mask: torch.rand(mask.shape, generator=generator) < 0.5)


def _within(exchange: Exchange[Any, Any]) -> Exchange[Any, Any]:
    """With thresholds and densities in [0, 1], outside of which the server refuses them."""
    names = {"thresholds", "densities"} & set(vars(exchange.up))
    moved = {name: getattr(exchange.up, name).clamp(0, 1) for name in names}
    return replace(exchange, up=replace(exchange.up, **moved)) if moved else exchange


def _bits(exchange: Exchange[Any, Any], change: Any) -> Exchange[Any, Any]:
    """With other masks, if masks are all that the client sends."""
    leaves = flatten(exchange.up)
    if change is None or not all(is_masks(leaf) for leaf in leaves):
        return exchange
    bits = [{name: change(mask) for name, mask in _masks(leaf).items()} for leaf in leaves]
    return replace(exchange, up=Schema.of(exchange.up).rebuild(iter(bits)))


def _masks(leaf: object) -> dict[str, Tensor]:
    assert isinstance(leaf, dict)
    return leaf


ATTACK: dict[str, Any] = {
    "noise": _noise,
    "flipped": partial(_times, factor=-1.0),
    "scaled": partial(_times, factor=20.0),
}
