"""The engine against Flower's own simulation, from the command to the last round of two jobs.

Flower's side is what its quickstart for PyTorch does: the FedAvg strategy of `flwr.serverapp`, and
a ClientApp that loads its partition into a DataLoader, trains a module by `torch.optim.SGD` and
sends all of it back; one actor per core. It is started by `flwr run`. The engine's side is
`gossamer run fedavg`. They run in turns, so that what else the machine does hits both.

Time is taken until the last round is over, on both sides from two moments. "from nothing": where
none is running, `flwr run` begins with starting a SuperLink, which stays for the next time; so it
is started first, by the command that `flwr run` has for it. "running": from when it is there. Both
are of the same run. The engine has no such service, so its time is the same in both.

Each job is measured twice. "trained": neither side tests anything. "tested": after every round
Flower tests as the quickstart's configuration says, half of all clients on data of their own and
the server on the test data; the engine tests as it does unless told otherwise, the server on the
test data and all clients on data of their own.

GOSSAMER_BENCHMARK_ROUNDS, GOSSAMER_BENCHMARK_REPEATS and GOSSAMER_BENCHMARK_TESTED (repeats with
tests) make it shorter.
"""

import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset

from benchmarks.speed import Pictures
from gossamer import data, models
from gossamer.cli.flower_processes import await_link, free_port
from gossamer.engine import events
from gossamer.flower.commands import CLOSED, CONNECTION, Link, configuration

ROUNDS = int(os.environ.get("GOSSAMER_BENCHMARK_ROUNDS", "20"))
REPEATS = {
    "trained": int(os.environ.get("GOSSAMER_BENCHMARK_REPEATS", "3")),
    "tested": int(os.environ.get("GOSSAMER_BENCHMARK_TESTED", "1")),
}
TESTED_PART = 0.5
"""Of all clients, in every round: `fraction-evaluate` of the quickstart."""
RATE = 0.05
PROJECT = """\
[project]
name = "quick"
version = "1.0.0"
description = "FedAvg as the quickstart has it"
license = {{ file = "LICENSE" }}
dependencies = ["flwr[simulation]>=1.41"]

[tool.flwr.app]
publisher = "gossamer"
fab-format-version = 1
flwr-version-target = "{version}"

[tool.flwr.app.components]
serverapp = "quick.app:server"
clientapp = "quick.app:client"
"""
APP = """\
from benchmarks.flower import apps

both = apps({job!r}, {rounds}, {last!r}, {tested})
server = both[0]
client = both[1]
"""


@dataclass(frozen=True)
class Job:
    """What both sides train."""

    model: str
    pool: int
    clients: int
    batch: int


JOBS = {
    "lenet": Job("lenet5_caffe", 100, 10, 64),
    "mlp": Job("mlp:hidden=200", 1000, 50, 60),
}
"""One that is bound by training, and one by all around it: 60 examples are one step."""


def measure() -> dict[str, object]:
    """Seconds of each side for each job, and their ratio."""
    for module in ("flwr", "ray"):
        if importlib.util.find_spec(module) is None:
            return {"skipped": f"{module} is missing: pip install 'gossamer[flower-sim]'"}
    if not any(entry.name == "fmnist" and entry.found for entry in data.ls()):
        return {"skipped": "Fashion-MNIST is missing: `gossamer data get fmnist` fetches it"}
    from importlib.metadata import version

    found: dict[str, object] = {"flwr": version("flwr"), "ray": version("ray"), "rounds": ROUNDS}
    for name, job in JOBS.items():
        what = f"{job.model}, fmnist, iid, {job.pool} clients, {job.clients} a round, 1 epoch"
        found[name] = {"job": what} | {how: _both(name, how) for how in REPEATS if REPEATS[how]}
    return found


