"""Few changes survive as one number, as short as it can be, and only in one spelling."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mask_cases import FUZZ, LENET, damaged, independent, moved, same
from numpy.typing import NDArray

from gossamer.wire import WireError
from gossamer.wire.masks import few
from gossamer.wire.masks.bits import BitReader, field, near, pack
from gossamer.wire.masks.entropy import conditional_bits
from gossamer.wire.masks.rice import FEW, GIVEN, decode, decode_given, encode, encode_given

Mask = NDArray[np.bool_]


def told(new: Mask, old: Mask) -> bytes:
    """The message of few changes, also where another one is shorter."""
    parts = few.write(~new[old], new[~old])
    assert parts is not None
    return pack(np.concatenate([field(FEW, 2), *parts]))


def revised(data: bytes, old: Mask) -> Mask:
    """What a message of few changes makes of a mask."""
    reader, bits = BitReader(data), old.copy()
    assert reader.field(2, "the tag") == FEW
    few.revise(reader, bits)
    assert not reader.left
    return bits


@st.composite
def changed(draw: st.DrawFn) -> tuple[Mask, Mask]:
    """New masks and old ones that differ in few places, of any density."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    length = draw(st.integers(0, 60) | st.integers(0, 20_000))
    density = draw(st.sampled_from([0.0, 0.01, 0.5, 0.99, 1.0]) | st.floats(0, 1))
    old = generator.random(length) < density
    count = draw(st.integers(0, min(length, few.MOST)))
    new = old.copy()
    new[generator.choice(length, count, replace=False)] ^= True
    return new, old


@given(changed())
@example((np.zeros(0, np.bool_), np.zeros(0, np.bool_)))
@example((np.zeros(50, np.bool_), np.zeros(50, np.bool_)))
@example((np.zeros(50, np.bool_), np.ones(50, np.bool_)))
@example((np.ones(50, np.bool_), np.zeros(50, np.bool_)))
@example((np.zeros(few.MOST, np.bool_), np.ones(few.MOST, np.bool_)))
@example((np.arange(600) % 3 == 0, np.arange(600) % 3 == 1))
def test_few_changes_come_back(pair: tuple[Mask, Mask]) -> None:
    new, old = pair
    assert np.array_equal(revised(told(new, old), old), new)
    data = encode_given([new], [old])
    assert same(decode_given(data, [old]), [new])
    assert len(data) <= min(len(told(new, old)), len(encode([new])))


@pytest.mark.parametrize(
    ("ones", "lost", "zeros", "gained"),
    [
        (4305, 43, 426_195, 43),
        (4305, 215, 426_195, 215),
        (215_000, 100, 215_000, 0),
        (1000, 0, 1000, 3),
        (20, 5, 30, 5),
        (1000, 250, 700, 200),
    ],
)
def test_the_number_is_as_short_as_if_all_choices_were_counted(
    ones: int, lost: int, zeros: int, gained: int
) -> None:
    draw = np.random.default_rng(0)
    choices = math.log2(math.comb(ones, lost) * math.comb(zeros, gained))
    used = []
    for _ in range(20):
        losses, gains = np.zeros(ones, np.bool_), np.zeros(zeros, np.bool_)
        losses[draw.choice(ones, lost, replace=False)] = True
        gains[draw.choice(zeros, gained, replace=False)] = True
        parts = few.write(losses, gains)
        assert parts is not None
        used.append(len(parts[-1]))
    assert sum(used) / len(used) < choices + 1 and max(used) < choices + 6


def test_the_smallest_changes_are_told_within_three_percent_and_larger_ones_too() -> None:
    for density, rate in [(0.01, 0.01), (0.01, 0.05), (0.05, 0.01)]:
        old = independent(LENET, density)
        new = moved(old, rate)
        data = encode_given(new, old)
        assert data[0] & 3 == FEW
        assert 8 * len(data) < 1.03 * conditional_bits(new, old)


def test_more_changes_than_that_are_told_by_gaps() -> None:
    old = np.arange(100_000) % 10 == 0
    new = old.copy()
    draw = np.random.default_rng(0)
    new[draw.choice(len(new), few.MOST, replace=False)] ^= True
    assert encode_given([new], [old])[0] & 3 == FEW
    new[np.flatnonzero(new == old)[0]] ^= True
    assert few.write(~new[old], new[~old]) is None
    assert encode_given([new], [old])[0] & 3 == GIVEN


def test_changes_that_fill_a_tensor_are_told_by_gaps() -> None:
    old = independent(LENET, 0.1)
    new = [old[0] & False, *old[1:]]
    assert encode_given(new, old)[0] & 3 == GIVEN


