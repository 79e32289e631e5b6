"""PFFDST as its authors' released code runs it, on FLASH's masks, and in every other reading.

The released code freezes the model that did best on test data, draws clients with replacement,
weights them by batches, and charges neither the first model nor the frozen part (`code_parity`).
Its flags also contradict one another: the released run readjusts for half of the first phase, never
in the second, and keeps all that the second phase begins with (`released`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor

from gossamer import sparsity
from gossamer.accounting import Accounting
from gossamer.core import Batch, Client, Ctx, Exchange, Job, Masks, Measures, Params, Result
from gossamer.fields import option
from gossamer.methods import pffdst
from gossamer.methods.as_published import mask_learning
from gossamer.methods.as_published.delegation import variants_of
from gossamer.methods.as_published.feddst import First, Start, first_masks
from gossamer.methods.as_published.mask_learning import Learning
from gossamer.methods.as_published.pffdst_phases import Phases
from gossamer.methods.as_published.repeated_draws import Sampling, Weighted
from gossamer.methods.parts import frozen_weights, masked_training, sensitivity_probe, sparse_model
from gossamer.methods.parts.client_readjustment import TRAINING, accepted, readjust
from gossamer.methods.parts.frozen_weights import Local
from gossamer.methods.parts.held_versions import NOBODY
from gossamer.methods.parts.sensitivity_probe import Probe, Sensitivity, mean_sensitivity
from gossamer.methods.parts.sparse_model import BatchNorm, SparseModel
from gossamer.methods.pffdst import PFFDST, Down
from gossamer.optim import Training
from gossamer.wire import Drawn, Revision, WireError

FreezeFrom = Literal["last", "best-valid", "best-test"]


@dataclass(frozen=True)
class Server:
    params: Params
    masks: Masks
    frozen: Masks
    version: int
    held: Tensor
    holders: Tensor
    trimmed: bool
    measured: dict[str, float]  # densities of layers, if a probe measured them
    best: Params  # the best model of the first phase so far, if that will be frozen
    best_masks: Masks
    best_score: float
    mean_jaccard: float = 0.0

    @property
    def shared(self) -> frozen_weights.Server:
        """The state of the paper's method."""
        names = [field.name for field in fields(frozen_weights.Server)]
        return frozen_weights.Server(**{name: getattr(self, name) for name in names})


@dataclass(frozen=True)
class Up:
    model: SparseModel
    mask: Revision | None  # only if clients move masks
    score: float | None  # accuracy of the model received; -1 if the client has no test data


Message = Probe | First | Down
Reply = Sensitivity | Up


@dataclass
class Work:
    learning: mask_learning.Work
    score: float | None


