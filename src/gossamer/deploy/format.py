"""The bytes of a sparse model, version 1; all numbers are little-endian.

| part | contents |
|---|---|
| head | magic, version (u32), CRC-32 of the rest (u32), length of the rest (u64) |
| facts | length (u32), JSON |
| values | count (u32); channels, height and width of each (u32) |
| ends | the input and the output (u32), whether an example is a vector (u32) |
| steps | count (u32); of each the fields of `STEP`, -1 where there is none |
| tensors | count (u32); of each whether it is packed, rank, dimensions, stored values (u32) |
| numbers | of each tensor: if it is packed a bit for each number, then its values (f32) |

A reader allocates nothing that the length of the file does not bound: a packed tensor has a bit in
the file for each of its numbers.
"""

from __future__ import annotations

import json
import struct
import zlib
from math import isfinite, prod

import numpy as np

from gossamer.arithmetic.chain import Chain, Shape, Step, Window
from gossamer.arithmetic.structs import NONE, Kind
from gossamer.deploy.stored import RULES, Packed, Stored, Unreadable, check

MAGIC = b"\x89GSM\r\n\x1a\n"
VERSION = 1
HEAD = struct.Struct("<8sIIQ")
STEP = struct.Struct("<16id")
"""Kind, ReLU, input, other, output; weight, bias, mean, variance; window; groups; epsilon."""
MOST_PARTS = 4096
"""Values, steps or tensors of a model."""
MOST_FACTS = 2**16
"""Bytes of the facts."""
MOST_DIMENSIONS = 4


# writing -----------------------------------------------------------------------------------------


def encode(stored: Stored) -> bytes:
    """The bytes of a model.

    Raises:
        ValueError: the model is larger than the format allows.
    """
    facts = json.dumps(stored.facts, separators=(",", ":")).encode()
    chain, names = stored.chain, list(stored.tensors)
    if len(facts) > MOST_FACTS or max(len(chain.shapes), len(chain.steps), len(names)) > MOST_PARTS:
        raise ValueError(f"a sparse model has at most {MOST_PARTS} steps and {MOST_FACTS} of facts")
    parts = [struct.pack("<I", len(facts)), facts, struct.pack("<I", len(chain.shapes))]
    parts += [struct.pack("<3I", *shape) for shape in chain.shapes]
    parts.append(struct.pack("<4I", chain.input, chain.output, stored.vector, len(chain.steps)))
    places = {name: place for place, name in enumerate(names)}
    parts += [_step(step, places) for step in chain.steps]
    parts.append(struct.pack("<I", len(names)))
    for tensor in stored.tensors.values():
        rank = len(tensor.shape)
        sizes = (tensor.bits is not None, rank, *tensor.shape, len(tensor.values))
        parts.append(struct.pack(f"<{3 + rank}I", *sizes))
    for tensor in stored.tensors.values():
        if tensor.bits is not None:
            parts.append(tensor.bits.tobytes())
        parts.append(tensor.values.astype("<f4").tobytes())
    rest = b"".join(parts)
    return HEAD.pack(MAGIC, VERSION, zlib.crc32(rest), len(rest)) + rest


def _step(step: Step, places: dict[str, int]) -> bytes:
    def place(name: str | None) -> int:
        return NONE if name is None else places[name]

    window = step.window
    return STEP.pack(
        step.kind,
        step.relu,
        step.input,
        NONE if step.other is None else step.other,
        step.output,
        *(place(name) for name in (step.weight, step.bias, step.mean, step.variance)),
        *(window.height, window.width, window.stride_y, window.stride_x),
        *(window.pad_y, window.pad_x),
        step.groups,
        step.epsilon,
    )


# reading -----------------------------------------------------------------------------------------


