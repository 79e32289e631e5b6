"""Fingerprints of every method: what must not change when code is rearranged.

    python tools/fingerprints.py > before.txt
    python tools/fingerprints.py --against before.txt

Every entry of METHODS is run on small jobs that pass through all of its phases. A line has the hash
of all states, the hash of all models, bits in the three columns, FLOPs and accuracies. With
`--options`, every option of every entry is changed as well, one at a time.

States are hashed with the names of their fields, so regrouping a record changes `state` only.
An option that is no longer an entry's own is looked for in the entry NAME-variants.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import gossamer as gs
from gossamer import fields
from gossamer.core import Client, Data, Ensemble, Examples, Key, Params, budgets_of
from gossamer.engine.client import server_ctx
from gossamer.engine.store import Store
from gossamer.wire import record_types
from gossamer.wire.archive import fingerprint

SIDE, CLASSES, POOL = 8, 3, 12
SMALL: dict[str, Any] = {
    "clients": 4,
    "epochs": 2.0,
    "batch": 8,
    "lr": 0.05,
    "density": 0.2,
    "probe_clients": 4,
    "probe_epochs": 1.0,
    "first_rounds": 3,
    "first_batches": 2,
    "adjust_every": 2,
    "adjust_until": 8,
    "readjust_every": 2,
    "server_every": 2,
    "every": 2,
    "steps": 3,
    "readjust_ratio": 0.2,
    "first_accuracy": 0.5,
    "accurate": 0.1,
    "distance": 0.0,
    "select_clients": 3,
    "candidates": 2,
    "conv_rate": 0.3,
    "alpha": 0.05,
    "eta_tau": 0.02,
    "lambda0": 0.002,
    "threshold_lr": 0.01,
    "server_threshold_lr": 0.2,
    "prune_below": 0.5,
    "strength": 0.05,
}
"""Settings that are smaller here, so that few rounds pass through every phase."""
ROUNDS, ROUNDS_OF_OPTIONS = 12, 6
FAMILY = {"spdst": "flash"}
"""Entries whose variants have the name of the family."""


@dataclass(frozen=True)
class Case:
    """One run: an entry of METHODS, a job, and at most one option that is changed."""

    method: str
    job: str
    name: str = ""
    value: Any = None

    def __str__(self) -> str:
        changed = f" {self.name}={self.value}" if self.name else ""
        return f"{self.method} {self.job}{changed}"


class Pictures:
    """Small images with a bright row that is their class; some jobs have clients of less budget."""

    name = "fingerprints"
    classes = CLASSES
    augment = None

    def __init__(self, budgets: tuple[float, ...]) -> None:
        self.pool = [Client(id, 17 + id % 5, budgets[id % len(budgets)]) for id in range(POOL)]
        self.test = self._make(Key(1).fold("test"), 60)

    def describe(self) -> dict[str, object]:
        return {"name": self.name, "classes": self.classes}

    def client(self, id: int) -> Data:
        key = Key(1).fold("client", id)
        sizes = {"train": self.pool[id].examples, "valid": 6, "test": 9}
        return Data(*(self._make(key.fold(part), size) for part, size in sizes.items()))

    def test_rows(self, id: int) -> np.ndarray | None:
        return None

    def _make(self, key: Key, count: int) -> Examples:
        x = torch.randn(count, 1, SIDE, SIDE, generator=key.generator())
        y = torch.randint(CLASSES, (count,), generator=key.fold("labels").generator())
        x[torch.arange(count), 0, 2 * y] += 1
        return Examples(x, y)


def modules() -> dict[str, list[nn.Module]]:
    """The layers of each job's model."""
    inputs = SIDE * SIDE
    return {
        "mlp": [nn.Flatten(), nn.Linear(inputs, 12), nn.ReLU(), nn.Linear(12, CLASSES)],
        "bn": [
            *(nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU()),
            *(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(32, CLASSES)),
        ],
    }


JOBS = ("mlp", "bn", "mlp-budgets")


def task_of(job: str) -> gs.Task:
    """A small model: an MLP, or a convolutional net with batch normalisation."""
    layers = modules()[job.partition("-")[0]]
    return gs.Task.of(nn.Sequential(*layers), torch.zeros(2, 1, SIDE, SIDE))


def fingerprint_of(case: Case) -> str:
    """Runs a case and describes what came of it in one line."""
    torch.manual_seed(0)
    method = gs.METHODS[case.method]
    known = {setting.name for setting in fields.settings(method)}
    budgets = (0.05, 0.1, 1.0) if "budgets" in case.job else (1.0,)
    try:
        wanted = {name: value for name, value in SMALL.items() if name in known}
        if case.name:
            wanted[case.name] = case.value
        method = fields.replace(method, wanted)
        rounds = ROUNDS_OF_OPTIONS if case.name else ROUNDS
        return _run(method, task_of(case.job), Pictures(budgets), rounds)
    except (ValueError, gs.engine.ClientError) as refusal:
        cause = getattr(refusal, "cause", refusal)
        return f"refused ({type(cause).__name__})"


