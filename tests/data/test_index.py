from __future__ import annotations

import numpy as np
import pytest

from gossamer.core import Client
from gossamer.data import Index, Pool


def test_an_index_groups_rows_by_owner_and_skips_nobodys() -> None:
    index = Index.of(np.asarray([2, 0, -1, 2, 0]), 4)
    assert [index[id].tolist() for id in range(4)] == [[1, 4], [], [0, 3], []]
    assert index.sizes.tolist() == [2, 0, 2, 0]


def test_an_index_refuses_strangers() -> None:
    with pytest.raises(IndexError, match="no client 4; the pool has clients 0 to 3"):
        Index.of(np.asarray([0]), 4)[4]
    with pytest.raises(IndexError):
        Index.of(np.asarray([0]), 4)[-1]


def test_keep_renumbers() -> None:
    kept = Index.of(np.asarray([2, 0, 1, 2]), 3).keep(np.asarray([2, 0]))
    assert [kept[id].tolist() for id in range(2)] == [[0, 3], [1]]


def test_counts_are_clients_by_classes() -> None:
    index = Index.of(np.asarray([0, 0, 1]), 2)
    assert index.counts(np.asarray([1, 1, 0]), 3).tolist() == [[0, 2, 0], [1, 0, 0]]


def test_a_pool_makes_clients_when_looked_at() -> None:
    pool = Pool(np.arange(100_000), np.full(100_000, 0.15, np.float32))
    assert len(pool) == 100_000
    assert pool[17] == Client(17, 17, 0.15)
    assert pool[-1].id == 99_999
    assert [client.id for client in pool[2:5]] == [2, 3, 4]
    with pytest.raises(IndexError):
        pool[100_000]
    assert sum(1 for _ in Pool(np.arange(5), np.ones(5, np.float32))) == 5