def bits(fields: list[tuple[int, int]]) -> bytes:
    """Numbers of so many bits each, the lowest first."""
    return pack(np.concatenate([field(value, width) for value, width in fields]))


OLD = np.arange(40) % 10 == 0  # four ones and 36 zeros
COUNTS = [(1, 2), (1, 1), (1, 4), (2, 2), (1, 1)]  # one is lost, and one more gained


def test_a_small_message_is_as_described() -> None:
    new = OLD.copy()
    new[10] = False  # the second of four: 0 * 4 + 1
    new[6] = new[34] = True  # zeros 5 and 30 of 36
    # 1 is odd and takes the second of the two, less the one before it: 1 // 2 * 35 + 30 - 1;
    # then there is one choice left: 29 * 36 + 5
    message = bits([*COUNTS, (1049, 11)])
    assert encode_given([new], [OLD]) == message
    assert same(decode_given(message, [OLD]), [new])


def counts(lost: int, more: int) -> list[NDArray[np.uint8]]:
    return [field(FEW, 2), near(lost, 4), near(more, 0)]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"\x01", "changes of a mask need 1 bits, but only 0 are left"),
        (b"\x01" + bytes(9), "changes of a mask have a count of more than 48 bits"),
        (pack(np.concatenate(counts(201, 0))), "1800 zeros cannot lose 201 and gain"),
        (pack(np.concatenate(counts(2, 5))), "cannot lose 2 and gain -1"),
        (pack(np.concatenate(counts(0, 2 * 1801))), "cannot lose 0 and gain 1801"),
        (pack(np.concatenate(counts(100, 626))), "has 513 changes; this encoding has at most 512"),
        (pack(np.concatenate([*counts(0, 0), field(1, 8)])), "0 changes .* do not take 1 bits"),
        (pack(np.concatenate([*counts(1, 1), field(255, 8)])), "has a remainder"),
        (pack(np.concatenate([*counts(1, 1), field(199, 8)])) + b"\0", "1 bytes follow the end"),
        (pack(np.concatenate(counts(1, 1))) + bytes(3), "3 bytes follow the end of a mask"),
        (pack(np.concatenate([*counts(1, 1), field(256, 9)])), "do not take 9 bits"),
        (b"\xf9" * 251, "is encoded in 250 bytes; its bitmap has 250"),
    ],
)
def test_what_no_encoder_writes_is_refused_with_the_reason(message: bytes, reason: str) -> None:
    known = np.arange(2000) % 10 == 0
    with pytest.raises(WireError, match=reason):
        decode_given(message, [known])


def test_changes_without_a_known_mask_are_refused() -> None:
    with pytest.raises(WireError, match="relative to another one, which is unknown here"):
        decode(bits([*COUNTS, (1049, 11)]), [OLD.shape])


def spelled(data: bytes, old: Mask) -> bool:
    """Whether a message is read; then it must be the only one of what it tells."""
    try:
        (new,) = decode_given(data, [old])
    except WireError as refusal:
        assert str(refusal)
        return False
    assert new.dtype == np.bool_ and new.shape == old.shape
    assert told(new, old) == data
    return True


@given(st.binary(min_size=1, max_size=30), st.integers(0, 2**32 - 1), st.floats(0, 1))
def test_any_bytes_are_refused_or_the_one_spelling_of_what_they_tell(
    data: bytes, seed: int, density: float
) -> None:
    known = np.random.default_rng(seed).random(240) < density
    spelled(bytes([data[0] & 252 | FEW]) + data[1:], known)


def test_damaged_messages_are_refused_or_the_one_spelling_of_what_they_tell() -> None:
    (old,) = independent([(30, 50)], 0.2)
    sources = [moved([old], rate, seed)[0] for seed, rate in enumerate((0.0, 0.003, 0.02, 0.1))]
    messages = [told(new, old) for new in sources]
    read = sum(
        spelled(bytes([data[0] & 252 | FEW]) + data[1:], old)
        for data in damaged(messages, FUZZ)
        if data
    )
    assert 0.01 * FUZZ < read < 0.5 * FUZZ


@pytest.mark.parametrize("lost", [0, few.MOST // 2, few.MOST])
def test_the_longest_messages_are_read_to_their_end_and_refused(lost: int) -> None:
    old = np.arange(430_500) % 2 == 0
    more = few.MOST - 2 * lost
    head = counts(lost, 2 * more if more >= 0 else -2 * more - 1)
    longest = field((1 << few.MOST * 18) - 1, few.MOST * 18)
    data = pack(np.concatenate([*head, longest]))
    with pytest.raises(WireError, match="has a remainder"):
        decode_given(data, [old])
