"""Records of floating-point tensors take a shortcut that nobody can see in bytes or costs."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from gossamer.wire import Mode, Schema, WireError, decode, write
from gossamer.wire.codec import HEADER, VERSION
from gossamer.wire.dense import dense
from gossamer.wire.format import Detail, message_hash
from gossamer.wire.schema import flatten
from gossamer.wire.writing import Writer

PLAIN = Mode()


@dataclass(frozen=True)
class Model:
    params: dict[str, Tensor]
    bias: Tensor


def model(dtype: torch.dtype = torch.float32) -> Model:
    draw = torch.Generator().manual_seed(1)
    weights = torch.randn(3, 5, generator=draw).to(dtype)
    images = torch.randn(2, 3, 4, 4, generator=draw).to(dtype)
    params = {"a": weights, "none": torch.empty(0, 2, dtype=dtype), "b": weights.t()}
    params["c"] = images.to(memory_format=torch.channels_last)
    return Model(params, torch.tensor(2.5, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("detail", ["field", "tensor"])
def test_bytes_and_costs_are_those_of_any_record(dtype: torch.dtype, detail: Detail) -> None:
    record = model(dtype)
    schema = Schema.of(record)
    writer = Writer(PLAIN, {}, detail)
    for (path, node), leaf in zip(schema.leaves, flatten(record), strict=True):
        writer.leaf(path, node, leaf)
    header = bytes([VERSION]) + message_hash(schema, PLAIN)
    message = write(record, detail=detail)
    assert dense(schema, PLAIN)
    assert message.data == header + b"".join(writer.payload())
    costs = {row.leaf: (row.sent, row.information) for row in message.rows[1:]}
    assert costs == {leaf: (bits, writer.information[leaf]) for leaf, bits in writer.sent.items()}
    back = decode(message.data, schema)
    for one, other in zip(flatten(record), flatten(back), strict=True):
        assert isinstance(one, Tensor) and isinstance(other, Tensor)
        assert torch.equal(one, other) and one.dtype == other.dtype


def test_other_records_and_modes_take_the_long_way() -> None:
    mixed = Schema.of({"a": torch.ones(2), "b": torch.ones(2, dtype=torch.float64)})
    assert dense(mixed, PLAIN) is None
    assert dense(Schema.of({"a": torch.ones(2), "rate": 0.5}), PLAIN) is None
    assert dense(Schema.of({"a": torch.ones(2, dtype=torch.int64)}), PLAIN) is None
    assert dense(Schema.of({"a": torch.ones(0)}), PLAIN) is None
    assert dense(Schema.of(model()), Mode(half=True)) is None


def test_what_is_wrong_is_still_named() -> None:
    record = Model({"a": torch.ones(3), "b": torch.tensor([1.0, torch.nan])}, torch.ones(1))
    message = write(record)
    with pytest.raises(WireError, match=r"params\[b\] holds values that are not finite"):
        decode(message.data, message.schema)
    with pytest.raises(WireError, match="but only"):
        decode(message.data[:-1], message.schema)
    assert decode(message.data, message.schema, finite=False).params["b"].isnan().sum() == 1


def test_a_sum_that_overflows_is_no_damage() -> None:
    record = {"a": torch.full((4,), 3e38)}
    message = write(record)
    assert torch.equal(decode(message.data, message.schema)["a"], record["a"])


def test_a_decoded_record_does_not_share_memory_with_the_message() -> None:
    message = write({"a": torch.ones(3)})
    before = bytes(bytearray(message.data))
    decode(message.data, message.schema)["a"].zero_()
    assert message.data == before and len(before) == HEADER + 12
