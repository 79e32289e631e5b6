"""A conversation with one client: down over the wire, local training, up over the wire."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gossamer import cost
from gossamer.core import Client, Exchange, Key
from gossamer.data.federation import Federation
from gossamer.engine import replay
from gossamer.engine.client import Abandoned, AnyMethod, ClientError, Stage, client_ctx, train
from gossamer.engine.events import ClientFailed, ClientFinished
from gossamer.engine.options import Options, Stop
from gossamer.engine.store import Store
from gossamer.task import Task
from gossamer.wire import Schema, decode, encode


@dataclass(frozen=True)
class Reply:
    """A client's answer as it came over the wire, or its failure."""

    client: Client
    down: Any
    schema: Schema | None
    data: bytes
    event: ClientFinished | None
    seconds: float
    error: ClientError | None = None

    @property
    def failure(self) -> ClientFailed | None:
        """The event of a client that failed; what it was sent is charged all the same."""
        if self.error is None:
            return None
        found = self.error
        bits = 8 * len(encode(self.down)) if found.stage != "decode" else 0
        paper = cost.paper_bits(self.down) if bits else 0
        return ClientFailed(found.round, found.client, found.stage, found.reason, bits, paper)


@dataclass(frozen=True)
class Conversations:
    """All that conversations of a run have in common."""

    method: AnyMethod
    federation: Federation
    store: Store
    key: Key
    rounds: int
    out: Path
    options: Options
    stop: Stop

    def hold(self, task: Task, number: int, client: Client, down: Any) -> Reply:
        """Sends, trains, receives; a failure becomes part of the reply, or is raised."""
        if self.stop.at_once():
            raise Abandoned
        started = time.perf_counter()
        stage: list[Stage] = ["decode"]
        local = None
        try:
            schema = Schema.of(down)
            data = encode(down, schema)
            received = decode(data, schema)
            local = self.store.get(client.id)
            stage.append("data")
            ctx = client_ctx(self.key, task, self.federation, client.id, number, self.rounds)
            done = train(
                self.method,
                ctx,
                received,
                local,
                augment=self.federation.augment,
                abandoned=self.stop.at_once,
                at=stage.append,
            )
            stage.append("encode")
            result = done.result
            answer = Schema.of(result.up)
            up = encode(result.up, answer)
            event = ClientFinished(
                round=number,
                client=client.id,
                examples=done.examples,
                steps=done.steps,
                density=cost.density(task.layout, result.masks),
                up=8 * len(up),
                down=8 * len(data),
                paper_up=cost.paper_bits(result.up),
                paper_down=cost.paper_bits(down),
                flops=cost.training_flops(task.layout, result.masks, done.examples),
                metrics=dict(result.metrics),
            )
            stage.append("store")
            if result.local is not None:
                self.store.put(client.id, number, result.local)
        except Abandoned:
            raise
        except Exception as cause:
            return self._failed(
                ClientError(stage[-1], number, client.id, cause), client, down, local, started
            )
        return Reply(client, down, answer, up, event, time.perf_counter() - started)

    def _failed(
        self, error: ClientError, client: Client, down: Any, local: Any, started: float
    ) -> Reply:
        """Keeps what is needed to replay the client; raises unless failures are to be skipped."""
        if error.stage != "decode":
            seed = self.key.seed
            capsule = replay.Capsule(error.round, self.rounds, seed, client.id, down, local)
            replay.write(self.out / "rounds", capsule)
            run = shlex.quote(str(self.out))
            error.replay = f"gossamer replay {run} --round {error.round} --client {client.id}"
        if self.options.on_client_error == "stop":
            raise error from error.cause
        return Reply(client, down, None, b"", None, time.perf_counter() - started, error)


def exchanges(replies: Sequence[Reply]) -> Iterator[Exchange[Any, Any]]:
    """Conversations in the order of client ids, decoded one at a time."""
    for reply in replies:
        assert reply.schema is not None
        yield Exchange(reply.client, reply.down, decode(reply.data, reply.schema))
