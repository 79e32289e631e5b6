"""SpaFL's worked example, and clients driven by hand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gossamer import Batch, Client, Ctx, Data, Examples, Exchange, Key, Params, Task, fields
from gossamer.engine.client import batches
from gossamer.methods import spafl as pure
from gossamer.methods.as_published.spafl import NOTHING, Down, Local, Server, SpaFLVariants, Up
from gossamer.methods.as_published.spafl_training import Work
from gossamer.methods.spafl import SpaFL
from gossamer.task.layout import Layout
from gossamer.wire import dump, load, record_types
from helpers import Toy, client_ctx, server_ctx

# Section 5.4 of the specification: two neurons with three inputs.
WEIGHT = ((0.5, -0.2, 0.1), (-0.4, 0.3, -0.6))
TAU = (0.15, 0.35)
INPUT = (0.1, 0.2, 0.3)
GRADIENT = ((0.1, 0.2, 0.3), (-0.2, -0.4, -0.6))
PULL = (1.0, -2.0)


def exact(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def close(found: Tensor, wanted: Any) -> None:
    """Equal to the eight digits that the specification prints."""
    torch.testing.assert_close(found, exact(wanted), rtol=0, atol=1e-8)


def weights(work: Any) -> dict[str, Tensor]:
    """All weights of a client's work; the variants hold them in their model."""
    return getattr(work, "params", None) or work.model.params


AnySpaFL = SpaFL | SpaFLVariants


def spafl(**changes: Any) -> AnySpaFL:
    """SpaFL with the rates of the worked example; its variants where an option is theirs alone."""
    plain = {"lr": 0.1, "alpha": 0.01, "momentum": 0.0, "epochs": 2.0, "clients": 2}
    return changed({**plain, **changes})


def changed(changes: dict[str, Any]) -> AnySpaFL:
    """SpaFL with other settings; its variants where one of them is theirs alone."""
    own = {setting.name: setting.choices for setting in fields.settings(SpaFL())}
    fits = all(name in own and value in (own[name] or [value]) for name, value in changes.items())
    return fields.replace(SpaFL() if fits else SpaFLVariants(), changes)


def layout_of(method: AnySpaFL, task: Task) -> Layout:
    """The layout in which the tensors with thresholds are prunable."""
    return task.layout if isinstance(method, SpaFL) else method._layout(server_ctx(task))


def followed(method: AnySpaFL, task: Task, params: Params, versions: Tensor) -> Params:
    """Weights after the thresholds went through some versions, the first of which is not new."""
    if isinstance(method, SpaFL):
        return method.followed(server_ctx(task), params, versions)
    return method.followed(layout_of(method, task), params, versions)


def masks_of(method: AnySpaFL, task: Task, params: Params, thresholds: Tensor) -> Params:
    structured = method.structured if isinstance(method, SpaFL) else method.pruning.structured
    parts = pure.by_layer(layout_of(method, task), thresholds)
    return {name: pure.mask_of(params[name], part, structured) for name, part in parts.items()}


def layer(weight: Any = WEIGHT, pull: Sequence[float] = PULL) -> Task:
    """A linear layer in float64 whose loss is `pull` times its outputs: the gradient is known."""
    values = exact(weight)
    module = nn.Linear(values.shape[1], values.shape[0], bias=False).double()
    with torch.no_grad():
        module.weight.copy_(values)

    def criterion(outputs: Tensor, labels: Tensor) -> Tensor:
        return (outputs * torch.tensor(pull)).sum()

    example = torch.zeros(2, values.shape[1], dtype=torch.float64)
    return Task.of(module, example, criterion=criterion, start="seed")


def state(task: Task) -> Params:
    """The tensors that a task's module came with."""
    tensors = {**dict(task.module.named_parameters()), **dict(task.module.named_buffers())}
    return {name: tensors[name].detach().clone() for name in task.layout.names}


def tell(thresholds: Tensor, *missed: Tensor) -> Down:
    """A message with all that SpaFL or its variants read."""
    rows = torch.stack(missed) if missed else thresholds.new_zeros(0, len(thresholds))
    return Down(thresholds, rows, {}, {})


def kept(method: AnySpaFL, ctx: Ctx, params: Params, known: Tensor) -> Any:
    """What a client keeps that holds some weights and has received some thresholds."""
    if isinstance(method, SpaFL):
        return pure.Local(params, known)
    layers = len(layout_of(method, ctx.task).prunable)
    return Local(params, known, known, {}, NOTHING, torch.ones(layers))


def start(
    method: AnySpaFL, task: Task, thresholds: Tensor, round: int = 1, params: Params | None = None
) -> tuple[Ctx, Work]:
    """A client at work with the weights of the task's module, told thresholds it knew before."""
    nobody = Examples(torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64))
    ctx = client_ctx(task, nobody, round)
    local = kept(method, ctx, params or state(task), thresholds)
    return ctx, method.begin(ctx, tell(thresholds), local).work


