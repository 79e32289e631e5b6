"""Which clients are preferred, and what the server may know of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gossamer import Options, run
from gossamer.core import Client, Key
from gossamer.devices import Fleet
from gossamer.devices.selection import LOOK, Sampling, Seen, candidates, preferred, present, when
from gossamer.engine import events
from helpers import Toy, fedavg, mlp

POOL = [Client(id, 10 + id) for id in range(20)]


def ids(clients: list[Client]) -> list[int]:
    return [client.id for client in clients]


def test_small_pools_are_looked_at_as_a_whole_and_large_ones_by_a_sample() -> None:
    found = list(candidates(Key(1), POOL, 3, {4, 5}))
    assert ids(found) == [id for id in range(20) if id not in (4, 5)]
    large = [Client(id, 1) for id in range(5000)]
    some = list(candidates(Key(1), large, 3, {7}))
    assert len(some) == LOOK + 12 and len(set(ids(some))) == len(some) and 7 not in ids(some)
    assert 2000 < sum(ids(some)) / len(some) < 3000
    assert ids(list(candidates(Key(2), large, 3, {7}))) != ids(some)


def test_tiers_hold_clients_that_took_about_equally_long() -> None:
    known = {id: Seen(1, float(id), 1.0) for id in range(20)}
    found = Counter(
        tuple(ids(preferred(Sampling("tiers", 4), Key(seed), POOL, 3, known, 2)))
        for seed in range(60)
    )
    assert set(found) == {tuple(range(start, start + 5)) for start in (0, 5, 10, 15)}
    fresh = {id: Seen(1, 1.0) for id in range(10)}
    tiers = {
        tuple(ids(preferred(Sampling("tiers", 2), Key(seed), POOL, 3, fresh, 2)))
        for seed in range(60)
    }
    assert tuple(range(10, 20)) in tiers  # those that nobody knows yet are a tier, too


def test_power_of_choice_takes_the_largest_losses_of_its_candidates() -> None:
    known = {id: Seen(1, 1.0, float(id)) for id in range(20)}
    all_of_them = preferred(Sampling("power", 10), Key(0), POOL, 2, known, 2)
    assert ids(all_of_them) == [18, 19]
    unknown = {id: each for id, each in known.items() if id != 3}
    assert 3 in ids(preferred(Sampling("power", 10), Key(0), POOL, 2, unknown, 2))
    assert len(preferred(Sampling("power", 2), Key(0), POOL, 4, known, 2)) == 4


def test_utility_prefers_large_losses_and_much_data_but_not_slow_clients() -> None:
    pool = [Client(id, 10) for id in range(6)]
    known = {id: Seen(1, 1.0, float(id)) for id in range(6)}
    assert ids(preferred(Sampling("utility"), Key(0), pool, 2, known, 500)) == [4, 5]
    slow = {**known, 5: Seen(1, 100.0, 5.0)}
    assert ids(preferred(Sampling("utility"), Key(0), pool, 2, slow, 500)) == [3, 4]


def test_utility_explores_clients_that_nobody_knows() -> None:
    known = {id: Seen(1, 1.0, 1.0) for id in range(10)}
    early = preferred(Sampling("utility"), Key(0), POOL, 10, known, 1)
    late = preferred(Sampling("utility"), Key(0), POOL, 10, known, 500)
    assert [sum(id >= 10 for id in ids(each)) for each in (early, late)] == [9, 2]
    assert len(early) == len(late) == 10


def test_the_server_waits_for_enough_clients_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "traces.csv"
    path.write_text("client,from,until\n0,1,3\n1,2,9\n2,5,9\n3,8,9\n")
    fleet = Fleet.parse("mcu", Key(0), 20, availability=str(path))
    assert when(fleet, POOL, 0, 1) == 1 and when(fleet, POOL, 0, 2) == 2
    assert when(fleet, POOL, 0, 3) == 8  # 0 has left when 2 comes
    assert ids(present(fleet, POOL, 8)) == [1, 2, 3]


@pytest.mark.parametrize("text", ["tiers", "tiers:1", "power:x", "utility:2", "best", "tiers:2:2"])
def test_rules_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="`sampling=` is uniform, tiers:5, utility or power:2"):
        Sampling.parse(text)


@pytest.mark.parametrize("rule", ["tiers:3", "utility", "power:3"])
def test_rules_work_in_a_run_and_are_resumed_with_it(rule: str, tmp_path: Path) -> None:
    def trained(**options: Any) -> str:
        given = Options(eval_every=0, devices="phone-2024:50%,mcu:50%", sampling=rule, **options)
        summary = run(
            fedavg(3), mlp(), Toy(12), rounds=6, seed=3, out=tmp_path / f"{options}", options=given
        )
        return summary.state_hash

    assert trained(workers=1) == trained(workers=2)
    out = tmp_path / f"{ {'workers': 1} }"
    log = [each for each in events.read(out / "events.jsonl") if each["event"] == "round-finished"]
    assert all(len(each["clients"]) == 3 for each in log)
    plain = run(fedavg(3), mlp(), Toy(12), rounds=6, seed=3, options=Options(eval_every=0))
    assert plain.state_hash != trained(workers=3)
