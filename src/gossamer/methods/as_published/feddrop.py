"""FedDrop with the other readings of its papers, as options.

The papers do not say which units are dropped, whether activations are rescaled, whether clients of
a round share a sub-model, whom a weight is averaged over, or what a client's own model is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from gossamer.core import Client, Ctx, Exchange, Job, Result
from gossamer.fields import option
from gossamer.methods.as_published.delegation import variants_of
from gossamer.methods.feddrop import Down, FedDrop, Local, Server, Work
from gossamer.methods.parts.dense_model import Up
from gossamer.submodels.cut import INPUTS
from gossamer.submodels.dropping import Dropping, separate
from gossamer.submodels.structure import Structure
from gossamer.task.layout import did_you_mean

WEIGHT = ".weight"


@dataclass(frozen=True)
class Axes:
    """What is dropped: inputs, units, or what a list says."""

    axes: str = option(
        "inputs",
        "what is dropped: inputs of all layers, their units, or a list: conv1.out=0.2,fc1.in",
    )
    inputs: Dropping = Dropping()

    def rates(self, structure: Structure) -> dict[str, float]:
        """The fraction that is dropped, by the name of a layer's units or inputs."""
        if self.axes.strip() == "inputs":
            return self.inputs.rates(structure)
        if self.axes.strip() == "units":
            return {name: self.inputs.rate(structure, name) for name in separate(structure)}
        listed = list(self.entries(structure))
        rates = dict(listed)
        if not listed:
            raise ValueError("`axes=` is empty; use inputs, units, or a list such as conv1.out")
        if len(rates) < len(listed):
            raise ValueError(f"`axes={self.axes!r}`: every layer has at most one .in and one .out")
        return rates

    def entries(self, structure: Structure) -> Iterator[tuple[str, float]]:
        """The entries of a list such as `conv1.out, fc1.in=0.5`."""
        for entry in filter(None, (part.strip() for part in self.axes.split(","))):
            place, _, text = entry.partition("=")
            layer, _, side = place.strip().rpartition(".")
            if side not in ("in", "out"):
                raise ValueError(
                    f"`axes=` is inputs, units, or a list with entries such as conv1.out or "
                    f"fc1.in=0.5, not {entry!r}"
                )
            name = f"{layer}{WEIGHT}" if layer else WEIGHT[1:]
            check_entry(structure, name, entry, side)
            yield (
                f"{name}{INPUTS}" if side == "in" else name,
                rate_of(entry, text) if text else self.inputs.rate(structure, name),
            )


@variants_of(FedDrop)
@dataclass(frozen=True)
class FedDropVariants:
    pure: FedDrop = FedDrop(dropping=Axes())
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
    units_move: ClassVar[bool] = True

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


def rate_of(entry: str, text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = -1.0
    if not 0 <= rate < 1:
        raise ValueError(f"`axes=`: {entry!r} needs a rate of at least 0 and below 1")
    return rate


def check_entry(structure: Structure, name: str, entry: str, side: str) -> None:
    """Raises an error with the reason if an entry cannot be dropped."""
    layout = structure.layout
    layers = [n for n, leaf in layout.leaves.items() if leaf.kind in ("conv", "linear")]
    if name not in layers:
        known = [each.removesuffix(WEIGHT) for each in layers]
        near = did_you_mean(name.removesuffix(WEIGHT), known)
        raise ValueError(
            f"`axes=`: no layer of this model is called {name.removesuffix(WEIGHT)!r}{near} "
            f"it has {', '.join(known)}"
        )
    if side == "in" and (layout[name].kind != "linear" or name not in structure.wiring.columns):
        raise ValueError(
            f"`axes={entry!r}`: single inputs can be dropped in linear layers only; name the layer "
            f"before it, with .out"
        )
    if side == "out" and name in structure.fixed:
        raise ValueError(f"`axes={entry!r}`: its units stay, because {structure.fixed[name]}")
    if side == "out" and structure.tied[name]:
        raise ValueError(
            f"`axes={entry!r}`: its units are added to those of {structure.tied[name][0]}, and "
            f"units of such sums cannot be dropped; name layers inside blocks"
        )


ENTRIES: dict[str, Any] = {"feddrop-variants": FedDropVariants()}
