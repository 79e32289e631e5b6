"""The command line: `gossamer run fedavg`, and what goes with it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

COMMANDS: Mapping[str, tuple[str, str]] = {
    "run": ("gossamer.cli.run:run", "train a method on a federation"),
    "resume": ("gossamer.cli.run:resume", "continue a run that was stopped"),
    "compare": ("gossamer.cli.compare:compare", "run methods on the same federation, side by side"),
    "paper": ("gossamer.cli.paper:paper", "run a table of a paper, published beside measured"),
    "watch": ("gossamer.cli.watch:watch", "follow a run that is going in another process"),
    "replay": ("gossamer.cli.run:again", "repeat one client that failed, to see why"),
    "cost": ("gossamer.cli.cost:cost", "price a method without training, or a run bit by bit"),
    "report": ("gossamer.cli.report:report", "show runs in one page that works offline"),
    "export": ("gossamer.cli.export:export", "write a trained model to a file, to ship it"),
    "ls": ("gossamer.cli.lists:ls", "list methods, models, data sets and partitions"),
    "data": ("gossamer.cli.lists:data", "list or download data sets"),
    "partition": ("gossamer.cli.lists:partition", "show how data is divided among clients"),
    "check": ("gossamer.cli.authors:check", "test a method of yours for conformance"),
    "cp": ("gossamer.cli.authors:cp", "copy a method to a file, to change it"),
    "flower": ("gossamer.cli.flower:flower", "make a Flower project, or certificates for one"),
    "serve": ("gossamer.cli.flower:serve", "run a Flower project on this machine's network"),
    "join": ("gossamer.cli.flower:join", "take part in a federation that is served"),
    "demo": ("gossamer.cli.demo:demo", "compare methods on embedded real data"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code: 0 done, 1 failed, 2 refused, 130 interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        _help()
        return 0
    if words[0] == "--version":
        from gossamer import __version__

        print(__version__)
        return 0
    try:
        return _checked(words, arguments is None)
    except KeyboardInterrupt:
        print("gossamer: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 1


def _checked(words: Sequence[str], own: bool) -> int:
    """`own`: nothing else goes on in this process."""
    with _kept(own):
        from gossamer.cli.parsing import REFUSED, Refusal, warn

        if words[0] in COMMANDS:
            _command(words[0])
    try:
        return _command(words[0])(words[1:])
    except Refusal as problem:
        warn(str(problem))
        return REFUSED


def _command(name: str) -> Callable[[Sequence[str]], int]:
    import importlib

    from gossamer.cli.parsing import Refusal
    from gossamer.config import nearest

    if name not in COMMANDS:
        raise Refusal(f"no command {name!r}{nearest(name, COMMANDS)} `gossamer --help` lists them")
    module, _, function = COMMANDS[name][0].partition(":")
    found: Callable[[Sequence[str]], int] = getattr(importlib.import_module(module), function)
    return found


@contextmanager
def _kept(own: bool) -> Iterator[None]:
    """What is imported inside stays until the end, so nobody looks for garbage in it.

    PyTorch has more than 100,000 objects, looked through while they are imported and at the end.
    In a process of others, their objects would be kept too.
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
    print("\n`gossamer COMMAND --help` tells more; `gossamer run METHOD --help` lists all options.")
