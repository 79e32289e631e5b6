"""Masks survive the Golomb code, at close to their limit, and nothing else survives it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from mask_cases import (
    FUZZ,
    LENET,
    Masks,
    damaged,
    independent,
    mask_lists,
    mask_pairs,
    moved,
    same,
    trained,
)

from gossamer.wire import WireError
from gossamer.wire.masks.bits import field, near, pack
from gossamer.wire.masks.entropy import conditional_bits, mask_bits
from gossamer.wire.masks.rice import decode, decode_given, encode, encode_given


def shapes_of(masks: Masks) -> list[tuple[int, ...]]:
    return [mask.shape for mask in masks]


def bitmap(masks: Masks) -> int:
    return (sum(mask.size for mask in masks) + 7) // 8


@given(mask_lists())
def test_masks_come_back_and_never_cost_more_than_their_bitmap(masks: Masks) -> None:
    before = [mask.copy() for mask in masks]
    data = encode(masks)
    assert same(masks, before)
    assert same(decode(data, shapes_of(masks)), masks)
    assert same(decode(memoryview(data), shapes_of(masks)), masks)
    assert len(data) <= 1 + bitmap(masks)


@given(mask_pairs())
def test_masks_come_back_given_known_ones_at_no_more_than_alone(pair: tuple[Masks, Masks]) -> None:
    new, old = pair
    before = [mask.copy() for mask in old]
    data = encode_given(new, old)
    assert same(decode_given(data, old), new)
    assert same(old, before)
    assert len(data) <= len(encode(new))


@pytest.mark.parametrize("density", [0.5, 0.2, 0.1, 0.05, 0.01, 0.8, 0.95])
def test_independent_masks_cost_at_most_three_percent_over_the_limit(density: float) -> None:
    masks = independent(LENET, density)
    data = encode(masks)
    assert 8 * len(data) < 1.03 * mask_bits(masks)
    assert same(decode(data, LENET), masks)


def test_a_trained_mask_costs_less_than_the_limit_of_independent_weights() -> None:
    masks = trained()
    data = encode(masks)
    assert 8 * len(data) < 0.88 * mask_bits(masks)
    assert same(decode(data, LENET), masks)


@pytest.mark.parametrize("rate", [0.3, 0.05, 0.01])
def test_changes_cost_at_most_three_percent_over_the_conditional_limit(rate: float) -> None:
    old = independent(LENET, 0.1)
    new = moved(old, rate)
    data = encode_given(new, old)
    assert 8 * len(data) < 1.03 * conditional_bits(new, old)
    assert same(decode_given(data, old), new)


@pytest.mark.parametrize("value", [True, False])
def test_certain_masks_cost_a_byte_in_all(value: bool) -> None:
    masks = [np.full(shape, value) for shape in LENET]
    assert len(encode(masks)) == len(encode_given(masks, masks)) == 1


def test_certain_masks_that_differ_cost_a_byte_each() -> None:
    masks = [np.full(shape, index % 2 > 0) for index, shape in enumerate(LENET)]
    assert len(encode(masks)) == 1 + len(masks)


def test_a_mask_that_stays_costs_a_byte() -> None:
    masks = independent(LENET, 0.1)
    assert len(encode_given(masks, masks)) == 1


def test_many_short_rows_come_back() -> None:
    masks = independent([(40_000, 8)], 0.1)
    masks[0][::5] = True
    assert same(decode(encode(masks), [(40_000, 8)]), masks)


def test_full_and_empty_rows_cost_at_most_four_bits_each() -> None:
    mask = independent([(1000, 400)], 0.1)[0]
    mask[::4], mask[1::4] = False, True
    rest = independent([(500, 400)], 0.1)[0]
    assert len(encode([mask])) < len(encode([rest])) * 1.05 + 1000 * 4 / 8


def test_sixty_small_layers_cost_little_more_than_one_large() -> None:
    masks = independent([(32, 32, 3, 3)] * 60, 0.1)
    assert 8 * len(encode(masks)) < 1.03 * mask_bits(masks)


def test_the_format_has_not_changed() -> None:
    sparse = np.zeros((4, 60), np.bool_)
    sparse[0, ::7] = True
    sparse[1, [3, 40]] = True
    sparse[2] = True
    mostly = np.ones((2, 32), np.bool_)
    mostly[1, 5] = False
    masks = [sparse, np.array([True, False, False]), np.array(True), mostly]
    assert encode(masks).hex() == "82117834dcd433545505e0ff1d2857a002"
    changed = [mask.copy() for mask in masks]
    changed[0][0, 7], changed[0][0, 8] = False, True
    assert encode_given(changed, masks).hex() == "8db2"
    assert same(decode_given(bytes.fromhex("3f0b109e0530"), masks), changed)  # the same by gaps
    changed[0][2] = False
    assert encode_given(changed, masks).hex() == "837d787828a2fe9f0530"
    assert encode([np.eye(3, dtype=np.bool_)]).hex() == "001101"


def test_a_small_message_is_as_described() -> None:
    mask = np.zeros(92, np.bool_)
    mask[[10, 50]] = True
    tag, alike, k, swapped = (2, 2), (1, 1), (5 + 1, 4), (0, 1)
    extent = [(1, 1), (3, 2)]  # below 2 ** 2, as 92 // 2 ** 5 = 2 suggests
    quotients = (0b101, 3)  # gaps of 10 and 39: 0 and 1, each with a one behind
    remainders = [(0b10, 2), (0b11, 2), (0b10, 2), (0b01, 2), (0b00, 2)]  # 10 and 7
    message = bits([tag, alike, k, swapped, *extent, quotients, *remainders])
    assert encode([mask]) == message
    assert same(decode(message, [mask.shape]), [mask])


def test_a_small_message_with_thirds_is_as_described() -> None:
    mask = np.zeros(92, np.bool_)
    mask[14] = True
    tag, alike, k, swapped = (2, 2), (1, 1), (1 + 1, 4), (0, 1)
    extent = [(1, 1), (5, 6)]
    message = bits([tag, alike, k, swapped, *extent, (0b10000, 5), (2, 8)])  # 14 = 4 * 3 + 2
    assert same(decode(message, [mask.shape]), [mask])


def bits(fields: list[tuple[int, int]]) -> bytes:
    """Numbers of so many bits each, the lowest first."""
    line = [value >> place & 1 for value, width in fields for place in range(width)]
    return np.packbits(np.array(line, np.uint8), bitorder="little").tobytes()


def test_masks_of_another_dtype_or_shape_are_refused_by_the_encoder() -> None:
    with pytest.raises(TypeError, match="mask 0 has dtype uint8; masks have dtype bool"):
        encode([np.zeros(3, np.uint8)])  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"shapes \[\(3,\)\], the known ones have \[\(4,\)\]"):
        encode_given([np.zeros(3, np.bool_)], [np.zeros(4, np.bool_)])


HEAD = [(2, 2), (1, 1), (4, 4), (0, 1)]  # k = 3 for all rows
WIDE = [(2, 2), (1, 1), (14, 4), (0, 1), (2, 2), (0, 1), (1, 1)]  # k = 13, one quotient of 0
THIRDS = [(2, 2), (1, 1), (2, 4), (0, 1), (1, 1), (1, 6), (1, 1)]  # the same by 3
EIGHT = [(1, 1), (8, 4)]  # bits of quotients, where 4 bits tell how many


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", "needs 1 byte, but only 0 are left"),
        (b"\4", "tag 4"),
        (b"\1", "which is unknown here"),
        (b"\3", "which is unknown here"),
        (bytes(12), "need 12 bytes, but only 11"),
        (bytes(14), "is encoded in 13 bytes; its bitmap has 12"),
        (b"\2" + bytes(12), "is encoded in 12 bytes; its bitmap has 12"),
        (bytes(12) + b"\x10", "unused bits are not zero"),
        (bits([(2, 2)]), "classes of tensors of a mask need 8 bits, but only 5"),
        (bits([(2, 2), (0, 1), (0x70, 8)]), "in 7 bits"),
        (bits([(2, 2), (0, 1), (0x40, 8)]), "classes of rows of a mask need 8 bits, but only 5"),
        (bits([(2, 2), (0, 1), (0x1F, 8), (2, 2)]), "a row of class 16"),
        (bits([(2, 2), (0, 1), (0x14, 8), (3, 2)]), "in more bits than they need"),
        (bits([(2, 2), (0, 1), (0x04, 8), *EIGHT]), "class for each tensor where one suffices"),
        (bits([(2, 2), (1, 1), (0, 4), (0, 1)]), "swapped where that makes it longer"),
        (bits([(2, 2), (1, 1), (15, 4), (0, 1), (0, 8)]), "1 bytes follow the end"),
        (bits([(2, 2), (1, 1), (15, 4), (0, 1), (1, 7)]), "unused bits are not zero|follow"),
        (bits([(2, 2), (1, 1), (1, 4), (0, 1)]), "plain bits of a mask need 92 bits, but only 0"),
        (bits(HEAD), "gaps of a mask need 1 bits, but only 0"),
        (bits([*HEAD, (0, 80)]), "count of more than 48 bits"),
        (bits([*HEAD, (4, 3), (52, 6)]), "gaps of 100 bits in rows of 92 bits"),
        (bits([*HEAD, (2, 2), (4, 5)]), "gaps of 20 bits in rows of 92 bits"),
        (bits([*HEAD, *EIGHT, (0, 8)]), "a gap that does not end"),
        (bits([*HEAD, *EIGHT, (32, 8)]), "a gap that does not end"),
        (bits([*HEAD, *EIGHT, (255, 8)]), "remainders of a mask need 24 bits, but only 3"),
        (bits([*WIDE, (31, 13), (32, 7)]), "unused bits are not zero"),
        (bits([*WIDE, (8191, 13)]), "a one at 8191 in rows of 92 bits"),
        (bits([*WIDE, (31, 13), (0, 8)]), "1 bytes follow the end"),
        (bits(THIRDS), "remainders of a mask need 8 bits, but only 0"),
        (bits([*THIRDS, (243, 8)]), "a byte of 243; 242 is the largest"),
        (bits([*THIRDS, (3, 8)]), "unused digits are not zero"),
    ],
)
def test_what_no_encoder_writes_is_refused_with_the_reason(message: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        decode(message, [(2, 46)])


def test_a_message_for_other_shapes_is_refused() -> None:
    masks = independent([(50, 60), (30,)], 0.1)
    with pytest.raises(WireError):
        decode(encode(masks), [(50, 30), (30,)])
    with pytest.raises(WireError):
        decode(encode(masks), [])


def test_damaged_messages_give_a_refusal_or_masks() -> None:
    shapes = [(12, 3, 3, 3), (25, 40), (40,), (), (0, 4)]
    known = independent(shapes, 0.2, seed=9)
    sources: list[Masks] = [independent(shapes, d, seed=3) for d in (0.01, 0.1, 0.5, 0.7, 0.97)]
    ragged = independent(shapes, 0.1, seed=4)
    ragged[1][::3], ragged[1][1::5], ragged[0][4:] = False, True, True
    without = [known[0] & False, *known[1:]]
    sources += [ragged, moved(known, 0.1), without]
    messages = [encode(masks) for masks in sources]
    messages += [encode_given(masks, known) for masks in sources]
    assert {message[0] & 3 for message in messages} == {0, 1, 2, 3}
    readers: list[Callable[[bytes], Masks]] = [
        lambda data: decode(data, shapes),
        lambda data: decode_given(data, known),
    ]
    refused = 0
    for data in damaged(messages, FUZZ):
        for read in readers:
            try:
                found = read(data)
            except WireError:
                refused += 1
            else:
                assert shapes_of(found) == shapes
                assert all(mask.dtype == np.bool_ for mask in found)
    assert FUZZ < refused < 2 * FUZZ


def test_damage_costs_no_more_memory_than_the_shapes_allow() -> None:
    shapes = [(100, 400), (40_000,)]
    known = independent(shapes, 0.2, seed=9)
    messages = [encode(independent(shapes, density)) for density in (0.01, 0.1, 0.3)]
    messages += [encode_given(moved(known, rate), known) for rate in (0.1, 0.005)]
    assert {message[0] & 3 for message in messages} == {1, 2, 3}
    tracemalloc.start()
    try:
        for data in damaged(messages, 300):
            try:
                decode_given(data, known)
            except WireError:
                continue
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 32 * 80_000


@pytest.mark.parametrize("held", [False, True])
def test_the_changes_that_take_most_memory_stay_within_that(held: bool) -> None:
    count = 400_000
    known = [np.full(count, held)]
    ones = count // 2 - 64  # as many gaps of nothing as a message shorter than a bitmap can tell
    head = np.concatenate([field(3 | 1 << 2 | 2 << 3, 8), near(ones, (count // 2).bit_length())])
    message = pack(np.concatenate([head, np.ones(ones, np.uint8), np.zeros(ones, np.uint8)]))
    tracemalloc.start()
    try:
        found = decode_given(message, known)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert np.count_nonzero(found[0] != held) == ones
    assert peak < 20 * count
