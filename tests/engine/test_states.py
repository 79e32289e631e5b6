"""Clients' states: those of masks alone are shared, all others are private."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gossamer import Masks, Params
from gossamer.engine.sharing import STATES, States
from gossamer.wire import dump


@dataclass(frozen=True)
class Local:
    masks: Masks


@dataclass(frozen=True)
class Weights:
    params: Params


TYPES = {"Local": Local, "Weights": Weights}


def local(seed: int = 0) -> Local:
    draw = torch.Generator().manual_seed(seed)
    return Local(
        {"a": torch.rand(40, generator=draw) < 0.2, "b": torch.rand(9, generator=draw) < 1}
    )


def test_clients_with_the_same_masks_share_bytes_and_record() -> None:
    states, masks = States(TYPES), local().masks
    first, second = states.write(Local(masks)), states.write(Local(dict(masks)))
    assert first is second and first == dump(Local(masks))
    assert states.read(first).masks["a"] is masks["a"]


def test_bytes_from_disk_are_decoded_once() -> None:
    states, data = States(TYPES), dump(local())
    record = states.read(data)
    assert states.read(data) is record
    assert states.write(Local(record.masks)) is data


def test_masks_that_were_changed_are_not_shared_any_more() -> None:
    states, kept = States(TYPES), local()
    data = states.write(kept)
    kept.masks["a"][:] = True
    assert torch.equal(states.read(data).masks["a"], local().masks["a"])
    assert states.write(kept) == dump(kept) != data


def test_states_with_weights_are_private() -> None:
    states, weights = States(TYPES), Weights({"a": torch.arange(3.0)})
    data = states.write(weights)
    assert states.write(weights) == data
    one, other = states.read(data), states.read(data)
    assert one.params["a"] is not other.params["a"]
    assert torch.equal(one.params["a"], torch.arange(3.0))


def test_few_states_are_remembered() -> None:
    states = States(TYPES)
    data = [states.write(local(seed)) for seed in range(STATES + 1)]
    assert states.read(data[-1]) is states.read(data[-1])
    assert len(states._known) == STATES
