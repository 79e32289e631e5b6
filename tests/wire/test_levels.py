"""Numbers of few levels: near their entropy, the same bytes everywhere, and nothing believed."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mask_cases import FUZZ, damaged
from numpy.typing import NDArray

from gossamer.accounting.bits import Accounting, golomb_bits, ledger_rows, paper_bits
from gossamer.wire import HEADER, Levels, Schema, WireError, choose, decode, encode, room, write
from gossamer.wire.numbers import coder, levels
from helpers import refused

LENET = [(20, 1, 5, 5), (20,), (50, 20, 5, 5), (50,), (500, 800), (500,), (10, 500), (10,)]
COUNTS = (3, 4, 16, 256)


def quantised(values: NDArray[Any], count: int) -> NDArray[Any]:
    """The top tenth for three levels; otherwise steps, four deviations each way."""
    if count == 3:
        cut = np.quantile(np.abs(values), 0.9) if values.size else 0.0
        return (np.sign(values) * (np.abs(values) > cut)).astype(np.int8)
    half = count // 2
    return np.clip(np.round(values * half / 4), -half, half - 1).astype(np.int8)


def drawn(kind: str, count: int, shapes: list[tuple[int, ...]], seed: int = 0) -> Levels:
    draw = np.random.default_rng(seed)
    make = draw.standard_normal if kind == "gaussian" else lambda shape: draw.laplace(size=shape)
    parts = {
        str(i): torch.from_numpy(np.asarray(quantised(np.asarray(make(s)), count)))
        for i, s in enumerate(shapes)
    }
    least = -1 if count == 3 else -(count // 2)
    return Levels(parts, least, least + count - 1)


def limit(record: Levels) -> float:
    return sum(levels.entropy(each.numpy(), record.least) for each in record.values.values())


def equal(one: Levels, two: Levels) -> bool:
    pairs = zip(one.values.values(), two.values.values(), strict=True)
    return all(torch.equal(a.long(), b.long()) for a, b in pairs)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_levels_take_at_most_three_percent_more_than_their_entropy(kind: str, count: int) -> None:
    record = drawn(kind, count, LENET)
    data = encode(record)
    assert 8 * len(data) <= 1.03 * limit(record)
    found = decode(data, Schema.of(record))
    assert equal(found, record) and found.values["4"].dtype == torch.int8


@pytest.mark.parametrize("share", [0.05, 0.01, 0.001])
def test_sparse_ternary_updates_are_near_their_entropy_too(share: float) -> None:
    draw = np.random.default_rng(3)
    parts = {
        str(i): torch.from_numpy(
            ((draw.random(s) < share) * draw.choice([-1, 1], s)).astype(np.int8)
        )
        for i, s in enumerate(LENET)
    }
    record = Levels(parts, -1, 1)
    overhead = 8 * 150 if share < 0.01 else 0  # headers of eight tensors, at 600 bytes in all
    assert 8 * len(encode(record)) <= 1.03 * limit(record) + overhead


def test_tensors_of_other_shapes_of_distribution_have_tables_of_their_own() -> None:
    draw = np.random.default_rng(1)
    wide = draw.integers(-8, 8, 40_000).astype(np.int8)
    narrow = (draw.random(40_000) < 0.02).astype(np.int8)
    record = Levels({"a": torch.from_numpy(wide), "b": torch.from_numpy(narrow)}, -8, 7)
    assert 8 * len(encode(record)) <= 1.01 * limit(record)
    both = levels.entropy(np.concatenate([wide, narrow]), -8)
    assert 8 * len(encode(record)) < 0.8 * both


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_levels_come_back(data: st.DataObject) -> None:
    least = data.draw(st.integers(-2000, 100))
    most = data.draw(st.integers(least + 1, least + 4095).filter(lambda each: each < 2**15))
    shapes = data.draw(st.lists(st.sampled_from([(), (0,), (3,), (7, 5), (40, 3)]), max_size=4))
    seed = data.draw(st.integers(0, 99))
    draw = np.random.default_rng(seed)
    power = data.draw(st.sampled_from([0.2, 1.0, 6.0]))
    parts = {
        str(i): torch.from_numpy(
            np.asarray(np.round(least + (most - least) * draw.random(s) ** power), np.int16)
        )
        for i, s in enumerate(shapes)
    }
    record = Levels(parts, least, most)
    found = decode(encode(record), Schema.of(record))
    assert equal(found, record) and Schema.of(found) == Schema.of(record)
    assert len(encode(record)) <= HEADER + 10 + levels.longest(
        record.count, sum(math.prod(s) for s in shapes)
    )


@pytest.mark.skipif(coder.native() is None, reason="the coder is not compiled here")
@pytest.mark.parametrize("size", [1, 2, 1000, 70_001, 200_000])
def test_numpy_and_the_compiled_coder_write_the_same_bytes(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = drawn("laplace", 16, [(size,)], seed=size)
    data = encode(record)
    monkeypatch.setattr(coder, "native", lambda: None)
    assert encode(record) == data
    assert equal(decode(data, Schema.of(record)), record)


def test_bytes_are_the_same_for_ever() -> None:
    values = torch.tensor([0, 0, 1, 0, -1, 0, 0, 0, 2, 0] * 30, dtype=torch.int8)
    data = encode(Levels({"w": values}, -8, 7))[HEADER:]
    assert data.hex() == GOLDEN


GOLDEN = (
    "3d01040f47c6dc83238f0019434c0cbcdee250b41f09bf5bf9595ad5994d0d63"
    "7ae5098d5d5ae84cfaa1e2cce595a3a349aa6cd8d4dd5a2627dd3d4a0098"
)


@pytest.mark.parametrize(
    ("least", "most", "words"),
    [(0, 0, "2 to 4096"), (0, 4096, "2 to 4096"), (3, 2, "2 to 4096"), (-40000, -39990, "16 bits")],
)
def test_ranges_that_are_none_are_refused(least: int, most: int, words: str) -> None:
    with refused(words):
        Levels({}, least, most)


def test_numbers_outside_of_the_range_are_refused_by_the_sender() -> None:
    with pytest.raises(TypeError, match="record: levels are from -1 to 1, but others were given"):
        encode(Levels({"w": torch.tensor([0, 2], dtype=torch.int8)}, -1, 1))
    with refused("tensors of int8 or int16"):
        Levels({"w": torch.zeros(3)}, -1, 1)


def test_a_schema_with_levels_is_read_again() -> None:
    schema = Schema.of(drawn("gaussian", 16, LENET))
    assert Schema.read(schema.plain(), {}) == schema
    other = Schema.of(drawn("gaussian", 4, LENET))
    assert other.hash != schema.hash
    with refused("levels from -2 to 1, levels from -8 to 7 is expected"):
        data = encode(drawn("gaussian", 4, LENET))
        choose(data, [schema], claimed=other)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "needs"),
        (b"\0", "empty"),
        (b"\1\7", "unknown encoding"),
        (b"\2\0\0", "take 3 bytes, not 1"),
        (b"\4\0\0\0\xff", "unused bits"),
        (b"\4\0\xff\xff\x0f", "a level is 3, 2 is the highest"),
        (b"\2\1\0", "cut short"),
        (b"\3\1\1\0", "cut short"),
    ],
)
def test_invalid_blocks_are_refused_with_a_reason(body: bytes, words: str) -> None:
    record = Levels({"w": torch.zeros(10, dtype=torch.int8)}, 0, 2)
    with refused(words):
        decode(encode(record)[:HEADER] + body, Schema.of(record))


def subjects() -> list[list[Levels]]:
    shapes = [(40, 9), (7,), (), (0,), (120,)]
    kinds = ("gaussian", "laplace")
    rows = [[drawn(kind, n, shapes, s) for s, kind in enumerate(kinds)] for n in COUNTS]
    for row in rows:
        empty = {name: torch.zeros_like(each) for name, each in row[0].values.items()}
        row.append(Levels(empty, row[0].least, row[0].most))
    wide = torch.arange(-300, 300, dtype=torch.int16)
    return [*rows, [Levels({"w": wide}, -400, 400), Levels({"w": wide // 50}, -400, 400)]]


@pytest.mark.parametrize("count", [FUZZ, pytest.param(200_000, marks=pytest.mark.slow)])
def test_hostile_levels_give_a_refusal_or_numbers_of_the_range(count: int) -> None:
    groups, tried, accepted = subjects(), 0, 0
    each = -(-count // len(groups))
    for index, records in enumerate(groups):
        schema = Schema.of(records[0])
        messages = [encode(record) for record in records]
        for body in damaged([data[HEADER:] for data in messages], each, index):
            tried += 1
            try:
                found = decode(messages[0][:HEADER] + body, schema)
            except WireError as refusal:
                assert str(refusal)
                continue
            accepted += 1
            assert Schema.of(found) == schema
            for tensor in found.values.values():
                assert not tensor.numel() or int(tensor.min()) >= found.least
                assert not tensor.numel() or int(tensor.max()) <= found.most
    assert tried >= count and 0 < accepted < 0.6 * tried


def test_memory_of_reading_levels_is_bounded_by_the_schema() -> None:
    for count in COUNTS:
        for record in (drawn("gaussian", count, [(300_000,)]), _uniform(count)):
            data, schema = encode(record), Schema.of(record)
            tracemalloc.start()
            decode(data, schema)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert peak <= 2 * room(schema), (count, data[HEADER + 3])


def _uniform(count: int) -> Levels:
    """Numbers that no code makes shorter."""
    whole = np.random.default_rng(0).integers(0, count, 300_000).astype(np.int16)
    return Levels({"w": torch.from_numpy(whole)}, 0, count - 1)


def test_the_ledger_has_all_three_columns() -> None:
    values = torch.zeros(1000, dtype=torch.int8)
    values[:10], values[10:20] = 1, -1
    record = (Levels({"w": values}, -1, 1), torch.zeros(2, dtype=torch.int8))
    for accounting, wanted in (
        (Accounting(), 2 * 1000),
        (Accounting(level_code="entropy"), levels.entropy(values.numpy(), -1)),
        (Accounting(level_code="golomb"), golomb_bits(1000, 20)),
    ):
        (header, first, second) = ledger_rows(
            write(record, detail="tensor"), record, "up", accounting, "tensor"
        )
        assert first.leaf == "record[0][w]" and second.sent == second.paper == 16
        assert first.paper == pytest.approx(wanted)
        assert first.information == pytest.approx(levels.entropy(values.numpy(), -1))
        assert header.sent + first.sent + second.sent == 8 * len(encode(record))
        assert paper_bits(record, accounting) == pytest.approx(wanted + 16)
    probabilities = [0.98, 0.01, 0.01]
    by_hand = 1000 * -sum(p * math.log2(p) for p in probabilities)
    assert levels.entropy(values.numpy(), -1) == pytest.approx(by_hand)


def test_golomb_bits_are_those_of_sparse_ternary_compression() -> None:
    # p = 0.01: b* = 1 + floor(log2(log(0.618) / log(0.99))) = 1 + floor(log2(47.9)) = 6, and
    # 6 + 1 / (1 - 0.99 ** 64) = 8.11 bits for a place, and one for a sign.
    assert golomb_bits(100_000, 1000) / 1000 == pytest.approx(6 + 1 / (1 - 0.99**64) + 1)
    assert golomb_bits(10, 0) == 0 and golomb_bits(10, 10) == 10
