"""In a simulation, a message that many clients are sent is read once, and nobody may change it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from gossamer import Batch, Client, Ctx, FedAvg, Job, Options, run
from gossamer.engine import ClientError, inbox
from gossamer.methods.dense import Down, Local, Work
from gossamer.wire import Mode, Schema, decode, encode
from helpers import Toy, normed

READ: list[int] = []


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of messages that clients decoded."""
    READ.clear()

    def spy(data: bytes, *more: Any, **other: Any) -> object:
        READ.append(len(data))
        return decode(data, *more, **other)

    monkeypatch.setattr(inbox, "decode", spy)
    return READ


def simulate(method: FedAvg, workers: int = 1) -> str:
    return run(method, normed(), Toy(), rounds=3, options=Options(workers=workers)).state_hash


def test_one_message_to_all_is_read_once_a_round(read: list[int]) -> None:
    simulate(FedAvg(clients=5))
    assert len(read) == 3


@dataclass(frozen=True)
class Apart(FedAvg):
    """FedAvg whose messages have tensors of their own."""

    def down(self, ctx: Ctx, state: Any, client: Client) -> Down:
        return Down({name: tensor.clone() for name, tensor in state.params.items()})


def test_messages_of_their_own_are_read_one_by_one_to_the_same_bits(read: list[int]) -> None:
    once = simulate(FedAvg(clients=5))
    assert simulate(Apart(clients=5)) == once
    assert len(read) == 3 + 3 * 5


def in_begin(method: FedAvg, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
    next(iter(down.params.values())).zero_()
    return FedAvg.begin(method, ctx, down, local)


def in_training(method: FedAvg, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
    return Job(Work(down.params, 0.1), 1.0, 8)


@dataclass(frozen=True)
class Careless(FedAvg):
    """FedAvg that writes into what it was sent."""

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        return HOW[0](self, ctx, down, local)

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        return super().step(ctx, work, batch)


HOW: list[Callable[[FedAvg, Ctx, Down, Local | None], Job[Work]]] = []


@pytest.mark.parametrize("how", [in_begin, in_training])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_client_that_changes_its_message_is_told_to_copy_it(how: Any, workers: int) -> None:
    HOW[:] = [how]
    with pytest.raises(ClientError, match=r"Careless changed tensors of the Down it was sent") as e:
        simulate(Careless(clients=5), workers)
    assert "ctx.task.own" in str(e.value)


def test_equal_bytes_of_another_message_are_read_for_themselves() -> None:
    record = Down({"a": torch.arange(6.0)})
    box, schema = inbox.Inbox(Mode()), Schema.of(record)
    one, two = encode(record), bytes(bytearray(encode(record)))
    assert one == two and one is not two
    first = box.read(one, schema, {})
    assert box.read(one, schema, {}) is first
    assert box.read(two, schema, {}) is not first
