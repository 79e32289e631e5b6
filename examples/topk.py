"""Top-k: clients send the largest tenth of what they changed, and keep the rest for the next time.

Stich, Cordonnier, Jaggi: Sparsified SGD with memory. NeurIPS 2018. https://arxiv.org/abs/1809.07599
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gossamer import Training, merge, option, sample, wire
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Masks, Params, Result
from gossamer.methods.fedavg import Server
from gossamer.methods.parts import dense_model
from gossamer.methods.parts.dense_model import Down, Work
from gossamer.sparsity import inactive, largest, masked


@dataclass(frozen=True)
class Local:
    rest: Params  # what the client has not sent yet


@dataclass(frozen=True)
class Up:
    places: Masks
    changes: wire.Packed  # the values at these places, and no others


@dataclass(frozen=True)
class TopK:
    clients: int = option(10, "clients per round", least=1)
    share: float = option(0.1, "fraction of the changes that is sent", above=0, most=1)
    training: Training = Training()

    def init(self, ctx: Ctx) -> Server:
        return Server(ctx.task.init(ctx.common.fold("init")))

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return sample(ctx.key, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        return Down(state.params)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        sent = ((wire.unpack(e.up.changes, e.up.places), e.client.examples) for e in exchanges)
        mean = merge.mean(sent)
        return Server({**state.params, **{n: state.params[n] + mean[n] for n in mean}})

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        job = dense_model.begin(ctx, self.training, down.params, None, anchored=True)
        for name, rest in (local.rest if local else {}).items():
            job.work.anchor[name] -= rest  # so that it is part of this round's change
        return job

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        return dense_model.step(ctx, self.training, work, batch)

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        change = {name: after - work.anchor[name] for name, after in work.params.items()}
        shares = {name: 1 if name in ctx.task.layout.buffers else self.share for name in change}
        places = largest(change, {n: round(shares[n] * change[n].numel()) for n in change})
        rest = masked(change, inactive(places))
        return Result(Up(places, wire.pack(change, places)), Local(rest))

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        return state.params
