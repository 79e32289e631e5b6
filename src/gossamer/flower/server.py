"""A run whose clients are on nodes: the engine's own loop, with a transport over the network."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from gossamer import engine
from gossamer.config import Config, enough
from gossamer.core import Key
from gossamer.engine import Run, Stop, Summary, checkpoint
from gossamer.engine.client import one_line
from gossamer.engine.events import PROJECT, Sink
from gossamer.engine.files import (
    private_folder,
    seal_json,
    seal_text,
    unseal_json,
    write_atomically,
)
from gossamer.engine.resuming import SIZES
from gossamer.flower.carrier import Carrier
from gossamer.flower.journal import noted
from gossamer.flower.node import agreement
from gossamer.flower.registration import Registry
from gossamer.flower.remote_data import NodeData, RemoteData, alone
from gossamer.flower.server_transport import Patience, ServerTransport, log
from gossamer.report.units import score
from gossamer.task.metrics import titled
from gossamer.wire import Mode


def set_up(config: Config, seen: RemoteData | NodeData | None = None) -> Run:
    """The run that a configuration describes, as servers and nodes need it.

    Args:
        config: The configuration.
        seen: The data as the server or a node sees them, where data are at the nodes only.
    """
    if seen is None:
        return config.build_run()
    config.check()
    method = config.build_method()
    if isinstance(seen, RemoteData):
        enough(method, len(seen.pool))
    experiment = config.experiment
    return Run(
        method,
        config.build_task(seen.own),
        seen,
        rounds=experiment.rounds,
        key=Key(experiment.seed),
        options=config.options,
        wire=Mode.parse(experiment.wire),
        name=config.method.rpartition(":")[2],
        dp=experiment.dp,
    )


def at_server(config: Config) -> Run:
    """The run as a server needs it whose nodes have data of their own."""
    return set_up(config, RemoteData.of(config))


def at_node(config: Config, node: Mapping[str, Any]) -> Run:
    """The run as a node needs it, with data of its own if its configuration names some."""
    seen = None
    if "data" in node:
        seen = NodeData(alone(config, str(node["data"])), int(node["partition-id"]))
    return replace(set_up(config, seen), secret_noise=True)


def serve(
    carrier: Carrier,
    run: Run,
    patience: Patience = Patience(),
    *,
    text: str = "",
    sinks: Sequence[Sink] = (),
    stop: Stop | None = None,
    now: Callable[[], float] = time.monotonic,
    rest: Callable[[float], None] = time.sleep,
) -> Summary:
    """Registers the nodes and runs all rounds, or those that are left if a server died before.

    A failure costs a client its round, never the run, and every round is a checkpoint.

    Args:
        carrier: The network.
        run: What is run; `run.out` is its folder.
        patience: How long to wait, and for how many.
        text: The configuration, kept in the run's folder.
        sinks: Where events go besides the log.
        stop: Through which the run can be asked to stop.
        now: The clock, in seconds.
        rest: Waits for some seconds.
    """
    out = run.folder
    remote = run.federation if isinstance(run.federation, RemoteData) else None
    sizes = read_sizes(out) if remote else {}
    if remote and sizes:
        run = replace(run, federation=remote.sized(sizes))
    registry = Registry.of(run.federation.pool, agreement(run), bool(remote and not sizes))
    transport = ServerTransport(carrier, registry, patience, now, rest)
    with noted(log, out), _reported(transport):
        transport.gather()
        private_folder(out)
        with checkpoint.held(out):
            if remote and not sizes:
                run = replace(run, federation=remote.sized(registry.sizes))
                listed = {"sizes": sorted(registry.sizes.items())}
                write_atomically(out / SIZES, seal_json(listed), private=True)
            if text:
                write_atomically(out / PROJECT, seal_text(text).encode(), private=True)
        options = replace(
            run.options,
            on_client_error="skip",
            checkpoint_every=1,
            oversample=patience.oversample,
            partial=patience.partial,
            deadline=f"{patience.deadline}s" if patience.partial else "",
        )
        summary = engine.start(
            replace(run, options=options, secret_noise=True, real_time=True),
            sinks=sinks,
            stop=stop,
            resume=True,
            transport=transport,
        )
        transport.farewell(_ending(summary))
    return summary


@contextmanager
def _reported(transport: ServerTransport) -> Iterator[None]:
    """Logs why a run stops, and tells the nodes."""
    try:
        yield
    except Exception as problem:
        log.error("the run stops: %s", one_line(problem))
        transport.farewell("the server stopped the run with an error; its operator knows more")
        raise


def _ending(summary: Summary) -> str:
    """How a run ended, for the owners of nodes."""
    if summary.interrupted:
        return f"the run was interrupted after round {summary.rounds}; it can be resumed"
    scores, title = summary.scores, titled(summary.metric)
    known = {title: scores["global"], "personal": scores["personal_mean"]}
    figures = [f"{name} {score(value)}" for name, value in known.items() if value is not None]
    return ", ".join([f"the run has finished after {summary.rounds} rounds", *figures])


def read_sizes(out: Path) -> dict[int, int]:
    """Examples by client, as nodes reported them at the start, where only they know.

    Raises:
        Damaged: The file is damaged.
    """
    return dict(unseal_json(out / SIZES)["sizes"]) if (out / SIZES).exists() else {}
