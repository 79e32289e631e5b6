"""Allocation over layers against worked numbers, and exact totals always."""

from __future__ import annotations

import doctest
from fractions import Fraction
from math import floor

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from mask_toys import densities, fewer_examples, layout_with, layouts

from gossamer import Layout
from gossamer.sparsity import (
    Allocation,
    Counts,
    allocate,
    apportion,
    as_fraction,
    counts,
    er,
    erk,
    erk_feddst,
    erk_plus,
    sensitivity,
    uniform,
)
from gossamer.sparsity.counts import share_out, sizes_of, whole_numbers
from paper_models import COLOUR, GREY, flash, layout_of

SIZES = {"a": 100, "b": 1000}


def close(found: object) -> object:
    return pytest.approx(found, abs=5e-6)


def test_the_examples_are_right() -> None:
    found = doctest.testmod(counts)
    assert found.attempted > 0 and found.failed == 0


def test_erk_plus_is_erk_where_the_head_is_not_pruned() -> None:
    layout = layout_of("mnistnet", GREY, 10, ("conv2.weight", "fc1.weight"))
    assert erk_plus(layout, 0.05) == erk(layout, 0.05)
    whole = layout_of("mnistnet", GREY, 10)
    found = erk_plus(whole, 0.05)
    assert found["fc2.weight"] == 1 > found["fc1.weight"]


# numbers ------------------------------------------------------------------------------------------


def test_a_number_stands_for_the_fraction_that_was_meant() -> None:
    assert as_fraction(0.1) == Fraction(1, 10) and as_fraction(1) == 1
    assert as_fraction(Fraction(1, 3)) == Fraction(1, 3) == as_fraction(1 / 3)
    assert as_fraction(0.3 - 0.15) == Fraction(3, 20)


@given(st.integers(1, 10**7), st.data())
def test_a_measured_density_is_recovered_exactly(size: int, data: st.DataObject) -> None:
    active = data.draw(st.integers(0, size))
    assert as_fraction(active / size) == Fraction(active, size)


@given(layouts, densities)
def test_counts_sum_to_the_rounded_total(layout: Layout, density: float) -> None:
    sizes = sizes_of(layout)
    total = round(as_fraction(density) * sum(sizes.values()))
    for rule in ("uniform", "er", "erk"):
        shares = allocate(layout, density, rule)
        assert all(0 <= share <= 1 for share in shares.values())
        found = apportion(layout, shares, least=0)
        assert sum(found.values()) == total
        assert all(abs(found[name] - shares[name] * sizes[name]) < 1 for name in sizes)
        assert sum(apportion(layout, shares).values()) == max(total, len(sizes))


@given(layouts, densities)
def test_no_layer_is_left_empty(layout: Layout, density: float) -> None:
    for rounding in ("exact", "floor"):
        found = apportion(layout, uniform(layout, density), rounding)
        assert all(1 <= number <= layout[name].count for name, number in found.items())


def test_the_largest_layer_pays_for_those_that_would_be_empty() -> None:
    sizes = {"a": 10, "b": 10, "c": 980}
    shares = {"a": 0.0, "b": 0.01, "c": 0.1}
    assert apportion(sizes, shares) == {"a": 1, "b": 1, "c": 96}
    assert apportion(sizes, shares, least=0) == {"a": 0, "b": 0, "c": 98}
    assert apportion(sizes, shares, "floor", least=3) == {"a": 3, "b": 3, "c": 98}


def test_remainders_are_rounded_up_from_the_largest_and_in_order() -> None:
    parts = {"a": Fraction(5, 4), "b": Fraction(7, 4), "c": Fraction(7, 4), "d": Fraction(1, 4)}
    assert whole_numbers(parts) == {"a": 1, "b": 2, "c": 2, "d": 0}
    halves = dict.fromkeys("abcd", Fraction(1, 2))
    assert whole_numbers(halves) == {"a": 1, "b": 1, "c": 0, "d": 0}


def test_a_density_outside_of_its_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"between 0 and 1, not 1\.1"):
        erk(layout_with((2, 2)), 1.1)
    with pytest.raises(ValueError, match="11 weights do not fit into 10"):
        share_out(Fraction(11), {"a": Fraction(1)}, {"a": 10})


# Eq. 3 --------------------------------------------------------------------------------------------


def test_measured_densities_are_scaled_to_the_target() -> None:
    """Oracle D1."""
    measured = {"a": 0.8, "b": 0.05}
    found = sensitivity(SIZES, measured, 0.1)
    assert float(found["a"] / as_fraction(0.8)) == close(0.84615)
    assert found["a"] / found["b"] == 16
    assert apportion(SIZES, found, "floor") == {"a": 67, "b": 42}
    assert apportion(SIZES, found) == {"a": 68, "b": 42}
    for saturate in ("clip", "cap-ratio"):
        assert sensitivity(SIZES, measured, 0.1, saturate) == found


