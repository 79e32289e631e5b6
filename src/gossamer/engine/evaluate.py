"""Scores of the global model and of every personal model; unchanged models are not repeated."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gossamer import fields
from gossamer.core import Client, Ctx, Ensemble, Examples, Params
from gossamer.data.federation import Federation
from gossamer.engine.accuracies import extent, histogram, worst_decile
from gossamer.engine.events import Evaluated
from gossamer.engine.options import Options
from gossamer.engine.run_record import Run
from gossamer.engine.statistics import Calibration
from gossamer.engine.store import Store
from gossamer.engine.workers import Workers
from gossamer.task import Task
from gossamer.task.layout import Layout
from gossamer.task.metrics import Metric, Numbers

CHUNK = 500
"""Examples evaluated at once; fixed, so that sums are formed in one order."""

MEMORY = 256 * 2**20
"""Bytes of clients' own examples that are cached for the next evaluation."""


LISTED = 1000
"""Clients whose densities are logged one by one."""

GLANCE = 64
"""Numbers of a tensor, evenly spread, that a partial digest reads."""

Model = Params | Ensemble


@dataclass(frozen=True)
class Marks:
    """For every example: the numbers of every metric, by its name, and of its loss."""

    numbers: Mapping[str, Numbers]
    loss: Numbers


@dataclass(frozen=True)
class Figures:
    """One client's model: the headline metric on the client's own data, and its density."""

    test: float | None
    valid: float | None
    density: float | None
    own: bool = False
    """Whether the model is the client's own."""


RemoteFigures = Callable[[Ctx, Any, Sequence[int]], Mapping[int, Figures | None] | None]
"""Asks clients that keep their own states for their figures; see `Transport.figures`."""


def mark(
    task: Task, model: Model, examples: Examples, metrics: Sequence[Metric] | None = None
) -> Marks:
    """Predicts examples in inference mode, and judges them by all metrics or by some."""
    goal = task.goal
    x, y = examples.x.to(task.device), examples.y.to(task.device)
    with torch.inference_mode():
        outputs = _outputs(task, model, x)
        predicted = goal.predictions(outputs)
        chosen = goal.metrics if metrics is None else metrics
        numbers = {each.name: each.per_example(predicted, y) for each in chosen}
        return Marks(numbers, goal.losses(outputs, y))


def mark_all(workers: Workers, model: Model, examples: Examples) -> Marks:
    """Predicts many examples in chunks, spread over the workers."""
    starts = range(0, len(examples), CHUNK)

    def chunk(task: Task, start: int) -> Marks:
        part = slice(start, start + CHUNK)
        return mark(task, model, Examples(examples.x[part], examples.y[part]))

    parts = workers.map(chunk, starts)
    if not parts:
        return Marks({}, np.zeros(0))
    return Marks(
        {name: np.concatenate([part.numbers[name] for part in parts]) for name in parts[0].numbers},
        np.concatenate([part.loss for part in parts]),
    )


def check_selection(options: Options, federation: Federation) -> None:
    """Checks that a round selected on validation data has validation data to be selected on.

    Raises:
        ValueError: No client has validation data, or personal models are not evaluated.
    """
    if options.select != "valid" or not options.eval_every:
        return
    if not options.personal:
        raise ValueError(
            "`select='valid'` goes by every client's own validation data, which `personal=False` "
            "leaves out; use one of the two"
        )
    held = federation.describe().get("valid")
    if not isinstance(held, int):
        held = any(len(federation.client(client.id).valid) for client in federation.pool)
    if not held:
        raise ValueError(
            "`select='valid'` chooses the best round on validation data, but no client has any; "
            "add e.g. `valid=0.1` to hold back a tenth of each client's training data"
        )


def evaluated_clients(run: Run) -> Sequence[Client]:
    """Whose models are evaluated: everybody's, or those of a sample that is always the same."""
    pool, most = run.federation.pool, run.options.eval_clients
    if not most or len(pool) <= most:
        return pool
    chosen = run.key.fold("evaluation").numpy().choice(len(pool), most, replace=False)
    return [pool[index] for index in sorted(chosen.tolist())]


def sample_notice(run: Run) -> str:
    """A sentence if personal figures are those of a sample; empty if they are not."""
    options, count = run.options, len(run.federation.pool)
    if not options.eval_every or not options.personal or not 0 < options.eval_clients < count:
        return ""
    return (
        f"personal figures are those of a sample of {options.eval_clients:,} of {count:,} clients; "
        "`eval_clients=0` evaluates all"
    )


