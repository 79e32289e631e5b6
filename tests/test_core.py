"""The vocabulary: keys that depend on their path alone, cohorts without doubles."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections import Counter
from fractions import Fraction
from math import ceil, floor

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import gossamer
from gossamer import Batch, Client, Examples, Key, sample, sample_by_budget, sample_richest
from gossamer.core import budgets_of
from gossamer.data import Pool
from gossamer.data.budgets import apportion
from helpers import linear, server_ctx

parts = st.lists(st.text(max_size=4) | st.integers(-5, 5), max_size=4).map(tuple)


@given(st.integers(0, 3), parts, st.integers(0, 3), parts)
def test_keys_are_equal_exactly_when_seed_and_path_are(
    seed: int, path: tuple[str | int, ...], other_seed: int, other: tuple[str | int, ...]
) -> None:
    one, two = Key(seed).fold(*path), Key(other_seed).fold(*other)
    assert (one.digest() == two.digest()) == ((seed, path) == (other_seed, other))


@given(parts, parts)
def test_folding_twice_is_folding_once(
    first: tuple[str | int, ...], second: tuple[str | int, ...]
) -> None:
    assert Key(1).fold(*first).fold(*second) == Key(1).fold(*first, *second)


@given(parts)
def test_a_key_is_the_key_of_philox(path: tuple[str | int, ...]) -> None:
    key = Key(7).fold(*path)
    plain = np.random.Philox(key=key.digest())
    assert repr(key.numpy().bit_generator.state) == repr(plain.state)


def test_a_number_and_its_text_are_different_paths() -> None:
    assert Key(1).fold(1).digest() != Key(1).fold("1").digest()
    assert Key(1).fold("ab", "c").digest() != Key(1).fold("a", "bc").digest()


def test_what_a_key_draws_never_changes() -> None:
    """Results of all earlier versions depend on these numbers."""
    key = Key(1).fold("round", 3, "client", 17)
    assert key.digest() == 0xB1B9D2B6DC6C992976C5956A9F7D67B6
    assert key.numpy().integers(1000, size=4).tolist() == [598, 178, 320, 147]
    drawn = torch.randint(1000, (4,), generator=key.generator())
    assert drawn.tolist() == [366, 172, 366, 651]


def test_a_key_draws_the_same_again_and_touches_no_global_generator() -> None:
    state = torch.get_rng_state()
    key = Key(4).fold("x")
    assert torch.equal(
        torch.rand(5, generator=key.generator()), torch.rand(5, generator=key.generator())
    )
    assert (key.numpy().random(5) == key.numpy().random(5)).all()
    assert torch.equal(torch.get_rng_state(), state)
    assert pickle.loads(pickle.dumps(key)) == key


@given(st.integers(1, 30), st.data())
def test_a_cohort_has_no_doubles_and_is_in_order(size: int, data: st.DataObject) -> None:
    pool = [Client(3 * id, 1) for id in range(size)]
    count = data.draw(st.integers(1, size))
    chosen = [client.id for client in sample(Key(data.draw(st.integers(0, 99))), pool, count)]
    assert len(set(chosen)) == count and chosen == sorted(chosen)
    assert set(chosen) <= {client.id for client in pool}


def test_every_client_is_sampled_equally_often() -> None:
    pool = [Client(id, 1) for id in range(10)]
    counts = Counter(
        client.id for round in range(2000) for client in sample(Key(0).fold(round), pool, 3)
    )
    # 600 expected each; the standard deviation is 20.5.
    assert all(abs(counts[id] - 600) < 5 * 20.5 for id in range(10))


def test_sampling_a_pool_does_not_look_at_all_of_it() -> None:
    class Lazy:
        asked = 0

        def __len__(self) -> int:
            return 10**6

        def __getitem__(self, index: int) -> Client:
            self.asked += 1
            return Client(index, 1)

    pool = Lazy()
    assert len(sample(Key(0), pool, 10)) == 10  # type: ignore[arg-type]
    assert pool.asked == 10


@pytest.mark.parametrize("count", [0, -1, 4])
def test_a_cohort_larger_than_the_pool_or_empty_is_refused(count: int) -> None:
    pool = [Client(id, 1) for id in range(3)]
    with pytest.raises(ValueError, match=f"{count} clients per round asked for.*pool has 3"):
        sample(Key(0), pool, count)


budgets = st.lists(st.sampled_from([0.05, 0.1, 0.15, 0.2, 1.0]), min_size=1, max_size=40)


def pool_of(budgets: list[float]) -> Pool:
    return Pool(np.arange(len(budgets)), np.array(budgets, np.float32))


@given(st.integers(0, 50), st.lists(st.integers(0, 9), min_size=1).filter(any))
def test_parts_are_whole_add_up_and_are_off_by_less_than_one(
    total: int, weights: list[int]
) -> None:
    parts = apportion(total, weights)
    exact = [Fraction(total * weight, sum(weights)) for weight in weights]
    assert sum(parts) == total
    assert all(abs(part - share) < 1 for part, share in zip(parts, exact, strict=True))
    # Whoever is rounded up has no smaller remainder than whoever is not.
    up = [share % 1 for part, share in zip(parts, exact, strict=True) if part > share]
    down = [share % 1 for part, share in zip(parts, exact, strict=True) if part < share]
    assert not up or not down or min(up) >= max(down)


def test_ties_go_to_the_earlier_part() -> None:
    assert apportion(3, [1, 1]) == [2, 1]
    assert apportion(4, [Fraction(1, 3)] * 3) == [2, 1, 1]


@given(budgets, st.integers(0, 99), st.data())
def test_every_budget_has_its_share_of_a_cohort(
    budgets: list[float], seed: int, data: st.DataObject
) -> None:
    pool = pool_of(budgets)
    count = data.draw(st.integers(1, len(pool)))
    chosen = sample_by_budget(Key(seed), pool, count)
    ids = [client.id for client in chosen]
    assert len(set(ids)) == count and ids == sorted(ids)
    assert all(client == pool[client.id] for client in chosen)
    found = Counter(client.budget for client in chosen)
    ordered = sorted(set(budgets), reverse=True)
    for budget in ordered:
        exact = Fraction(count * budgets.count(budget), len(budgets))
        assert floor(exact) <= found[budget] <= ceil(exact)
    assert sample_by_budget(Key(seed), list(pool), count) == chosen


@pytest.mark.parametrize("count", [1, 2, 3])
def test_no_budget_is_so_rare_that_its_clients_are_never_drawn(count: int) -> None:
    pool = [Client(id, 1, [0.2, 0.2, 0.15, 0.1][id % 4]) for id in range(20)]
    times = Counter(c.id for n in range(4000) for c in sample_by_budget(Key(n), pool, count))
    wanted = 4000 * count / 20
    assert all(abs(times[id] - wanted) < 6 * wanted**0.5 for id in range(20))


def test_who_can_afford_all_that_is_asked_is_of_one_level() -> None:
    pool = [Client(id, 1, 0.1 + id / 100) for id in range(50)]
    assert sample_by_budget(Key(1), pool, 10, most=0.1) == sample(Key(1), pool, 10)
    assert sample_richest(Key(1), pool, 10, most=0.1) == sample(Key(1), pool, 10)
    halves = [Client(id, 1, [0.05, 0.2, 0.3][id % 3]) for id in range(30)]
    drawn = Counter(client.budget >= 0.1 for client in sample_by_budget(Key(2), halves, 15, 0.1))
    assert drawn == {True: 10, False: 5}
    assert {c.budget for c in sample_richest(Key(2), halves, 30, most=0.1)} == {0.2, 0.3}


@given(st.sampled_from([0.15, 1.0]), st.integers(1, 40), st.integers(0, 99), st.data())
def test_with_one_budget_cohorts_are_those_of_sample(
    budget: float, size: int, seed: int, data: st.DataObject
) -> None:
    pool = pool_of([budget] * size)
    count = data.draw(st.integers(1, size))
    plain = sample(Key(seed), pool, count)
    assert sample_by_budget(Key(seed), pool, count) == plain
    assert sample_richest(Key(seed), pool, count) == plain


def test_every_client_of_a_budget_is_sampled_equally_often() -> None:
    pool = pool_of([0.1] * 6 + [0.2] * 4)
    counts = Counter(
        client.id
        for round in range(2000)
        for client in sample_by_budget(Key(0).fold(round), pool, 5)
    )
    # 1000 expected each, whatever the budget; the standard deviation is 22.4.
    assert all(abs(counts[id] - 1000) < 5 * 22.4 for id in range(10))


@given(budgets, st.integers(0, 99), st.integers(1, 50))
def test_the_richest_are_all_or_as_many_as_asked_for(
    budgets: list[float], seed: int, count: int
) -> None:
    pool = pool_of(budgets)
    chosen = sample_richest(Key(seed), pool, count)
    ids = [client.id for client in chosen]
    assert len(set(ids)) == min(count, budgets.count(max(budgets))) and ids == sorted(ids)
    assert {client.budget for client in chosen} == {max(budgets)}
    assert sample_richest(Key(seed), list(pool), count) == chosen


def test_sampling_a_pool_by_budget_makes_only_the_clients_it_returns() -> None:
    asked = []

    class Watched(Pool):
        def __getitem__(self, index: int) -> Client:  # type: ignore[override]
            asked.append(index)
            return super().__getitem__(index)

    budgets = np.repeat(np.array([0.2, 0.15, 0.1], np.float32), [40_000, 30_000, 30_000])
    pool = Watched(np.ones(100_000, np.int64), budgets)
    found = Counter(each.budget for each in sample_by_budget(Key(1), pool, 100))
    assert found == {0.2: 40, 0.15: 30, 0.1: 30}
    assert len(sample_richest(Key(1), pool, 10)) == 10
    assert len(asked) == 110


@pytest.mark.parametrize("count", [0, -1, 4])
def test_a_cohort_by_budget_that_the_pool_cannot_fill_is_refused(count: int) -> None:
    pool = pool_of([0.1, 0.2, 0.2])
    with pytest.raises(ValueError, match=f"{count} clients per round asked for.*pool has 3"):
        sample_by_budget(Key(0), pool, count)
    if count < 1:
        with pytest.raises(ValueError, match=f"{count} clients per round asked for"):
            sample_richest(Key(0), pool, count)


def test_budgets_of_a_pool_are_those_that_its_clients_have() -> None:
    third = Client(0, 1, 1 / 3)
    assert budgets_of([third, Client(1, 1), Client(2, 1, 0.2), Client(3, 1)]) == (0.2, 1 / 3, 1.0)
    found = budgets_of(pool_of([0.15, 1 / 3, 0.15]))
    assert found == (0.15, 0.333333) and all(type(budget) is float for budget in found)
    assert budgets_of([]) == ()


def test_a_server_has_no_data() -> None:
    with pytest.raises(ValueError, match="a server has no data"):
        _ = server_ctx(linear()).own


@pytest.mark.parametrize(("step", "ends"), [(0, False), (2, True), (3, False), (5, True)])
def test_an_epoch_ends_with_its_last_full_pass(step: int, ends: bool) -> None:
    nothing = torch.zeros(0)
    assert Batch(nothing, nothing, Key(0), step, 6, step // 3, 2.0, 3).ends_epoch is ends


def test_importing_gossamer_loads_nothing_heavy_beyond_torch() -> None:
    """Optional packages are read by the parts that need them, when they are used."""
    heavy = "matplotlib rich PIL tensorboard pandas mlflow wandb datasets sklearn scipy flwr"
    code = f"""