def _both(name: str, how: str) -> dict[str, object]:
    """Both sides in turns, with or without tests."""
    tested = how == "tested"
    seconds: dict[str, list[float]] = {"engine": [], "from nothing": [], "running": []}
    for _ in range(REPEATS[how]):
        seconds["engine"].append(_engine(JOBS[name], tested))
        flower = _flower(name, tested)
        for side, each in flower.items():
            seconds[side].append(each)
    ratios = {
        side: [b / a for a, b in zip(seconds["engine"], seconds[side], strict=True)]
        for side in ("from nothing", "running")
    }
    return {
        "seconds": {side: [round(each, 2) for each in seconds[side]] for side in seconds},
        "flower_over_engine": {
            side: round(statistics.median(each), 2) for side, each in ratios.items()
        },
    }


def _plain() -> dict[str, str]:
    """The environment, in which Python keeps its bytecode, as it does for installed packages."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _engine(job: Job, tested: bool) -> float:
    """Until the last round is over, tests included; what it takes to end is not counted."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["run", "fedavg", "--data", "fmnist", "--partition", "iid", "--model", job.model]
        words += ["--pool", job.pool, "--clients", job.clients, "--rounds", ROUNDS, "--epochs", 1]
        words += ["--batch", job.batch, "--lr", RATE, "--eval-every", int(tested), "--quiet"]
        out = Path(folder) / "run"
        words += ["--out", out]
        start = time.time()
        command = [sys.executable, "-m", "gossamer", *map(str, words)]
        subprocess.run(command, check=True, env=_plain())
        told = events.read(out / "events.jsonl")
        rounds = [each for each in told if each["event"] in ("round-finished", "evaluated")]
        return float(rounds[-1]["clock"]["time"]) - start


def _flower(name: str, tested: bool) -> dict[str, float]:
    """Until the last round is over; what it takes to end is not counted."""
    from importlib.metadata import version

    nothing = time.time()
    with tempfile.TemporaryDirectory() as folder, _superlink(Path(folder)) as environment:
        project, last = Path(folder) / "project", Path(folder) / "last"
        (project / "quick").mkdir(parents=True)
        (project / "pyproject.toml").write_text(PROJECT.format(version=version("flwr")))
        (project / "LICENSE").write_text("Apache-2.0\n")
        (project / "quick" / "__init__.py").touch()
        app = APP.format(job=name, rounds=ROUNDS, last=str(last), tested=tested)
        (project / "quick" / "app.py").write_text(app)
        nodes = f"num-supernodes={JOBS[name].pool} client-resources-num-cpus=1"
        words = ["flwr", "run", str(project), CONNECTION, "--stream", "--federation-config", nodes]
        start = time.time()
        subprocess.run(words, check=True, env=environment, stdout=sys.stderr)
        if not last.exists():
            raise RuntimeError(f"Flower's simulation of {name} did not come to its end")
        end = float(last.read_text())
        return {"from nothing": end - nothing, "running": end - start}


@contextmanager
def _superlink(folder: Path) -> Iterator[dict[str, str]]:
    """A SuperLink that simulates nodes, as `flwr run` would start one; yields the environment."""
    port = free_port()
    link = Link("127.0.0.1", port, None, port)
    home, root = folder / "home", str(Path(__file__).parents[1])
    home.mkdir()
    (home / "config.toml").write_text(configuration(link))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    known = {"PATH": path, "FLWR_HOME": str(home), "PYTHONPATH": root}
    environment = {**_plain(), **CLOSED, **known}
    words = ["flower-superlink", "--insecure", "--simulation", "--host", link.host]
    words += ["--port", str(link.port), "--database", str(home / "state.db")]
    with subprocess.Popen(words, env=environment, stdout=sys.stderr) as process:
        try:
            await_link(link, process)
            yield environment
        finally:
            process.terminate()


# as the quickstart has it ------------------------------------------------------------------------


@cache
def pictures() -> tuple[Pictures, Pictures]:
    """The data set, for training and for tests, opened once by every process."""
    arrays = data.federation("fmnist", "iid", pool=1).arrays
    train, test = (np.asarray(x).reshape(-1, 28, 28) for x in (arrays.train, arrays.test))
    return Pictures(train, arrays.labels.train), Pictures(test, arrays.labels.test)


