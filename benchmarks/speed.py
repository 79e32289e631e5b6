"""Local training: the engine against the plain research loop, on the same clients and examples.

The job is LeNet-5-Caffe on Fashion-MNIST (the embedded part of it where the whole is missing), 100
clients under dirichlet:0.2, 10 a round, one local epoch, batch 64. The plain loop is what published
code does: a data set of images that are turned into tensors one by one, a DataLoader, a deep copy
of the model per client, torch.optim.SGD, NCHW, all cores in torch. Both are repeated in turns, so
that what else the machine does hits both alike.
"""

import copy
import os
import statistics
import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

import gossamer as gs
from gossamer import data, models
from gossamer.core import Key, sample

ROUNDS = 3
REPEATS = 5
CLIENTS = 10
BATCH = 64
RATE = 0.05


class Pictures(Dataset[tuple[Tensor, int]]):
    """Images kept as bytes and converted when asked for, as torchvision does."""

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        picture = Image.fromarray(self.images[index])
        pixels = torch.from_numpy(np.array(picture, np.uint8, copy=True))
        x = pixels.view(1, 28, 28).to(torch.float32).div(255)
        return x.sub_(0.286).div_(0.353), int(self.labels[index])


def plain(dataset: Dataset[Any], parts: list[np.ndarray], cohorts: list[list[int]]) -> int:
    """FedAvg as research code writes it; returns the examples trained on."""
    server = models.build("lenet5_caffe", (1, 28, 28), 10)
    seen = 0
    for cohort in cohorts:
        states, sizes = [], []
        for client in cohort:
            loader = DataLoader(Subset(dataset, parts[client]), BATCH, shuffle=True)
            model = copy.deepcopy(server)
            optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
            criterion = nn.CrossEntropyLoss()
            model.train()
            for x, y in loader:
                optimizer.zero_grad()
                loss = criterion(model(x), y)
                loss.backward()
                optimizer.step()
                seen += len(y)
            states.append(model.state_dict())
            sizes.append(len(parts[client]))
        total = sum(sizes)
        server.load_state_dict(
            {
                name: sum(
                    state[name] * (size / total) for state, size in zip(states, sizes, strict=True)
                )
                for name in states[0]
            }
        )
    return seen


@dataclass(frozen=True)
class Timed:
    """A method that notes when each client's local training began and ended."""

    inner: gs.FedAvg

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def init(self, ctx: Any) -> gs.methods.fedavg.Server:
        return self.inner.init(ctx)

    def down(self, ctx: Any, state: Any, client: Any) -> gs.methods.parts.dense_model.Down:
        return self.inner.down(ctx, state, client)

    def begin(self, ctx: Any, down: Any, local: gs.methods.parts.dense_model.Local | None) -> Any:
        SPANS.begin()
        return self.inner.begin(ctx, down, local)

    def finish(self, ctx: Any, work: Any) -> Any:
        result = self.inner.finish(ctx, work)
        SPANS.end()
        return result


class Spans:
    """Intervals of local training, from all threads."""

    def __init__(self) -> None:
        self.found: list[tuple[float, float]] = []
        self._mine = threading.local()

    def begin(self) -> None:
        self._mine.start = time.perf_counter()

    def end(self) -> None:
        self.found.append((self._mine.start, time.perf_counter()))

    def covered(self) -> float:
        """Seconds in which at least one client trained."""
        total, until = 0.0, float("-inf")
        for start, end in sorted(self.found):
            total += max(0.0, end - max(start, until))
            until = max(until, end)
        return total

    def busy(self) -> float:
        """Seconds of training added up over the threads."""
        return sum(end - start for start, end in self.found)


SPANS = Spans()


def measure() -> dict[str, object]:
    """Examples a second of each, their ratios, and the engine's time outside local training."""
    found = [entry.name for entry in data.ls() if entry.name == "fmnist" and entry.found]
    name = found[0] if found else "fmnist-mini"
    federation = data.federation(name, "dirichlet:0.2", pool=100, seed=1)
    task = gs.Task.of(
        models.build("lenet5_caffe", (1, 28, 28), 10),
        federation.client(0).train.x[:2],
        start="seed",
    )
    images, labels = federation.arrays.train, federation.arrays.labels.train
    parts = [federation.train[client.id] for client in federation.pool]
    pictures = Pictures(np.asarray(images).reshape(-1, 28, 28), labels)
    stacked = torch.stack([pictures[i][0] for i in range(len(pictures))])
    preloaded = TensorDataset(stacked, torch.from_numpy(np.asarray(labels)).long())
    method = gs.FedAvg(clients=CLIENTS, training=gs.Training(epochs=1, batch=BATCH, lr=RATE))
    speeds: dict[str, list[float]] = {"plain": [], "plain_preloaded": [], "engine": [], "bf16": []}
    outside, idle = [], []
    cores = os.cpu_count() or 1
    fast = gs.Task.of(task.module, federation.client(0).train.x[:2], precision="bf16", start="seed")
    for repeat in range(-1, REPEATS):
        cohorts = [
            [c.id for c in sample(Key(repeat).fold("server", "round", r), federation.pool, CLIENTS)]
            for r in range(1, ROUNDS + 1)
        ]
        torch.set_num_threads(cores)
        for label, dataset in (("plain", pictures), ("plain_preloaded", preloaded)):
            start = time.perf_counter()
            examples = plain(dataset, parts, cohorts)
            speeds[label].append(examples / (time.perf_counter() - start))
        for label, used in (("engine", task), ("bf16", fast)):
            SPANS.found.clear()
            start = time.perf_counter()
            summary = gs.run(
                Timed(method) if label == "engine" else method,
                used,
                federation,
                rounds=ROUNDS,
                seed=repeat,
                options=gs.Options(workers=cores, eval_every=0),
            )
            took = time.perf_counter() - start
            assert summary.cost.examples == examples
            speeds[label].append(examples / took)
            if label == "engine":
                outside.append(1 - SPANS.covered() / took)
                idle.append(1 - SPANS.busy() / (cores * took))
        if repeat < 0:  # the first turn only warms up
            for values in (*speeds.values(), outside, idle):
                values.clear()
    middle = {name: statistics.median(values) for name, values in speeds.items()}
    return {
        "job": f"lenet5_caffe, {name}, dirichlet:0.2, 100 clients, {CLIENTS} a round, 1 epoch",
        "workers": cores,
        "examples_per_second": {name: round(value) for name, value in middle.items()},
        "engine_over_plain": round(_ratio(speeds["engine"], speeds["plain"]), 3),
        "engine_over_plain_preloaded": round(
            _ratio(speeds["engine"], speeds["plain_preloaded"]), 3
        ),
        "bf16_over_plain": round(_ratio(speeds["bf16"], speeds["plain"]), 3),
        "share_outside_local_training": round(statistics.median(outside), 4),
        "share_of_cores_not_training": round(statistics.median(idle), 4),
        "notes": "medians over repeats in turns; engine: the whole run, start included",
    }


def _ratio(ours: list[float], theirs: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
