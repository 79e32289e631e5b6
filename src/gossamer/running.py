"""Runs from Python: `gs.run` and `gs.resume`, with progress, a folder and a summary."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypedDict, Unpack

from gossamer import config as configurations
from gossamer.core import Key
from gossamer.engine import Options, Run, Summary, check_run, start
from gossamer.engine.checkpoint import ready
from gossamer.engine.events import CONFIG, Sink
from gossamer.engine.files import check_text, seal_text, write_atomically
from gossamer.methods import METHODS
from gossamer.recipes import (
    FederationLike,
    MethodLike,
    Parts,
    TaskLike,
    configuration,
    federation_of,
    parts,
)
from gossamer.wire import Mode


class Shown(TypedDict, total=False):
    """What is shown of a run, and to whom."""

    quiet: bool
    sinks: Sequence[Sink]


def run(
    method: MethodLike,
    task: TaskLike,
    federation: FederationLike,
    *,
    rounds: int,
    seed: int = 0,
    out: str | Path | None = None,
    options: Options = Options(),
    **shown: Unpack[Shown],
) -> Summary:
    """Trains a method on a federation, and shows how it goes; the same call gives the same bits.

    `start` has further ways to execute a run: other encodings and transports.

    Args:
        method: The method with its hyper-parameters, or a name such as `fedavg`.
        task: The model and its loss: a `Task`, an `nn.Module`, a name such as `lenet5_caffe`, or a
            function that builds a module from the shape of an example and the number of classes.
        federation: The clients and their data; also the name of a data set, or a function without
            arguments that makes a federation.
        rounds: Rounds of communication.
        seed: Of all randomness.
        out: A folder for events, checkpoints and a configuration, from which `gossamer resume`,
            `export` and `report` go on; None keeps nothing. What a function of a file builds can be
            built again from there, what the program made on the way cannot: the configuration says
            so, and `resume` continues such a run.
        options: How the run is executed and reported.
        shown: `quiet=True` shows no progress; `sinks=` gets the events, besides the log in `out`.

    Returns:
        The last and best figures, the costs, the history and the final state.

    Raises:
        ValueError: An argument is unusable, or `out` holds a run already.
        ClientError: A client failed, and failures are not to be skipped.
    """
    made = parts(method, task, federation, seed)
    folder = None if out is None else Path(out)
    what = Run(
        made.method,
        made.task,
        made.federation,
        rounds=rounds,
        key=Key(seed),
        options=options,
        name=method if isinstance(method, str) and method in METHODS else "",
        out=folder,
    )
    if folder is not None:
        _prepare(made, what, folder)
    return start(what, sinks=_sinks(what, shown))


def resume(
    out: str | Path,
    *,
    method: MethodLike | None = None,
    task: TaskLike | None = None,
    federation: FederationLike | None = None,
    **shown: Unpack[Shown],
) -> Summary:
    """Continues a run that was interrupted, bit-identically.

    What the configuration in its folder cannot build must be given, and must be what it was.

    Args:
        out: The folder of the run.
        method: The method, if its class is in no file.
        task: The model, if the program made it.
        federation: The data, if the program made them.
        shown: As `run` takes it.

    Raises:
        FileNotFoundError: The folder holds no run.
        ValueError: A part that cannot be built again is missing.
        checkpoint.Unusable: The run was started with other parts.
    """
    folder = Path(out)
    path = folder / CONFIG
    if not path.exists():
        raise FileNotFoundError(f"{folder} holds no run: there is no {path}")
    check_text(path)
    if method is None:
        config = configurations.read(path)
        method = config.build_method()
    else:
        config = configurations.common(configurations.tables(path))
    experiment = config.experiment
    if federation is None:
        divided = config.build_federation()
    else:
        divided, _ = federation_of(federation, experiment.seed)
    model = task if task is not None else config.build_task(divided)
    made = parts(method, model, divided, experiment.seed)
    what = Run(
        made.method,
        made.task,
        config.budgeted(made.federation, made.task),
        rounds=experiment.rounds,
        key=Key(experiment.seed),
        options=config.options,
        wire=Mode.parse(experiment.wire),
        name=config.name or config.method.rpartition(":")[2],
        out=folder,
    )
    return start(what, sinks=_sinks(what, shown), resume=True)


def _sinks(what: Run, shown: Shown) -> list[Sink]:
    """The sinks that were asked for, and a display."""
    sinks = list(shown.get("sinks", ()))
    if not shown.get("quiet", False):
        sinks.append(progress(what.rounds, what.name, what.out))
    return sinks


def _prepare(made: Parts, what: Run, folder: Path) -> None:
    """Checks the run, and writes its configuration."""
    if (folder / CONFIG).exists():
        raise ValueError(
            f"{folder} already holds a run; gs.resume({str(folder)!r}) continues it, or choose "
            f"another folder with `out=`"
        )
    configurations.enough(made.method, len(made.federation.pool))
    check_run(what)
    ready(folder, 2**20)
    text = seal_text(configuration(made, what))
    write_atomically(folder / CONFIG, text.encode(), private=True)


def progress(rounds: int, title: str, folder: Path | None = None) -> Sink:
    """A display that suits where the program runs: a notebook, a terminal, or a file.

    It goes to standard error, so that a program's own output stays as it is.
    """
    from gossamer.cli.progress import Lines, Live
    from gossamer.notebook import Notebook, in_notebook

    if in_notebook():
        return Notebook(rounds, title)
    if sys.stderr.isatty():
        with suppress(ImportError):
            from rich.console import Console

            return Live(rounds, title, folder, Console(stderr=True))
    return Lines(rounds, sys.stderr, folder)
