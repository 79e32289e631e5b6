"""Random masks and nested ones."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from math import floor

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from mask_toys import (
    Case,
    cases,
    channels_last,
    densities,
    equal,
    fewer_examples,
    inside,
    layout_with,
    mask,
)

from gossamer import Key
from gossamer.sparsity import apportion, count, erk, largest, nested, random_masks, uniform
from gossamer.wire import Drawn


@given(cases())
def test_random_masks_have_their_counts(case: Case) -> None:
    assert count(case.masks) == case.counts
    again = random_masks(Key(case.key.seed), case.layout, case.counts)
    assert equal(case.masks, again)


def test_random_masks_are_those_a_seed_stands_for_on_the_wire() -> None:
    layout = layout_with((4, 3, 3, 3), (5, 7))
    counts = apportion(layout, erk(layout, 0.3))
    sent = Drawn.by(Key(3), counts, {name: layout[name].shape for name in counts})
    assert equal(random_masks(Key(3), layout, counts), sent.masks())


def test_random_masks_differ_between_keys_and_layers() -> None:
    layout = layout_with((20, 20), (20, 20))
    counts = apportion(layout, uniform(layout, 0.5))
    first, second = (random_masks(Key(seed), layout, counts) for seed in (1, 2))
    assert not torch.equal(first["a"], first["b"]) and not equal(first, second)


def test_draws_do_not_touch_global_generators() -> None:
    layout = layout_with((20, 20))
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = random_masks(Key(1), layout, {"a": 7})
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    assert equal(first, random_masks(Key(1), layout, {"a": 7}))


def test_bernoulli_masks_meet_their_counts_in_the_mean() -> None:
    layout = layout_with((10, 10))
    found = [random_masks(Key(seed), layout, {"a": 30}, bernoulli=True) for seed in range(400)]
    counts = [count(masks)["a"] for masks in found]
    assert len(set(counts)) > 5 and abs(np.mean(counts) - 30) < 1
    assert found[0]["a"].shape == (10, 10)


@fewer_examples
@given(cases(), st.lists(densities, min_size=1, max_size=4), st.booleans())
def test_sparser_masks_are_inside_denser_ones(
    case: Case, wanted: list[float], random: bool
) -> None:
    found = nested(case.masks, wanted, case.key if random else case.params)
    assert len(found) == len(wanted)
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    chain = [found[index] for index in order] + [case.masks]
    assert all(inside(inner, outer) for inner, outer in pairwise(chain))
    assert all(number or not case.counts[n] for f in found for n, number in count(f).items())
    other = nested(channels_last(case.masks), wanted, case.key)
    assert all(map(equal, other, nested(case.masks, wanted, case.key)))


def test_nested_layers_keep_their_share_of_the_source() -> None:
    """Counts are int((d / D) * density of the layer * size of the layer)."""
    layout = layout_with((10, 10), (5, 9))
    source = random_masks(Key(1), layout, {"a": 21, "b": 8})
    dense = Fraction(29, 145)
    for density in (0.2, 0.15, 0.1):
        (found,) = nested(source, [density], Key(2))
        ratio = Fraction(str(density)) / dense
        assert count(found) == {"a": floor(ratio * 21), "b": floor(ratio * 8)}
    assert equal(nested(source, [0.5], Key(2))[0], source)


def test_nested_masks_by_magnitude_rank_within_the_layer() -> None:
    params = {"w": torch.tensor([5.0, -9, 1, 4, 0, 8])}
    source = {"w": mask("101110")}
    halves = nested(source, [1 / 3, 1 / 6], params)
    assert halves[0]["w"].tolist() == mask("100100").tolist()
    assert halves[1]["w"].tolist() == mask("100000").tolist()
    assert equal(halves[0], largest(params, {"w": 2}, source))


def test_a_nested_mask_does_not_depend_on_its_siblings() -> None:
    source = random_masks(Key(1), layout_with((30, 30)), {"a": 400})
    alone = nested(source, [0.1], Key(2))[0]
    assert equal(alone, nested(source, [0.3, 0.1, 0.2], Key(2))[1])
