"""Clients that lie cost themselves the round and nobody else anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from flash_cases import bench, equal, heard, played, toy
from torch import Tensor

from gossamer import Ctx, Masks, Params, Result, sparsity
from gossamer.methods import nst
from gossamer.methods.flash import Flash, Up
from gossamer.methods.nst import NST
from gossamer.methods.parts.held_versions import Local
from gossamer.methods.parts.mask_learning import Update
from gossamer.methods.parts.masked_training import Work
from gossamer.methods.parts.sensitivity_probe import Sensitivity
from gossamer.methods.parts.sparse_model import SparseModel
from gossamer.wire import Packed, Revision, WireError, dump

Lie = Callable[[Any, Work], Any]


def filled(params: Params, masks: Masks) -> Packed:
    shapes = {name: tuple(mask.shape) for name, mask in masks.items()}
    return Packed({name: params[name][mask] for name, mask in masks.items()}, shapes)


def greedy(up: Any, work: Work) -> Any:
    """One weight more than it was allowed, values and all."""
    masks = {name: mask.clone() for name, mask in work.masks.items()}
    masks["5.weight"][tuple((~masks["5.weight"]).nonzero()[0])] = True
    model = replace(up.model, values=filled(work.params, masks))
    return replace(up, mask=Revision(masks), model=model)


def everything(up: Any, work: Work) -> Any:
    masks = {name: torch.ones_like(mask) for name, mask in work.masks.items()}
    model = replace(up.model, values=filled(work.params, masks))
    return replace(up, mask=Revision(masks), model=model)


def cut(up: Any, work: Work) -> Any:
    return replace(up, mask=Revision({name: mask[:1] for name, mask in work.masks.items()}))


def values(change: Callable[[Tensor], Tensor]) -> Lie:
    def lie(up: Any, work: Work) -> Any:
        sent = up.model.values
        changed = {**sent.values, "2.weight": change(sent.values["2.weight"])}
        return replace(up, model=replace(up.model, values=replace(sent, values=changed)))

    return lie


def bias(change: Callable[[Params], Params]) -> Lie:
    return lambda up, work: replace(up, model=replace(up.model, dense=change(up.model.dense)))


LIES: dict[str, Lie] = {
    "one weight more": greedy,
    "all weights": everything,
    "a mask of another shape": cut,
    "too few values": values(lambda each: each[1:]),
    "too many values": values(lambda each: torch.cat([each, each])),
    "no values": values(lambda each: each[:0]),
    "not a number": values(lambda each: each / 0),
    "a stretched bias": bias(lambda dense: {**dense, "5.bias": torch.ones(1)}),
    "a missing bias": bias(lambda dense: {"5.bias": dense["5.bias"]}),
    "a precise bias": bias(lambda dense: {**dense, "5.bias": dense["5.bias"].double()}),
    "unknown statistics": lambda up, work: replace(
        up, model=replace(up.model, buffers={"5.bias": torch.ones(3)})
    ),
    "densities": lambda up, work: Sensitivity(torch.full((3,), 0.2)),
}

ANSWERS: dict[str, Lie] = {
    "above one": lambda up, work: Sensitivity(torch.tensor([0.2, 1.001, 0.2])),
    "below zero": lambda up, work: Sensitivity(torch.tensor([-0.001, 0.2, 0.2])),
    "not a number": lambda up, work: Sensitivity(torch.tensor([0.2, torch.nan, 0.2])),
    "too few": lambda up, work: Sensitivity(torch.tensor([0.2, 0.2])),
    "weights": lambda up, work: Update(SparseModel(filled(work.params, work.masks), {}, {}), None),
}
"""To the question of the first round."""


def answered(ctx: Ctx, done: Result[Any, Any], work: Work, silent: bool) -> Result[Any, Any]:
    """The first clients each have a lie of their own, the others are honest."""
    lies = list((ANSWERS if isinstance(done.up, Sensitivity) else LIES).values())
    client = int(ctx.key.path[-1])
    if client >= len(lies):
        return done
    if silent:
        raise RuntimeError("nothing to say")
    return replace(done, up=lies[client](done.up, work))


@dataclass(frozen=True)
class Lying(Flash):
    silent: bool = False

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        return answered(ctx, super().finish(ctx, work), work, self.silent)


@dataclass(frozen=True)
class LyingAlone(NST):
    silent: bool = False

    def finish(self, ctx: Ctx, work: nst.Work) -> Result[Update, Local]:
        return answered(ctx, super().finish(ctx, work), work.model, self.silent)


def refused(liars: Any, lies: Mapping[str, Lie], rounds: int) -> None:
    """Every liar in every round; and all goes on as if none of them had answered."""
    everybody = len(LIES) + 4
    found, silent = (
        heard(each, rounds, pool=everybody, on_client_error="skip")
        for each in (liars, replace(liars, silent=True))
    )
    names = [*lies, *range(everybody)]
    assert {(names[each.client], each.round) for each in found.failed} == {
        (name, number) for name in lies for number in range(1, rounds + 1)
    }
    assert all(each.stage == "wire" and "WireError" in each.reason for each in found.failed)
    assert dump(found.state) == dump(silent.state)
    honest = [event for event in found.finished if event.client >= len(lies)]
    assert honest == silent.finished and len(honest) == rounds * (everybody - len(lies))


def test_liars_are_refused_where_masks_move() -> None:
    method = toy("jmwst", clients=len(LIES) + 4, allocation="uniform")
    refused(Lying(**vars(method)), LIES, 3)


def test_liars_are_refused_where_masks_are_frozen() -> None:
    """A mask is no answer here, however well it fits."""
    refused(Lying(**vars(toy("pdst", clients=len(LIES) + 4))), LIES, 2)


def test_liars_are_refused_by_nst() -> None:
    refused(LyingAlone(**vars(toy("nst", clients=len(LIES) + 4))), LIES, 3)


def test_impossible_densities_cost_clients_the_first_round() -> None:
    method = Lying(**vars(toy(probe_clients=len(LIES) + 4, clients=4)))
    found, silent = (
        heard(each, 2, pool=len(LIES) + 4, on_client_error="skip")
        for each in (method, replace(method, silent=True))
    )
    liars = {event.client for event in found.failed if event.round == 1}
    assert liars == set(range(len(ANSWERS)))
    assert dump(found.state) == dump(silent.state)


# where replies do not come over a wire that knows their form --------------------------------------


def test_the_ends_of_the_range_are_no_lie() -> None:
    method = toy()
    (first,) = played(method, 2)[:1]
    ends = Sensitivity(torch.tensor([0.0, 1.0, 0.5]))
    exchanges = [replace(exchange, up=ends) for exchange in first.exchanges]
    after = method.merge(bench(method).server(1), first.state, exchanges)
    assert sparsity.count(after.masks[0])["0.weight"] == 1
    for beyond in ([-0.001, 1.0, 0.5], [0.0, 1.001, 0.5]):
        wrong = replace(first.exchanges[0], up=Sensitivity(torch.tensor(beyond)))
        with pytest.raises(WireError, match="between 0 and 1"):
            method.merge(bench(method).server(1), first.state, [wrong])


def test_a_merge_refuses_answers_to_another_question() -> None:
    method = toy()
    first, second = played(method, 2)
    for number, state, exchanges in (
        (1, first.state, second.exchanges),
        (2, second.state, first.exchanges),
    ):
        with pytest.raises(WireError, match="came back where"):
            method.merge(bench(method).server(number), state, exchanges)


@pytest.mark.parametrize(
    "odd",
    [{"5.bias": torch.ones(1)}, {"0.bias": torch.ones(4).double()}, {"7.bias": torch.ones(1)}],
    ids=["stretched", "precise", "unknown"],
)
def test_a_merge_refuses_parts_of_other_shapes(odd: Params) -> None:
    method = toy()
    *_, last = played(method, 2)
    ctx, up = bench(method).server(2), last.exchanges[0].up
    model = replace(up.model, dense={**up.model.dense, **odd})
    wrong = replace(last.exchanges[0], up=replace(up, model=model))
    with pytest.raises(WireError):
        method.merge(ctx, last.state, [wrong, *last.exchanges[1:]])
    again = method.merge(ctx, last.state, last.exchanges)
    assert equal(again.params, last.merged.params)
