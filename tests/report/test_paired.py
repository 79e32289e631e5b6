"""Paired tests, against tables of Student's distribution and against each other."""

from __future__ import annotations

import math

import pytest

from gossamer.report.paired import Paired, holm, paired, quantile, two_sided


@pytest.mark.parametrize(
    ("freedom", "t"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (10, 2.228), (29, 2.045)],
)
def test_five_percent_are_beyond_the_tabled_values(freedom: int, t: float) -> None:
    assert two_sided(t, freedom) == pytest.approx(0.05, abs=5e-5)
    assert two_sided(-t, freedom) == two_sided(t, freedom)
    assert quantile(0.05, freedom) == pytest.approx(t, abs=6e-4)


def test_the_distribution_is_the_integral_of_its_density() -> None:
    for freedom in (1, 2, 3, 6, 7):
        norm = math.gamma((freedom + 1) / 2) / (
            math.sqrt(freedom * math.pi) * math.gamma(freedom / 2)
        )
        steps, end = 20_000, 1.7
        inside = sum(
            norm * (1 + (end * (step + 0.5) / steps) ** 2 / freedom) ** (-(freedom + 1) / 2)
            for step in range(steps)
        )
        assert two_sided(end, freedom) == pytest.approx(1 - 2 * inside * end / steps, abs=1e-8)


def test_seeds_are_paired_and_others_left_out() -> None:
    found = paired({1: 0.9, 2: 0.8, 3: 0.7}, {3: 0.6, 1: 0.7, 9: 0.0})
    assert found.values == pytest.approx((0.2, 0.1))
    assert found.mean == pytest.approx(0.15) and found.error == pytest.approx(0.05)
    assert found.p == pytest.approx(two_sided(3, 1))
    low, high = found.interval() or (0, 0)
    assert (low, high) == pytest.approx((0.15 - 12.706 * 0.05, 0.15 + 12.706 * 0.05), abs=1e-4)


def test_pairs_show_what_means_would_hide() -> None:
    """Seeds differ by ten points, the rows by one: unpaired, that would be nothing."""
    first = {seed: 0.5 + 0.1 * seed for seed in range(4)}
    second = {seed: value - 0.01 - 0.001 * (seed % 2) for seed, value in first.items()}
    assert (paired(first, second).p or 1) < 0.01


@pytest.mark.parametrize(
    ("values", "p"), [((), None), ((0.1,), None), ((0.0, 0.0), 1.0), ((0.1, 0.1, 0.1), 0.25)]
)
def test_few_or_equal_differences(values: tuple[float, ...], p: float | None) -> None:
    assert Paired(values).p == p


@pytest.mark.parametrize("more", [0.1, 0.07])
def test_rounding_is_no_spread(more: float) -> None:
    """Seeds of which each is better by exactly as much: in binary the differences are not equal."""
    second = {0: 83.0, 1: 79.2, 2: 80.1}
    first = {seed: round(value + more, 2) for seed, value in second.items()}
    assert len(set(paired(first, second).values)) > 1
    assert paired(first, second).error == 0 and paired(first, second).p == 0.25
    assert paired(first, first).p == 1


def test_several_tests_are_corrected_step_by_step() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0] and holm([]) == []