@variants_of(PFFDST)
@dataclass(frozen=True)
class PFFDSTVariants:
    clients: int = option(20, "clients per round", least=1)
    training: Training = replace(TRAINING, epochs=2)
    phases: Phases = Phases()
    prune_rate: float = option(
        0.25, "fraction of a layer that an update of learned masks prunes", least=0, most=1
    )
    learning: Learning = Learning()
    probe_clients: int = option(10, "clients of the probe round", least=1)
    probe_epochs: float = option(10.0, "local epochs of the probe round", above=0)
    mask_start: Start = option("magnitude", "first mask: the largest first weights, or random")
    freeze_from: FreezeFrom = option("last", "which model of the first phase is frozen")
    freeze_norm: bool = option(False, "scales of normalisation layers are frozen too")
    sampling: Sampling = Sampling()
    free_first_download: bool = option(
        False, "clients of the first round draw its model from the seed; nothing is sent"
    )
    bn: BatchNorm = option("running", sparse_model.BN_HELP)
    accounting: Accounting = Accounting(uncharged="keeps,score")

    @property
    def pure(self) -> PFFDST:
        """The method of the paper, for all that no option changes."""
        return replace(self.phases.pure, clients=self.clients, training=self.training, bn=self.bn)

    @property
    def spans_rounds(self) -> str:
        """Its phases, and how long masks are readjusted in them."""
        return self.pure.spans_rounds

    def init(self, ctx: Ctx) -> Server:
        least = self.phases.probes + (2 if self.phases.freezing else 1)
        if ctx.rounds < least:
            raise ValueError(
                f"a phase takes a round, and so does a probe; use `rounds={least}` or more, or "
                f"`freezing=False`"
            )
        self.learning.check(self.training, self.prune_rate)
        params = ctx.task.init(ctx.common.fold("init"))
        if self.phases.probes:
            masks = self._probed(ctx).masks()
        else:
            counts = self.phases.quotas(ctx, self.pure.part + self.pure.extra)
            masks = first_masks(ctx, params, counts, self.mask_start)
        params = sparsity.masked(params, masks)
        return Server(params, masks, {}, 0, NOBODY, NOBODY, False, {}, {}, {}, -1.0)

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        if self.phases.probing(ctx):
            return Sampling().cohort(ctx, pool, min(self.probe_clients, len(pool)))
        return self.sampling.cohort(ctx, pool, self.clients)

    def down(self, ctx: Ctx, state: Server, client: Client) -> Message:
        if self.phases.probing(ctx):
            model = sparse_model.send(ctx, state.params, state.masks, self.bn)
            return Probe(model, self._probed(ctx), None)
        if self.free_first_download and ctx.round == 1:
            return First()
        return self.pure.down(ctx, state.shared, client)

    def resend(self, ctx: Ctx, state: Server, client: Client) -> Down:
        """The message for a client that lost its mask or the frozen part."""
        return self.pure.resend(ctx, state.shared, client)

    def merge(
        self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Message, Reply]]
    ) -> Server:
        if self.phases.probing(ctx):
            return self._begun(ctx, state, exchanges)
        participants: list[int] = []
        scores: list[tuple[float, float]] = []
        shared, trained = state.shared, state.shared.trained
        sent = sparse_model.send(ctx, state.params, trained, self.bn)
        counts = self.phases.quotas(ctx, self.phases.target(ctx))

        def replies() -> Iterator[Weighted]:
            for exchange in exchanges:
                up, client = exchange.up, exchange.client
                if not isinstance(up, Up):
                    raise WireError("densities of layers came back where weights were asked for")
                masks = accepted(up.mask, trained, counts, state.frozen)
                params = sparse_model.receive_reply(ctx, up.model, sent, masks)
                participants.append(client.id)
                share = self.sampling.weight(client, self.training.batch)
                if up.score is not None and not -1 <= up.score <= 1:
                    raise WireError(f"an accuracy of {up.score:g} came back, which is none")
                if up.score is not None and up.score >= 0:
                    scores.append((up.score, share))
                yield params, masks, share

        weighted = self.sampling.repeated(ctx, replies(), participants, self.clients)
        average = sparsity.masked_mean(weighted, "wfa", otherwise=state.params)
        if not participants:
            return state
        shared = self.phases.readjusted(
            ctx, frozen_weights.merged(shared, average, participants), average
        )
        state = replace(_scored(state, scores), **vars(shared))
        return self._frozen(ctx, state) if self.phases.over(ctx) and not state.frozen else state

    def replies(self, ctx: Ctx, down: Message) -> Sequence[Reply]:
        """Example replies, from which the reply schema is derived."""
        if isinstance(down, Probe):
            return [Sensitivity(torch.zeros(len(ctx.task.layout.prunable)))]
        mask = Revision(sparse_model.all_zeros(ctx)) if self.phases.moves(ctx) else None
        return [Up(self._read(ctx, down).model, mask, 0.0 if self._scores(ctx) else None)]

    def begin(self, ctx: Ctx, down: Message, local: Local | None) -> Job[Work]:
        intended = self.phases.intended(ctx)
        if isinstance(down, Probe):
            masks = down.mask.masks()
            params = sparse_model.receive(ctx, down.model, masks)
            model = masked_training.begin(ctx, params, masks, self.training.lr)
            learning = mask_learning.Work(model, True, probe=True, intended=intended)
            return Job(Work(learning, None), self.probe_epochs, self.training.batch)
        job = self.pure.begin(self.phases.since_probe(ctx), self._read(ctx, down), local)
        model = job.work
        if model.frozen and self.freeze_norm:
            everything = {n: torch.ones_like(model.params[n]).bool() for n in scales(ctx)}
            model.model.fixed = {**model.frozen, **everything}
        learning = mask_learning.Work(model, self.phases.moves(ctx), intended=intended)
        score = accuracy(ctx, model.params, self.freeze_from) if self._scores(ctx) else None
        return Job(Work(learning, score), job.epochs, job.batch)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        training, phases = self.training, self.phases
        if work.learning.probe or phases.readjust == "learned":
            rate = self.prune_rate
            mask_learning.step(ctx, training, self.learning, work.learning, batch, rate)
            return work
        masked_training.step(ctx, training, work.learning.model, batch)
        if work.learning.moves and batch.step + 1 == batch.steps:
            low = phases.quotas(ctx, phases.target(ctx) * (1 - phases.rate(ctx)))
            high = phases.quotas(ctx, phases.target(ctx))
            readjust(ctx, work.learning.model, batch, low, high, phases.readjustment.feddst_growth)
        return work

    def finish(self, ctx: Ctx, work: Work) -> Result[Reply, Local]:
        model, moves = work.learning.model, work.learning.moves
        metrics = masked_training.metrics(model, moves)
        if work.learning.probe:
            probed = sensitivity_probe.sensitivity(ctx, model.masks)
            needed = mask_learning.trained(self.learning, work.learning)
            return Result(probed, None, model.masks, needed, metrics)
        pure = self.pure.finish(self.phases.since_probe(ctx), model)
        mask = Revision(model.masks, None if model.frozen else model.start) if moves else None
        up = Up(pure.up.model, mask, work.score)
        return Result(up, pure.local, pure.masks, pure.trained, metrics, pure.searched)

    def measures(self, ctx: Ctx, state: Server) -> Measures:
        """The masks, the density of the frozen part, and how far apart the masks of clients are."""
        return self.pure.measures(ctx, state.shared)

    def _scores(self, ctx: Ctx) -> bool:
        """Whether clients report the accuracy of the model that they receive."""
        first = self.phases.clock(ctx)[0] == 1
        return self.freeze_from != "last" and self.phases.freezing and first

    def _read(self, ctx: Ctx, down: First | Down) -> Down:
        """The message itself, or the one that the first message stands for."""
        if isinstance(down, First):
            return self.pure.resend(ctx, self.init(ctx).shared, Client(0, 0))
        return down

    def _probed(self, ctx: Ctx) -> Drawn:
        """The random mask of the probe round, as dense as the model will be in the end."""
        counts = self.phases.quotas(ctx, sparsity.as_fraction(self.phases.density))
        return sensitivity_probe.seed(ctx, counts, 0)

    def _begun(
        self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Message, Reply]]
    ) -> Server:
        """After the probe: a random mask with the densities that clients measured."""
        measured = mean_sensitivity(ctx, (exchange.up for exchange in exchanges))
        if not measured:
            return state
        counts = self.phases.quotas(ctx, self.pure.part + self.pure.extra, measured)
        masks = sparsity.random_masks(ctx.common.fold("masks", 1), ctx.task.layout, counts)
        params = sparsity.masked(ctx.task.init(ctx.common.fold("init", 1)), masks)
        densities = {name: float(share) for name, share in measured.items()}
        return replace(state, params=params, masks=masks, version=1, measured=densities)

    def _frozen(self, ctx: Ctx, state: Server) -> Server:
        """The second phase beside the last model of the first one, or beside its best."""
        shared = state.shared
        if state.best:
            params = {**state.params, **state.best}
            shared = replace(shared, params=params, masks=state.best_masks)
        measured = {name: sparsity.as_fraction(share) for name, share in state.measured.items()}
        counts = self.phases.second(ctx, shared.masks, measured)
        shared = pffdst.second_phase(ctx, shared, counts)
        return replace(state, **vars(shared), best={}, best_masks={})


