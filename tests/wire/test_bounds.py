"""Damage costs bounded time and memory, whatever lengths a message claims."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
import zstandard
from hostile import (
    ZSTD,
    inside,
    masks_of,
    message,
    named,
    outcome,
    values_of,
    zeros,
)
from mask_cases import independent, moved
from record_cases import MODES

from gossamer.wire import (
    HEADER,
    PLAIN,
    Mode,
    Packed,
    Revision,
    Schema,
    WireError,
    decode,
    encode,
    held,
    longest,
    pack,
    room,
)
from gossamer.wire.format import LONGEST_TEXT, message_hash
from gossamer.wire.kinds import fingerprint_of
from gossamer.wire.masks import bits, rice
from gossamer.wire.masks.bits import field, near, number
from gossamer.wire.masks.rows import Rows

# time and memory ---------------------------------------------------------------------------------

CONSTANT = 200_000
"""Bytes that a refusal may take whatever was sent: exceptions, tracebacks, caches."""


class peak:
    """The most memory that Python and NumPy had at once inside."""

    bytes: int

    def __enter__(self) -> peak:
        tracemalloc.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()


LAYERS = [(200, 300), (60_000,), (20_000, 3)]


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_values_cost_at_most_twice_the_limit_however_damaged(mode: Mode) -> None:
    """The limit is the longest message of the schema; values are at most copied once."""
    kept = masks_of(LAYERS, 0.5)
    half = {name: value.half() for name, value in values_of(LAYERS).items()}
    for record in (values_of(LAYERS), pack(values_of(LAYERS), kept), half):
        schema = Schema.of(record)
        messages = [encode(record, schema, mode), encode(zeros(record), schema, mode)]
        for data in [*messages, *inside(messages, 60)]:
            with peak() as found:
                outcome(data, schema, mode)
            assert found.bytes < 2 * longest(schema) + CONSTANT


@pytest.mark.parametrize("mode", [PLAIN, Mode(ans=True)], ids=str)
def test_masks_cost_a_fixed_number_of_bytes_a_weight_however_damaged(mode: Mode) -> None:
    """Unpacked, a weight of a mask is a byte, and its place a whole number."""
    old = independent(LAYERS, 0.2, seed=9)
    sources: list[Any] = [masks_of(LAYERS, density) for density in (0.01, 0.1, 0.3, 0.5)]
    revised = [Revision(named(moved(old, rate)), named(old)) for rate in (0.3, 0.005)]
    for records in (sources, [*revised, Revision(sources[1])]):
        schema = Schema.of(records[0])
        messages = [encode(record, schema, mode) for record in records]
        for data in [*messages, *inside(messages, 60)]:
            with peak() as found:
                outcome(data, schema, mode, held(named(old)))
            assert found.bytes < 2 * room(schema) + CONSTANT


def gapless(size: int) -> list[Any]:
    """As many gaps of nothing as a message shorter than a bitmap can tell, each in two bits."""
    ones = size // 2 - 64
    extent = near(ones, (size >> 1).bit_length())
    return [extent, np.ones(ones, np.uint8), np.zeros(ones, np.uint8)]


def every(number: int) -> list[Any]:
    """All rows are of one class."""
    return [field(1 | number << 1, 6)]


def each(*numbers: int) -> list[Any]:
    """The class of each tensor's rows."""
    return [field(0, 1), np.unpackbits(np.array(numbers, np.uint8), bitorder="little")]


SHAPES: list[list[tuple[int, ...]]] = [
    [(400_000,)],
    [(500, 800)],
    [(50_000, 8)],  # rows as short as they come, each with numbers of its own
    [(44_444, 9)],
    [(49_900, 8), (100, 8)],
]


