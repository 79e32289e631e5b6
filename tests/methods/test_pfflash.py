"""Freezing on FLASH's masks: densities that clients found, in both phases, and masks that learn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from gossamer import sparsity
from gossamer.conformance.bench import Bench
from gossamer.conformance.promises import check
from gossamer.conformance.toys import Tiny, normed_task, plain_task
from gossamer.methods.as_published.pffdst import PFFDSTVariants, Up, pfflash
from gossamer.methods.parts.sensitivity_probe import Probe, Sensitivity
from gossamer.methods.parts.sparse_model import total
from gossamer.methods.pffdst import Down
from gossamer.optim import Training

ROUNDS = 9


def toy(**phases: Any) -> PFFDSTVariants:
    preset = pfflash()
    return replace(
        preset,
        clients=12,
        probe_clients=4,
        probe_epochs=2.0,
        training=Training(epochs=2, batch=8, lr=0.05, momentum=0.5, weight_decay=0.1),
        phases=replace(preset.phases, density=0.4, **phases),
    )


def played(method: PFFDSTVariants, task: Any = plain_task) -> list[Any]:
    return list(Bench(method, task(), Tiny(), ROUNDS).history())


def test_the_first_round_probes_and_the_others_have_two_phases() -> None:
    rounds = played(toy())
    assert len(rounds[0].exchanges) == 4
    for exchange in rounds[0].exchanges:
        assert isinstance(exchange.down, Probe) and isinstance(exchange.up, Sensitivity)
    for later in rounds[1:]:
        for exchange in later.exchanges:
            assert isinstance(exchange.down, Down) and isinstance(exchange.up, Up)
    layout = plain_task().layout
    weights = layout.total("count", layout.prunable)
    active = [total(each.merged.masks) for each in rounds]
    half, whole = round(0.2 * weights), round(0.4 * weights)
    assert active == pytest.approx([half] * 4 + [whole] * 5, abs=1)
    assert [bool(each.merged.frozen) for each in rounds] == [False] * 4 + [True] * 5


def test_both_phases_share_weights_out_as_clients_found() -> None:
    rounds = played(toy())
    layout = plain_task().layout
    found = torch.stack([exchange.up.densities for exchange in rounds[0].exchanges])
    measured = dict(zip(layout.prunable, found.double().mean(0).tolist(), strict=True))
    first = sparsity.apportion(layout, sparsity.sensitivity(layout, measured, 0.2))
    assert sparsity.count(rounds[0].merged.masks) == first
    frozen = rounds[4].merged.frozen
    assert sparsity.count(frozen) == first
    free = sparsity.count(sparsity.inactive(frozen))
    asked = {n: min(measured[n] * layout[n].count / free[n], 1) for n in free}
    share = 0.2 * sum(layout[n].count for n in free) / sum(free.values())
    grown = sparsity.apportion(free, sparsity.sensitivity(free, asked, share))
    added = sparsity.count(sparsity.difference(rounds[4].merged.masks, frozen))
    for name, number in added.items():
        assert number == pytest.approx(grown[name], abs=1)


@pytest.mark.parametrize("task", [plain_task, normed_task])
@pytest.mark.parametrize("readjust", ["none", "learned", "server"])
def test_frozen_weights_stay_and_the_rest_keeps_its_count(readjust: str, task: Any) -> None:
    method = toy(readjust=readjust, every=1)
    rounds = played(method, task)
    frozen = rounds[4].merged
    assert frozen.frozen
    moved = 0.0
    for round in rounds[5:]:
        state = round.merged
        for name, mask in frozen.frozen.items():
            assert torch.equal(state.params[name][mask], frozen.params[name][mask])
            assert bool((state.masks[name] | ~mask).all())
        moved += sparsity.mismatch(round.state.masks, state.masks)
        if readjust != "server":
            assert total(state.masks) == pytest.approx(total(frozen.masks), abs=1)
    assert (moved > 0) == (readjust != "none")
    wanted = 0.4 * sum(mask.numel() for mask in frozen.masks.values())
    assert total(rounds[-1].merged.masks) == pytest.approx(wanted, abs=3)


def test_masks_are_learned_only_every_so_many_rounds() -> None:
    rounds = played(toy(readjust="learned", mask_every=2))
    learned = [any(e.up.mask is not None for e in round.exchanges) for round in rounds[1:]]
    assert learned == [True, False, True, False] * 2


def test_every_promise_is_kept_where_masks_are_learned_beside_a_frozen_part() -> None:
    broken = [str(each) for each in check(toy(readjust="learned"), 6) if not each.ok]
    assert not broken


def test_a_probe_and_two_phases_take_three_rounds() -> None:
    with pytest.raises(ValueError, match="`rounds=3` or more"):
        Bench(toy(), plain_task(), Tiny(), 2).init()