def test_what_saturated_layers_leave_is_shared_or_lost() -> None:
    """Oracle D2."""
    measured = {"a": 0.9, "b": 0.02}

    def counts(saturate: str) -> Counts:
        return apportion(SIZES, sensitivity(SIZES, measured, 0.15, saturate))  # type: ignore[arg-type]

    assert counts("waterfill") == {"a": 100, "b": 65}
    assert counts("clip") == {"a": 100, "b": 30}
    assert counts("cap-ratio") == {"a": 90, "b": 20}


@fewer_examples
@given(layouts, densities, st.data())
def test_waterfill_keeps_the_total_and_never_exceeds_one(
    layout: Layout, density: float, data: st.DataObject
) -> None:
    sizes = sizes_of(layout)
    measured = {name: data.draw(densities) for name in sizes}
    found = sensitivity(layout, measured, density)
    assert sum(found[name] * size for name, size in sizes.items()) == as_fraction(density) * sum(
        sizes.values()
    )
    assert all(0 <= share <= 1 for share in found.values())
    # Ratios are kept among the layers that are neither full nor were empty.
    ratios = {
        found[n] / as_fraction(measured[n]) for n in sizes if measured[n] > 1e-9 and found[n] < 1
    }
    assert len(ratios) <= 1
    for saturate in ("clip", "cap-ratio"):
        assume(any(as_fraction(value) for value in measured.values()))
        others = sensitivity(layout, measured, density, saturate)
        assert all(0 <= others[name] <= found[name] for name in sizes)


def test_layers_without_any_weight_take_what_no_other_can() -> None:
    assert sensitivity(SIZES, {"a": 0.5, "b": 0}, 0.2) == {"a": 1, "b": Fraction(12, 100)}
    assert sensitivity(SIZES, {"a": 0, "b": 0}, 0.2, "clip") == uniform(SIZES, 0.2)


def test_only_free_weights_can_be_counted() -> None:
    """As when a part of each layer is frozen."""
    free = {"a": 10, "b": 990}
    found = apportion(free, sensitivity(free, {"a": 0.5, "b": 0.1}, Fraction(50, 1000)))
    assert sum(found.values()) == 50 and found == {"a": 2, "b": 48}


# Erdos-Renyi --------------------------------------------------------------------------------------


def test_erk_of_three_matrices() -> None:
    """Oracle D3."""
    layout = layout_with((4, 2), (10, 10), (20, 20))
    assert erk(layout, 0.2) == {"a": 1, "b": Fraction(312, 1000), "c": Fraction(156, 1000)}
    assert erk(layout, 0.5) == {"a": 1, "b": Fraction(82, 100), "c": Fraction(41, 100)}
    total = sum(share * layout[name].count for name, share in erk(layout, 0.2).items())
    assert total == Fraction(1016, 10)
    assert set(erk(layout, 1).values()) == {1} and set(erk(layout, 0).values()) == {0}


STEM = "conv.weight"
STAGE1 = "stages.0.0.conv1.weight"
LAST = "stages.3.1.conv2.weight"


def dense_layers(layout: Layout, density: float) -> set[str]:
    return {name for name, share in erk(layout, density).items() if share == 1}


def test_erk_of_the_convolutions_of_resnet18() -> None:
    """Oracle D4."""
    layout = flash()
    second, third = (n for n in layout.prunable if "shortcut" in n and "stages.3" not in n)
    tenth, twentieth = erk(layout, 0.1), erk(layout, 0.05)
    assert dense_layers(layout, 0.1) == {STEM, second, third}
    assert float(tenth[STAGE1]) == close(0.48175) and float(tenth[LAST]) == close(0.05786)
    total = sum(share * layout[name].count for name, share in tenth.items())
    assert total == Fraction(11_159_232, 10) and float(total) == 1_115_923.2
    assert sum(apportion(layout, tenth).values()) == 1_115_923
    assert dense_layers(layout, 0.05) == {STEM, second}
    assert float(twentieth[STAGE1]) == close(0.23481)
    assert float(twentieth[LAST]) == pytest.approx(0.0282, abs=5e-5)
    assert float(erk(layout, 0.01)[STEM]) == close(0.53871)


def test_erk_costs_more_than_uniform() -> None:
    """Oracle L3: the head is dense."""
    layout = flash()

    def macs(rule: Allocation) -> float:
        shares = allocate(layout, 0.05, rule)
        return float(sum(leaf.macs * shares.get(n, 1) for n, leaf in layout.leaves.items()))

    assert layout.macs == 555_422_720
    assert round(macs("erk")) == 70_021_218
    assert macs("uniform") == 27_776_000


