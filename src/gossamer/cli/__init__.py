"""The command line: `gossamer run fedavg` and all other commands."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

INTERRUPTED = "gossamer: interrupted"

COMMANDS: Mapping[str, tuple[str, str]] = {
    "run": ("gossamer.cli.run:run", "train a method on a federation"),
    "resume": ("gossamer.cli.run:resume", "continue an interrupted run"),
    "compare": ("gossamer.cli.compare:compare", "run several methods on the same federation"),
    "sweep": ("gossamer.cli.sweep:sweep", "try settings of a method, choose on validation data"),
    "paper": ("gossamer.cli.paper:paper", "reproduce a paper's table: published vs. measured"),
    "bench": ("gossamer.cli.bench:bench", "compare all methods at their best learning rates"),
    "watch": ("gossamer.cli.watch:watch", "follow a running experiment"),
    "replay": ("gossamer.cli.run:replay", "repeat a failed client, to debug it"),
    "cost": ("gossamer.cli.cost:cost", "estimate a method's costs, or break down those of a run"),
    "report": ("gossamer.cli.report:report", "write an offline HTML report of runs"),
    "verify": ("gossamer.cli.verify:verify", "check the files of a run or of a node"),
    "export": ("gossamer.cli.export:export", "export a trained model to a file"),
    "ls": ("gossamer.cli.ls:ls", "list methods, models, data sets and partitions"),
    "data": ("gossamer.cli.data:data", "list or download data sets"),
    "partition": ("gossamer.cli.data:partition", "show how data is divided among clients"),
    "check": ("gossamer.cli.check:check", "test your own method for conformance"),
    "cp": ("gossamer.cli.cp:cp", "copy a method to a file, to modify it"),
    "flower": (
        "gossamer.cli.flower:flower",
        "create a Flower project, its certificates and signature",
    ),
    "serve": ("gossamer.cli.serve:serve", "serve a Flower project on the network"),
    "join": ("gossamer.cli.join:join", "join a served federation as a node"),
    "demo": ("gossamer.cli.demo:demo", "compare methods on embedded real data"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code.

    0 done, 1 failed, 2 refused, 3 diverged, 130 interrupted.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _checked(words, arguments is None)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print(INTERRUPTED, file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever reads has enough, such as `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _checked(words: Sequence[str], own: bool) -> int:
    """Runs a command; `own` means that the process does nothing else."""
    if not words or words[0] in ("-h", "--help"):
        _help()
        return 0
    if words[0] == "--version":
        from gossamer import __version__

        print(__version__)
        return 0
    with _frozen_imports(own), _interruptible(own):
        from gossamer.cli.parsing import Refusal, show_notices, warn
        from gossamer.cli.wording import notes

        show_notices()
        if words[0] in COMMANDS:
            _command(words[0])
    try:
        with notes(sys.stderr):
            return _command(words[0])(words[1:])
    except Refusal as problem:
        warn(str(problem))
        return problem.code


def _command(name: str) -> Callable[[Sequence[str]], int]:
    import importlib

    from gossamer.cli.parsing import Refusal
    from gossamer.config import nearest

    if name not in COMMANDS:
        raise Refusal(f"no command {name!r}{nearest(name, COMMANDS)} `gossamer --help` lists them")
    module, _, function = COMMANDS[name][0].partition(":")
    command: Callable[[Sequence[str]], int] = getattr(importlib.import_module(module), function)
    return command


@contextmanager
def _interruptible(own: bool) -> Iterator[None]:
    """Ctrl-C ends the process at once; PyTorch's import would turn it into other errors."""
    if not own or threading.current_thread() is not threading.main_thread():
        yield
        return

    def quit(number: int, frame: object) -> None:
        os.write(2, f"{INTERRUPTED}\n".encode())
        os._exit(130)

    before = signal.signal(signal.SIGINT, quit)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _frozen_imports(own: bool) -> Iterator[None]:
    """Exempts everything that is imported inside from garbage collection.

    PyTorch makes more than 100,000 objects, which the collector would search during the import and
    at exit. In a process that is not our own, objects of others would be exempted too.
    """
    if not own or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


def _help() -> None:
    width = max(map(len, COMMANDS))
    print("usage: gossamer COMMAND ...\n\nSparse, communication-efficient federated learning.\n")
    for name, (_, text) in COMMANDS.items():
        print(f"  {name.ljust(width)}  {text}")
    print("\n`gossamer COMMAND --help` explains a command; `run METHOD --help` lists its options.")
