"""Budgets: exact counts, one for every client, and files that are read to the letter."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.core import Client, Key, budgets_of
from gossamer.data import Pool, federation
from gossamer.data.budgets import are_shares, deal_budgets, facts

FLASH = "0.2:40%,0.15:30%,0.1:30%"


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def dealt(text: str, pool: int, seed: int = 0) -> list[float]:
    """What the clients of a pool get."""
    budgets = deal_budgets(text, pool, Key(seed))
    return [client.budget for client in Pool(np.ones(pool, np.int64), budgets)]


# shares -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", [FLASH, "0.2:0.4,0.15:0.3,0.1:0.3", " 0.1 : 30% , .2:.4,0.15:30.0 %"]
)
def test_shares_are_percentages_or_fractions_in_any_order(text: str) -> None:
    assert Counter(dealt(text, 100)) == {0.2: 40, 0.15: 30, 0.1: 30}
    assert dealt(text, 100) == dealt(FLASH, 100)


def test_budgets_are_shuffled_by_the_key_alone() -> None:
    assert dealt(FLASH, 50) == dealt(FLASH, 50) != dealt(FLASH, 50, seed=1)
    assert dealt(FLASH, 50) != sorted(dealt(FLASH, 50), reverse=True)


def test_remainders_go_to_the_largest_and_ties_to_the_larger_budget() -> None:
    assert Counter(dealt("0.1:50%,0.2:50%", 5)) == {0.2: 3, 0.1: 2}
    # 7 clients: 2.8, 2.1 and 2.1.
    assert Counter(dealt(FLASH, 7)) == {0.2: 3, 0.15: 2, 0.1: 2}
    assert dealt("0.2:99%,0.1:1%", 3) == [0.2] * 3


@st.composite
def shares(draw: st.DrawFn) -> dict[float, Fraction]:
    """Budgets of at most six decimals, and tenths of a percent that add up to 100 %."""
    millionths = draw(st.lists(st.integers(1, 10**6), min_size=1, max_size=6, unique=True))
    cuts = st.lists(
        st.integers(0, 1000), min_size=len(millionths) - 1, max_size=len(millionths) - 1
    )
    edges = [0, *sorted(draw(cuts)), 1000]
    return {
        number / 10**6: Fraction(end - start, 1000)
        for number, start, end in zip(millionths, edges, edges[1:], strict=False)
    }


@given(shares(), st.integers(1, 300), st.integers(0, 9), st.booleans())
def test_every_client_has_one_budget_and_counts_are_exact(
    wanted: dict[float, Fraction], pool: int, seed: int, percent: bool
) -> None:
    entries = [
        f"{budget!r}:{float(100 * share)!r}%" if percent else f"{budget:f}:{float(share)!r}"
        for budget, share in wanted.items()
    ]
    found = dealt(",".join(entries), pool, seed)
    assert len(found) == pool and set(found) <= set(wanted)
    for budget, share in wanted.items():
        assert abs(found.count(budget) - share * pool) < 1
        if (share * pool).denominator == 1 and all(
            (each * pool).denominator == 1 for each in wanted.values()
        ):
            assert found.count(budget) == share * pool


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0.2:40%,0.1:50%", r"add up to 90 %, not 100 %; write e\.g\. 0\.2:40%,0\.1:60%"),
        ("0.2:40,0.1:60", "add up to 10000 %"),
        ("0.2:33.333333%,0.1:66.666666%", r"add up to 99\.999999 %"),
        ("0.2:40%,0.2:60%", "have 0.2 twice"),
        ("0.2:40%,0.1:many", r"'0\.1:many' in budgets .* is not a budget with its share"),
        ("0.2:40%,0.1", r"'0\.1' in budgets .* write e\.g\. 0\.2:40%"),
        ("0.2:40%,", "'' in budgets"),
        ("0.2:140%,0.1:-40%", r"'0\.1:-40%' in budgets"),
        ("1.5:100%", r"has a budget of 1\.5; use a density above 0 and up to 1"),
        ("0:100%", "has a budget of 0;"),
        ("nan:100%", "has a budget of nan;"),
        ("0.0000001:100%", r"has a budget of 0\.0000001;"),
    ],
)
def test_wrong_shares_are_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        deal_budgets(text, 10, Key(0))


# files ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lines", ["client,budget\n{}", "{}", "\ufeffClient, Budget\r\n{}\r\n", "\n{}\n\n , \n"]
)
def test_a_file_has_a_line_for_each_client_in_any_order(lines: str) -> None:
    text = lines.format("2,0.15\n0, 1\n1,0.2")
    Path("budgets.csv").write_text(text, encoding="utf-8", newline="")
    assert dealt("budgets.csv", 3) == [1.0, 0.2, 0.15]
    assert dealt(str(Path.cwd() / "budgets.csv"), 3, seed=7) == [1.0, 0.2, 0.15]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0,0.2\n1,0.2\n", r"has no budget for client 2, and budgets for 2 of 3 clients;"),
        ("client,budget\n", "has no budget for client 0"),
        ("0,0.2\n1,0.2\n\n1,0.3\n", "line 4 of b.csv has client 1 again, after line 2"),
        ("0,0.2\n3,0.2\n", "line 2 of b.csv has client 3, but the pool has clients 0 to 2"),
        ("0,0.2\n1,0\n", "line 2 of b.csv gives client 1 the budget '0'; use a density"),
        ("client,budget\n0,much\n", "line 2 of b.csv gives client 0 the budget 'much'"),
        ("0,1.2\n", r"gives client 0 the budget '1\.2'"),
        ("0,\n", "gives client 0 the budget ''"),
        ("id,density\n0,0.2\n", "line 1 of b.csv has 'id,density' instead of a client's number"),
        ("-1,0.2\n", "has '-1,0.2' instead"),
        ("1.0,0.2\n", r"has '1\.0,0\.2' instead"),
        ("0,0.2,5\n", r"has '0,0\.2,5' instead .* write e\.g\. 17,0\.2"),
        ("0;0.2\n", "has '0;0.2' instead"),
        (b"\xff\xfe0,\x000", r"b\.csv is not a CSV file in UTF-8"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(text: str | bytes, said: str) -> None:
    Path("b.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=said) as refused:
        deal_budgets("b.csv", 3, Key(0))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["nowhere.csv", ".", "0.5", ""])
def test_what_is_neither_a_file_nor_shares_is_refused(name: str) -> None:
    with pytest.raises(FileNotFoundError, match="neither an existing CSV file nor shares"):
        deal_budgets(name, 3, Key(0))


def test_shares_begin_with_a_number_and_a_colon() -> None:
    assert are_shares(FLASH) and are_shares("1e-3:100%") and are_shares("0.2:wrong")
    assert not any(map(are_shares, ("b.csv", "./0.2/b.csv", "c:/b.csv", "/a:b/c.csv", "", "0.5")))


# numbers ----------------------------------------------------------------------------------------


def test_numbers_are_dealt_in_equal_shares() -> None:
    found = deal_budgets((0.2, 0.2, 0.1), 30, Key(0))
    assert np.isclose(found, 0.2).sum() == 20
    assert np.isclose(found, 0.1).sum() == 10
    assert deal_budgets(None, 3, Key(0)).tolist() == [1, 1, 1]
    exact = federation("synthetic", pool=3, budgets=(0.3, 0.2, 0.15))
    assert [client.budget for client in exact.pool] == [0.3, 0.2, 0.15]
    for bad in ((), (0.0,), (1.5,), (0.1,) * 4, (float("nan"),)):
        with pytest.raises(ValueError, match="do not fit 3 clients"):
            deal_budgets(bad, 3, Key(0))


# federations ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fmnist-mini", "synthetic"])
def test_a_federation_deals_by_its_seed_and_tells_of_it(name: str) -> None:
    made = federation(name, pool=20, seed=3, budgets=FLASH)
    found = [client.budget for client in made.pool]
    assert found == dealt_by_seed(20, 3)
    assert budgets_of(made.pool) == (0.1, 0.15, 0.2)
    told = made.describe()
    assert told["budgets"] == {"0.1": 6, "0.15": 6, "0.2": 8}
    plain = federation(name, pool=20, seed=3)
    assert {key: told[key] for key in told if not key.startswith("budgets")} == plain.describe()


def dealt_by_seed(pool: int, seed: int) -> list[float]:
    budgets = deal_budgets(FLASH, pool, Key(seed).fold("data", "budgets"))
    return [client.budget for client in Pool(np.ones(pool, np.int64), budgets)]


@pytest.mark.parametrize("name", ["fmnist-mini", "synthetic"])
def test_a_federation_refuses_wrong_budgets_at_once(name: str) -> None:
    with pytest.raises(ValueError, match="add up to 40 %"):
        federation(name, pool=20, budgets="0.2:40%")


def test_a_partition_does_not_change_the_budgets() -> None:
    one, two = (
        federation("fmnist-mini", partition, pool=20, seed=3, budgets=FLASH)
        for partition in ("iid", "dirichlet:0.3")
    )
    assert [each.budget for each in one.pool] == [each.budget for each in two.pool]


def test_facts_are_empty_where_everyone_affords_everything() -> None:
    assert facts(np.ones(5, np.float32)) == {}
    assert federation("synthetic", pool=4, budgets="1:100%").describe() == (
        federation("synthetic", pool=4).describe()
    )


def test_facts_tell_apart_who_has_what_and_stay_short() -> None:
    one, two = (facts(np.array(each, np.float32)) for each in ((0.1, 0.2), (0.2, 0.1)))
    assert one["budgets"] == two["budgets"] == {"0.1": 1, "0.2": 1}
    assert one["budgets_hash"] != two["budgets_hash"]
    assert facts(np.linspace(0.1, 0.9, 500).astype(np.float32))["budgets"] == {"0.1 to 0.9": 500}


def test_a_pool_has_the_levels_that_its_clients_have() -> None:
    pool = Pool(np.ones(40, np.int64), deal_budgets("0.3:25%,0.123457:75%", 40, Key(1)))
    levels = pool.levels()
    assert levels.budgets == (0.123457, 0.3)
    for budget, members in zip(levels.budgets, levels.members, strict=True):
        held = [client.id for client in pool if client.budget == budget]
        assert members.tolist() == held
    assert budgets_of(pool) == budgets_of(list(pool))


def test_budgets_that_round_to_the_same_are_one_level() -> None:
    near = np.array([0.1, np.nextafter(np.float32(0.1), np.float32(1)), 0.5], np.float32)
    assert near[0] != near[1]
    assert budgets_of(Pool(np.ones(3, np.int64), near)) == (0.1, 0.5)
    assert Client(1, 1, 0.1) == Pool(np.ones(3, np.int64), near)[1]