def test_erk_of_lenet() -> None:
    layout = layout_of("lenet5_caffe", GREY, 10)
    found = erk(layout, 0.5)
    assert list(apportion(layout, found, "floor").values()) == [500, 12159, 197590, 5000]
    convolution = layout["conv2.weight"]
    scale = found["conv2.weight"] * convolution.count / sum(convolution.shape)
    assert float(scale) == close(151.99275)
    assert sum(apportion(layout, found).values()) == 430_500 // 2


def test_erk_of_feddst_on_lenet() -> None:
    layout = layout_of("lenet5_caffe", GREY, 10)
    found = apportion(layout, erk_feddst(layout, 0.5), "floor")
    assert list(found.values()) == [264, 12484, 199756, 2744]


def quotas(density: float) -> list[int]:
    layout = layout_of("lenet_cifar", COLOUR, 10)
    return list(apportion(layout, erk_feddst(layout, density), "floor").values())


def part(share: float) -> list[int]:
    """The floor of a share of every layer of PFFDST's LeNet."""
    layout = layout_of("lenet_cifar", COLOUR, 10)
    return list(apportion(layout, uniform(layout, share), "floor", least=0).values())


def test_quotas_of_feddst_and_pffdst() -> None:
    """Oracle D5, with the biases of each layer in its quota."""
    assert quotas(0.2) == [103, 492, 153438, 2126, 240]
    assert quotas(1 - 0.85) == [81, 371, 115020, 1624, 202]
    left = [kept - lost for kept, lost in zip(quotas(0.15), part(0.05), strict=True)]
    assert left == [59, 251, 76620, 1120, 160]


def test_pffdst_grows_the_share_it_means() -> None:
    """Oracle D6: s1 - s2 + f is 0.15, although in floating point it is less."""
    share = 0.9 - 0.8 + 0.05
    assert share < 0.15 and floor(share * 2400) == 359
    left = [59, 251, 76620, 1120, 160]
    grown = [kept + more for kept, more in zip(left, part(share), strict=True)]
    assert grown == [126, 611, 191820, 2632, 286]
    pruned = [kept - lost for kept, lost in zip(grown, part(0.05), strict=True)]
    assert pruned == [104, 491, 153420, 2128, 244]


def test_feddst_is_almost_uniform() -> None:
    layout = layout_of("resnet18", COLOUR, 10)
    found = erk_feddst(layout, 0.05)
    assert float(found[LAST]) == pytest.approx(0.0496, abs=1e-4)
    assert float(found[STEM]) == pytest.approx(0.089, abs=1e-3)
    assert float(found["fc.weight"]) == pytest.approx(0.146, abs=1e-3)


@given(layouts, densities)
def test_feddst_stays_in_range(layout: Layout, density: float) -> None:
    assert all(0 <= share <= 1 for share in erk_feddst(layout, density).values())


def test_er_ignores_kernels() -> None:
    layout = layout_with((8, 4, 3, 3), (16, 8, 1, 1))
    found = er(layout, 0.1)
    assert found["a"] / found["b"] == Fraction(12, 32) / Fraction(24, 128)
    assert erk(layout, 0.1)["a"] / erk(layout, 0.1)["b"] == Fraction(18, 288) / Fraction(26, 128)


def test_erk_plus_has_a_dense_head_within_the_same_total() -> None:
    layout = layout_of("resnet18", COLOUR, 100)
    plain, plus = erk(layout, 0.05), erk_plus(layout, 0.05)
    assert plain["fc.weight"] < 1 == plus["fc.weight"]
    total = sum(share * layout[name].count for name, share in plus.items())
    assert total == as_fraction(0.05) * 11_210_432
    assert plus[LAST] < plain[LAST] and list(plus) == list(layout.prunable)
    half = erk_plus(layout, 0.05, head=0.5)
    assert half["fc.weight"] == Fraction(1, 2)
    assert sum(share * layout[name].count for name, share in half.items()) == total


def test_erk_plus_is_erk_where_the_head_is_dense_anyway_or_never_masked() -> None:
    with_head = layout_of("resnet18", COLOUR, 10)
    for density in (0.1, 0.05, 0.01):
        assert erk_plus(with_head, density) == erk(with_head, density)
        assert erk_plus(flash(), density) == erk(flash(), density)


def test_erk_plus_refuses_a_head_that_is_too_large() -> None:
    with pytest.raises(ValueError, match=r"keeps 10 weights, which does not fit b at density 1"):
        erk_plus(layout_with((10, 4), (6, 10)), 0.1)


def test_rules_have_names() -> None:
    layout = layout_with((4, 2), (10, 10), (20, 20))
    assert allocate(layout, 0.9, "erk-plus") == erk_plus(layout, 0.9)
    assert allocate(layout, 0.9, "erk-feddst") == erk_feddst(layout, 0.9)
    assert allocate(layout, 0.2) == erk(layout, 0.2)