def _run(method: Any, task: gs.Task, federation: Pictures, rounds: int) -> str:
    options = gs.Options(workers=1, eval_every=3)
    with tempfile.TemporaryDirectory() as folder:
        summary = gs.run(
            method, task, federation, rounds=rounds, seed=1, out=folder, options=options
        )
        store = Store(Path(folder) / "rounds", record_types(method))
        store.rollback(rounds)
        kept = [store.get(id) for id in store.clients()]
    ctx = server_ctx(task, Key(1), rounds, rounds, budgets_of(federation.pool))
    models = [_bytes(method.model(ctx, summary.state, local)) for local in (None, *kept)]
    cost, accuracy = summary.cost, summary.accuracy
    figures = {
        "state": summary.state_hash[:12],
        "models": fingerprint(*models)[:12],
        "sent": f"{cost.up}/{cost.down}",
        "information": f"{cost.information_up:.3f}/{cost.information_down:.3f}",
        "paper": f"{cost.paper_up}/{cost.paper_down}",
        "flops": cost.flops,
        "density": f"{summary.density:.6f}",
        "accuracy": f"{_text(accuracy['global'])}/{_text(accuracy['personal_mean'])}",
    }
    return " ".join(f"{name}={value}" for name, value in figures.items())


def _bytes(model: Params | Ensemble) -> bytes:
    members = model.members if isinstance(model, Ensemble) else (model,)
    tensors = [tensor for each in members for _, tensor in sorted(each.items())]
    return b"".join(tensor.detach().contiguous().numpy().tobytes() for tensor in tensors)


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.6f}"


def cases(methods: list[str], options: bool) -> Iterator[Case]:
    """Every entry on every job and, if asked for, with every option changed."""
    yield from (Case(name, job) for name, job in product(methods, JOBS))
    common = {setting.name for setting in fields.settings(gs.Training())}
    for name in methods if options else ():
        method = gs.METHODS[name]
        if method != type(method)():
            continue  # a preset, whose options are those of another entry
        for setting in fields.settings(method):
            if name == "fedavg" or setting.name not in common:
                yield from (Case(name, "bn", setting.name, value) for value in _others(setting))


def _others(setting: fields.Setting) -> list[Any]:
    """Values to try in place of a default."""
    value = SMALL.get(setting.name, setting.default)
    if setting.choices:
        return [choice for choice in setting.choices if choice != value]
    match value:
        case bool():
            return [not value]
        case int():
            return [value + 1]
        case float():
            return [value / 2 if value > 0 else 0.25]
        case _:
            return []


def compare(before: dict[str, str], after: dict[str, str]) -> int:
    """Prints what differs; returns how many lines do in more than their states."""
    changed = regrouped = missing = 0
    for key, old in before.items():
        method, rest = key.split(" ", 1)
        new = after.get(key) or after.get(f"{FAMILY.get(method, method)}-variants {rest}")
        if new is None:
            missing += 1
            print(f"missing  {key}")
        elif _without_state(old) != _without_state(new):
            changed += 1
            print(f"changed  {key}\n  before {old}\n  after  {new}")
        elif old != new:
            regrouped += 1
    print(f"{len(before)} before: {changed} changed, {missing} missing, {regrouped} regrouped")
    return changed


def _without_state(line: str) -> str:
    return " ".join(part for part in line.split(" ") if not part.startswith("state="))


def read(path: Path) -> dict[str, str]:
    """Lines by what they are of."""
    lines = (line.split(": ", 1) for line in path.read_text().splitlines() if ": " in line)
    return dict(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("methods", nargs="*", help="entries of METHODS; none: all")
    parser.add_argument("--options", action="store_true", help="also change every option")
    parser.add_argument("--against", type=Path, help="compare with the output of an earlier run")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    arguments = parser.parse_args()
    chosen = list(cases(arguments.methods or list(gs.METHODS), arguments.options))
    found = {}
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for case, figures in zip(
            chosen, pool.map(fingerprint_of, chosen, chunksize=4), strict=True
        ):
            found[str(case)] = figures
            if not arguments.against:
                print(f"{case}: {figures}", flush=True)
    if not arguments.against:
        return 0
    before = read(arguments.against)
    names = {name.removesuffix("-variants") for name in arguments.methods or gs.METHODS}
    asked = {key: line for key, line in before.items() if key.split(" ")[0] in names}
    if not arguments.options:
        asked = {key: line for key, line in asked.items() if len(key.split(" ")) == 2}
    return 1 if compare(asked, found) else 0


if __name__ == "__main__":
    sys.exit(main())