def _scored(state: Server, scores: Sequence[tuple[float, float]]) -> Server:
    """Remembers the model that clients just evaluated, if it is the best so far."""
    if not scores:
        return state
    mean = sum(score * share for score, share in scores) / sum(share for _, share in scores)
    if mean <= state.best_score:
        return state
    return replace(state, best=state.params, best_masks=state.masks, best_score=mean)


def accuracy(ctx: Ctx, params: Params, by: FreezeFrom) -> float:
    """The accuracy of a model on the client's validation or test data."""
    held = ctx.own.valid if by == "best-valid" else ctx.own.test
    if not len(held):
        if by == "best-test":
            return -1.0
        raise ValueError(
            "`freeze_from='best-valid'` needs validation data, and this client has none; "
            "use e.g. `valid=0.1`"
        )
    return ctx.task.share(ctx.task.own(params), held)[0]


def scales(ctx: Ctx) -> list[str]:
    """The names of the scales of normalisation layers."""
    leaves = ctx.task.layout.leaves
    return [n for n, leaf in leaves.items() if leaf.kind == "norm" and n.endswith("weight")]


def pfflash() -> PFFDSTVariants:
    """PFFDST's appendix C: freezing on FLASH's random masks with probed densities."""
    training = Training(epochs=1, batch=32, lr=0.1, schedule="exponential-to", lr_end=0.001)
    phases = Phases(density=0.05, readjust="none", allocation="sensitivity", rounding="exact")
    return PFFDSTVariants(clients=10, training=training, phases=phases, mask_start="random")


def code_parity(method: PFFDSTVariants) -> PFFDSTVariants:
    """The released code; its second softmax is an option of the model."""
    growth = replace(method.phases.readjustment, feddst_growth=True)
    return replace(
        method,
        phases=replace(method.phases, readjustment=growth),
        freeze_from="best-test",
        freeze_norm=True,
        sampling=Sampling("batches", replacement=True),
        free_first_download=True,
        accounting=replace(method.accounting, uncharged="keeps,score,frozen"),
    )


def released() -> PFFDSTVariants:
    """The run that the flags of the released code's own example amount to."""
    code = code_parity(PFFDSTVariants())
    return replace(code, phases=replace(code.phases, trim_at=0.5, readjust_second=False))


ENTRIES: dict[str, Any] = {
    "pffdst-variants": PFFDSTVariants(),
    "pffdst-code": code_parity(PFFDSTVariants()),
    "pffdst-release": released(),
    "pfflash": pfflash(),
}