def coded(schema: Schema, tag: int, parts: list[Any], prefix: bytes = b"") -> bytes:
    body = bits.pack(np.concatenate([field(tag, 2), *parts]))
    return message(schema, prefix + number(len(body)) + body)


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_the_masks_that_take_most_memory_stay_within_that(shapes: list[tuple[int, ...]]) -> None:
    blank = masks_of(shapes, 0.0)
    schema, size = Schema.of(blank), blank["w0"].numel()
    head = every(2) if len(shapes) == 1 else each(2, rice.EMPTY)
    data = coded(schema, rice.GOLOMB, head + gapless(size))
    Rows.of.cache_clear()
    with peak() as found:
        masks = decode(data, schema)
    assert int(masks["w0"].sum()) == size // 2 - 64
    assert found.bytes < 2 * room(schema)


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("density", [0.0, 0.001, 0.1, 0.5, 1.0])
def test_the_changes_that_take_most_memory_stay_within_that(
    shapes: list[tuple[int, ...]], density: float
) -> None:
    old = masks_of(shapes, density)
    schema = Schema.of(Revision(old))
    parts: list[Any] = []
    for side in (old, {name: ~mask for name, mask in old.items()}):
        sizes = [size for mask in side.values() if (size := int(mask.sum()))]
        if sizes and sizes[0] < 1000:
            parts += every(rice.EMPTY)
        elif sizes:
            head = every(2) if len(sizes) == 1 else each(2, rice.EMPTY)
            parts += head + gapless(sizes[0])
    data = coded(schema, rice.GIVEN, parts, b"\x01" + fingerprint_of(old))
    known = held(old)
    Rows.of.cache_clear()
    with peak() as found:
        revised = decode(data, schema, held=known)
    changes = sum(int((revised.masks[name] ^ mask).sum()) for name, mask in old.items())
    assert changes == pytest.approx(200_000, rel=0.01)
    assert found.bytes < 2 * room(schema)


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("density", [0.0, 0.5, 1.0])
def test_few_changes_stay_within_that_at_any_density(
    shapes: list[tuple[int, ...]], density: float
) -> None:
    old = masks_of(shapes, density)
    flat = old["w0"].flatten().clone()
    flat[np.random.default_rng(0).choice(len(flat), 400, replace=False)] ^= True
    new = {**old, "w0": flat.reshape(old["w0"].shape)}
    revision = Revision(new, old)
    schema, data, known = Schema.of(revision), encode(revision), held(old)
    assert data[HEADER + 1 + 8 + 2] & 3 == rice.FEW
    Rows.of.cache_clear()
    with peak() as found:
        revised = decode(data, schema, held=known)
    assert all(torch.equal(revised.masks[name], mask) for name, mask in new.items())
    assert found.bytes < 2 * room(schema)


def test_the_range_coder_takes_half_of_that() -> None:
    for shapes in SHAPES[:3]:
        record = masks_of(shapes, 0.3)
        schema, mode = Schema.of(record), Mode(ans=True)
        data = encode(record, schema, mode)
        decode(data, schema, mode)  # makes tables that stay
        with peak() as found:
            decode(data, schema, mode)
        assert found.bytes < room(schema)


def test_lengths_are_checked_before_memory_is_reserved() -> None:
    schema = Schema.of(Packed({"w": torch.ones(1)}, {"w": (2**40,)}))
    text = Schema.of("text")
    wide = Schema.of({"w": torch.ones(1).expand(2**33)})
    for data, asked in [
        (message(schema, number(2**40)), schema),
        (message(schema, number(2**40) + bytes(1000)), schema),
        (message(text, number(LONGEST_TEXT) + b"a"), text),
        (message(wide, bytes(1000)), wide),
        (message(wide, number(2**34) + bytes(1000), ZSTD), wide),
    ]:
        mode = ZSTD if data[1:HEADER] == message_hash(asked, ZSTD) else PLAIN
        with peak() as found, pytest.raises(WireError):
            decode(data, asked, mode)
        assert found.bytes < CONSTANT


