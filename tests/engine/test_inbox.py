"""A message that many clients are sent is decoded once, and nobody may change it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from gossamer import Ctx, FedAvg, Job, Options, run
from gossamer.arithmetic.model import Model
from gossamer.core import Masks
from gossamer.engine import ClientError
from gossamer.engine.sharing import Inbox
from gossamer.methods.parts.dense_model import Down, Local, Work
from gossamer.wire import Mode, Revision, write
from helpers import Toy, linear


def test_the_same_bytes_are_decoded_once() -> None:
    inbox, message = Inbox(Mode(), 1), write({"a": torch.ones(3)})
    first = inbox.read(message.data, message.schema, None)
    assert inbox.read(message.data, message.schema, None) is first
    copy = bytes(bytearray(message.data))
    second = inbox.read(copy, message.schema, None)
    assert second is not first and torch.equal(second.record["a"], first.record["a"])
    assert inbox.read(copy, message.schema, None) is second
    assert inbox.read(message.data, message.schema, None) is not first


def test_a_node_remembers_nothing() -> None:
    inbox, message = Inbox(Mode(), 0), write({"a": torch.ones(3)})
    first = inbox.read(message.data, message.schema, None)
    assert inbox.read(message.data, message.schema, None) is not first


def test_what_depends_on_the_client_is_read_for_each() -> None:
    old: Masks = {"a": torch.tensor([True, False, True])}
    new: Masks = {"a": torch.tensor([True, True, False])}
    inbox, message = Inbox(Mode(), 2), write(Revision(new, old))
    first = inbox.read(message.data, message.schema, Revision(old).masks)
    assert torch.equal(first.record.masks["a"], new["a"])
    assert inbox.read(message.data, message.schema, old) is not first


def test_changes_in_place_are_noticed() -> None:
    inbox, message = Inbox(Mode(), 1), write({"a": torch.ones(3), "mask": torch.ones(2) > 0})
    received = inbox.read(message.data, message.schema, None)
    received.check()
    received.record["a"].detach().mul_(2)
    with pytest.raises(RuntimeError, match=r"let begin copy it first, .*ctx\.task\.own"):
        received.check()


@dataclass(frozen=True)
class TrainsWhatItWasSent(FedAvg):
    """Forgets to copy the model."""

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        job = super().begin(ctx, down, local)
        return replace(job, work=replace(job.work, model=Model(ctx.task, down.params)))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_method_that_trains_what_it_was_sent_is_stopped(workers: int) -> None:
    with pytest.raises(ClientError, match="changed in place what the server sent"):
        run(TrainsWhatItWasSent(clients=2), linear(), Toy(), rounds=1, options=Options(workers))
