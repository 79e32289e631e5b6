"""Other readings of PruneFL.

The authors' code can lower the density that it allows to a target (`target_density`). FedDST's
authors run PruneFL on the last gradient of a round, averaged and then squared (`gathering last`),
and others on one round's gradients (`gathering round`). A weight that returns may start from zero
(`comeback zero`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import fsum
from typing import Any, Literal

from gossamer import fields, merge, sparsity
from gossamer.core import Batch, Ctx, Exchange, Result
from gossamer.fields import option
from gossamer.methods.as_published.delegation import variants_of
from gossamer.methods.parts import masked_training
from gossamer.methods.prunefl import Down, Local, Measured, PruneFL, Server, Up, Work
from gossamer.sparsity import Importance


@variants_of(PruneFL)
@dataclass(frozen=True)
class PruneFLVariants:
    pure: PruneFL = PruneFL()
    target_density: float = option(
        0.0, "max-density falls linearly to this in the run; 0: constant", least=0, most=1
    )
    gathering: Literal["all", "round", "last"] = option(
        "all", "importance: of all rounds with a mask, of one round, or of a round's last step"
    )
    comeback: Literal["kept", "zero"] = option(
        "kept", "a weight that returns has the value it was pruned with, or zero"
    )

    @property
    def spans_rounds(self) -> str:
        """The fall of the density, and the schedule of the pure method."""
        target = f"--target-density {self.target_density:g}" if self.target_density else ""
        return fields.listed(target, fields.spans_rounds(self.pure))

    def init(self, ctx: Ctx) -> Server:
        if self.target_density > self.pure.max_density:
            raise ValueError(
                f"`target_density={self.target_density:g}` is above "
                f"`max_density={self.pure.max_density:g}`, from which it is reached; choose a "
                f"lower target"
            )
        return self.pure.init(ctx)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        density = self.pure.max_density
        if self.target_density:
            density += (self.target_density - density) * min(state.rounds / ctx.rounds, 1)
        if self.gathering == "last" and not self.pure.in_first_phase(state):
            exchanges = squared_mean(exchanges, self.pure.weighting)
        after = replace(self.pure, max_density=density).merge(ctx, state, exchanges)
        if self.comeback == "zero" and after.version != state.version:
            after = replace(after, params=sparsity.masked(after.params, after.masks))
        return after

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        if self._gathers_always(work) or (self.gathering == "round" and work.sends):
            return self.pure.step(ctx, work, batch)
        if not work.sends:
            masked_training.step(ctx, self.pure.training, work.model, batch)
            return work
        for tensor in work.gathered.sums.values():
            tensor.zero_()
        return self.pure.step(ctx, work, batch)

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        done = self.pure.finish(ctx, work)
        if self._gathers_always(work):
            return done
        local = Local(work.model.masks, None)
        if not isinstance(done.up, Measured):
            return replace(done, local=local, trained={})
        if self.gathering == "last":
            sums, masks = work.gathered.sums, work.model.masks
            rest = fsum(float(x.square().sum()) for name, x in sums.items() if name not in masks)
            last = Importance({name: sums[name] for name in masks}, rest)
            return replace(done, up=replace(done.up, importance=last))
        return done

    def _gathers_always(self, work: Work) -> bool:
        return self.gathering == "all" or work.gathered.squared


def squared_mean(
    exchanges: Iterable[Exchange[Down, Up]], weighting: merge.Weighting
) -> Iterator[Exchange[Down, Up]]:
    """The exchanges with importance that sums to the square of the clients' mean gradient.

    All of it is in the last exchange, so that gradients need not be kept.
    """
    total: Importance | None = None
    weights, latest = 0.0, None
    for exchange in exchanges:
        if latest is not None:
            yield latest
        latest = exchange
        if isinstance(exchange.up, Measured):
            gradient, weight = exchange.up.importance, merge.weight(exchange.client, weighting)
            total, weights = gradient.times(weight).plus(total), weights + weight
            up = replace(exchange.up, importance=gradient.times(0.0))
            latest = replace(exchange, up=up)
    if latest is not None and total is not None and isinstance(latest.up, Measured):
        mean = total.times(1 / weights)
        squares = Importance({name: grad**2 for name, grad in mean.weights.items()}, mean.rest)
        latest = replace(latest, up=replace(latest.up, importance=squares))
    if latest is not None:
        yield latest


ENTRIES: dict[str, Any] = {
    "prunefl-variants": PruneFLVariants(),
}
