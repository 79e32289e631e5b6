"""The ways numbers travel: what each keeps exactly, how far it rounds, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from record_cases import FLOATS, MODES, Inner, Outer, alike, bases, records
from torch import Tensor

from gossamer.wire import (
    EXACT,
    HEADER,
    PLAIN,
    Mode,
    Packed,
    Schema,
    WireError,
    decode,
    encode,
    flatten,
    longest,
    write,
)

HALF, ZSTD = Mode(half=True), Mode(zstd=True)
LOSSLESS = [mode for mode in MODES if not mode.half]
modes = st.sampled_from(MODES)


@dataclass(frozen=True)
class Message:
    params: dict[str, Tensor]
    thresholds: Tensor = field(default_factory=lambda: torch.empty(0), metadata=EXACT)


def weights(shape: tuple[int, ...] = (50, 40), scale: float = 0.1, seed: int = 0) -> Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def sent(record: Any, mode: Mode, reference: object = None) -> Any:
    return decode(
        encode(record, mode=mode, reference=reference), Schema.of(record), mode, reference
    )


# what comes back ---------------------------------------------------------------------------------


@given(records(), st.sampled_from(LOSSLESS))
def test_all_but_halves_give_back_every_bit(record: Any, mode: Mode) -> None:
    schema = Schema.of(record)
    data = encode(record, schema, mode)
    assert alike(decode(data, schema, mode, held=bases(record)), record)


@given(records(), st.sampled_from([mode for mode in MODES if mode.half]))
def test_halves_round_float32_alone_and_each_tensor_by_its_own_largest(
    record: Any, mode: Mode
) -> None:
    schema = Schema.of(record)
    data = encode(record, schema, mode)
    found = decode(data, schema, mode, held=bases(record), finite=False)
    assert Schema.of(found) == schema
    for (_, node), was, came in zip(schema.leaves, flatten(record), flatten(found), strict=True):
        exact = getattr(node, "exact", False)
        if isinstance(was, Packed):
            assert isinstance(came, Packed) and came.shapes.keys() >= was.values.keys()
            exacts = [tensor.exact for tensor in node.tensors]  # type: ignore[union-attr]
            for name, each in zip(was.values, exacts, strict=True):
                assert close(was.values[name], came.values[name], each)
        elif isinstance(was, Tensor):
            assert close(was, came, exact)
        else:
            assert alike(was, came)


def close(was: Tensor, came: Any, exact: bool) -> bool:
    """Equal, or within half precision of the value and far below the largest of its tensor."""
    if was.dtype != torch.float32 or exact or not was.numel():
        return alike(was, came)
    wide, found = was.double(), came.double()
    largest = wide.abs().max()
    # Numbers next to the end of float32 may round past it.
    bound = torch.maximum(wide.abs() * 2**-11, largest * 2**-38 + 2.0**-138)
    near = (found - wide).abs() <= bound
    return came.dtype == was.dtype and bool((near | (wide.abs() > 3.4e38)).all())


@pytest.mark.parametrize("scale", [1e-33, 1e-9, 1.0, 1e5, 1e20, 1e37])
def test_halves_keep_eleven_bits_at_every_scale(scale: float) -> None:
    tensor = weights(scale=scale)
    tensor[0, 0] = 0
    found = sent({"w": tensor}, HALF)["w"]
    assert torch.isfinite(found).all() and found[0, 0] == 0
    error = (found.double() - tensor.double()).abs() / tensor.double().abs().clamp(min=scale / 100)
    assert error.max() <= 2**-11


def test_halves_of_what_is_not_finite_are_refused_on_arrival() -> None:
    for bad in (float("nan"), float("inf"), -float("inf")):
        record = Message({"w": torch.tensor([1.0, bad])})
        for mode in MODES:
            with pytest.raises(WireError, match=r"params\[w\] holds values that are not finite"):
                sent(record, mode)


def test_exact_fields_and_other_types_are_never_rounded() -> None:
    third = weights() / 3
    record = Outer(third.double(), Inner(third.bfloat16(), 1 / 3), precise={"a": [third]})
    assert alike(sent(record, HALF), record)
    precise = Outer(None, Inner(1, 2), precise=Packed({"w": third[0]}, {"w": (50, 40)}))
    assert alike(sent(precise, HALF), precise)
    assert not alike(sent(Inner(third, 0), HALF), Inner(third, 0))
    assert alike(sent(Message({}, third), HALF), Message({}, third))


# differences -------------------------------------------------------------------------------------


def test_an_update_is_rounded_by_its_own_size_and_not_by_that_of_the_weights() -> None:
    received = Message({"w": weights()})
    trained = Message({"w": received.params["w"] + 1e-5 * weights(seed=1)})
    alone = sent(trained, HALF).params["w"] - trained.params["w"]
    known = sent(trained, HALF, received).params["w"] - trained.params["w"]
    largest = (trained.params["w"] - received.params["w"]).abs().max()
    # What is left is the rounding of float32 itself when the difference is added back.
    assert known.abs().max() <= largest * 2**-11 + trained.params["w"].abs().max() * 2**-24
    assert known.abs().max() < alone.abs().max() / 50


@given(st.integers(0, 2**32), st.sampled_from([1e-6, 1e-2, 1.0, 100.0]))
def test_the_receiver_needs_the_same_reference(seed: int, change: float) -> None:
    received = Message({"w": weights(), "v": weights((7,))})
    up = Message({"w": received.params["w"] + change * weights(seed=seed), "v": weights((8,))})
    data = encode(up, mode=HALF, reference=received)
    found = decode(data, Schema.of(up), HALF, received)
    error = (found.params["w"] - up.params["w"]).abs().max()
    assert error <= change * 0.6 * 2**-11 + 2**-23
    # A tensor of another size has no reference.
    assert alike(found.params["v"], sent(up, HALF).params["v"])
    other = Message({"w": received.params["w"] + 1, "v": received.params["v"]})
    wrong = decode(data, Schema.of(up), HALF, other).params["w"]
    assert (wrong - found.params["w"]).min() > 0.9


def test_what_has_not_changed_comes_back_to_the_bit() -> None:
    record = Message({"w": weights()})
    assert alike(sent(record, HALF, record), record)


def test_packed_values_are_told_as_differences_too() -> None:
    values = {"w": weights((9,))}
    moved = {"w": values["w"] + 1e-5}
    shapes = {"w": (3, 5)}
    found = sent(Packed(moved, shapes), HALF, Packed(values, shapes))
    assert (found.values["w"] - moved["w"]).abs().max() < 2e-8


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_reference_of_another_type_changes_no_type(dtype: torch.dtype) -> None:
    up, shapes = {"w": weights((9,))}, {"w": (3, 5)}
    down = {"w": up["w"].to(dtype)}
    found = sent(Packed(up, shapes), HALF, Packed(down, shapes)).values["w"]
    assert found.dtype == torch.float32 and torch.allclose(found, up["w"], atol=1e-3)
    assert sent(Message(up), HALF, Message(down)).params["w"].dtype == torch.float32


def test_references_do_not_matter_unless_numbers_are_rounded() -> None:
    record = Message({"w": weights()})
    assert encode(record, reference=Message({"w": weights(seed=3)})) == encode(record)


# what it costs -----------------------------------------------------------------------------------


@given(records(), modes)
def test_rows_add_up_to_the_message_and_no_message_is_too_long(record: Any, mode: Mode) -> None:
    schema = Schema.of(record)
    written = write(record, schema, mode)
    total = sum(row.sent for row in written.rows)
    assert total == pytest.approx(8 * len(written.data), abs=1e-6)
    assert mode.zstd or total == 8 * len(written.data)
    assert written.rows[0].leaf == "header" and written.rows[0].sent == 8 * HEADER
    assert len({row.leaf for row in written.rows}) == len(written.rows)
    assert len(written.data) <= longest(schema)
    assert all(row.information >= 0 for row in written.rows)


@pytest.mark.parametrize("density", [0.01, 0.1, 0.5])
def test_the_limit_is_what_values_and_masks_hold_and_never_above_what_is_sent(
    density: float,
) -> None:
    draw = np.random.default_rng(0)
    mask = torch.from_numpy(draw.random((100, 400)) < density)
    record = Inner({"w": weights((100, 400))}, {"w": mask})
    rows = {row.leaf: row for row in write(record).rows}
    kept = int(mask.sum()) / mask.numel()
    entropy = -mask.numel() * (kept * np.log2(kept) + (1 - kept) * np.log2(1 - kept))
    assert rows["left"].information == rows["left"].sent == 32 * 40_000
    assert rows["right"].information == pytest.approx(entropy)
    assert entropy <= rows["right"].sent <= 1.03 * entropy + 64


def test_halves_cost_half_and_zstd_saves_on_what_repeats() -> None:
    record = Message({"w": weights((400, 100))})
    plain, half, squeezed, both = (
        len(encode(record, mode=mode)) for mode in (PLAIN, HALF, ZSTD, Mode(True, True))
    )
    assert half == HEADER + 1 + 2 * 40_000 and plain == HEADER + 4 * 40_000
    assert squeezed < 0.93 * plain and both < half
    nothing = Message({"w": torch.zeros(400, 100)})
    assert len(encode(nothing, mode=ZSTD)) < 64


def test_zstd_never_costs_more_than_a_few_bytes() -> None:
    noise = np.random.default_rng(0).integers(0, 256, 4000, dtype=np.uint8)
    record = torch.from_numpy(noise).view(torch.float32)
    record = torch.where(torch.isfinite(record), record, torch.ones(()))
    assert len(encode(record, mode=ZSTD)) <= len(encode(record)) + 1


def test_range_coding_makes_uneven_masks_smaller() -> None:
    draw = np.random.default_rng(0)
    mask = torch.from_numpy(draw.random((100, 400)) < draw.random((1, 400)) * 0.3)
    assert len(encode(mask, mode=Mode(ans=True))) < 0.95 * len(encode(mask))


# names -------------------------------------------------------------------------------------------


@given(records(), modes, modes)
def test_a_message_of_another_mode_is_refused(record: Any, one: Mode, other: Mode) -> None:
    schema = Schema.of(record)
    data = encode(record, schema, one)
    if one == other:
        decode(data, schema, other, held=bases(record), finite=False)
        return
    with pytest.raises(WireError, match=r"has schema \w{16}, \w{16} is expected"):
        decode(data, schema, other, held=bases(record))


def test_modes_have_names_that_are_read_back() -> None:
    assert [Mode.parse(str(mode)) for mode in MODES] == MODES
    assert str(PLAIN) == "f32" and str(Mode(True, True, True)) == "f16+zstd+ans"
    assert Mode.parse("f16+ans+zstd") == Mode(True, True, True)


@pytest.mark.parametrize("text", ["", "f64", "zstd", "f32+", "f32+gzip", "f32 +zstd", "+zstd"])
def test_other_names_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="`wire=` is f32 or f16"):
        Mode.parse(text)


def test_a_near_name_is_offered() -> None:
    with pytest.raises(ValueError, match="did you mean 'zstd'"):
        Mode.parse("f32+zst")
