"""Records survive the wire and the disk, and nothing else does."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, get_type_hints

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from record_cases import TYPES, Inner, Outer, alike, bases, records
from torch import Tensor

from gossamer import METHODS, FedAvg
from gossamer.methods.parts import dense_model
from gossamer.wire import (
    HEADER,
    Packed,
    Revision,
    Schema,
    WireError,
    decode,
    dump,
    encode,
    fingerprint,
    flatten,
    held,
    load,
    longest,
    record_types,
)
from gossamer.wire.schema import type_name


def test_alike_sees_every_kind_of_difference() -> None:
    one = torch.tensor([1.0])
    assert not alike(one, one.double()) and not alike(one, one[None]) and not alike(one, -one)
    assert not alike(0.0, -0.0) and not alike([1], (1,)) and not alike(True, 1)
    assert not alike({"a": 1, "b": 2}, {"b": 2, "a": 1}) and not alike(Inner(1, 2), Inner(1, 3))


@given(records())
def test_decoding_gives_what_was_encoded(record: Any) -> None:
    schema = Schema.of(record)
    assert alike(decode(encode(record, schema), schema, held=bases(record)), record)


@given(records(finite=False))
def test_values_that_are_not_finite_survive_where_they_are_allowed(record: Any) -> None:
    schema = Schema.of(record)
    found = decode(encode(record, schema), schema, held=bases(record), finite=False)
    assert alike(found, record)


@given(records(finite=False, kinds=False))
def test_loading_gives_what_was_dumped(record: Any) -> None:
    assert alike(load(dump(record), TYPES), record)


@given(records(kinds=False))
def test_a_message_is_its_header_and_its_leaves(record: Any) -> None:
    size, masks = HEADER, 0
    for leaf in flatten(record):
        match leaf:
            case Tensor(dtype=torch.bool) | dict():
                some = [leaf] if isinstance(leaf, Tensor) else leaf.values()
                size += 2  # a length and a tag
                masks += -(-sum(mask.numel() for mask in some) // 8)
            case Tensor():
                size += leaf.numel() * leaf.element_size()
            case bool():
                size += 1
            case str():
                size += 1 + len(leaf.encode())
            case _:
                size += 8
    assert size <= len(encode(record)) <= size + masks + 2


@given(records(finite=False))
def test_no_message_is_longer_than_its_schema_allows(record: Any) -> None:
    assert len(encode(record)) <= longest(Schema.of(record))


@given(records(finite=False))
def test_a_schema_is_read_from_what_was_written(record: Any) -> None:
    schema = Schema.of(record)
    again = Schema.read(json.loads(json.dumps(schema.plain())), TYPES)
    assert again == schema and again.hash == schema.hash


@given(records(), st.data())
def test_a_message_cut_short_is_refused(record: Any, data: st.DataObject) -> None:
    schema, whole = Schema.of(record), encode(record)
    kept = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(WireError):
        decode(whole[:kept], schema, held=bases(record))


@given(records(), st.binary(min_size=1, max_size=9))
def test_bytes_after_the_last_leaf_are_refused(record: Any, more: bytes) -> None:
    schema = Schema.of(record)
    with pytest.raises(WireError, match=r"follow the last leaf|longer than its schema allows"):
        decode(encode(record) + more, schema, held=bases(record))


@given(records(), st.integers(0, 255))
def test_another_version_is_refused(record: Any, version: int) -> None:
    whole = bytearray(encode(record))
    if whole[0] == version:
        version += 1
    whole[0] = version % 256
    with pytest.raises(WireError, match=f"version {version % 256}"):
        decode(bytes(whole), Schema.of(record))


@given(records(), records())
def test_a_message_of_another_schema_is_refused(record: Any, other: Any) -> None:
    if Schema.of(record) == Schema.of(other):
        assert Schema.of(record).hash == Schema.of(other).hash
        return
    with pytest.raises(WireError, match="schema"):
        decode(encode(record), Schema.of(other))


@given(records(finite=False, kinds=False), st.data())
def test_a_dump_cut_short_is_refused(record: Any, data: st.DataObject) -> None:
    whole = dump(record)
    with pytest.raises(WireError):
        load(whole[: data.draw(st.integers(0, len(whole) - 1))], TYPES)


@given(records(finite=False, kinds=False), st.data())
def test_a_damaged_dump_is_refused_or_differs_in_leaves_only(
    record: Any, data: st.DataObject
) -> None:
    whole = bytearray(dump(record))
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        found = load(bytes(whole), TYPES)
    except WireError:
        return
    assert Schema.of(found) == Schema.of(record)


@pytest.mark.parametrize(
    "plain",
    [
        ["tensor", "load", [2]],
        ["tensor", "float99", [2]],
        ["tensor", "float32", [-1]],
        ["tensor", "float32", ["2"]],
        ["scalar", "object"],
        ["dict", ["a"], []],
        ["dict", [["a"]], [None]],
        ["record", type_name(Inner), ["left"], [None]],
        ["record", type_name(Inner), ["left", "wrong"], [None, None]],
        ["record", "os.system", ["command"], [["scalar", "str"]]],
        {"a": 1},
        "text",
    ],
)
def test_a_schema_that_makes_no_sense_is_refused(plain: Any) -> None:
    with pytest.raises(ValueError):
        Schema.read(plain, TYPES)


def test_only_the_given_types_are_loaded() -> None:
    data = dump(Inner(1, 2))
    assert load(data, TYPES) == Inner(1, 2)
    with pytest.raises(WireError, match=r"Inner is not a record of this method"):
        load(data, {})


def test_text_that_is_not_unicode_is_refused() -> None:
    whole = encode("ab")
    with pytest.raises(WireError, match="record is not UTF-8: invalid start byte"):
        decode(whole[:-1] + b"\xff", Schema.of("ab"))


class Pair(NamedTuple):
    left: int
    right: int


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"deep": [object()]}, r"record\.deep\[0\] is a object"),
        (Inner(1, {1, 2}), r"record\.right is a set"),
        (np.float64(1.0), "record is a float64"),
        (np.zeros(2), "record is a ndarray"),
        (Inner, "record is a type"),
        (Pair(1, 2), "record is a Pair"),
        (b"raw", "record is a bytes"),
        (lambda: 0, "record is a function"),
        (torch.zeros(2, dtype=torch.complex64), "complex64"),
        (torch.zeros(2, dtype=torch.float8_e4m3fn), "float8_e4m3fn"),
        (torch.zeros(2).to_sparse(), "sparse"),
        ({(1, 2): 3}, r"key \(1, 2\)"),
        ({2.5: 3}, r"key 2\.5"),
        (2**63, "64 bits"),
    ],
)
def test_what_cannot_travel_is_named(value: object, named: str) -> None:
    with pytest.raises(TypeError, match=named):
        Schema.of(value)


def test_other_dictionaries_become_plain_ones() -> None:
    record = OrderedDict(a=1, b=torch.ones(2))
    found = load(dump(record), {})
    assert type(found) is dict and list(found) == ["a", "b"]


def test_memory_formats_and_views_do_not_change_the_bytes() -> None:
    image = torch.arange(24.0).reshape(1, 2, 3, 4)
    wanted = encode(image)
    assert encode(image.to(memory_format=torch.channels_last)) == wanted
    assert encode(image.mT.contiguous().mT) == wanted
    assert encode(image.clone().requires_grad_()) == wanted


def test_a_decoded_record_shares_no_memory_with_the_message_or_the_record() -> None:
    tensor = torch.ones(3)
    data = encode({"a": tensor})
    found = decode(data, Schema.of({"a": tensor}))["a"]
    found.add_(1)
    assert tensor.tolist() == [1, 1, 1]
    assert decode(data, Schema.of({"a": tensor}))["a"].tolist() == [1, 1, 1]


def test_leaves_of_the_same_path_are_not_taken_for_one() -> None:
    record = {
        1: torch.ones(2),
        "1": torch.zeros(3),
        "a": {"b": torch.ones(1)},
        "a][b": torch.ones(2),
    }
    assert alike(decode(encode(record), Schema.of(record)), record)


def test_a_bool_costs_at_most_one_bit_and_a_certain_one_nothing() -> None:
    even = torch.from_numpy(np.random.default_rng(0).random(1000) < 0.5)
    assert len(encode(even)) == HEADER + 1 + 1 + 125
    assert len(encode(torch.ones(1000, dtype=torch.bool))) == HEADER + 1 + 1


def test_the_schema_hash_tells_names_types_and_shapes_apart() -> None:
    shape = torch.zeros(2, 3)
    different = [
        {"a": shape},
        {"b": shape},
        {"a": shape.double()},
        {"a": shape.T},
        {1: shape},
        {"1": shape},
        [shape],
        (shape,),
        Inner(shape, None),
        Inner(None, shape),
        dense_model.Up({"a": shape}),
        dense_model.Down({"a": shape}),
        {"a": shape > 0},
        {"b": shape > 0},
        {"a": shape.T > 0},
        [shape > 0],
        Revision({"a": shape > 0}),
        Packed({"a": shape[0]}, {"a": (2, 3)}),
        Packed({"a": shape[0]}, {"a": (3, 2)}),
        Packed({"b": shape[0]}, {"b": (2, 3)}),
        Packed({"a": shape[0].double()}, {"a": (2, 3)}),
        Outer(shape, Inner(1, 2)),
        Outer(None, Inner(1, 2), precise=shape),
    ]
    assert len({Schema.of(record).hash for record in different}) == len(different)


def test_the_bytes_of_a_message_never_change() -> None:
    """Where these are no longer read, the format is of a new version."""
    record = {"w": torch.tensor([1.0, -2.0]), "m": torch.tensor([True, False, True]), "n": 3}
    assert encode(record).hex() == (
        "03" + "7927929088e08d5d" + "02" + "0005" + "0300000000000000" + "0000803f" + "000000c0"
    )
    base = {"m": torch.arange(64) % 8 == 0}
    mask = {"m": (torch.arange(64) % 8 == 0) ^ (torch.arange(64) == 20)}
    values = Packed({"m": torch.arange(9.0)[:2]}, {"m": (64,)})
    sparse = (Revision(mask, base), Revision(mask), values, "é")
    few, by_gaps = (
        "03" + "ca2fdf4e3ad9e82d"
        "01"
        + "b26de99ddb892a38"
        + changes  # of a mask, behind its name
        + "00"
        + "06"
        + "1e5f5dd5bf7f"  # a whole mask
        "02"  # how many values
        "02" + "c3a9"  # a text
        "00000000" + "0000803f"
        for changes in ("02" + "0547", "03" + "7fcd23")
    )
    assert encode(sparse).hex() == few
    assert alike(decode(bytes.fromhex(by_gaps), Schema.of(sparse), held=held(base)), sparse)


@pytest.mark.parametrize("name", METHODS)
def test_the_types_of_a_method_are_found_in_its_signatures(name: str) -> None:
    found = record_types(METHODS[name])
    state = get_type_hints(type(METHODS[name]).init)["return"]
    assert found[type_name(state)] is state
    assert all(type_name(kind) == label for label, kind in found.items())


def test_the_types_of_fedavg_are_found() -> None:
    found = set(record_types(FedAvg()).values())
    assert {dense_model.Down, dense_model.Up, dense_model.Local} <= found


def test_types_are_found_inside_unions_and_containers() -> None:
    @dataclass(frozen=True)
    class Mine(FedAvg):
        def down(self, ctx: object, state: object, client: object) -> list[Inner] | Outer:  # type: ignore[override]
            raise NotImplementedError

        down.__annotations__["return"] = list[Inner] | Outer

    assert {Inner, Outer} <= set(record_types(Mine()).values())


def test_a_fingerprint_depends_on_where_parts_end() -> None:
    parts: Iterable[tuple[bytes, ...]] = [(b"ab", b"c"), (b"a", b"bc"), (b"abc",), (b"abc", b"")]
    assert len({fingerprint(*each) for each in parts}) == 4