import sys, torch, numpy
before = set(sys.modules)
import gossamer
new = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(*sorted(new & set({heavy!r}.split())))
"""
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout.strip() == ""


def test_everything_public_is_there() -> None:
    assert all(hasattr(gossamer, name) for name in gossamer.__all__)
    assert gossamer.__all__ == sorted(gossamer.__all__)


def test_a_key_refuses_parts_that_are_neither_text_nor_whole_numbers() -> None:
    with pytest.raises(TypeError, match=r"not 0\.5"):
        Key(1).fold(0.5)  # type: ignore[arg-type]


def test_stored_inputs_are_made_when_they_are_asked_for() -> None:
    asked: list[object] = []
    stored = torch.arange(12.0).reshape(4, 3)

    def load(order: npt.NDArray[np.int64] | None) -> Tensor:
        asked.append(order)
        return stored if order is None else stored[torch.from_numpy(order)]

    examples = Examples(load, torch.arange(4))
    assert len(examples) == 4 and not asked
    some = examples.take(np.array([2, 0]))
    assert torch.equal(some.x, stored[[2, 0]]) and some.y.tolist() == [2, 0]
    assert examples.x is examples.x and len(asked) == 2
    assert torch.equal(examples.take(np.array([3])).x, stored[3:]) and len(asked) == 2
