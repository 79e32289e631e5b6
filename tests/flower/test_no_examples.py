"""No example leaves its client: neither in a message, nor into a log, a state or a capsule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from loopback import Loopback, served, set_up, simulated

from gossamer import Batch, Ctx, FedAvg
from gossamer.engine import Run
from gossamer.flower.carrier import Outgoing
from gossamer.flower.messages import Message
from gossamer.methods.fedavg import Work

LONG = 16
"""Bytes by which an example is recognised: four pixels in a row."""


@dataclass(frozen=True)
class Fails(FedAvg):
    """FedAvg in which every second client raises."""

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        if int(str(ctx.key.path[-1])) % 2:
            raise ZeroDivisionError(f"a batch of {len(batch.x)} pictures")
        return super().step(ctx, work, batch)


def pieces(setup: Run) -> Iterator[bytes]:
    """Of every example of every client."""
    for client in setup.federation.pool:
        data = setup.federation.client(client.id)
        for part in (data.train, data.valid, data.test):
            for picture in part.x:
                yield picture.numpy().tobytes()[:LONG]


def failing() -> Run:
    setup = set_up("fedavg", rounds=2)
    return replace(
        setup, method=Fails(clients=4), options=replace(setup.options, on_client_error="skip")
    )


@pytest.mark.parametrize("name", ["fails", "spafl", "pffdst"])
def test_files_and_messages_hold_no_example(name: str, tmp_path: Path) -> None:
    setup = failing() if name == "fails" else set_up(name, rounds=2)
    sent: list[bytes] = []

    def hear(outgoing: Outgoing, answer: Message | None) -> Message:
        sent.extend((answer or outgoing.message).packed())
        return answer or Message({})

    simulated(setup, tmp_path / "threads")
    served(setup, Loopback.of(setup, tmp_path / "nodes", fault=hear), tmp_path / "served")
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    capsules = [path for path in files if path.parent.name == "failed"]
    assert bool(capsules) == (name == "fails")
    everything = b"\n".join([*files.values(), *sent])
    own = list(pieces(setup))
    assert len(own) > 100 and len(everything) > 10_000
    assert not [piece for piece in own if piece in everything]
    leak = everything + setup.federation.client(0).train.x[0].numpy().tobytes()
    assert [piece for piece in own if piece in leak]  # it would have been found
