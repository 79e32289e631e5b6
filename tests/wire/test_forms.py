"""A receiver that accepts several forms tells them apart by the header, and says what is wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from record_cases import MODES, records
from torch import Tensor

from gossamer.wire import (
    EXACT,
    HEADER,
    Drawn,
    Mode,
    Packed,
    Revision,
    Schema,
    WireError,
    choose,
    decode,
    difference,
    encode,
)
from gossamer.wire.format import VERSION

MASK = torch.tensor([True, False, True])


@dataclass(frozen=True)
class One:
    values: Any
    note: str = ""


@dataclass(frozen=True)
class Two:
    values: Any
    note: str = ""


@dataclass(frozen=True)
class Precise:
    values: Tensor = field(metadata=EXACT)


def one(values: Any) -> Schema:
    return Schema.of(One(values))


@given(st.lists(records(), min_size=1, max_size=4), st.sampled_from(MODES))
def test_a_message_is_read_by_the_schema_it_was_written_with(found: list[Any], mode: Mode) -> None:
    schemas = [Schema.of(record) for record in found]
    for record, schema in zip(found, schemas, strict=True):
        assert choose(encode(record, schema, mode), schemas, mode) == schema


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_what_is_none_of_the_forms_is_refused(mode: Mode) -> None:
    schemas = [one(torch.ones(2)), one(None)]
    data = encode(One(torch.ones(3)), mode=mode)
    wanted = r"the message has schema [0-9a-f]{16}, [0-9a-f]{16} or [0-9a-f]{16} is expected"
    with pytest.raises(WireError, match=wanted):
        choose(data, schemas, mode)
    with pytest.raises(WireError, match=r"values is float32 of shape \(3,\), float32 of shape"):
        choose(data, schemas, mode, Schema.of(One(torch.ones(3))))


def test_only_the_header_counts_and_not_what_a_sender_claims() -> None:
    right, wrong = one(torch.ones(2)), one(torch.ones(3))
    data = encode(One(torch.ones(2)))
    assert choose(data, [wrong, right], claimed=wrong) == right
    with pytest.raises(WireError, match="the message has schema"):
        choose(data[:1] + bytes(8) + data[HEADER:], [right], claimed=right)
    with pytest.raises(WireError, match=r"values needs 12 bytes, but only 8 are left"):
        forged = encode(One(torch.ones(3)))[:HEADER] + data[HEADER:]
        decode(forged, choose(forged, [wrong, right]))


@pytest.mark.parametrize("data", [b"", b"\x03", b"\x03" * 8])
def test_what_has_no_header_is_refused(data: bytes) -> None:
    with pytest.raises(WireError, match=f"a message of {len(data)} bytes is shorter"):
        choose(data, [one(1)])


def test_another_version_is_refused() -> None:
    with pytest.raises(WireError, match=f"the message has version 99, this is version {VERSION}"):
        choose(b"c" + encode(One(1))[1:], [one(1)])


@pytest.mark.parametrize(
    ("found", "wanted", "reason"),
    [
        (One(1), One(1), ""),
        (One(1), Two(1), "the message is a One, a Two is expected"),
        (One(1), One(1.0), "values is a number or text of type int, a number or text of type"),
        (One(None), One(1), "values is nothing, a number or text of type int is expected"),
        (One((1, 2)), One((1,)), "values is a tuple of 2, a tuple of 1 is expected"),
        (One([1]), One((1,)), "values is a list of 1, a tuple of 1 is expected"),
        (One([1, True]), One([1, 2]), "values[1] is a number or text of type bool, a number"),
        (One({"a": 1}), One({"b": 1}), "values[b] is missing"),
        (One({"a": 1, "b": 1}), One({"b": 1}), "values[a] is not expected"),
        (One({"a": 1, "b": 1}), One({"b": 1, "a": 1}), "values has its parts in another order"),
        (One({"a": One(1)}), One({"a": One("")}), "values[a].values is a number or text of type"),
        (One({"a": MASK}), One({"a": MASK[:2]}), "values[a] is bool of shape (3,), bool of"),
        (One({"a": MASK}), One(Revision({"a": MASK})), "values is masks, a revision of masks is"),
        (
            One(Drawn(1, {"a": 1}, {"a": (3,)})),
            One({"a": MASK}),
            "values is drawn masks, masks is expected",
        ),
        (
            One(Drawn(1, {"a": 1}, {"a": (3,)})),
            One(Drawn(1, {"a": 1}, {"a": (4,)})),
            "values[a] is bool of shape (3,), bool of shape (4,) is expected",
        ),
        (
            One(Packed({"a": torch.ones(1)}, {"a": (3,)})),
            One(Packed({"a": torch.ones(1).half()}, {"a": (3,)})),
            "values[a] is float32 of shape (3,), float16 of shape (3,) is expected",
        ),
        (
            Precise(torch.ones(2)),
            Precise(torch.ones(3)),
            "values is exact float32 of shape (2,), exact float32 of shape (3,) is expected",
        ),
    ],
)
def test_the_first_difference_is_told_by_the_path_of_its_leaf(
    found: Any, wanted: Any, reason: str
) -> None:
    told = difference(Schema.of(found), [Schema.of(wanted)])
    assert told.startswith(reason) and bool(told) == bool(reason)


@given(records(), records())
def test_records_of_other_schemas_always_have_a_difference(left: Any, right: Any) -> None:
    one, two = Schema.of(left), Schema.of(right)
    assert bool(difference(one, [two])) == (one != two)
