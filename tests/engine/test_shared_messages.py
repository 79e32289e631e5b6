"""Messages that many clients are sent are written once."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from gossamer.core import Masks, Params
from gossamer.engine import sharing
from gossamer.engine.sharing import Outbox
from gossamer.wire import Drawn, Mode, Packed, Schema, write


@dataclass(frozen=True)
class Record:
    params: Params
    rate: float = 0.5
    masks: Masks = field(default_factory=dict)
    packed: Packed | None = None
    drawn: Drawn | None = None


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What was written, in order."""
    found: list[object] = []

    def spy(record: object, *parts: object, **more: object) -> object:
        found.append(record)
        return write(record, *parts, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(sharing, "write", spy)
    return found


def weights() -> Tensor:
    return torch.arange(6.0).reshape(2, 3)


def test_the_same_tensors_are_written_once_a_round(written: list[object]) -> None:
    box, tensor, mask = Outbox(Mode(), "field"), weights(), weights() > 2
    packed = Packed({"a": torch.ones(2)}, {"a": (2, 3)})
    first = box.write(1, Record({"a": tensor}, masks={"a": mask}, packed=packed))
    again = box.write(1, Record({"a": tensor}, masks={"a": mask}, packed=packed))
    assert again is first and len(written) == 1
    assert box.write(2, Record({"a": tensor}, masks={"a": mask}, packed=packed)) is not first
    assert len(written) == 2


@pytest.mark.parametrize(
    "other",
    [
        Record({"a": weights()}),
        Record({"b": weights()}),
        Record({"a": weights()}, rate=0.25),
    ],
)
def test_what_differs_is_written_anew(other: Record, written: list[object]) -> None:
    box = Outbox(Mode(), "field")
    box.write(1, Record({"a": weights()}))
    assert box.write(1, other).data == write(other).data
    assert len(written) == 2


def test_a_name_or_a_sign_alone_makes_another_message(written: list[object]) -> None:
    box, tensor = Outbox(Mode(), "field"), weights()
    records = [
        Record({"a": tensor}, rate=0.0),
        Record({"a": tensor}, rate=-0.0),
        Record({"b": tensor}, rate=0.0),
    ]
    for record in records:
        assert box.write(1, record).data == write(record).data
    assert written == records


def test_a_tensor_that_was_changed_in_place_is_written_anew(written: list[object]) -> None:
    box, tensor = Outbox(Mode(), "field"), weights()
    first = box.write(1, Record({"a": tensor}))
    tensor.add_(1)
    assert box.write(1, Record({"a": tensor})).data == write(Record({"a": tensor})).data
    assert first.data != write(Record({"a": tensor})).data and len(written) == 2


def test_what_cannot_be_told_from_outside_is_always_written(written: list[object]) -> None:
    with torch.inference_mode():
        fleeting = weights()
    box, record = Outbox(Mode(), "field"), Record({"a": fleeting})
    assert box.write(1, record).data == box.write(1, record).data == write(record).data
    assert len(written) == 2


def test_drawn_masks_are_known_by_their_seed_and_counts(written: list[object]) -> None:
    box, shapes = Outbox(Mode(), "field"), {"a": (2, 3)}
    first = box.write(1, Record({}, drawn=Drawn(7, {"a": 2}, shapes)))
    assert box.write(1, Record({}, drawn=Drawn(7, {"a": 2}, shapes))) is first
    for seed, kept, shape in ((8, 2, (2, 3)), (7, 3, (2, 3)), (7, 2, (3, 2))):
        box.write(1, Record({}, drawn=Drawn(seed, {"a": kept}, {"a": shape})))
    assert len(written) == 4


def test_two_messages_of_a_round_are_remembered(written: list[object]) -> None:
    box, tensor = Outbox(Mode(), "field"), weights()
    records = [Record({"a": tensor}, rate=rate) for rate in (1.0, 2.0)]
    for record in records * 3:
        box.write(1, record)
    assert written == records


def test_records_of_one_form_share_a_schema() -> None:
    one, other = (Schema.of(Record({"a": weights() * scale})) for scale in (1, 2))
    assert one is other
    assert Schema.of(Record({"b": weights()})) != one


def test_a_schema_travels_without_its_hash() -> None:
    # Hashes of text differ from process to process.
    schema = Schema.of({"a": weights()})
    assert hash(schema) == hash(schema.root)
    program = (
        "import pickle, sys, torch\n"
        "from gossamer.wire import Schema\n"
        "found = pickle.loads(bytes.fromhex(sys.argv[1]))\n"
        "wanted = Schema.of({'a': torch.zeros(2, 3)})\n"
        "assert found == wanted and hash(found) == hash(wanted)\n"
    )
    words = [sys.executable, "-c", program, pickle.dumps(schema).hex()]
    subprocess.run(words, check=True)
