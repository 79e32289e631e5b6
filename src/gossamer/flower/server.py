"""A run whose clients are nodes: the engine's own loop, with a post in place of threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gossamer import engine
from gossamer.config import Config
from gossamer.engine import Stop, Summary, checkpoint
from gossamer.engine.events import Sink
from gossamer.flower.node import Setup
from gossamer.flower.post import Carrier, Patience, Post
from gossamer.flower.roll import Roll
from gossamer.wire import Mode


def set_up(config: Config) -> Setup:
    """What a configuration describes, as servers and nodes need it."""
    method, task, federation = config.build()
    wish = config.experiment
    name = config.method.rpartition(":")[2]
    mode = Mode.parse(wish.wire)
    return Setup(method, task, federation, wish.rounds, wish.seed, mode, config.options, name)


def serve(
    carrier: Carrier,
    setup: Setup,
    out: Path,
    patience: Patience = Patience(),
    sinks: Sequence[Sink] = (),
    stop: Stop | None = None,
    post: Post | None = None,
) -> Summary:
    """Calls the roll and runs all rounds, or those that are left where a server died before.

    A failure costs a client its round and never the run, and every round is a checkpoint.
    """
    if post is None:
        post = Post(carrier, Roll.of(setup.federation.pool, setup.agreement()), patience)
    post.gather()
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
