"""Masks from a seed: the same on every host, exact in number, and a few bytes on the wire."""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hostile import message
from hypothesis import given
from hypothesis import strategies as st
from mask_cases import LENET
from record_cases import MODES, TYPES, alike, drawn

from gossamer import Key
from gossamer.accounting import Accounting, MaskCode, paper_bits
from gossamer.wire import (
    HEADER,
    Drawn,
    Mode,
    Revision,
    Schema,
    WireError,
    decode,
    dump,
    encode,
    held,
    load,
    longest,
    room,
    whole,
    write,
)
from gossamer.wire.kinds import fingerprint_of
from gossamer.wire.masks.bits import number
from gossamer.wire.schema import type_name

SHAPES: dict[str, tuple[int, ...]] = {f"layer{i}": shape for i, shape in enumerate(LENET)}
TENTH = {name: math.prod(shape) // 10 for name, shape in SHAPES.items()}


@dataclass(frozen=True)
class Holder:
    mask: Drawn
    more: Any = None


# what is drawn -----------------------------------------------------------------------------------


@given(drawn())
def test_masks_keep_exactly_as_many_as_they_say(record: Drawn) -> None:
    masks = record.masks()
    assert list(masks) == list(record.kept)
    for name, mask in masks.items():
        assert mask.dtype == torch.bool and tuple(mask.shape) == tuple(record.shapes[name])
        assert int(mask.sum()) == record.kept[name]


def test_masks_are_the_same_on_every_host() -> None:
    """Fixed for ever: a client of another version or machine must draw the same."""
    masks = Drawn(7, {"a": 3, "b": 6, "c": 1}, {"a": (10,), "b": (2, 4), "c": ()}).masks()
    assert masks["a"].nonzero().flatten().tolist() == [1, 8, 9]
    assert masks["b"].int().tolist() == [[0, 1, 1, 1], [1, 1, 1, 0]]
    assert masks["c"].item() is True
    digest = hashlib.blake2b(digest_size=8)
    for mask in Drawn(-(2**63), TENTH, SHAPES).masks().values():
        digest.update(np.packbits(mask.numpy()).tobytes())
    assert digest.hexdigest() == "981ddcce2a3ca442"


@pytest.mark.parametrize("kept", [0, 1, 17, 50, 51, 99, 100])
def test_places_are_the_first_distinct_numbers_of_the_stream(kept: int) -> None:
    """Or those left out, if they are fewer."""
    stream = np.random.Philox(key=Key(9).fold("mask", "w").digest())
    found: list[int] = []
    while len(found) < min(kept, 100 - kept):
        raw = int(stream.random_raw())
        if raw < 2**64 - 2**64 % 100 and raw % 100 not in found:
            found.append(raw % 100)
    wanted = found if kept <= 50 else [place for place in range(100) if place not in found]
    masks = Drawn(9, {"w": kept}, {"w": (100,)}).masks()
    assert masks["w"].nonzero().flatten().tolist() == sorted(wanted)


def test_masks_follow_from_seed_and_name_alone() -> None:
    one = Drawn(1, {"a": 50, "b": 50}, {"a": (100,), "b": (100,)})
    other = Drawn(1, {"b": 50, "a": 50}, {"a": (10, 10), "b": (100,)})
    assert torch.equal(one.masks()["a"], other.masks()["a"].flatten())
    assert torch.equal(one.masks()["b"], other.masks()["b"])
    assert not torch.equal(one.masks()["a"], one.masks()["b"])
    assert not torch.equal(one.masks()["a"], Drawn(2, one.kept, one.shapes).masks()["a"])


def test_masks_depend_neither_on_threads_nor_on_global_seeds() -> None:
    before = torch.get_num_threads()
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        torch.manual_seed(threads)
        found.append(fingerprint_of(Drawn(3, TENTH, SHAPES).masks()))
    torch.set_num_threads(before)
    assert found[0] == found[1]


@pytest.mark.parametrize(("kept", "size"), [(1, 5), (2, 5), (3, 5), (4, 5)])
def test_every_choice_of_places_is_as_likely(kept: int, size: int) -> None:
    draws = 6000
    seen: dict[bytes, int] = {}
    for seed in range(draws):
        mask = Drawn(seed, {"w": kept}, {"w": (size,)}).masks()["w"].numpy().tobytes()
        seen[mask] = seen.get(mask, 0) + 1
    choices = math.comb(size, kept)
    assert len(seen) == choices
    expected = draws / choices
    chi = sum((count - expected) ** 2 / expected for count in seen.values())
    assert chi < 28  # one in a thousand for nine degrees of freedom


def test_places_are_spread_evenly_over_a_large_tensor() -> None:
    mask = Drawn(5, {"w": 100_000}, {"w": (1000, 1000)}).masks()["w"].numpy()
    rows, columns = mask.sum(0), mask.sum(1)
    for counts in (rows, columns):
        assert counts.mean() == 100 and 8 < counts.std() < 11  # binomial: 9.5


def test_a_key_gives_a_seed_that_travels() -> None:
    record = Drawn.by(Key(3).fold("round", 4), TENTH, SHAPES)
    assert 0 <= record.seed < 2**63
    assert record == Drawn.by(Key(3).fold("round", 4), TENTH, SHAPES)
    assert record.seed != Drawn.by(Key(3).fold("round", 5), TENTH, SHAPES).seed
    assert decode(encode(record), Schema.of(record)) == record


@pytest.mark.parametrize(
    ("seed", "kept", "shapes", "reason"),
    [
        (2**63, {}, {}, "a 64-bit integer, not 9223372036854775808"),
        (True, {}, {}, "a 64-bit integer, not True"),
        (0.5, {}, {}, "a 64-bit integer, not 0.5"),
        (0, {"w": 1}, {}, "a count and a shape for each tensor; check w"),
        (0, {}, {"v": (2,)}, "a count and a shape for each tensor; check v"),
        (0, {"w": 7}, {"w": (2, 3)}, "a drawn mask of w cannot keep 7 of 6 weights"),
        (0, {"w": -1}, {"w": (2, 3)}, "a drawn mask of w cannot keep -1 of 6 weights"),
        (0, {"w": 0.5}, {"w": (2, 3)}, "a drawn mask of w cannot keep 0.5 of 6 weights"),
    ],
)
def test_what_cannot_be_drawn_is_refused_where_it_is_made(
    seed: Any, kept: Any, shapes: Any, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        Drawn(seed, kept, shapes)


# what travels ------------------------------------------------------------------------------------


@given(drawn(), st.sampled_from(MODES))
def test_seeds_and_counts_come_back(record: Drawn, mode: Mode) -> None:
    holder = Holder(record, [record])
    schema = Schema.of(holder)
    assert alike(decode(encode(holder, schema, mode), schema, mode), holder)
    types = {**TYPES, type_name(Holder): Holder}
    assert alike(load(dump(holder), types), holder)
    assert Schema.read(schema.plain(), types) == schema


def test_a_mask_of_lenet_travels_as_a_seed_and_four_counts() -> None:
    record = Holder(Drawn(7, TENTH, SHAPES))
    written = write(record)
    counts = sum(len(number(kept)) for kept in TENTH.values())
    assert len(written.data) == HEADER + 8 + counts == HEADER + 8 + 1 + 2 + 3 + 2
    (row,) = (row for row in written.rows if row.leaf == "mask")
    assert row.sent == row.information == 8 * (8 + counts)
    # of the mask itself, a thousandth
    assert len(written.data) < len(encode(record.mask.masks())) / 1000


def test_the_bytes_of_a_drawn_mask() -> None:
    record = Drawn(-2, {"a": 3, "b": 200}, {"a": (4,), "b": (300,)})
    assert encode(record)[HEADER:] == struct.pack("<q", -2) + b"\x03" + b"\xc8\x01"


@pytest.mark.parametrize("code", ["bitmap", "coo", "entropy", "auto"])
def test_papers_count_a_seed_and_a_number_for_each_tensor(code: MaskCode) -> None:
    record = Holder(Drawn(7, TENTH, SHAPES))
    assert paper_bits(record, Accounting(mask_code=code)) == 64 + 32 * 4
    assert paper_bits(record.mask.masks(), Accounting(mask_code="seed")) == 64 + 32 * 4
    assert paper_bits(record, Accounting(mask_code="none")) == 0  # a paper that counts no masks


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", r"record needs 8 bytes, but only 0 are left"),
        (bytes(8), r"record\[a\] needs 1 bytes, but only 0 are left"),
        (bytes(8) + b"\x05", r"record\[a\] keeps 5 weights, 4 at most"),
        (bytes(8) + b"\x04\xad\x02", r"record\[b\] keeps 301 weights, 300 at most"),
        (bytes(8) + b"\x04" + number(2**62), r"record\[b\] keeps 4611686018427387904 weights"),
        (bytes(8) + b"\x04\x05!", "1 bytes follow the last leaf"),
    ],
)
def test_counts_are_checked_against_the_shapes(payload: bytes, reason: str) -> None:
    schema = Schema.of(Drawn(0, {"a": 1, "b": 2}, {"a": (4,), "b": (300,)}))
    with pytest.raises(WireError, match=reason):
        decode(message(schema, payload), schema)


def test_reading_takes_no_memory_for_the_mask() -> None:
    huge = Drawn(1, {"w": 2**50}, {"w": (2**30, 2**30)})
    schema = Schema.of(huge)
    assert decode(encode(huge), schema) == huge
    assert room(schema) == longest(schema) < 200


def test_drawn_masks_can_be_built_on() -> None:
    """A client that keeps the seed can be told changes of the mask."""
    record = Drawn(7, TENTH, SHAPES)
    masks = record.masks()
    changed = {name: mask.clone() for name, mask in masks.items()}
    changed["layer2"][0, :5] ^= True
    revision = Revision(changed, masks)
    known = held(Holder(record))
    assert set(known) == {fingerprint_of(masks)}
    assert alike(decode(encode(revision), Schema.of(revision), held=known), revision)


def test_a_drawn_mask_is_whole_as_it_is() -> None:
    record = Holder(Drawn(7, TENTH, SHAPES), Revision({"w": torch.ones(2) > 0}))
    assert whole(record).mask is record.mask
