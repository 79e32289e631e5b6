"""Counts the files that the messages of one round pass through, and the calls between them.

    python tools/crossings.py [--list]

A FedAvg round with one client, one batch and one worker. Counted is the message path: from the
choice of the cohort to the merged state, both sides of the wire and the client's training. Left out
is what comes before a run's first round (reading, opening, checking) and what follows a merge
(events, figures, evaluation, checkpoints). The first round is counted, when no cache is warm.

Left out too is what computes a step, torch and `arithmetic/` alike: no message passes through it.

A file is touched if any of its functions is called. A call crosses if the nearest caller in
`src/gossamer` is in another file; calls through PyTorch or the standard library count the same.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

import gossamer as gs
from gossamer.engine import loop

HOME = Path(gs.__file__).parent
PATH = "exchange"
"""The function of the engine's loop that is the message path of a round."""


class Crossings:
    """A profiler for the time that the message path of one round takes."""

    def __init__(self) -> None:
        self.files: Counter[str] = Counter()
        self.calls: Counter[tuple[str, str]] = Counter()
        self._top: FrameType | None = None
        self._done = False

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """Looks at one event of the interpreter, as `sys.setprofile` reports it."""
        if self._done:
            return
        file = _file(frame)
        if event == "return" and frame is self._top:
            self._top, self._done = None, True
        if event != "call" or not file:
            return
        if self._top is None:
            if frame.f_code.co_name != PATH or file != _named(loop.__file__):
                return
            self._top = frame
        self.files[file] += 1
        caller = frame.f_back
        while caller is not None and not _file(caller):
            caller = caller.f_back
        if frame is not self._top and caller is not None and _file(caller) != file:
            self.calls[_file(caller), file] += 1


def count() -> Crossings:
    """The crossings of the first round of FedAvg with one client.

    Returns:
        Calls by file, and calls that cross from one file to another.
    """
    federation = gs.data.federation("fmnist-mini", "iid", pool=100)
    module = gs.models.build("lenet5_caffe", federation.shape, federation.classes)
    task = gs.Task.of(module, federation.client(0).train.x[:2], start="seed")
    method = gs.FedAvg(clients=1, training=gs.Training(epochs=1, batch=1000))
    options = gs.Options(workers=1, eval_every=0)
    found = Crossings()
    before = sys.getprofile()
    sys.setprofile(found)
    try:
        gs.run(method, task, federation, rounds=1, options=options)
    finally:
        sys.setprofile(before)
    return found


def _file(frame: FrameType) -> str:
    return _named(frame.f_code.co_filename)


def _named(path: str) -> str:
    """A file by its name in the package; empty if it is not in it, or computes a step."""
    name = path[len(str(HOME)) + 1 :] if path.startswith(str(HOME)) else ""
    return "" if name.startswith("arithmetic/") else name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="list files and crossings")
    wish = parser.parse_args()
    found = count()
    if wish.list:
        for file, calls in sorted(found.files.items()):
            print(f"{calls:6d}  {file}")
        for (caller, called), calls in found.calls.most_common():
            print(f"{calls:6d}  {caller} -> {called}")
    print(f"{len(found.files)} files, {sum(found.calls.values())} cross-file calls")


if __name__ == "__main__":
    main()
