"""`gossamer run`, `resume` and `replay`: train a method, continue a run, repeat a client."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from gossamer import engine, fields
from gossamer.arithmetic.library import library, missing
from gossamer.cli.explain import explain
from gossamer.cli.outcome import outcome
from gossamer.cli.parsing import (
    FAILED,
    REFUSED,
    Parser,
    Refusal,
    add_settings,
    given,
    option_of_variants,
    refusing,
    say,
    warn,
)
from gossamer.cli.progress import display
from gossamer.config import (
    Config,
    Experiment,
    absolute,
    absolute_paths,
    find_method,
    locate,
    nearest,
    read,
)
from gossamer.engine import ClientError, Options, Stop, checkpoint, events
from gossamer.engine import replay as recorded
from gossamer.engine.events import CONFIG, PROJECT, plain
from gossamer.engine.files import Damaged, check_text, seal_text, write_atomically
from gossamer.engine.longer import extend
from gossamer.engine.resuming import LOG, ROUNDS
from gossamer.engine.trackers import TRACKERS, tracker
from gossamer.engine.transport import Transport

INTERRUPTED = 130
DIVERGED = 3
"""Exit code of a run that ended without anything to learn from."""
ENGINES = ("threads", "flower-sim")


def run(arguments: Sequence[str]) -> int:
    """`gossamer run METHOD|FILE.toml [options]`."""
    target = arguments[0] if arguments and not arguments[0].startswith("-") else None
    if target is None:
        if {"-h", "--help"} & set(arguments):
            _parser("gossamer run METHOD", find_method("fedavg")).read(arguments)
        raise Refusal("name a method or a configuration file first, e.g. `gossamer run fedavg`")
    config = _config_of(target)
    parser = _parser(f"gossamer run {target}", find_method(config.method))
    options = parser.read(arguments[1:], option_of_variants(config.method, "run"))
    config = Config(
        absolute(config.method),
        {**config.settings, **given(find_method(config.method), options)},
        absolute_paths(fields.replace(config.experiment, given(Experiment(), options))),
        fields.replace(config.options, given(Options(), options)),
    )
    out = Path(options.out) if options.out else _new_folder(config.method)
    _no_project(out)
    if (out / CONFIG).exists():
        raise Refusal(
            f"{out} already holds a run; `{_resume(out)}` continues it, "
            "or choose another folder with --out"
        )
    if any((out / name).exists() for name in (LOG, ROUNDS)):
        raise Refusal(
            f"{out} holds the files of a run without {CONFIG}; put that back and use "
            f"`{_resume(out)}`, or choose another folder with --out"
        )
    return _execute(config, out, options, resume=False)


def resume(arguments: Sequence[str]) -> int:
    """`gossamer resume RUN [--rounds N]`: continues a run bit-identically, also beyond its end."""
    parser = Parser(prog="gossamer resume", description=resume.__doc__)
    parser.add_argument("run", help="the folder of the run")
    parser.add_argument("--workers", default=None, metavar="N", help="number of workers")
    parser.add_argument(
        "--rounds",
        type=int,
        default=None,
        metavar="N",
        help="total rounds, more than before",
    )
    parser.add_argument("--until", default=None, metavar="GOALS", help="new goals")
    _add_output(parser)
    options = parser.read(arguments)
    out = Path(options.run)
    config = _saved(out)
    if options.rounds is not None:
        config = _longer(config, out, options)
    own = {name: each for name in ("workers", "until") if (each := vars(options)[name]) is not None}
    if own:
        chosen = given(Options(), Namespace(**own))
        config = replace(config, options=fields.replace(config.options, chosen))
    return _execute(config, out, options, resume=True)


def _longer(config: Config, out: Path, options: Any) -> Config:
    """Makes a run longer; returns its new configuration."""
    if options.engine != ENGINES[0]:
        raise Refusal(f"--rounds is for --engine {ENGINES[0]}: other engines keep states elsewhere")
    command = (out / CONFIG).read_text(encoding="utf-8").partition("\n")[0]
    with refusing():
        longer = replace(
            config, experiment=fields.replace(config.experiment, {"rounds": options.rounds})
        )
        text = longer.toml(command.removeprefix("# ") if command.startswith("#") else "")
        extend(config.build_run(out), options.rounds, seal_text(text).encode())
    return longer


def replay(arguments: Sequence[str]) -> int:
    """`gossamer replay RUN --round R --client C`: repeats a failed client, with a traceback."""
    parser = Parser(prog="gossamer replay", description=replay.__doc__)
    parser.add_argument("run", help="the folder of the run")
    parser.add_argument("--round", type=int, required=True, help="the round in which it failed")
    parser.add_argument("--client", type=int, required=True, help="the client that failed")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    options = parser.read(arguments)
    with refusing():
        run = _saved(Path(options.run)).build_run()
        place = (Path(options.run) / ROUNDS, options.round, options.client)
        capsule = recorded.read(*place, run.method, run.identity)
    done = recorded.again(run.method, run.task, run.federation, capsule)
    metrics = dict(done.result.metrics)
    say(f"client {options.client} completed round {options.round}: {metrics}")
    if options.json:
        figures = {
            "run": options.run,
            "round": options.round,
            "client": options.client,
            "examples": done.examples,
            "steps": done.steps,
            "metrics": metrics,
        }
        print(json.dumps(events.plain(figures)), flush=True)
    return 0


def _execute(config: Config, out: Path, options: Any, resume: bool) -> int:
    carried = _transport(options.engine, config)
    with refusing():
        trackers = [word for word in options.track.split(",") if word]
        for word in trackers:
            if word not in TRACKERS:
                hint = nearest(word, TRACKERS)
                raise KeyError(f"no tracker {word!r}{hint} known: {', '.join(TRACKERS)}")
        run = config.build_run(out)
        if not resume:
            engine.check_run(run)
        if getattr(options, "explain_arithmetic", False):
            return explain(run)
        if library() is None and run.task.arithmetic != "torch":
            warn(missing())
        checkpoint.ready(out, 2**20)
        sinks = [tracker(word, out, run.name, warn) for word in trackers]
        if not resume:
            text = config.toml(one_line(shlex.join(["gossamer", *sys.argv[1:]])))
            write_atomically(out / CONFIG, seal_text(text).encode(), private=True)
    if not options.quiet:
        sinks.append(display(run.rounds, run.name, out))
    stop = Stop()
    try:
        with carried as transport, interrupts(stop):
            summary = engine.start(run, sinks=sinks, stop=stop, resume=resume, transport=transport)
    except checkpoint.Unusable as problem:
        raise Refusal(str(problem)) from problem
    except Damaged as problem:
        raise Refusal(str(problem), FAILED) from problem
    except ClientError as error:
        warn(str(error))
        warn(f"the run is saved; `{_resume(out, options.engine)}` repeats the round")
        return 1
    except OSError as problem:
        if checkpoint.newest(out / ROUNDS) is None:  # there is nothing to resume
            if not resume:
                (out / CONFIG).unlink(missing_ok=True)
            raise Refusal(str(problem)) from problem
        command = _resume(out, options.engine)
        warn(f"{problem}; the run is saved up to its last checkpoint: {command}")
        return 1
    own = getattr(run.method, "global_model", True)
    say(outcome(summary, config.experiment.valid, own))
    if summary.failed:
        warn(f"{summary.failed} replies were dropped; see `client-failed` in the log")
    if summary.diverged:
        warn(f"{summary.diverged}; try a lower --lr")
    if summary.interrupted:
        command = _resume(out, options.engine)
        warn(f"stopped after round {summary.rounds}; continue with: {command}")
    if options.json:
        print(json.dumps(plain(summary.figures())), flush=True)
    return INTERRUPTED if summary.interrupted else DIVERGED if summary.diverged else 0


def _transport(name: str, config: Config) -> AbstractContextManager[Transport | None]:
    """What trains clients; None: the engine's own threads."""
    if name == ENGINES[0]:
        return nullcontext()
    for module in ("flwr", "ray"):
        if importlib.util.find_spec(module) is None:
            raise Refusal("--engine flower-sim needs Flower: pip install 'gossamer[flower-sim]'")
    from gossamer.flower import commands

    os.environ.update(commands.CLOSED)  # Flower reads it when it is imported
    from gossamer.flower.server import set_up
    from gossamer.flower.simulation import Cluster, simulation

    cluster = Cluster(config.options.workers)
    if config.experiment.device != "cpu":
        cluster = replace(cluster, accelerators=1.0)
    return simulation(partial(set_up, config), cluster)