def feed(
    method: AnySpaFL, ctx: Ctx, work: Work, steps: Sequence[int], x: Any = INPUT, per_epoch: int = 1
) -> Work:
    """Some steps of two epochs, all on the same example."""
    inputs, labels = exact([x]), torch.zeros(1, dtype=torch.int64)
    for step in steps:
        place = (step, 2 * per_epoch, step // per_epoch, 2.0, per_epoch)
        work = method.step(ctx, work, Batch(inputs, labels, Key(0).fold(step), *place))
    return work


def watched(
    method: AnySpaFL, ctx: Ctx, down: Down, local: Local | None
) -> Iterator[tuple[str, Work]]:
    """A client's work at the start and after every batch, with the kind of step it was."""
    job = method.begin(ctx, down, local)
    work = job.work
    yield "start", work
    for batch in batches(ctx, job):
        last = batch.step >= batch.steps - batch.per_epoch
        work = method.step(ctx, work, batch)
        yield ("thresholds" if last else "weights"), work


def up(down: Any, thresholds: Tensor) -> Any:
    """A reply of the form that suits a message."""
    return Up(thresholds, down.norm) if isinstance(down, Down) else pure.Up(thresholds)


def reply(client: int, down: Any, thresholds: Tensor) -> Exchange[Any, Any]:
    return Exchange(Client(client, 20), down, up(down, thresholds))


def merged(
    method: AnySpaFL, task: Task, server: Server, answers: dict[int, Tensor], round: int = 1
) -> Server:
    """The server after a round in which some clients sent some thresholds."""
    ctx = server_ctx(task, round)
    downs = {id: method.down(ctx, server, Client(id, 20)) for id in answers}
    return method.merge(ctx, server, [reply(id, downs[id], up) for id, up in answers.items()])


def copy(params: Params) -> Params:
    return {name: tensor.clone() for name, tensor in params.items()}


class Pictures:
    """Clients with a few random examples of any shape."""

    name = "pictures"
    augment = None

    def __init__(self, shape: Sequence[int], classes: int, pool: int = 3, size: int = 6) -> None:
        self.shape, self.classes, self.size = tuple(shape), classes, size
        self.pool = [Client(id, size) for id in range(pool)]
        self.test = self.make(Key(3), 4)

    def make(self, key: Key, count: int) -> Examples:
        draw = key.generator()
        labels = torch.randint(self.classes, (count,), generator=draw)
        return Examples(torch.randn(count, *self.shape, generator=draw), labels)

    def describe(self) -> dict[str, object]:
        return {"name": self.name, "classes": self.classes}

    def client(self, id: int) -> Data:
        key = Key(4).fold(id)
        test = self.make(key.fold("test"), 2)
        return Data(self.make(key, self.size), self.make(key, 0), test)

    def test_rows(self, id: int) -> None:
        return None


def toy(**changes: Any) -> AnySpaFL:
    """Steps large enough to see within a few batches."""
    return spafl(**{"batch": 8, "momentum": 0.9, "epochs": 3.0, "alpha": 0.05, **changes})


def images(count: int = 20) -> Examples:
    draw = Key(6).generator()
    return Examples(torch.randn(count, 3, 6, 6, generator=draw), torch.arange(count) % 2)


def data(task: Task) -> Examples:
    """Twenty examples that fit a task of the helpers."""
    convolves = any(leaf.kind == "conv" for leaf in task.layout.leaves.values())
    return images() if convolves else Toy().make(Key(3), 20)


def told(task: Task, method: AnySpaFL, size: float = 1.0) -> Tensor:
    """Thresholds around the mean magnitudes of rows: every other row is above its own."""
    params = task.init(server_ctx(task).common.fold("init"))
    names = layout_of(method, task).prunable
    means = torch.cat([params[name].abs().flatten(1).mean(1) for name in names])
    return size * means * torch.tensor([0.8, 1.1]).repeat(len(means))[: len(means)]


def again(record: Any) -> Any:
    """A record as it comes back from disk."""
    method = SpaFLVariants() if isinstance(record, Local) else SpaFL()
    return load(dump(record), record_types(method))


@dataclass
class Told:
    """A run in which replies are drawn at random: what the server holds, and who heard what."""

    method: AnySpaFL
    task: Task
    reach: float = 0.3
    round: int = 0
    server: Server = field(init=False)
    downs: dict[int, Down] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)
    """By client: the version it heard of last."""

    def __post_init__(self) -> None:
        self.server = self.method.init(server_ctx(self.task, 0))

    def next(self, clients: Iterable[int], refused: Iterable[int] = ()) -> None:
        """A round in which `clients` are asked, and the replies of some do not count."""
        self.round += 1
        ctx, count = server_ctx(self.task, self.round), self.server.history.shape[1]
        self.downs = {id: self.method.down(ctx, self.server, Client(id, 20)) for id in clients}
        answers = [
            reply(id, down, self.reach * torch.rand(count, generator=self.draw(id)))
            for id, down in self.downs.items()
            if id not in refused
        ]
        version = len(self.server.history) - 1
        self.last |= {exchange.client.id: version for exchange in answers}
        self.server = self.method.merge(ctx, self.server, iter(answers))

    def draw(self, client: int) -> torch.Generator:
        return Key(11).fold(self.round, client).generator()

    @property
    def now(self) -> Tensor:
        """The newest thresholds."""
        return self.server.history[-1]

    @property
    def ctx(self) -> Ctx:
        return client_ctx(self.task, data(self.task), self.round + 1)

    def down(self, client: int) -> Down:
        """What a client would be told next."""
        return self.method.down(
            server_ctx(self.task, self.round + 1), self.server, Client(client, 20)
        )

    def work(self, client: int, local: Local | None) -> Work:
        return self.method.begin(self.ctx, self.down(client), local).work

    def model(self, local: Local | None) -> Params:
        return self.method.model(server_ctx(self.task, self.round), self.server, local)
