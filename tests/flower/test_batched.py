"""Workers that are given a client's state with its errand give the bits of threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from loopback import log_of, set_up, simulated

from gossamer import Summary, engine
from gossamer.conformance.toys import Tiny
from gossamer.core import Data, Examples
from gossamer.engine import ClientError, Stop, events, replay
from gossamer.flower.batched import Bench, Bundle, Crowd, pack, unpack
from gossamer.flower.node import Setup
from gossamer.methods import METHODS


@dataclass
class Benches:
    """Two workers in this process; a bundle may be spoilt on its way."""

    bench: Bench
    seen: list[Bundle] = field(default_factory=list)
    spoilt: Any = None

    def workers(self) -> int:
        return 2

    def run(self, bundles: Sequence[Bundle]) -> Iterator[tuple[int, Bundle | str] | None]:
        yield None
        for place in reversed(range(len(bundles))):
            self.seen.append(bundles[place])
            with ThreadPoolExecutor(1) as thread:
                found: Any = thread.submit(self.bench.work, bundles[place]).result()
            yield place, self.spoilt(found) if self.spoilt else found


def crowded(setup: Setup, benches: Benches, out: Path, **how: Any) -> Summary:
    return simulated(setup, out, transport=Crowd(benches), **how)


def test_equal_parts_of_a_bundle_travel_once() -> None:
    items = [({"client": id}, {"body": b"x" * 1000, "kept": bytes([id])}) for id in range(5)]
    bundle = pack(items)
    assert len(bundle) == 1 + 1 + 5
    assert unpack(bundle) == items


@pytest.mark.parametrize("name", ["fedavg", "spafl", "prunefl"])
def test_workers_and_threads_give_equal_states_and_equal_logs(name: str, tmp_path: Path) -> None:
    setup = set_up(name)
    simulated(setup, tmp_path / "threads")
    benches = Benches(Bench(setup))
    crowded(setup, benches, tmp_path / "crowd")
    assert log_of(tmp_path / "crowd") == log_of(tmp_path / "threads")
    assert "state_hash" in log_of(tmp_path / "crowd")[-1]
    assert max(len(unpack(bundle)) for bundle in benches.seen) == 2  # of four clients


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_every_method_gives_with_workers_what_it_gives_in_threads(
    name: str, tmp_path: Path
) -> None:
    setup = set_up(name, rounds=6)
    simulated(setup, tmp_path / "threads")
    crowded(setup, Benches(Bench(setup)), tmp_path / "crowd")
    assert log_of(tmp_path / "crowd") == log_of(tmp_path / "threads")


def test_threads_continue_what_workers_began(tmp_path: Path) -> None:
    setup, stop = set_up("spafl", rounds=4), Stop()
    simulated(setup, tmp_path / "threads")
    benches = Benches(Bench(setup))

    def ask(bundle: Bundle) -> Bundle:
        if len(benches.seen) == 4 and not stop.after_round():
            stop.request()
        return bundle

    benches.spoilt = ask
    assert crowded(setup, benches, tmp_path / "crowd", stop=stop).rounds == 2
    engine.run(
        setup.method,
        setup.task,
        setup.federation,
        rounds=setup.rounds,
        out=tmp_path / "crowd",
        name=setup.name,
        resume=True,
    )
    assert log_of(tmp_path / "crowd") == log_of(tmp_path / "threads")


def test_a_worker_that_is_lost_costs_its_clients_the_round_if_that_is_allowed(
    tmp_path: Path,
) -> None:
    setup = set_up("fedavg", on_client_error="skip", eval_every=0)
    benches = Benches(Bench(setup))
    benches.spoilt = lambda bundle: "the actor died" if len(benches.seen) == 3 else bundle
    assert crowded(setup, benches, tmp_path / "crowd").failed == 2
    log = events.read(tmp_path / "crowd" / "events.jsonl")
    failed = [event for event in log if event["event"] == "client-failed"]
    assert {(e["round"], e["stage"], e["reason"]) for e in failed} == {
        (2, "network", "the actor died")
    }
    strict = set_up("fedavg")
    benches = Benches(Bench(strict), spoilt=lambda bundle: "the actor died")
    with pytest.raises(ClientError, match="failed in network of round 1: the actor died"):
        crowded(strict, benches, tmp_path / "strict")


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
    with pytest.raises(ClientError, match=r"of round 2: RuntimeError: .*; replay it") as caught:
        crowded(setup, Benches(Bench(broken)), tmp_path / "crowd")
    capsule = replay.read(tmp_path / "crowd" / "rounds", 2, caught.value.client, setup.method)
    assert (capsule.client, capsule.round) == (caught.value.client, 2)