def decode(data: bytes) -> Stored:
    """The model in a file's bytes, checked in full.

    Raises:
        Unreadable: the bytes are not a whole model.
    """
    if len(data) < HEAD.size or data[: len(MAGIC)] != MAGIC:
        raise Unreadable("it does not begin like one")
    _, version, checksum, length = HEAD.unpack_from(data)
    if version != VERSION:
        raise Unreadable(f"it has version {version}, and this Gossamer reads version {VERSION}")
    if len(data) - HEAD.size != length:
        raise Unreadable(f"it has {len(data):,} bytes instead of {HEAD.size + length:,}")
    rest = memoryview(data)[HEAD.size :]
    if zlib.crc32(rest) != checksum:
        raise Unreadable("its checksum is wrong")
    reader = _Reader(rest)
    facts = _facts(reader.take(reader.count("bytes of facts", MOST_FACTS)))
    shapes = [reader.integers(3) for _ in range(reader.count("values"))]
    begin, end, vector = reader.integers(3)
    steps = [_read_step(reader) for _ in range(reader.count("steps"))]
    sizes = [_sizes(reader) for _ in range(reader.count("tensors"))]
    tensors = {str(place): _numbers(reader, *size) for place, size in enumerate(sizes)}
    if reader.at != length:
        raise Unreadable("there is something behind its last tensor")
    for step in steps:
        for name in (step.weight, step.bias, step.mean, step.variance):
            if name is not None and name not in tensors:
                raise Unreadable(f"there is no tensor {name}")
    kept: list[Shape] = [(shape[0], shape[1], shape[2]) for shape in shapes]
    stored = Stored(Chain(begin, end, kept, steps), tensors, bool(vector), facts)
    check(stored)
    return stored


class _Reader:
    """Reads on, and never beyond the end."""

    def __init__(self, data: memoryview) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> memoryview:
        if size > len(self.data) - self.at:
            raise Unreadable("it ends too early")
        self.at += size
        return self.data[self.at - size : self.at]

    def integers(self, count: int) -> tuple[int, ...]:
        return struct.unpack(f"<{count}I", self.take(4 * count))

    def count(self, what: str, most: int = MOST_PARTS) -> int:
        (count,) = self.integers(1)
        if count > most:
            raise Unreadable(f"it has {count:,} {what}, and at most {most:,} are allowed")
        return count


def _facts(data: memoryview) -> dict[str, object]:
    try:
        facts = json.loads(bytes(data))
    except (ValueError, RecursionError):
        raise Unreadable("its facts are no JSON") from None
    if not isinstance(facts, dict):
        raise Unreadable("its facts are no JSON object")
    return facts


def _read_step(reader: _Reader) -> Step:
    kind, relu, before, other, after, *more, epsilon = STEP.unpack(reader.take(STEP.size))
    names, window, groups = more[:4], more[4:10], more[10]
    if kind not in [int(each) for each in RULES]:
        raise Unreadable(f"it has a step of kind {kind}, which this Gossamer does not know")
    if not isfinite(epsilon):
        raise Unreadable("the epsilon of a norm is no number")
    weight, bias, mean, variance = (None if place == NONE else str(place) for place in names)
    step = Step(Kind(kind), before, after, None if other == NONE else other, bool(relu))
    step.weight, step.bias, step.mean, step.variance = weight, bias, mean, variance
    step.window, step.groups, step.epsilon = Window(*window), groups, epsilon
    return step


def _sizes(reader: _Reader) -> tuple[bool, tuple[int, ...], int]:
    packed, rank = reader.integers(2)
    if packed > 1 or not 1 <= rank <= MOST_DIMENSIONS:
        raise Unreadable(f"a tensor has {rank} dimensions")
    *shape, stored = reader.integers(rank + 1)
    return bool(packed), tuple(shape), stored


def _numbers(reader: _Reader, packed: bool, shape: tuple[int, ...], stored: int) -> Packed:
    count, bits = prod(shape), None
    if packed:
        bits = np.frombuffer(reader.take((count + 7) // 8), np.uint8)
        if int(np.unpackbits(bits).sum()) != stored or (count % 8 and bits[-1] >> count % 8):
            raise Unreadable("the bits of a packed tensor do not match its values")
    elif stored != count:
        raise Unreadable(f"a tensor of shape {shape} has {stored:,} numbers")
    values = np.frombuffer(reader.take(4 * stored), "<f4").astype(np.float32)
    return Packed(shape, values, bits)
