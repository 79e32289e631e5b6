"""Client states: bounded in memory, complete on disk, as they were at every checkpoint kept."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gossamer.engine.store import Store
from gossamer.wire import dump
from gossamer.wire.schema import type_name


@dataclass(frozen=True)
class Kept:
    value: Tensor


TYPES = {type_name(Kept): Kept}


def kept(number: float, size: int = 10) -> Kept:
    return Kept(torch.full((size,), float(number)))


def value(store: Store, client: int) -> float | None:
    found = store.get(client)
    return None if found is None else float(found.value[0])


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.bin"))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path, TYPES)


def test_a_client_gets_what_it_kept_last(store: Store) -> None:
    assert store.get(3) is None and store.raw(3) is None and store.clients() == []
    store.put(3, 1, dump(kept(1)))
    store.put(3, 2, dump(kept(2)))
    store.put(1, 2, dump(kept(5)))
    assert value(store, 3) == 2 and value(store, 1) == 5
    assert store.raw(3) == dump(kept(2))
    assert store.clients() == [1, 3]


def test_a_state_that_is_changed_by_its_reader_stays_as_it_was(store: Store) -> None:
    store.put(0, 1, dump(kept(1)))
    store.get(0).value.zero_()
    assert value(store, 0) == 1


def test_memory_is_bounded_and_the_rest_is_read_from_disk(tmp_path: Path) -> None:
    size = len(dump(kept(0, 1000)))
    store = Store(tmp_path, TYPES, memory=3 * size + 10)
    for client in range(20):
        store.put(client, 1, dump(kept(client, 1000)))
        assert store._cached == sum(map(len, store._cache.values())) <= 3 * size + 10
    assert list(store._cache) == [17, 18, 19]
    assert [value(store, client) for client in range(20)] == list(range(20))
    assert store._cached == sum(map(len, store._cache.values())) <= 3 * size + 10


def test_what_was_used_last_stays_in_memory(tmp_path: Path) -> None:
    store = Store(tmp_path, TYPES, memory=2 * len(dump(kept(0))))
    store.put(0, 1, dump(kept(0)))
    store.put(1, 1, dump(kept(1)))
    store.get(0)
    store.put(2, 1, dump(kept(2)))
    assert list(store._cache) == [0, 2]


def test_a_state_larger_than_the_memory_is_kept_on_disk_alone(tmp_path: Path) -> None:
    store = Store(tmp_path, TYPES, memory=10)
    store.put(0, 1, dump(kept(4)))
    assert store._cached == 0 and value(store, 0) == 4


def test_bytes_that_are_the_old_state_are_not_written_again(store: Store, tmp_path: Path) -> None:
    data = dump(kept(1))
    store.put(0, 1, data)
    store.stage(0, 2, data)
    store.put(0, 2, data)
    assert files(tmp_path) == ["000001/local/0.bin"] and value(store, 0) == 1
    assert store.states() == {0: 1}


def test_a_staged_state_is_the_clients_once_it_is_put(store: Store, tmp_path: Path) -> None:
    first, second = dump(kept(1)), dump(kept(2))
    store.put(0, 1, first)
    store.stage(0, 2, second)
    assert files(tmp_path) == ["000001/local/0.bin", "000002/local/0.bin"]
    assert value(store, 0) == 1 and store.new() == [tmp_path / "000001/local/0.bin"]
    store.put(0, 2, second)
    assert value(store, 0) == 2 and store.states() == {0: 2}
    assert store.new() == [tmp_path / f"00000{round}/local/0.bin" for round in (1, 2)]


def test_a_staged_state_that_is_not_put_leaves_no_trace(store: Store, tmp_path: Path) -> None:
    store.put(0, 1, dump(kept(1)))
    for client in (0, 5):
        store.stage(client, 2, dump(kept(2)))
    store.drop_staged()
    assert files(tmp_path) == ["000001/local/0.bin"] and value(store, 0) == 1
    assert not (tmp_path / "000002").exists()


def test_a_state_of_another_round_takes_the_place_of_the_staged_one(
    store: Store, tmp_path: Path
) -> None:
    data = dump(kept(2))
    store.stage(0, 2, data)
    store.put(0, 3, data)
    assert files(tmp_path) == ["000003/local/0.bin"] and store.states() == {0: 3}


def test_going_back_deletes_what_is_staged(store: Store, tmp_path: Path) -> None:
    store.put(0, 1, dump(kept(1)))
    store.stage(0, 2, data := dump(kept(2)))
    store.rollback(1)
    assert files(tmp_path) == ["000001/local/0.bin"] and value(store, 0) == 1
    store.put(0, 2, data)
    assert value(store, 0) == 2 and len(files(tmp_path)) == 2


def test_a_checkpoint_removes_what_no_kept_checkpoint_needs(store: Store, tmp_path: Path) -> None:
    store.put(0, 1, dump(kept(1)))
    store.put(1, 1, dump(kept(1)))
    store.commit([0, 1])
    store.put(0, 2, dump(kept(2)))
    store.put(0, 3, dump(kept(3)))
    assert len(files(tmp_path)) == 4
    store.commit([1, 3])  # round 2 was never saved
    assert files(tmp_path) == ["000001/local/0.bin", "000001/local/1.bin", "000003/local/0.bin"]
    store.commit([3, 4])
    assert files(tmp_path) == ["000001/local/1.bin", "000003/local/0.bin"]
    store.put(1, 5, dump(kept(5)))
    store.commit([4, 5])
    store.commit([5, 6])
    assert files(tmp_path) == ["000003/local/0.bin", "000005/local/1.bin"]
    assert not (tmp_path / "000001").exists()


@pytest.mark.parametrize("fresh", [True, False])
def test_going_back_to_either_kept_checkpoint_finds_the_states_of_that_time(
    store: Store, tmp_path: Path, fresh: bool
) -> None:
    for round in range(1, 9):
        store.put(round % 3, round, dump(kept(round)))
        if round % 2 == 0:
            store.commit([round - 2, round])
    store.put(0, 9, dump(kept(9)))
    again = Store(tmp_path, TYPES) if fresh else store
    for round, wanted in ((8, [6, 7, 8]), (6, [6, 4, 5])):
        again.rollback(round)
        assert [value(again, client) for client in range(3)] == wanted
    assert not (tmp_path / "000008").exists()


def test_a_store_that_was_reopened_still_removes_what_is_useless(tmp_path: Path) -> None:
    first = Store(tmp_path, TYPES)
    for round in (1, 2, 3):
        first.put(0, round, dump(kept(round)))
    again = Store(tmp_path, TYPES)
    again.rollback(3)
    again.put(0, 4, dump(kept(4)))
    again.commit([3, 4])
    assert files(tmp_path) == ["000003/local/0.bin", "000004/local/0.bin"]


def test_going_back_before_the_start_leaves_nothing(store: Store, tmp_path: Path) -> None:
    store.put(0, 1, dump(kept(1)))
    store.rollback(-1)
    assert store.clients() == [] and files(tmp_path) == []


def test_going_back_to_now_keeps_the_list_of_what_must_be_flushed(
    store: Store, tmp_path: Path
) -> None:
    store.put(0, 1, dump(kept(1)))
    store.put(0, 2, dump(kept(2)))
    store.rollback(1)
    assert store.new() == [tmp_path / "000001/local/0.bin"]
    store.commit([1])
    assert store.new() == []


def test_many_threads_may_read_and_write_at_once(tmp_path: Path) -> None:
    store = Store(tmp_path, TYPES, memory=5 * len(dump(kept(0))))

    def work(client: int) -> bool:
        for round in range(1, 15):
            store.put(client, round, dump(kept(100 * client + round)))
            if value(store, client) != 100 * client + round:
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(16)))
    assert store.clients() == list(range(16))
    assert store._cached == sum(map(len, store._cache.values())) <= store._memory
    store.commit([14])
    assert len(files(tmp_path)) == 16
