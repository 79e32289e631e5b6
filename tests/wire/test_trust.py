"""Nothing that arrives is trusted: it is refused with the leaf and the reason."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pytest
import torch
from hostile import (
    HELD,
    SMALL,
    message,
    small,
)
from record_cases import MODES

from gossamer.wire import (
    HEADER,
    Mode,
    Packed,
    Revision,
    Schema,
    WireError,
    decode,
    encode,
    longest,
)
from gossamer.wire.format import LONGEST_TEXT, VERSION
from gossamer.wire.masks.bits import number


@dataclass(frozen=True)
class Positive:
    """A record that has an opinion on its values."""

    rate: float

    def __post_init__(self) -> None:
        if self.rate <= 0:
            raise ValueError(f"a rate is positive, not {self.rate}")


# what is wrong is named --------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_message_cut_anywhere_is_refused_by_the_name_of_a_leaf(mode: Mode) -> None:
    whole = encode(small(), SMALL, mode)
    leaves = [
        "text",
        "on",
        "lr",
        "counts",
        "mask",
        "masks",
        "new",
        "drawn",
        "values",
        "params",
        "precise",
    ]
    seen = set()
    for kept in range(HEADER, len(whole)):
        with pytest.raises(WireError) as refusal:
            decode(whole[:kept], SMALL, mode, held=HELD)
        reason = str(refusal.value)
        first = reason.split()[0].partition("[")[0].rstrip(":")
        assert first in leaves and "are left" in reason, reason
        seen.add(first)
    assert seen >= set(leaves) - {"params", "precise"} and (mode.zstd or seen == set(leaves))


@pytest.mark.parametrize(
    ("record", "payload", "reason"),
    [
        ("", number(LONGEST_TEXT + 1), "record is a text of 65537 bytes, 65536 at most"),
        ("", b"\x05ab", "record needs 5 bytes, but only 2 are left"),
        ("", b"\x80\x00", "record has a length in more bytes than it needs"),
        ("", b"\xff" * 10, "record has a length of more than 10 bytes"),
        ("", b"\x01\xff", "record is not UTF-8: invalid start byte"),
        (True, b"\x02", "record is 2, which is neither true nor false"),
        (1.0, struct.pack("<d", float("nan")), "record is nan, which is not finite"),
        (1.0, struct.pack("<d", float("inf")), "record is inf, which is not finite"),
        ([1.0], struct.pack("<d", -float("inf")), r"record\[0\] is -inf, which is not finite"),
        ([1], b"\0" * 7, r"record\[0\] needs 8 bytes, but only 7 are left"),
        ([1], b"\0" * 9, "1 bytes follow the last leaf"),
        (
            {"a": torch.ones(2), "b": torch.ones(3)},
            b"\0" * 19,
            r"record\[b\] needs 12 bytes, but only 11 are left",
        ),
        ({"a": torch.ones(2)}, b"\0" * 9, "1 bytes follow the last leaf"),
        (
            {"a": torch.ones(2)},
            struct.pack("<2f", 1, float("nan")),
            r"record\[a\] holds values that are not finite",
        ),
        ({"a": torch.ones(2).half()}, b"\x00\x7c\0\0", r"record\[a\] holds values that are not"),
        ({"a": torch.ones(2).bfloat16()}, b"\x80\x7f\0\0", r"record\[a\] holds values that are"),
        (torch.ones(9) > 0, b"\x05", "record needs 5 bytes, but only 0 are left"),
        (torch.ones(9) > 0, b"\x01\x08", "record: a mask has the tag 8"),
        (torch.ones(9) > 0, b"\x01\x09", "record: .* relative to another one"),
        ({"m": torch.ones(9) > 0}, b"\x03\x00\x00\xff", "record: .*unused bits are not zero"),
        ({"m": torch.ones(9) > 0}, b"\x04\x00\x00\x00\x00", "record: a mask is encoded in 3 bytes"),
        (Revision({"m": torch.ones(9) > 0}), b"\x02", "record has an unknown encoding, 2"),
        (
            Revision({"m": torch.ones(9) > 0}),
            b"\x01" + b"12345678",
            "record builds on mask 3132333435363738, which is not held here",
        ),
        (
            Packed({"w": torch.ones(2)}, {"w": (3,)}),
            b"\x04" + b"\0" * 16,
            r"record\[w\] has 4 values, 3 at most",
        ),
        (
            Packed({"w": torch.ones(2)}, {"w": (3,)}),
            b"\x03" + b"\0" * 11,
            r"record\[w\] needs 12 bytes, but only 11 are left",
        ),
        (
            Packed({"w": torch.ones(2)}, {"w": (3,)}),
            b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            r"record\[w\] has 18446744073709551615 values, 3 at most",
        ),
        (Positive(1.0), struct.pack("<d", -1.0), "Positive rejects its values: a rate is positive"),
    ],
)
def test_what_is_wrong_is_said_with_the_leaf_and_the_reason(
    record: object, payload: bytes, reason: str
) -> None:
    schema = Schema.of(record)
    with pytest.raises(WireError, match=reason):
        decode(message(schema, payload), schema)


def test_the_header_is_looked_at_first() -> None:
    schema = Schema.of(1)
    whole = encode(1)
    for size in range(HEADER):
        with pytest.raises(
            WireError, match=f"a message of {size} bytes is shorter than its header"
        ):
            decode(whole[:size], schema)
    with pytest.raises(WireError, match=f"the message has version 1, this is version {VERSION}"):
        decode(b"\x01" + whole[1:], schema)
    with pytest.raises(WireError, match=r"the message has schema 0{16}, \w+ is expected"):
        decode(whole[:1] + bytes(8) + whole[9:], schema)


def test_tensors_of_another_shape_are_refused() -> None:
    data = encode({"w": torch.ones(2, 3)})
    for other in (torch.ones(3, 2), torch.ones(6), torch.ones(2, 3).int()):
        with pytest.raises(WireError, match="schema"):
            decode(data, Schema.of({"w": other}))


def test_a_message_longer_than_its_schema_allows_is_not_looked_into() -> None:
    schema = Schema.of("text")
    most = longest(schema)
    with pytest.raises(WireError, match=rf"of {most + 1} bytes is longer .* allows, {most}"):
        decode(message(schema, b"\xff" * (most + 1 - HEADER)), schema)


def test_values_that_are_not_finite_pass_where_they_are_allowed() -> None:
    record = [float("nan"), torch.tensor([float("inf"), 1.0])]
    found = decode(encode(record), Schema.of(record), finite=False)
    assert found[0] != found[0] and found[1].tolist() == [float("inf"), 1.0]
