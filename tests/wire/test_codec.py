"""Records survive the wire and the disk, and nothing else does."""

from __future__ import annotations

import math
import struct
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gossamer import METHODS, FedAvg
from gossamer.methods import dense
from gossamer.wire import (
    HEADER,
    Schema,
    WireError,
    decode,
    dump,
    encode,
    fingerprint,
    flatten,
    load,
    record_types,
)
from gossamer.wire.schema import type_name

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]


@dataclass(frozen=True)
class Inner:
    left: Any
    right: Any


@dataclass(frozen=True)
class Outer:
    body: Any
    inner: Inner
    note: str = "kept"


TYPES = {type_name(Inner): Inner, type_name(Outer): Outer}


def tensors() -> st.SearchStrategy[Tensor]:
    """Random bits in every type and shape, also none at all: NaN and infinity among them."""

    def make(dtype: torch.dtype, shape: list[int], seed: int) -> Tensor:
        draw = np.random.default_rng(seed)
        if dtype == torch.bool:
            return torch.from_numpy(draw.integers(0, 2, shape).astype(bool)).reshape(shape)
        if not (count := math.prod(shape)):
            return torch.empty(shape, dtype=dtype)
        raw = draw.integers(0, 256, count * dtype.itemsize, dtype=np.uint8)
        return torch.from_numpy(raw).view(dtype).reshape(shape)

    shapes = st.lists(st.integers(0, 4), max_size=4)
    return st.builds(make, st.sampled_from(DTYPES), shapes, st.integers(0, 2**32))


def records() -> st.SearchStrategy[Any]:
    scalars = (
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**63 - 1)
        | st.floats()
        | st.text(max_size=8)
    )
    keys = st.text(max_size=5) | st.integers(0, 2**31)
    return st.recursive(
        scalars | tensors(),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.lists(inner, max_size=4).map(tuple)
            | st.dictionaries(keys, inner, max_size=4)
            | st.builds(Inner, inner, inner)
            | st.builds(Outer, inner, st.builds(Inner, inner, inner), st.text(max_size=4))
        ),
        max_leaves=10,
    )


def alike(left: Any, right: Any) -> bool:
    """Equal in type, structure and bits; NaN equals itself."""
    if type(left) is not type(right):
        return False
    match left:
        case Tensor():
            return (
                left.dtype == right.dtype
                and left.shape == right.shape
                and (not left.numel() or torch.equal(_bytes(left), _bytes(right)))
            )
        case float():
            return struct.pack("<d", left) == struct.pack("<d", right)
        case dict():
            return list(left) == list(right) and all(alike(left[k], right[k]) for k in left)
        case list() | tuple():
            return len(left) == len(right) and all(map(alike, left, right))
        case Inner() | Outer():
            return alike(vars(left), vars(right))
    return bool(left == right)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)


def test_alike_sees_every_kind_of_difference() -> None:
    one = torch.tensor([1.0])
    assert not alike(one, one.double()) and not alike(one, one[None]) and not alike(one, -one)
    assert not alike(0.0, -0.0) and not alike([1], (1,)) and not alike(True, 1)
    assert not alike({"a": 1, "b": 2}, {"b": 2, "a": 1}) and not alike(Inner(1, 2), Inner(1, 3))


@given(records())
def test_decoding_gives_what_was_encoded(record: Any) -> None:
    schema = Schema.of(record)
    assert alike(decode(encode(record, schema), schema), record)


@given(records())
def test_loading_gives_what_was_dumped(record: Any) -> None:
    assert alike(load(dump(record), TYPES), record)


@given(records())
def test_a_message_is_its_header_and_its_leaves(record: Any) -> None:
    size = HEADER
    for leaf in flatten(record):
        match leaf:
            case Tensor(dtype=torch.bool):
                size += -(-leaf.numel() // 8)
            case Tensor():
                size += leaf.numel() * leaf.element_size()
            case bool():
                size += 1
            case str():
                size += 4 + len(leaf.encode())
            case _:
                size += 8
    assert len(encode(record)) == size


@given(records(), st.data())
def test_a_message_cut_short_is_refused(record: Any, data: st.DataObject) -> None:
    schema, whole = Schema.of(record), encode(record)
    kept = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(WireError):
        decode(whole[:kept], schema)


@given(records(), st.binary(min_size=1, max_size=9))
def test_bytes_after_the_last_leaf_are_refused(record: Any, more: bytes) -> None:
    with pytest.raises(WireError, match="follow the last leaf"):
        decode(encode(record) + more, Schema.of(record))


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


@given(records(), st.data())
def test_a_dump_cut_short_is_refused(record: Any, data: st.DataObject) -> None:
    whole = dump(record)
    with pytest.raises(WireError):
        load(whole[: data.draw(st.integers(0, len(whole) - 1))], TYPES)


@given(records(), st.data())
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
    with pytest.raises(WireError, match="text"):
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


def test_a_bool_costs_one_bit() -> None:
    assert len(encode(torch.ones(1000, dtype=torch.bool))) == HEADER + 125


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
        dense.Up({"a": shape}),
        dense.Down({"a": shape}),
    ]
    assert len({Schema.of(record).hash for record in different}) == len(different)


def test_the_bytes_of_a_message_never_change() -> None:
    """A change of these is a new version of the format."""
    record = {"w": torch.tensor([1.0, -2.0]), "m": torch.tensor([True, False, True]), "n": 3}
    assert encode(record).hex() == (
        "01" + Schema.of(record).hash.hex() + "0000803f" + "000000c0" + "05" + "0300000000000000"
    )
    assert Schema.of(record).hash.hex() == "7927929088e08d5d"


@pytest.mark.parametrize("name", METHODS)
def test_the_types_of_a_method_are_found_in_its_signatures(name: str) -> None:
    found = record_types(METHODS[name])
    assert {dense.Down, dense.Up, dense.Local} <= set(found.values())
    assert any(label.endswith(".Server") for label in found)


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
