"""A message's account by tensor adds up to its account by field, in every column."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mask_cases import LENET, independent, moved
from record_cases import MODES, records
from sparse_toy import Pruned
from torch import Tensor

from gossamer.accounting import Accounting, MaskCode, paper_rows, paper_tensors
from gossamer.accounting.blank_data import Blank
from gossamer.accounting.dry_run import price_run
from gossamer.conformance.toys import Tiny, plain_task
from gossamer.engine import Options, Run, run
from gossamer.engine.events import read
from gossamer.wire import HEADER, Drawn, Mode, Packed, Revision, Row, pack, write
from gossamer.wire.format import field_of
from gossamer.wire.masks.entropy import conditional_bits, conditional_parts, mask_bits, mask_parts
from helpers import mlp

CODES: tuple[MaskCode, ...] = get_args(MaskCode)


def summed(rows: Any) -> dict[str, tuple[float, float]]:
    """What rows of tensors come to in each field."""
    found: dict[str, tuple[float, float]] = {}
    for row in rows:
        sent, information = found.get(field_of(row.leaf), (0.0, 0.0))
        found[field_of(row.leaf)] = (sent + row.sent, information + row.information)
    return found


@given(records(), st.sampled_from(MODES))
def test_rows_of_tensors_add_up_to_rows_of_fields(record: Any, mode: Mode) -> None:
    fields, tensors = write(record, mode=mode), write(record, mode=mode, detail="tensor")
    assert fields.data == tensors.data
    found = summed(tensors.rows)
    assert found.keys() == {row.leaf for row in fields.rows}
    for row in fields.rows:
        assert found[row.leaf] == pytest.approx((row.sent, row.information), rel=1e-9, abs=1e-6)
    assert sum(row.sent for row in tensors.rows) == pytest.approx(8 * len(tensors.data))


@given(records(), st.sampled_from(CODES), st.sampled_from(["", "body", "note,inner"]))
def test_the_papers_count_adds_up_too(record: Any, code: MaskCode, uncharged: str) -> None:
    accounting = Accounting(mask_code=code, uncharged=uncharged)
    fields: dict[str, float] = {}
    for field, bits in paper_rows(record, accounting):
        fields[field] = fields.get(field, 0) + bits
    tensors: dict[str, float] = {}
    paths = {row.leaf for row in write(record, detail="tensor").rows}
    for path, bits in paper_tensors(record, accounting):
        assert path in paths or not bits  # so that no bit is lost on the way to the ledger
        tensors[field_of(path)] = tensors.get(field_of(path), 0) + bits
    assert tensors == pytest.approx(fields, rel=1e-9)


@dataclass(frozen=True)
class Message:
    values: Packed
    mask: Revision
    seed: Drawn
    params: dict[str, Tensor]
    count: int = 3


def named(masks: list[Any]) -> dict[str, Tensor]:
    return {f"layer{index}": torch.from_numpy(mask) for index, mask in enumerate(masks)}


def message() -> Message:
    old = independent(LENET, 0.1)
    old[3][:] = False
    new = moved(old, 0.2)
    masks = named(new)
    params = {name: torch.zeros(mask.shape) for name, mask in masks.items()}
    shapes = {name: tuple(mask.shape) for name, mask in masks.items()}
    seed = Drawn(1, dict.fromkeys(masks, 3), shapes)
    return Message(pack(params, masks), Revision(masks, named(old)), seed, params)


def rows(record: Any) -> dict[str, Row]:
    return {row.leaf: row for row in write(record, detail="tensor").rows}


def test_every_tensor_of_a_message_has_its_row() -> None:
    record = message()
    found = rows(record)
    names = [*record.params]
    assert set(found) == {
        *("header", "seed", "count"),
        *(f"{part}[{name}]" for part in ("values", "mask", "seed", "params") for name in names),
    }
    assert found["header"].sent == 8 * HEADER and found["count"].sent == 64
    for name, tensor in record.params.items():
        kept = int(record.mask.masks[name].sum())
        size = record.values.values[name].numel()
        assert size == kept and found[f"values[{name}]"].information == 32 * kept
        assert found[f"values[{name}]"].sent - 32 * kept in (8, 16, 24)  # how many there are
        assert found[f"params[{name}]"].sent == 32 * tensor.numel()
    assert found["seed"].sent == 64 and found["seed[layer0]"].sent == 8


def test_a_joint_block_is_shared_by_the_entropy_of_each_mask() -> None:
    record = message()
    found = rows(record)
    new = [mask.numpy() for mask in record.mask.masks.values()]
    old = [mask.numpy() for mask in (record.mask.base or {}).values()]
    alone = [conditional_bits([a], [b]) for a, b in zip(new, old, strict=True)]
    block = sum(found[f"mask[{name}]"].sent for name in record.params)
    for index, name in enumerate(record.params):
        row = found[f"mask[{name}]"]
        assert row.sent == pytest.approx(block * alone[index] / sum(alone))
        assert row.information == pytest.approx(conditional_parts(new, old)[index])


def test_masks_without_entropy_share_by_size() -> None:
    found = rows({"a": torch.zeros(300) > 0, "b": torch.zeros(100) > 0})
    assert found["record[a]"].sent == pytest.approx(3 * found["record[b]"].sent)
    nothing = rows({"a": torch.zeros(0) > 0, "b": torch.zeros(0, 2) > 0})
    assert nothing["record[a]"].sent == nothing["record[b]"].sent > 0
    assert rows(Revision({}))["record"].sent == rows(Revision({}, {}))["record"].sent - 64


def test_parts_of_the_limit_add_up_to_it() -> None:
    for density in (0.0, 0.01, 0.5, 1.0):
        masks = independent(LENET, density)
        assert sum(mask_parts(masks)) == pytest.approx(mask_bits(masks), rel=1e-9)
        new = moved(masks, 0.3) if 0 < density < 1 else [~mask for mask in masks]
        limit = conditional_bits(new, masks)
        assert sum(conditional_parts(new, masks)) == pytest.approx(limit, rel=1e-9)


def test_a_denser_mask_has_more_of_the_limit() -> None:
    sparse, dense = independent([(100, 100)], 0.01)[0], independent([(100, 100)], 0.2)[0]
    parts = mask_parts([sparse, dense])
    assert parts[1] > 3 * parts[0] > 0


@pytest.mark.parametrize("mode", ["f32", "f16+zstd+ans"])
def test_a_price_by_tensor_adds_up_to_the_price_by_field(mode: str) -> None:
    task = mlp()
    fields, tensors = (
        price_run(
            Run(
                Pruned(),
                task,
                Blank(task.layout.input, classes=3, size=6, examples=20),
                rounds=4,
                wire=Mode.parse(mode),
                options=Options(ledger=by, eval_every=0),
            )
        )
        for by in ("field", "tensor")
    )
    assert tensors.flops == fields.flops
    masks = [line for line in tensors.lines if line[2].startswith("mask[")]
    assert {leaf for _, _, leaf in masks} == {"mask[0.weight]", "mask[3.weight]"}
    for line, wanted in fields.lines.items():
        parts = [
            bits
            for (direction, message, leaf), bits in tensors.lines.items()
            if (direction, message, field_of(leaf)) == line
        ]
        assert {part.messages for part in parts} == {wanted.messages}
        for column in ("sent", "information", "paper"):
            total = sum(getattr(part, column) for part in parts)
            assert total == pytest.approx(getattr(wanted, column))


def test_the_log_of_a_run_has_a_row_for_each_tensor_where_asked(tmp_path: Path) -> None:
    leaves = {}
    for detail in ("field", "tensor"):
        options = Options(ledger=detail, eval_every=0)
        run(Pruned(), plain_task(), Tiny(), rounds=1, out=tmp_path / detail, options=options)
        log = read(tmp_path / detail / "events.jsonl")
        done = [event for event in log if event["event"] == "client-finished"]
        leaves[detail] = {entry["leaf"] for event in done for entry in event["traffic"]}
        assert all(event["up"] > 0 for event in done)
    assert "mask" in leaves["field"] and "mask[0.weight]" not in leaves["field"]
    assert "mask" not in leaves["tensor"] and "mask[0.weight]" in leaves["tensor"]
