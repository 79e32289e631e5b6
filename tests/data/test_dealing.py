from __future__ import annotations

import numpy as np
import pytest

from gossamer.core import Key
from gossamer.data.dealing import Branch, deal_evenly, deal_like, hierarchical, sizes_of, take


def test_sizes_add_up() -> None:
    assert sizes_of(10, 3).tolist() == [4, 3, 3]
    assert sizes_of(2, 3).tolist() == [1, 1, 0]


def test_take_never_exceeds_the_stock() -> None:
    mix, stock = np.asarray([0.98, 0.01, 0.01]), np.asarray([3, 50, 2])
    taken = take(mix, stock, 54, Key(0).numpy())
    assert taken.sum() == 54
    assert (taken <= stock).all()
    assert taken[0] == 3


def test_take_falls_back_on_what_is_left() -> None:
    taken = take(np.asarray([1.0, 0.0]), np.asarray([1, 5]), 4, Key(0).numpy())
    assert taken.tolist() == [1, 3]


def test_take_is_the_same_as_drawing_one_by_one() -> None:
    """The mean of the counts agrees with the slow definition."""
    mix, stock = np.asarray([0.7, 0.2, 0.1]), np.asarray([3, 4, 5])
    draw = Key(1).numpy()
    fast = np.mean([take(mix, stock, 8, draw) for _ in range(4000)], axis=0)
    slow = np.zeros(3)
    for _ in range(4000):
        left = stock.copy()
        for _ in range(8):
            chances = np.where(left > 0, mix, 0)
            left[draw.choice(3, p=chances / chances.sum())] -= 1
        slow += stock - left
    assert np.allclose(fast, slow / 4000, atol=0.06)


def test_deal_evenly_differs_by_one_and_favours_nobody() -> None:
    extra = np.zeros(3)
    for seed in range(300):
        sizes = np.bincount(deal_evenly(np.arange(7), 3, Key(seed).numpy()), minlength=3)
        assert sorted(sizes) == [2, 2, 3]
        extra += sizes == 3
    assert extra.min() > 60


def test_a_branch_replaces_a_fine_class_within_its_family() -> None:
    members = [np.asarray([0, 1]), np.asarray([2])]
    branch = Branch(np.asarray([1.0, 0.0]), [np.asarray([1.0, 0.0]), np.ones(1)], members)
    taken = branch.take(np.asarray([2, 2, 9]), 4, Key(0).numpy())
    assert taken.tolist() == [2, 2, 0]


@pytest.mark.parametrize("tree", [False, True])
def test_deal_like_deals_every_row(tree: bool) -> None:
    y = np.arange(60) % 4
    draw = Key(3).numpy()
    coarse = np.asarray([0, 0, 1, 1])
    mixes = hierarchical(coarse, 7, 0.1, 10, draw) if tree else draw.dirichlet(np.ones(4), size=7)
    owner = deal_like(mixes, y, sizes_of(60, 7), draw)
    assert np.bincount(owner, minlength=7).tolist() == sizes_of(60, 7).tolist()
