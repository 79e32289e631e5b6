"""Bits, operations and seconds against counts made by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import pytest
import torch
from torch import Tensor, nn

from gossamer import Client, Key, Task, sample
from gossamer.accounting import (
    FLOPS,
    Accounting,
    Cost,
    Effort,
    FlopsModel,
    MaskCode,
    densities,
    density,
    ledger_rows,
    mask_bits,
    paper_bits,
    paper_rows,
    paper_tensors,
    stale_share,
    visitors,
)
from gossamer.methods.parts.dense_model import Up
from gossamer.methods.parts.frozen_weights import Frozen
from gossamer.methods.parts.sparse_model import SparseModel
from gossamer.task.layout import Layout
from gossamer.wire import Packed, Revision, Schema, pack, write
from helpers import conv, mlp


@dataclass(frozen=True)
class Kept:
    """A record with a part that is a record."""

    frozen: Frozen
    values: Packed


MASK = torch.arange(40).reshape(8, 5) % 4 == 0  # ten of forty


# bits --------------------------------------------------------------------------------------------


def test_papers_count_numbers_by_their_type_and_one_bit_a_mask_entry() -> None:
    record = Up({"w": torch.zeros(3, 4), "half": torch.zeros(5, dtype=torch.float16)})
    assert paper_bits(record) == 32 * 12 + 16 * 5
    assert paper_bits((torch.zeros(9, dtype=torch.bool), 1, 2.0, None)) == 9 + 64
    assert paper_bits({"a": torch.zeros(9) > 0, "b": torch.zeros(2, 3) > 0}) == 15


def test_papers_count_packed_values_and_whole_masks() -> None:
    packed = pack({"w": torch.ones(8, 5), "bias": torch.ones(8)}, {"w": MASK})
    assert paper_bits(packed) == 32 * (10 + 8)
    assert paper_bits(Revision({"w": MASK}, {"w": ~MASK})) == 40
    rows = paper_rows((packed, Revision({"w": MASK})), Accounting(mask_code="none"))
    assert [bits for _, bits in rows] == [32 * 18, 0]


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [
        (torch.int8, 8),
        (torch.uint8, 8),
        (torch.int16, 16),
        (torch.float16, 16),
        (torch.bfloat16, 16),
        (torch.int32, 32),
        (torch.float32, 32),
        (torch.int64, 64),
        (torch.float64, 64),
    ],
)
def test_every_type_has_its_own_width_in_the_paper_and_as_the_limit(
    dtype: torch.dtype, bits: int
) -> None:
    values = torch.ones(8, 5, dtype=dtype)
    cases: list[tuple[object, int]] = [(Up({"w": values}), 40)]
    if dtype.is_floating_point:  # nothing else can be packed
        cases.append((pack({"w": values}, {"w": MASK}), 10))
    for record, count in cases:
        assert paper_bits(record) == bits * count
        message = write(record, Schema.of(record))
        entries = ledger_rows(message, record, "up", Accounting(), "field")
        limit = sum(row.information for row in entries)
        assert sum(row.paper for row in entries) == limit == bits * count
        tensors = paper_tensors(record, Accounting())
        assert sum(share for _, share in tensors) == bits * count


def test_tensors_of_several_types_share_a_packed_field_by_their_bits() -> None:
    values = {"small": torch.ones(4, dtype=torch.float16), "large": torch.ones(4)}
    shares = dict(paper_tensors((pack(values, {}),), Accounting()))
    assert sorted(shares.values()) == [64, 128]


def test_a_field_goes_uncharged_with_all_that_is_in_it() -> None:
    frozen = Frozen(pack({"w": torch.ones(8, 5)}, {"w": MASK}), {"w": MASK})
    record = Kept(frozen, frozen.values)
    names = {"": 2 * 320 + 40, "values": 360, "frozen": 320, "frozen.masks": 640, "masks": 680}
    for name, wanted in names.items():
        assert paper_bits(record, Accounting(uncharged=f"other, {name}")) == wanted


@pytest.mark.parametrize(
    ("code", "bits"),
    [
        ("bitmap", 40 + 40),
        ("none", 0),
        ("coo", 10 * 6 + 40 * 6),
        ("csr-flat", 32 * 50 + 2 * 64),
        ("csr-2d", 32 * 50 + 2 * 32 * 9),
        ("entropy", math.ceil(40 * (2 - 0.75 * math.log2(3)))),
        (
            "counted",
            math.ceil(80 * (3 - (5 / 8) * math.log2(5) - (3 / 8) * math.log2(3)) + math.log2(80)),
        ),
        ("seed", 64 + 2 * 32),
        ("auto", 80),
    ],
)
def test_masks_in_the_codes_of_papers(code: MaskCode, bits: float) -> None:
    masks = {"a": MASK, "full": torch.ones(8, 5, dtype=torch.bool)}
    assert mask_bits(masks, code) == bits
    assert paper_bits(masks, Accounting(mask_code=code)) == bits


@pytest.mark.parametrize(
    "code", ["bitmap", "none", "coo", "csr-flat", "csr-2d", "entropy", "counted", "auto"]
)
def test_masks_without_dimensions_or_weights_have_a_price_too(code: MaskCode) -> None:
    for mask in (torch.tensor(True), torch.zeros(0, 3) > 0):
        assert 0 <= mask_bits({"m": mask}, code) <= 128


def test_indices_beat_a_bitmap_below_one_weight_in_as_many_as_they_have_bits() -> None:
    few = torch.arange(1 << 16) < 4000
    many = torch.arange(1 << 16) < 4100
    assert mask_bits({"m": few}, "auto") == mask_bits({"m": few}, "coo") == 4000 * 16
    assert mask_bits({"m": many}, "auto") == mask_bits({"m": many}, "bitmap") == 1 << 16


def test_costs_add_up() -> None:
    one = Cost(*range(1, 9))
    assert one + Cost(*range(10, 90, 10)) == Cost(*range(11, 99, 11))
    assert len(fields(Cost)) == 8 and one + Cost() == one


@pytest.mark.parametrize(("clients", "every"), [(3, 1), (3, 5), (10, 4), (30, 2)])
def test_expected_shares_of_stale_masks_and_of_visitors(clients: int, every: int) -> None:
    """Against cohorts drawn as methods draw them; a stale client is one that missed the change."""
    pool, rounds = [Client(id, 1) for id in range(30)], 1200
    held, sent = dict.fromkeys(range(30), -1), 0
    for round in range(rounds):
        for client in sample(Key(0).fold(round), pool, clients):
            sent += held[client.id] != round // every
            held[client.id] = round // every
    assert sent / (rounds * clients) == pytest.approx(stale_share(clients / 30, every), rel=0.03)
    tries = 300
    seen = sum(
        len({c.id for round in range(every) for c in sample(Key(turn).fold(round), pool, clients)})
        for turn in range(tries)
    )
    assert seen / tries == pytest.approx(visitors(30, clients, every), rel=0.03)


# operations --------------------------------------------------------------------------------------


def test_density_is_the_share_of_prunable_weights_kept() -> None:
    layout = mlp().layout  # 5 x 8 and 8 x 3 weights
    assert density(layout, {}) == 1.0
    half = torch.zeros(8, 5, dtype=torch.bool)
    half[:4] = True
    assert density(layout, {"0.weight": half}) == (20 + 24) / 64
    assert density(layout, {"0.weight": half, "3.weight": torch.zeros(3, 8) > 0}) == 20 / 64
    assert densities({"0.weight": half, "none": torch.zeros(0) > 0}) == {"0.weight": 0.5}


def test_a_model_without_prunable_weights_is_dense() -> None:
    task = Task.of(nn.Linear(3, 2), torch.zeros(2, 3), prunable=[], start="seed")
    assert density(task.layout, {}) == 1.0
    assert effort(task.layout, {}, 1).mean_density == 1.0


def effort(layout: Layout, masks: dict[str, Tensor], examples: int) -> Effort:
    return Effort(layout, densities(masks), examples, steps=examples, per_epoch=examples)


def test_a_step_costs_three_passes_of_two_operations_per_product() -> None:
    passes = FLOPS["passes"]
    assert passes(effort(mlp().layout, {}, 1)) == 2 * 3 * (5 * 8 + 8 * 3)
    # 6 x 6 positions of 27 x 4, 4 x 4 positions of 36 x 6, then 96 x 2
    macs = 36 * 27 * 4 + 16 * 36 * 6 + 96 * 2
    assert passes(effort(conv().layout, {}, 10)) == 2 * 3 * macs * 10


@pytest.mark.parametrize("kept", [0, 1, 20, 40])
def test_a_masked_layer_costs_its_density(kept: int) -> None:
    mask = (torch.arange(40) < kept).reshape(8, 5)
    found = FLOPS["passes"](effort(mlp().layout, {"0.weight": mask}, 7))
    assert found == pytest.approx(2 * 3 * (kept + 24) * 7)


@pytest.mark.parametrize(
    ("model", "factor", "extra"),
    [
        ("forward", 0.25, 0),
        ("flash", 0.75, 0),
        ("flash-dense-gradient", 1.5, 0),
        ("passes", 1.5, 0),
        ("spafl", 0.25 * 2.25, 1),
        ("spafl-eq36", 2.25, 1),
        ("spafl-text", 1.5, 1),
    ],
)
def test_every_convention_by_hand(model: FlopsModel, factor: float, extra: int) -> None:
    layout = Task.of(nn.Linear(5, 8), torch.zeros(2, 5), start="seed").layout
    work = Effort(layout, {"weight": 0.25}, examples=21, steps=6, per_epoch=3)
    updated = 1.0 if model == "spafl-eq36" else 0.25  # the equation updates every weight
    updates = updated * 40 * 3 + 2.5 * 40 + 8 * 3
    assert FLOPS[model](work) == pytest.approx(factor * 40 * 21 + extra * updates)


def test_the_conventions_agree_on_a_dense_model_up_to_updates_and_the_factor_of_two() -> None:
    work = effort(mlp().layout, {}, 4)
    three = 3 * 64 * 4
    assert FLOPS["passes"](work) == 2 * three and FLOPS["forward"](work) == 64 * 4
    for model in ("flash", "flash-dense-gradient"):
        assert FLOPS[model](work) == three
    for model in ("spafl", "spafl-eq36", "spafl-text"):
        assert FLOPS[model](work) == three + 64 * 4


@dataclass(frozen=True)
class Nested:
    model: SparseModel


def test_the_fields_of_a_sparse_model_need_no_prefix() -> None:
    model = {"weight": torch.zeros(3)}, {"mean": torch.zeros(2)}
    record = Nested(SparseModel(Packed({}, {}), *model))
    assert paper_bits(record) == 32 * 5
    for name in ("buffers", "model.buffers"):
        assert paper_bits(record, Accounting(uncharged=name)) == 32 * 3
    assert paper_bits(record, Accounting(uncharged="model")) == 0
