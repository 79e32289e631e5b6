"""A run in one call, without a configuration and without a display."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gossamer.core import AnyMethod, Key
from gossamer.data.federation import Federation
from gossamer.engine.events import Sink
from gossamer.engine.loop import start
from gossamer.engine.options import Options
from gossamer.engine.run_record import Run
from gossamer.engine.summary import Summary
from gossamer.task import Task


def run(
    method: AnyMethod,
    task: Task,
    federation: Federation,
    *,
    rounds: int,
    seed: int = 0,
    out: str | Path | None = None,
    options: Options = Options(),
    sinks: Sequence[Sink] = (),
) -> Summary:
    """Trains a method on a federation; the same call gives the same bits.

    `start` has further ways to execute a run: resuming, stopping, other encodings and transports.

    Args:
        method: The method, with its hyper-parameters.
        task: The model and its loss.
        federation: The clients and their data.
        rounds: Rounds of communication.
        seed: Of all randomness.
        out: A folder for events and checkpoints; None keeps nothing.
        options: How the run is executed and reported.
        sinks: Where events go besides the log in `out`.

    Returns:
        The last and best figures, the costs and the final state.

    Raises:
        ClientError: A client failed, and failures are not to be skipped.
    """
    folder = None if out is None else Path(out)
    what = Run(method, task, federation, rounds=rounds, key=Key(seed), options=options, out=folder)
    return start(what, sinks=sinks)
