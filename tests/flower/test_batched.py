"""Workers that are given a client's state with its request give the bits of threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from loopback import log_of, set_up, simulated

from gossamer import Summary
from gossamer.conformance.toys import Tiny
from gossamer.core import Data, Examples
from gossamer.engine import ClientError, Run, Stop, events, replay
from gossamer.flower.batched import Batched, BatchedTransport, ClientWorker, pack, unpack
from gossamer.methods import METHODS


@dataclass
class TwoWorkers:
    """Two workers in this process; a batch may be spoilt on its way."""

    worker: ClientWorker
    seen: list[Batched] = field(default_factory=list)
    spoilt: Any = None

    def workers(self) -> int:
        return 2

    def run(self, batches: Sequence[Batched]) -> Iterator[tuple[int, Batched | str] | None]:
        yield None
        for place in reversed(range(len(batches))):
            self.seen.append(batches[place])
            with ThreadPoolExecutor(1) as thread:
                found: Any = thread.submit(self.worker.work, batches[place]).result()
            yield place, self.spoilt(found) if self.spoilt else found


def batched(setup: Run, workers: TwoWorkers, out: Path, **how: Any) -> Summary:
    return simulated(setup, out, transport=BatchedTransport(workers), **how)


def test_equal_parts_of_a_bundle_travel_once() -> None:
    items = [({"client": id}, {"body": b"x" * 1000, "kept": bytes([id])}) for id in range(5)]
    batch = pack(items)
    assert len(batch) == 1 + 1 + 5
    assert unpack(batch) == items


@pytest.mark.parametrize("name", ["fedavg", "spafl", "prunefl"])
def test_workers_and_threads_give_equal_states_and_equal_logs(name: str, tmp_path: Path) -> None:
    setup = set_up(name)
    simulated(setup, tmp_path / "threads")
    workers = TwoWorkers(ClientWorker(setup))
    batched(setup, workers, tmp_path / "crowd")
    assert log_of(tmp_path / "crowd") == log_of(tmp_path / "threads")
    assert "state_hash" in log_of(tmp_path / "crowd")[-1]
    assert max(len(unpack(batch)) for batch in workers.seen) == 2  # of four clients


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_every_method_gives_with_workers_what_it_gives_in_threads(
    name: str, tmp_path: Path
) -> None:
    setup = set_up(name, rounds=6)
    simulated(setup, tmp_path / "threads")
    batched(setup, TwoWorkers(ClientWorker(setup)), tmp_path / "crowd")
    assert log_of(tmp_path / "crowd") == log_of(tmp_path / "threads")


def test_threads_continue_what_workers_began(tmp_path: Path) -> None:
    setup, stop = set_up("spafl", rounds=4), Stop()
    simulated(setup, tmp_path / "threads")
    workers = TwoWorkers(ClientWorker(setup))

    def ask(batch: Batched) -> Batched:
        if len(workers.seen) == 4 and not stop.after_round():
            stop.request()
        return batch

    workers.spoilt = ask
    assert batched(setup, workers, tmp_path / "crowd", stop=stop).rounds == 2
    simulated(setup, tmp_path / "crowd", resume=True)
    assert log_of(tmp_path / "crowd") == log_of(tmp_path / "threads")


def test_a_worker_that_is_lost_costs_its_clients_the_round_if_that_is_allowed(
    tmp_path: Path,
) -> None:
    setup = set_up("fedavg", on_client_error="skip", eval_every=0)
    workers = TwoWorkers(ClientWorker(setup))
    workers.spoilt = lambda batch: "the actor died" if len(workers.seen) == 3 else batch
    assert batched(setup, workers, tmp_path / "crowd").failed == 2
    log = events.read(tmp_path / "crowd" / "events.jsonl")
    failed = [event for event in log if event["event"] == "client-failed"]
    assert {(e["round"], e["stage"], e["reason"]) for e in failed} == {
        (2, "network", "the actor died")
    }
    strict = set_up("fedavg")
    workers = TwoWorkers(ClientWorker(strict), spoilt=lambda batch: "the actor died")
    with pytest.raises(ClientError, match="failed in network of round 1: the actor died"):
        batched(strict, workers, tmp_path / "strict")


class Narrow(Tiny):
    """Pictures that do not fit the model, from the fifth client on that is asked."""

    asked = 0

    def client(self, id: int) -> Data:
        self.asked += 1
        found = super().client(id)
        if self.asked <= 4:
            return found
        return replace(found, train=Examples(found.train.x[..., :3], found.train.y))


def test_a_client_that_raises_can_be_replayed_as_if_it_had_been_here(tmp_path: Path) -> None:
    setup = set_up("fedavg", eval_every=0)
    broken = replace(setup, federation=Narrow())
    with pytest.raises(
        ClientError, match=r"of round 2: (RuntimeError|ValueError): .*; replay it"
    ) as caught:
        batched(setup, TwoWorkers(ClientWorker(broken)), tmp_path / "crowd")
    capsule = replay.read(tmp_path / "crowd" / "rounds", 2, caught.value.client, setup.method)
    assert (capsule.client, capsule.round) == (caught.value.client, 2)
