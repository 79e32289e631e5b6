"""A run whose clients are nodes: the engine's own loop, with a post in place of threads."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gossamer import engine
from gossamer.config import Config, enough
from gossamer.data.federation import Federation
from gossamer.engine import Stop, Summary, checkpoint
from gossamer.engine.checkpoint import write_atomically
from gossamer.engine.events import PROJECT, Sink
from gossamer.flower.node import Setup
from gossamer.flower.registration import Roll
from gossamer.flower.remote_data import Distant, Own, alone
from gossamer.flower.server_transport import Carrier, Patience, Post
from gossamer.wire import Mode

SIZES = "sizes.json"
"""What nodes said of their clients when the run began, where only they can know."""


def set_up(config: Config, seen: Distant | Own | None = None) -> Setup:
    """What a configuration describes, as servers and nodes need it; data may be seen otherwise."""
    federation: Federation
    if seen is None:
        method, task, federation = config.build()
    else:
        config.check()
        method = config.build_method()
        if isinstance(seen, Distant):
            enough(method, len(seen.pool))
        task, federation = config.build_task(seen.own), seen
    wish = config.experiment
    name = config.method.rpartition(":")[2]
    mode = Mode.parse(wish.wire)
    kept = (config.options, name, config.toml())
    return Setup(method, task, federation, wish.rounds, wish.seed, mode, *kept)


def at_server(config: Config) -> Setup:
    """Where data are at nodes only: what their server needs."""
    return set_up(config, Distant.of(config))


def at_node(config: Config, node: Mapping[str, Any]) -> Setup:
    """What a node needs, with data of its own if its configuration names some."""
    if "data" not in node:
        return set_up(config)
    return set_up(config, Own(alone(config, str(node["data"])), int(node["partition-id"])))


def serve(
    carrier: Carrier,
    setup: Setup,
    out: Path,
    patience: Patience = Patience(),
    sinks: Sequence[Sink] = (),
    stop: Stop | None = None,
    now: Callable[[], float] = time.monotonic,
    rest: Callable[[float], None] = time.sleep,
) -> Summary:
    """Calls the roll and runs all rounds, or those that are left where a server died before.

    A failure costs a client its round and never the run, and every round is a checkpoint.
    """
    distant = setup.federation if isinstance(setup.federation, Distant) else None
    known = _sizes(out) if distant else {}
    if distant and known:
        setup = replace(setup, federation=distant.sized(known))
    roll = Roll.of(setup.federation.pool, setup.agreement(), bool(distant and not known))
    post = Post(carrier, roll, patience, now, rest)
    post.gather()
    if distant and not known:
        setup = replace(setup, federation=distant.sized(roll.sizes))
        _keep(out / SIZES, json.dumps(sorted(roll.sizes.items())))
    if setup.text:
        _keep(out / PROJECT, setup.text)
    return engine.run(
        setup.method,
        setup.task,
        setup.federation,
        rounds=setup.rounds,
        seed=setup.seed,
        out=out,
        name=setup.name,
        options=replace(setup.options, on_client_error="skip", checkpoint_every=1),
        sinks=sinks,
        stop=stop,
        resume=checkpoint.newest(out / "rounds") is not None,
        wire=setup.mode,
        transport=post,
    )


def _keep(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.encode())


def _sizes(out: Path) -> dict[int, int]:
    return dict(json.loads((out / SIZES).read_bytes())) if (out / SIZES).exists() else {}
