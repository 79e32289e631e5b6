"""Values on known masks, and masks told as changes of others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mask_cases import LENET, independent, moved
from record_cases import FLOATS, MODES, alike, bases, mask_sets, records, revisions, tensor
from torch import Tensor

from gossamer.wire import (
    HEADER,
    Mode,
    Packed,
    Revision,
    Schema,
    UnknownMask,
    WireError,
    decode,
    encode,
    held,
    pack,
    unpack,
    whole,
    write,
)
from gossamer.wire.kinds import fingerprint_of
from gossamer.wire.masks.entropy import conditional_bits

MASK = {"w": torch.tensor([[True, False, True], [False, False, True]])}
OTHER = {"w": torch.tensor([[True, True, True], [False, False, True]])}
FAR = {"w": torch.tensor([[False, True, False], [True, True, False]])}


def lenet(density: float, seed: int = 0) -> dict[str, Tensor]:
    return named(independent(LENET, density, seed))


def named(masks: list[Any]) -> dict[str, Tensor]:
    return {f"layer{index}": torch.from_numpy(mask) for index, mask in enumerate(masks)}


# values on masks ---------------------------------------------------------------------------------


@given(mask_sets(), st.sampled_from(FLOATS), st.integers(0, 2**32))
def test_unpacking_gives_what_was_packed_and_zero_elsewhere(
    masks: dict[str, Tensor], dtype: torch.dtype, seed: int
) -> None:
    params = {name: tensor(dtype, list(mask.shape), seed, True) for name, mask in masks.items()} | {
        "dense": torch.arange(6.0).reshape(2, 3)
    }
    masks = {name: mask for name, mask in masks.items() if name != "dense"}
    found = packed = pack(params, masks)
    assert all(values.dim() == 1 for values in packed.values.values())
    found = unpack(packed, masks)
    wanted = {
        name: torch.where(masks[name], value, torch.zeros_like(value)) if name in masks else value
        for name, value in params.items()
    }
    assert alike(found, wanted)
    assert alike(pack(found, masks), packed)


def test_packed_values_travel_without_places() -> None:
    packed = pack({"w": torch.arange(6.0).reshape(2, 3)}, MASK)
    assert packed.values["w"].tolist() == [0.0, 2.0, 5.0]
    assert len(encode(packed)) == len(encode(())) + 1 + 3 * 4


@pytest.mark.parametrize(
    "masks", [OTHER, {"w": torch.ones(6, dtype=torch.bool)}, {"w": torch.zeros(2, 3) > 0}]
)
def test_values_on_another_mask_are_refused(masks: dict[str, Tensor]) -> None:
    packed = pack({"w": torch.ones(2, 3)}, MASK)
    with pytest.raises(WireError, match=r"w came with 3 values for a mask that keeps \d of 6"):
        unpack(packed, masks)


def test_values_of_a_tensor_that_should_be_whole_are_refused_if_they_are_not() -> None:
    packed = pack({"w": torch.ones(2, 3)}, MASK)
    with pytest.raises(WireError, match="w came with 3 values for a tensor of 6"):
        unpack(packed, {})


@pytest.mark.parametrize(
    ("packed", "reason"),
    [
        (Packed({"w": torch.ones(2, 3)}, {"w": (2, 3)}), r"record\[w\] is packed, but is not"),
        (Packed({"w": torch.ones(2, dtype=torch.int8)}, {"w": (2, 3)}), "not a vector of"),
        (
            Packed({"w": torch.ones(2).to(torch.float8_e4m3fn)}, {"w": (2, 3)}),
            "not a vector of floats",
        ),
        (Packed({"w": torch.ones(7)}, {"w": (2, 3)}), r"has 7 values, 6 at most"),
        (Packed({"w": torch.ones(2)}, {}), r"record\[w\] is packed without the shape"),
    ],
)
def test_what_cannot_be_packed_is_named(packed: Packed, reason: str) -> None:
    with pytest.raises(TypeError, match=reason):
        Schema.of(packed)


def test_shapes_may_be_lists() -> None:
    packed = Packed({"w": torch.ones(2)}, {"w": [2, 3]})  # type: ignore[dict-item]
    assert decode(encode(packed), Schema.of(packed)).shapes == {"w": (2, 3)}


# revisions ---------------------------------------------------------------------------------------


@given(revisions(), st.sampled_from(MODES))
def test_a_receiver_with_the_base_gets_the_mask_and_others_ask_for_all_of_it(
    revision: Revision, mode: Mode
) -> None:
    schema, data = Schema.of(revision), encode(revision, mode=mode)
    assert alike(decode(data, schema, mode, held=bases(revision)), revision)
    if revision.base is None:
        return
    with pytest.raises(UnknownMask, match=f"mask {fingerprint_of(revision.base).hex()}"):
        decode(data, schema, mode)
    entire = encode(whole(revision), schema, mode)
    assert alike(decode(entire, schema, mode).masks, revision.masks)
    assert decode(entire, schema, mode).base is None


@given(records())
def test_a_whole_record_needs_no_mask_and_keeps_its_schema(record: Any) -> None:
    schema = Schema.of(record)
    assert Schema.of(whole(record)) == schema
    decode(encode(whole(record), schema), schema)


def test_a_base_in_another_order_or_with_more_masks_serves_too() -> None:
    masks = {"a": MASK["w"], "b": OTHER["w"]}
    base = {"more": FAR["w"], "b": FAR["w"], "a": OTHER["w"]}
    revision = Revision(masks, base)
    found = decode(encode(revision), Schema.of(revision), held=held(base))
    assert alike(found.masks, masks)


def test_a_base_that_lacks_a_mask_cannot_be_encoded() -> None:
    with pytest.raises(TypeError, match=r"masks builds on masks of \['w'\], but has 'v'"):
        encode(Holder(Revision({"v": MASK["w"]}, MASK)))


@dataclass(frozen=True)
class Holder:
    masks: Revision


def test_a_held_mask_of_other_tensors_is_no_base() -> None:
    revision = Revision(MASK, OTHER)
    name = fingerprint_of(OTHER)
    for impostor in ({"w": torch.ones(4, dtype=torch.bool)}, {"v": OTHER["w"]}):
        with pytest.raises(WireError, match=r"masks builds on mask .* which has other tensors"):
            schema = Schema.of(Holder(revision))
            decode(encode(Holder(revision)), schema, held={name: impostor})


def test_a_fingerprint_depends_on_names_shapes_and_every_bit() -> None:
    one = torch.tensor([True, False, True, False])
    different = [
        {"w": one},
        {"v": one},
        {"w": ~one},
        {"w": one.reshape(2, 2)},
        {"w": one, "v": one},
        {"v": one, "w": one},
        {},
    ]
    assert len({fingerprint_of(masks) for masks in different}) == len(different)
    assert fingerprint_of({"w": torch.ones(0, 3) > 0, "v": torch.tensor(True)})
    assert fingerprint_of({"w": one.reshape(2, 2).T}) == fingerprint_of(
        {"w": one.reshape(2, 2).T.contiguous()}
    )


def test_held_finds_masks_wherever_they_are() -> None:
    record = [Holder(Revision(MASK, OTHER)), {"deep": (FAR, 1, {"x": torch.zeros(2)})}]
    assert set(held(record, None)) == {fingerprint_of(masks) for masks in (MASK, OTHER, FAR)}


@pytest.mark.parametrize(
    ("density", "rate"), [*product([0.5, 0.2, 0.1, 0.05, 0.01], [0.3, 0.05, 0.01])]
)
def test_changes_cost_at_most_three_percent_over_the_conditional_limit(
    density: float, rate: float
) -> None:
    old = independent(LENET, density)
    new = moved(old, rate)
    revision = Revision(named(new), named(old))
    written = write(revision)
    (row,) = (row for row in written.rows if row.leaf == "record")
    assert row.information == conditional_bits(new, old)
    names = 8 * (HEADER + 8)  # the schema's and the old mask's
    assert 8 * len(written.data) < 1.03 * row.information + names
    found = decode(written.data, Schema.of(revision), held=held(revision.base))
    assert alike(found, revision)


def test_changes_never_cost_more_than_a_few_bytes_over_the_whole_mask() -> None:
    one, other = lenet(0.1, 1), lenet(0.1, 2)
    assert len(encode(Revision(one, other))) <= len(encode(Revision(one))) + 8


def test_a_revision_of_itself_costs_next_to_nothing() -> None:
    mask = lenet(0.1)
    assert len(encode(Revision(mask, mask))) < 32


def test_whole_changes_revisions_only() -> None:
    inside = Holder(Revision(MASK, OTHER))
    record = {"a": (inside, [inside]), "p": pack({"w": torch.ones(2, 3)}, MASK)}
    found = whole(record)
    assert found["a"][0].masks.base is None and found["a"][1][0].masks.base is None
    assert alike(found["p"], record["p"])
    assert inside == replace(inside) and inside.masks.base is not None


def test_decoded_masks_can_be_changed_without_harm() -> None:
    record = {"a": torch.tensor([True, False]), "b": torch.tensor([True, True])}
    found = decode(encode(record), Schema.of(record))
    found["a"].fill_(True)
    found["a"] |= True
    assert found["b"].tolist() == [True, True] and record["a"].tolist() == [True, False]
    assert np.asarray(found["a"]).flags.writeable