class Evaluator:
    """Evaluates a run's models; a personal model that did not change keeps its figures.

    BatchNorm statistics are recalibrated before evaluation where a method keeps none.
    """

    def __init__(
        self,
        run: Run,
        workers: Workers,
        remote_figures: RemoteFigures = lambda ctx, state, clients: None,
    ) -> None:
        self._method = run.method
        self._federation = run.federation
        self._options = run.options
        self._workers = workers
        self._valid = run.options.select == "valid"
        static = fields.value(run.method, "bn", "running") == "static"
        self._calibration = Calibration(run.federation, workers) if static else None
        self._remote_figures = remote_figures
        self._pool = evaluated_clients(run)
        self._examples = _Examples(run.federation)
        self._known: dict[int, _Known] = {}
        self._settled = True
        """Whether models tend to stay the same: only then are full digests worth their time."""

    def __call__(self, ctx: Ctx, state: Any, store: Store) -> Evaluated:
        """Evaluates the models of a server state and of the clients' states in the store."""
        bare = self._method.model(ctx, state, None)
        shared = self._calibration.shared(ctx.task, bare) if self._calibration else bare
        test = self._federation.test
        wanted = self._options.global_model and len(test)
        marks = mark_all(self._workers, shared, test) if wanted else None
        personal = self._options.personal
        clients = self._clients(ctx, state, store, bare, shared, marks) if personal else []
        goal = ctx.task.goal
        scores = _present(each.test for each in clients)
        valid = _present(each.valid for each in clients)
        densities = _present(each.density for each in clients)
        local = _present(each.test for each in clients if each.own)
        figures = {m.name: m.figure(marks.numbers[m.name]) for m in goal.metrics} if marks else {}
        between = extent(scores, goal.headline.bounds) if scores else (0.0, 1.0)
        return Evaluated(
            round=ctx.round,
            global_accuracy=figures.get("accuracy"),
            global_loss=goal.mean_loss(marks.loss) if marks else None,
            personal_mean=float(np.mean(scores)) if scores else None,
            personal_std=float(np.std(scores)) if scores else None,
            personal_worst_decile=worst_decile(scores, goal.headline.better) if scores else None,
            clients=len(scores),
            valid_mean=float(np.mean(valid)) if valid else None,
            personal_density=float(np.mean(densities)) if densities else None,
            local_mean=float(np.mean(local)) if local else None,
            personal_histogram=histogram(scores, between) if scores else None,
            personal_range=between if scores else None,
            personal_densities=[round(each, 5) for each in densities[:LISTED]] or None,
            global_score=figures.get(goal.headline.name),
            global_metrics=figures,
            metric=goal.headline.name,
            better=goal.headline.better,
        )

    def _clients(
        self, ctx: Ctx, state: Any, store: Store, bare: Model, shared: Model, marks: Marks | None
    ) -> list[Figures]:
        """Every client's figures, in the order of ids; densities only if models are personal.

        `bare` is the global model as the method returns it, `shared` as it is evaluated.
        """
        keeps = {client.id for client in self._pool}.intersection(store.clients())
        remote = self._remote_figures(ctx, state, sorted(keeps))
        by_client: dict[int, Figures] = {}
        pending = []
        for client in self._pool:
            if remote is not None and client.id in keeps:
                keeps.discard(client.id)
                if client.id not in remote:
                    continue
                if figures := remote[client.id]:
                    by_client[client.id] = figures
                    continue
            chosen = self._federation.test_rows(client.id)
            if client.id in keeps or self._valid or chosen is None or marks is None:
                pending.append(client.id)
            else:
                by_client[client.id] = Figures(_score(ctx.task, marks, chosen), None, None)

        def one(task: Task, client: int) -> tuple[Figures, bool | None]:
            if client in keeps:
                model = self._method.model(ctx, state, store.get(client))
                if not is_global(model, bare):
                    return self._own(task, model, client)
            return self._measure(task, shared, client, None, marks), None

        measured = self._workers.map(one, pending)
        compared = [same for _, same in measured if same is not None]
        self._settled = any(compared) if compared else self._settled
        by_client |= {id: figures for id, (figures, _) in zip(pending, measured, strict=True)}
        listed = [by_client[id] for id in sorted(by_client)]
        if not _present(each.density for each in listed):
            return listed
        common = density(ctx.task.layout, bare)
        return [replace(each, density=common) if each.density is None else each for each in listed]

    def personal(self, ctx: Ctx, state: Any, client: int, local: Any) -> Figures | None:
        """Figures of one client's model; None if it is the global one."""
        model = self._method.model(ctx, state, local)
        if is_global(model, self._method.model(ctx, state, None)):
            return None
        return self._own(ctx.task, model, client)[0]

    def _own(self, task: Task, model: Model, client: int) -> tuple[Figures, bool | None]:
        """Figures of a client's own model, and whether it looks like the last one, if any.

        A partial digest tells most models that changed; only one that is equal is read in full.
        """
        known = self._known.get(client)
        glance = _digest(model, GLANCE)
        same = known.glance == glance if known else None
        digest = _digest(model) if same or self._settled else None
        if known and same and known.digest == digest:
            return known.figures, True
        kept = density(task.layout, model)
        if self._calibration:
            model = self._calibration.own(task, model, client)
        figures = replace(self._measure(task, model, client, kept, None), own=True)
        self._known[client] = _Known(glance, digest, figures)
        return figures, same

    def _measure(
        self, task: Task, model: Model, client: int, density: float | None, marks: Marks | None
    ) -> Figures:
        """A model on a client's own data; marks on the server's test set are reused."""
        chosen = self._federation.test_rows(client)
        if marks is not None and chosen is not None:
            test = _score(task, marks, chosen)
        else:
            test = _measured(task, model, self._examples.test(client))
        valid = _measured(task, model, self._examples.valid(client)) if self._valid else None
        return Figures(test, valid, density)


