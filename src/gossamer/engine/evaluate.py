"""Accuracy of the global model and of every personal one, without computing anything twice."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from gossamer.core import Ctx, Ensemble, Examples, Params
from gossamer.data.federation import Federation
from gossamer.engine.client import AnyMethod
from gossamer.engine.events import Evaluated
from gossamer.engine.store import Store
from gossamer.engine.workers import Workers
from gossamer.task import Task

CHUNK = 500
"""Examples evaluated at once; fixed, so that sums are formed in one order."""

Model = Params | Ensemble


@dataclass(frozen=True)
class Marks:
    """For every example: was the prediction right, and what was its loss."""

    right: NDArray[np.bool_]
    loss: NDArray[np.float64]


def mark(task: Task, model: Model, examples: Examples) -> Marks:
    """Predicts examples in inference mode."""
    x, y = examples.x.to(task.device), examples.y.to(task.device)
    with torch.inference_mode():
        log_probabilities = _log_probabilities(task, model, x)
        right = log_probabilities.argmax(-1) == y
        loss = functional.nll_loss(log_probabilities, y, reduction="none")
    return Marks(right.cpu().numpy(), loss.double().cpu().numpy())


def mark_all(workers: Workers, model: Model, examples: Examples) -> Marks:
    """Predicts many examples in chunks, spread over the workers."""
    starts = range(0, len(examples), CHUNK)

    def chunk(task: Task, start: int) -> Marks:
        part = slice(start, start + CHUNK)
        return mark(task, model, Examples(examples.x[part], examples.y[part]))

    parts = workers.map(chunk, starts)
    if not parts:
        return Marks(np.zeros(0, np.bool_), np.zeros(0))
    return Marks(
        np.concatenate([part.right for part in parts]),
        np.concatenate([part.loss for part in parts]),
    )


class Evaluator:
    """Evaluates a run's models; a personal model that did not change keeps its figure."""

    def __init__(
        self, method: AnyMethod, federation: Federation, workers: Workers, personal: bool
    ) -> None:
        self._method = method
        self._federation = federation
        self._workers = workers
        self._personal = personal
        self._known: dict[int, tuple[bytes, float]] = {}

    def __call__(self, ctx: Ctx, state: Any, store: Store) -> Evaluated:
        shared = self._method.model(ctx, state, None)
        test = self._federation.test
        marks = mark_all(self._workers, shared, test) if len(test) else None
        accuracies = self._personal_accuracies(ctx, state, store, shared, marks)
        return Evaluated(
            round=ctx.round,
            global_accuracy=float(marks.right.mean()) if marks else None,
            global_loss=float(marks.loss.mean()) if marks else None,
            personal_mean=float(np.mean(accuracies)) if accuracies else None,
            personal_std=float(np.std(accuracies)) if accuracies else None,
            personal_worst_decile=worst_decile(accuracies) if accuracies else None,
            clients=len(accuracies),
        )

    def _personal_accuracies(
        self, ctx: Ctx, state: Any, store: Store, shared: Model, marks: Marks | None
    ) -> list[float]:
        """Accuracy of each client that has test data, in the order of ids."""
        if not self._personal:
            return []
        found: dict[int, float] = {}
        apart = []
        keeps = set(store.clients())
        for client in self._federation.pool:
            rows = self._federation.test_rows(client.id)
            if client.id in keeps or rows is None or marks is None:
                apart.append(client.id)
            elif len(rows):
                found[client.id] = float(marks.right[rows].mean())

        def alone(task: Task, client: int) -> tuple[int, float | None]:
            return client, self._alone(task, ctx, state, store, client)

        own = self._workers.map(alone, apart)
        found |= {id: accuracy for id, accuracy in own if accuracy is not None}
        return [found[id] for id in sorted(found)]

    def _alone(self, task: Task, ctx: Ctx, state: Any, store: Store, client: int) -> float | None:
        """A client's own model on its own test data."""
        model = self._method.model(ctx, state, store.get(client))
        digest = _digest(model)
        known = self._known.get(client)
        if known is not None and known[0] == digest:
            return known[1]
        test = self._federation.client(client).test
        if not len(test):
            return None
        accuracy = float(mark(task, model, test).right.mean())
        self._known[client] = (digest, accuracy)
        return accuracy


def worst_decile(accuracies: Sequence[float]) -> float:
    """The mean over the tenth of clients that fare worst, at least one."""
    count = max(1, len(accuracies) // 10)
    return float(np.mean(sorted(accuracies)[:count]))


def _log_probabilities(task: Task, model: Model, x: Tensor) -> Tensor:
    if not isinstance(model, Ensemble):
        return functional.log_softmax(task.logits(_placed(task, model), x), -1)
    total = sum(model.weights)
    mixed = sum(
        (weight / total) * functional.softmax(task.logits(_placed(task, member), x), -1)
        for member, weight in zip(model.members, model.weights, strict=True)
    )
    assert isinstance(mixed, Tensor)
    return mixed.clamp_min(1e-38).log()


def _placed(task: Task, params: Params) -> Params:
    if task.device == "cpu":
        return params
    return {name: tensor.to(task.device) for name, tensor in params.items()}


def _digest(model: Model) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for member in model.members if isinstance(model, Ensemble) else (model,):
        for tensor in member.values():
            digest.update(tensor.cpu().flatten().view(torch.uint8).numpy().data)
    if isinstance(model, Ensemble):
        digest.update(repr(model.weights).encode())
    return digest.digest()