def test_a_decoder_with_a_limit_refuses_what_might_take_more() -> None:
    record = {"mask": torch.zeros(1000, dtype=torch.bool)}
    schema = Schema.of(record)
    data = encode(record, schema)
    assert decode(data, schema, limit=room(schema))["mask"].numel() == 1000
    with pytest.raises(WireError, match=rf"up to {room(schema)} bytes, but 5000 are allowed"):
        decode(data, schema, limit=5000)


# compressed values -------------------------------------------------------------------------------

DENSE = Schema.of({"w": torch.zeros(1000), "v": torch.zeros(500)})


def compressed(data: bytes, **settings: Any) -> bytes:
    frame = zstandard.ZstdCompressor(level=1, **settings).compress(data)
    return message(DENSE, number(len(frame)) + frame, ZSTD)


def streamed(data: bytes, window: int = 0) -> bytes:
    """A frame that does not say how long its content is, and wants a window."""
    level = {"compression_level": 1} | ({"window_log": window} if window else {})
    writer = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters(**level)
    ).compressobj()
    return writer.compress(data) + writer.flush()


def claiming(size: int, frame: bytes) -> bytes:
    """A frame with the size of its content overwritten: eight bytes after magic and descriptor."""
    head = frame[:4] + bytes([0b11100000]) + struct.pack("<Q", size)
    assert zstandard.get_frame_parameters(head + bytes(9)).content_size == size
    return head + frame[frame_header(frame) :]


def frame_header(frame: bytes) -> int:
    found: int = zstandard.frame_header_size(frame)
    return found


HONEST = zstandard.ZstdCompressor(level=1).compress(bytes(6000))
BOMB = zstandard.ZstdCompressor(level=1).compress(bytes(50_000_000))


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"not a frame at all", "damaged"),
        (HONEST[:-3], "damaged"),
        (HONEST[:7] + b"\xff\xff" + HONEST[9:], "damaged"),
        (HONEST + b"more", "damaged"),
        (HONEST + HONEST, "damaged"),
        (BOMB[:5000], "claim 50000000 bytes, 6000 are expected"),
        (claiming(6000, BOMB[:5000]), "damaged"),
        (claiming(2**63, HONEST), "claim 9223372036854775808 bytes, 6000 are expected"),
        (zstandard.ZstdCompressor().compress(bytes(5999)), "claim 5999 bytes, 6000 are expected"),
        (claiming(6000, zstandard.ZstdCompressor().compress(bytes(5990))), "damaged"),
        (streamed(bytes(6000)), r"claim \d+ bytes, 6000 are expected"),
        (streamed(bytes(6000), window=27), r"claim \d+ bytes, 6000 are expected"),
        (b"\x50\x2a\x4d\x18" + struct.pack("<I", 4000) + bytes(4000), "bytes|damaged"),
    ],
)
def test_frames_that_are_not_what_they_should_be_are_refused(frame: bytes, reason: str) -> None:
    data = message(DENSE, number(len(frame)) + frame, ZSTD)
    with pytest.raises(WireError, match=rf"record\[w\] to record\[v\]: .*({reason})"):
        decode(data, DENSE, ZSTD)


def test_compressed_values_longer_than_plain_ones_are_refused() -> None:
    noise = np.random.default_rng(0).bytes(6000)
    with pytest.raises(WireError, match=r"is compressed to 60\d\d bytes, but holds only 6000"):
        decode(compressed(noise), DENSE, ZSTD)


def test_a_bomb_costs_no_more_memory_than_the_schema_allows() -> None:
    frames = [BOMB[:5990], claiming(6000, BOMB[:5000]), streamed(bytes(10_000_000), 27)[:5990]]
    for frame in frames:
        data = message(DENSE, number(len(frame)) + frame, ZSTD)
        with pytest.raises(WireError), peak() as found:
            decode(data, DENSE, ZSTD)
        assert found.bytes < 2 * longest(DENSE) + CONSTANT
