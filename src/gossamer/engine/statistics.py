"""Static batch normalisation: statistics are recalibrated before a model is evaluated.

A method with the field `bn: Literal["running", "static"]` set to "static" neither keeps nor sends
running statistics, so those of its models are meaningless. Before an evaluation, training data are
passed through the model and its statistics become the mean over these batches: data of all clients
for the global model, the client's own data for a personal model.

Diao, Ding, Tarokh: HeteroFL: computation and communication efficient federated learning for
heterogeneous clients. ICLR 2021. https://arxiv.org/abs/2010.01264
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from gossamer import merge
from gossamer.core import Ensemble, Params
from gossamer.data.federation import Federation
from gossamer.engine.workers import Workers
from gossamer.task import Task

CALIBRATION = 50_000
"""Examples that are passed through a model at most."""

BATCH = 500
"""Examples in a batch; every batch counts the same, also a smaller one at the end."""

WAVE = 4
"""Batches for each worker that are in memory at once; no result depends on it."""


def calibrated(task: Task, params: Params, batches: Iterable[Tensor]) -> Params:
    """The model with running statistics that are the mean over batches of inputs.

    It is what `nn.BatchNorm` has with `momentum=None` after a pass in training mode. A model that
    keeps no such statistics is returned as it is, and so is one for which there are no batches.
    """
    if not task.running_statistics:
        return params
    return _completed(params, (_of_batch(task, params, x) for x in batches))


class Calibration:
    """Calibrates models on the training data of a federation, a bounded part of it."""

    def __init__(self, federation: Federation, workers: Workers) -> None:
        self._federation = federation
        self._workers = workers

    def shared(self, task: Task, model: Params | Ensemble) -> Params | Ensemble:
        """The global model with the statistics of all clients' data."""
        if not task.running_statistics:
            return model
        if isinstance(model, Ensemble):
            members = tuple(self._together(member) for member in model.members)
            return Ensemble(members, model.weights)
        return self._together(model)

    def own(self, task: Task, model: Params | Ensemble, client: int) -> Params | Ensemble:
        """A client's own model with the statistics of the client's data."""
        if not task.running_statistics:
            return model
        batches = list(joined([self._federation.client(client).train.x[:CALIBRATION]], BATCH))
        if isinstance(model, Ensemble):
            members = tuple(calibrated(task, member, batches) for member in model.members)
            return Ensemble(members, model.weights)
        return calibrated(task, model, batches)

    def _together(self, params: Params) -> Params:
        """What `calibrated` returns, with batches spread over the workers."""

        def one(task: Task, x: Tensor) -> Params:
            return _of_batch(task, params, x)

        def statistics() -> Iterator[Params]:
            batches = joined(self._inputs(), BATCH)
            while wave := list(islice(batches, WAVE * self._workers.count)):
                yield from self._workers.map(one, wave)

        return _completed(params, statistics())

    def _inputs(self) -> Iterator[Tensor]:
        for client, count in self._taken:
            yield self._federation.client(client).train.x[:count]

    @cached_property
    def _taken(self) -> list[tuple[int, int]]:
        """Clients in the order of ids, and how many of each one's first examples are taken."""
        pool = sorted(self._federation.pool, key=lambda client: client.id)
        counts = evenly([client.examples for client in pool], CALIBRATION)
        return [(client.id, count) for client, count in zip(pool, counts, strict=True) if count]


def evenly(sizes: Sequence[int], most: int) -> list[int]:
    """How many to take of each, as evenly as possible, at most `most` in all.

    >>> evenly([2, 9, 5], 10)
    [2, 4, 4]
    """
    have = np.asarray(sizes, dtype=np.int64)
    low, high = 0, int(have.max(initial=0))
    while low < high:
        middle = (low + high + 1) // 2
        if int(np.minimum(have, middle).sum()) <= most:
            low = middle
        else:
            high = middle - 1
    taken = np.minimum(have, low)
    if not low and len(some := np.flatnonzero(have)):
        # More clients than examples are wanted: one of each of some clients, spread over all.
        taken[some[np.arange(most) * len(some) // most]] = 1
    counts: list[int] = taken.tolist()
    return counts


def joined(parts: Iterable[Tensor], size: int) -> Iterator[Tensor]:
    """Parts as batches of a size; a last example that would be alone joins the batch before it.

    >>> [len(batch) for batch in joined([torch.zeros(3), torch.zeros(6)], 4)]
    [4, 5]
    """
    held: list[Tensor] = []
    count = 0
    for part in parts:
        held.append(part)
        count += len(part)
        while count > size + 1:  # batch normalisation cannot do with one example
            whole = torch.cat(_cut(held, size))
            count -= size
            yield whole
    if count:
        yield torch.cat(held)


def _cut(held: list[Tensor], size: int) -> list[Tensor]:
    """Takes so many rows off the front of a list that has them."""
    taken = []
    while size:
        part = held.pop(0)
        if len(part) > size:
            held.insert(0, part[size:])
            part = part[:size]
        taken.append(part)
        size -= len(part)
    return taken


def _of_batch(task: Task, params: Params, x: Tensor) -> Params:
    placed = {name: tensor.to(task.device) for name, tensor in params.items()}
    statistics = task.batch_statistics(placed, x.to(task.device))
    return {name: tensor.cpu() for name, tensor in statistics.items()}


def _completed(params: Params, statistics: Iterable[Params]) -> Params:
    means = merge.mean((each, 1.0) for each in statistics)
    return {**params, **{name: mean.to(params[name].device) for name, mean in means.items()}}