def load(partition: int, partitions: int, batch: int, *, test: bool = False) -> DataLoader[Any]:
    """A client's own part."""
    all_pictures = pictures()[test]
    order = np.random.default_rng(1).permutation(len(all_pictures))
    own = Subset(all_pictures, np.array_split(order, partitions)[partition])
    return DataLoader(own, batch, shuffle=not test)


def fit(module: nn.Module, loader: DataLoader[Any]) -> float:
    """One epoch; returns the mean loss."""
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    criterion = nn.CrossEntropyLoss()
    module.train()
    running = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(module(x), y)
        loss.backward()
        optimizer.step()
        running += loss.item()
    return running / len(loader)


def mark(module: nn.Module, loader: DataLoader[Any]) -> dict[str, float]:
    """Mean loss and accuracy."""
    criterion = nn.CrossEntropyLoss()
    module.eval()
    loss, correct = 0.0, 0
    with torch.no_grad():
        for x, y in loader:
            scores = module(x)
            loss += criterion(scores, y).item()
            correct += (scores.argmax(1) == y).sum().item()
    return {"eval_loss": loss / len(loader), "eval_acc": correct / len(loader.dataset)}


def apps(name: str, rounds: int, last: str, tested: bool) -> tuple[Any, Any]:
    """FedAvg for server and client; an error if any client fails. `last` is told the time."""
    job = JOBS[name]
    asked = int(job.pool * TESTED_PART) if tested else 0
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

    client, server = ClientApp(), ServerApp()

    def received(arrays: ArrayRecord) -> nn.Module:
        module = models.build(job.model, (1, 28, 28), 10)
        module.load_state_dict(arrays.to_torch_state_dict())
        return module

    def place(context: Context) -> tuple[int, int]:
        config = context.node_config
        return int(config["partition-id"]), int(config["num-partitions"])

    @client.train()
    def train(message: Message, context: Context) -> Message:
        module = received(message.content["arrays"])
        loader = load(*place(context), job.batch)
        metrics = {"train_loss": fit(module, loader), "num-examples": len(loader.dataset)}
        content = {"arrays": ArrayRecord(module.state_dict()), "metrics": MetricRecord(metrics)}
        return Message(RecordDict(content), reply_to=message)

    @client.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        module = received(message.content["arrays"])
        loader = load(*place(context), job.batch, test=True)
        metrics = MetricRecord({**mark(module, loader), "num-examples": len(loader.dataset)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    def central(number: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord(mark(received(arrays), load(0, 1, 128, test=True)))

    def counted(count: int) -> Callable[[list[RecordDict], str], MetricRecord]:
        def all_of(records: list[RecordDict], weighted_by: str) -> MetricRecord:
            if len(records) != count:
                raise RuntimeError(f"{len(records)} of {count} clients answered")
            return aggregate_metricrecords(records, weighted_by)

        return all_of

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        module = models.build(job.model, (1, 28, 28), 10)
        strategy = FedAvg(
            fraction_train=job.clients / job.pool,
            fraction_evaluate=TESTED_PART if tested else 0.0,
            min_train_nodes=job.clients,  # the fraction is of those that are there at first
            min_evaluate_nodes=asked,
            min_available_nodes=job.pool,
            train_metrics_aggr_fn=counted(job.clients),
            evaluate_metrics_aggr_fn=counted(asked),
        )
        arrays = ArrayRecord(module.state_dict())
        found = strategy.start(
            grid, arrays, num_rounds=rounds, evaluate_fn=central if tested else None
        )
        tests = (found.evaluate_metrics_clientapp, found.evaluate_metrics_serverapp)
        done = len(found.train_metrics_clientapp) == rounds
        if done and (not tested or all(len(each) >= rounds for each in tests)):
            Path(last).write_text(repr(time.time()))

    return server, client
