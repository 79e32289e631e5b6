"""FedDrop with the other readings of its papers, as options.

The papers do not say whether activations are rescaled, whether clients of a round share a
sub-model, whom a weight is averaged over, or what a client's own model is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from gossamer.core import Client, Ctx, Exchange, Job, Result
from gossamer.fields import option
from gossamer.methods.as_published.delegation import variants_of
from gossamer.methods.feddrop import Down, FedDrop, Local, Server, Work
from gossamer.methods.parts.dense_model import Up


@variants_of(FedDrop)
@dataclass(frozen=True)
class FedDropVariants:
    pure: FedDrop = FedDrop()
    rescale: bool = option(True, "divide kept activations by the fraction that is kept")
    sub_models: Literal["different", "same"] = option(
        "different", "each client of a round has its own sub-model, or all share one"
    )
    divisor: Literal["clients", "holders"] = option(
        "clients", "changes are averaged over all clients, or over those that hold the weight"
    )
    personal_model: Literal["sent", "now", "global"] = option(
        "sent",
        "a client's own: its last reply in the model it was cut from or the current, or none",
    )

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        if self.sub_models == "different":
            return self.pure.down(ctx, state, client)
        return self.pure.sub_model(ctx, state, ctx.key.fold("units"))

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        layout = ctx.task.layout
        names = layout.names if self.divisor == "holders" else layout.buffers
        merged = self.pure.merge_over(ctx, state, exchanges, names)
        return merged if self.personal_model == "sent" else replace(merged, seen={}, past={})

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        job = self.pure.begin(ctx, down, local)
        if not self.rescale:
            job.work.scale = {}
        return job

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        done = self.pure.finish(ctx, work)
        return done if self.personal_model != "global" else replace(done, local=None)


ENTRIES: dict[str, Any] = {"feddrop-variants": FedDropVariants()}