def density(layout: Layout, model: Model) -> float:
    """The share of prunable weights that are not zero, over all members of an ensemble."""
    members = model.members if isinstance(model, Ensemble) else (model,)
    total = len(members) * layout.total("count", layout.prunable)
    kept = sum(int(torch.count_nonzero(each[name])) for each in members for name in layout.prunable)
    return kept / total if total else 1.0


class _Examples:
    """Clients' own test and validation data, cached as far as memory allows."""

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self._kept: dict[int, tuple[Examples, Examples]] = {}
        self._bytes = 0

    def test(self, client: int) -> Examples:
        """Rows of the server's test set, where they are part of it."""
        chosen, test = self._federation.test_rows(client), self._federation.test
        if chosen is None or not len(test):
            return self._own(client)[0]
        return test.take(np.arange(len(test))[chosen])

    def valid(self, client: int) -> Examples:
        """What the client holds back of its training data."""
        return self._own(client)[1]

    def _own(self, client: int) -> tuple[Examples, Examples]:
        if client in self._kept:
            return self._kept[client]
        data = self._federation.client(client)
        own = (data.test, data.valid)
        size = sum(tensor.nbytes for each in own for tensor in (each.x, each.y))
        # Clients are visited in turn: dropping the oldest would drop what is needed next.
        if self._bytes + size <= MEMORY:
            self._bytes += size
            self._kept[client] = own = (_compact(data.test), _compact(data.valid))
        return own


@dataclass(frozen=True)
class _Known:
    """A personal model that was evaluated, with its partial and, if computed, its full digest."""

    glance: bytes
    digest: bytes | None
    figures: Figures


def is_global(model: Model, shared: Model) -> bool:
    """Whether a client's model consists of the very tensors of the global model."""
    if isinstance(model, Ensemble) or isinstance(shared, Ensemble):
        return False
    return model.keys() == shared.keys() and all(model[name] is shared[name] for name in shared)


def _present(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _measured(task: Task, model: Model, examples: Examples) -> float | None:
    """The headline metric on some examples."""
    if not len(examples):
        return None
    return _score(task, mark(task, model, examples, [task.goal.headline]), slice(None))


def _score(task: Task, marks: Marks, rows: np.ndarray | slice) -> float | None:
    """The headline metric of some rows."""
    headline = task.goal.headline
    return headline.figure(marks.numbers[headline.name][rows])


def _compact(examples: Examples) -> Examples:
    """A copy: examples may be views of all data of a client, which a tensor does not tell."""
    return Examples(examples.x.clone(), examples.y.clone())


def _outputs(task: Task, model: Model, x: Tensor) -> Tensor:
    if not isinstance(model, Ensemble):
        return task.goal.outputs(task.logits(_placed(task, model), x))
    members = [task.logits(_placed(task, member), x) for member in model.members]
    return task.goal.mixed(members, model.weights)


def _placed(task: Task, params: Params) -> Params:
    if task.device == "cpu":
        return params
    return {name: tensor.to(task.device) for name, tensor in params.items()}


def _digest(model: Model, most: int | None = None) -> bytes:
    """A hash of all numbers of a model, or of at most `most` numbers of every tensor."""
    digest = hashlib.blake2b(digest_size=16)
    for member in model.members if isinstance(model, Ensemble) else (model,):
        for tensor in member.values():
            flat = tensor.cpu().flatten()
            if most:
                flat = flat[:: len(flat) // most + 1].contiguous()
            digest.update(flat.view(torch.uint8).numpy().data)
    if isinstance(model, Ensemble):
        digest.update(repr(model.weights).encode())
    return digest.digest()
