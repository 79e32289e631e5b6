"""Rates of pruning and growing against worked numbers."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.sparsity import Decay, decayed, schedule


def test_the_examples_are_right() -> None:
    assert doctest.testmod(schedule).failed == 0


def test_cosine() -> None:
    """Oracle M8, and the annealing of FedSpa."""
    found = [decayed(0.01, "cosine", time, 200) for time in (1, 16, 100, 200, 300)]
    assert found == pytest.approx([0.00999938, 0.00984292, 0.005, 0, 0], abs=5e-9)
    found = [decayed(0.5, "cosine", time, 500) for time in (0, 125, 250, 375, 500)]
    assert found == pytest.approx([0.5, 0.42677670, 0.25, 0.07322330, 0], abs=5e-9)


def test_a_rate_may_fall_to_more_than_nothing() -> None:
    """As that of Dettmers and Zettlemoyer, from 0.5 to 0.005."""
    found = [decayed(0.5, "cosine", time, 10, 0.005) for time in (0, 5, 10, 20)]
    assert found == pytest.approx([0.5, 0.2525, 0.005, 0.005])
    assert decayed(0.3, "linear", 5, 10, 0.1) == pytest.approx(0.2)
    assert decayed(0.3, "rex", 5, 10, 0.0) == pytest.approx(0.2)
    assert decayed(0.3, "rex", 5, 10, 0.15) == pytest.approx(0.25)


def test_rex() -> None:
    """Oracle M8; FedMef writes it as (2T - 2t) / (2T - t)."""
    assert [decayed(1, "rex", time, 10) for time in (0, 5, 10)] == pytest.approx([1, 2 / 3, 0])
    assert decayed(3, "rex", 4, 10) == pytest.approx(3 * (20 - 8) / (20 - 4))


def test_constant_never_ends() -> None:
    assert decayed(0.25, "constant", 7, 5) == 0.25


@given(
    st.sampled_from(["linear", "cosine", "rex"]),
    st.floats(0, 1),
    st.floats(0, 90),
    st.floats(0, 10),
)
def test_rates_fall_from_their_start_to_zero(
    decay: Decay, start: float, time: float, later: float
) -> None:
    first, second = decayed(start, decay, time, 100), decayed(start, decay, time + later, 100)
    assert 0 <= second <= first + 1e-15 and first <= start
    assert decayed(start, decay, 0, 100) == start and decayed(start, decay, 100, 100) == 0