def _parser(program: str, method: object) -> Parser:
    parser = Parser(
        prog=program,
        description="Trains a method. Every field of the method and of the run is an option.",
    )
    parser.add_argument("--out", default="", metavar="FOLDER", help="default: runs/<time>-<method>")
    parser.add_argument(
        "--explain-arithmetic",
        action="store_true",
        help="show how each layer would be computed, and why, without training",
    )
    _add_output(parser)
    add_settings(parser, "experiment", Experiment())
    add_settings(parser, "execution", Options())
    add_settings(parser, "method", method)
    return parser


def _add_output(parser: Parser) -> None:
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        default=ENGINES[0],
        help="backend that trains clients (default: threads)",
    )
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    parser.add_argument(
        "--track", default="", metavar=",".join(TRACKERS), help="trackers to log to"
    )


def _config_of(target: str) -> Config:
    with refusing():
        if target.endswith(".toml"):
            return read(locate(target))
        find_method(target)
        return Config(target)


def _saved(out: Path) -> Config:
    _no_project(out)
    path = out / CONFIG
    with refusing():
        if not path.exists():
            if any((out / name).exists() for name in (LOG, ROUNDS)):
                raise Damaged(f"{path} is missing, but {out} has other files of a run")
            raise FileNotFoundError(f"{out} holds no run: there is no {path}")
        check_text(path)
        return read(path)


def _no_project(out: Path) -> None:
    if (out / PROJECT).exists():
        raise Refusal(f"{out} is the run of a Flower project; `gossamer serve` continues it")


def _new_folder(method: str) -> Path:
    """A new folder, named after the time and the method."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{method.rpartition(':')[2].lower()}"
    out = Path("runs") / name
    count = 1
    while out.exists():
        count += 1
        out = Path("runs") / f"{name}-{count}"
    return out


def one_line(command: str) -> str:
    """A command with control characters removed, for a comment in a file."""
    return "".join(letter if letter.isprintable() else " " for letter in command)


def _resume(out: Path, engine: str = ENGINES[0]) -> str:
    words = ["gossamer", "resume", str(out)]
    return shlex.join(words if engine == ENGINES[0] else [*words, "--engine", engine])


@contextmanager
def interrupts(stop: Stop) -> Iterator[None]:
    """The first Ctrl-C finishes the round, the second abandons it, the third ends the process."""
    before = {}

    def interrupted(number: int, frame: FrameType | None) -> None:
        asked = stop.request()
        if number == signal.SIGTERM:
            stop.request()
        elif asked == 1:
            warn("finishing this round, then saving; Ctrl-C again abandons it")
        elif asked > 2:
            raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, interrupted)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


__all__ = ["DIVERGED", "INTERRUPTED", "REFUSED", "interrupts", "replay", "resume", "run"]
