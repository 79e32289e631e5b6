"""Masks survive the Rice code, at close to their limit, and nothing else survives it."""

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
from gossamer.wire.entropy import conditional_bits, mask_bits
from gossamer.wire.rice import decode, decode_given, encode, encode_given


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
def test_certain_masks_cost_a_byte_each(value: bool) -> None:
    masks = [np.full(shape, value) for shape in LENET]
    assert len(encode(masks)) == 1 + len(masks)
    assert len(encode_given(masks, masks)) <= 1 + 2 * len(masks)


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
    assert encode(masks).hex() == "0130028f869b0a0101001155550100fc0304092502020500"
    changed = [mask.copy() for mask in masks]
    changed[0][0, 7], changed[0][0, 8] = False, True
    assert encode_given(changed, masks).hex() == "02060f0f0f070f0f010101010106"
    assert encode([np.eye(3, dtype=np.bool_)]).hex() == "001101"


def test_masks_of_another_dtype_or_shape_are_refused_by_the_encoder() -> None:
    with pytest.raises(TypeError, match="mask 0 is of uint8; masks are of bool"):
        encode([np.zeros(3, np.uint8)])  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"shapes \[\(3,\)\], the known ones have \[\(4,\)\]"):
        encode_given([np.zeros(3, np.bool_)], [np.zeros(4, np.bool_)])


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("", "need 1 bytes, but only 0 are left"),
        ("07", "tag 7"),
        ("02", "which is not known here"),
        ("00" + "00" * 11, "need 12 bytes, but only 11"),
        ("00" + "00" * 13, "has 13 bytes where its bitmap has 12"),
        ("01" + "00" * 12, "has 12 bytes where its bitmap has 12"),
        ("00" + "00" * 11 + "10", "unused bits are not zero"),
        ("01", "classes of tensors of a mask need 1 bytes, but only 0"),
        ("01" + "70", "by 7 bits"),
        ("01" + "10", "classes of rows of a mask need 1 bytes, but only 0"),
        ("01" + "1f02", "a row of class 16"),
        ("01" + "1403", "by more bits than they need"),
        ("01" + "1002" + "01" + "00" * 5, "swapped where that makes it longer"),
        ("01" + "0f00", "1 bytes follow the end"),
        ("01" + "01", "plain bits of a mask need 12 bytes, but only 0"),
        ("01" + "04", "gaps of a mask need 1 bytes, but only 0"),
        ("01" + "048000", "more bytes than they need"),
        ("01" + "04" + "ff" * 9 + "01", "more than 9 bytes"),
        ("01" + "04" + "ffffffff7f", "gaps of 34359738367 bits in rows of 92 bits"),
        ("01" + "040800", "a gap that does not end"),
        ("01" + "040820", "a gap that does not end"),
        ("01" + "04020f", "unused bits are not zero"),
        ("01" + "0408ff", "remainders of a mask need 3 bytes, but only 0"),
        ("01" + "0e01011fff", "unused bits are not zero"),
        ("01" + "0e0101ff1f", "a one at 8191 in rows of 92 bits"),
        ("01" + "04010100" + "00", "1 bytes follow the end"),
    ],
)
def test_what_no_encoder_writes_is_refused_with_the_reason(message: str, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        decode(bytes.fromhex(message), [(2, 46)])


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
    sources += [ragged, moved(known, 0.1)]
    messages = [encode(masks) for masks in sources]
    messages += [encode_given(masks, known) for masks in sources]
    assert {message[0] for message in messages} == {0, 1, 2}
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
    messages.append(encode_given(moved(known, 0.1), known))
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
