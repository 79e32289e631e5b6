from __future__ import annotations

import random
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.core import Key
from gossamer.data import PARTITIONS, Labels, Split, parse

KEY = Key(7)


def balanced(classes: int = 10, train: int = 600, test: int = 100) -> Labels:
    return Labels(
        np.repeat(np.arange(classes), train), np.repeat(np.arange(classes), test), classes
    )


@st.composite
def labels(draw: st.DrawFn) -> Labels:
    classes = draw(st.integers(2, 12))
    shape = st.integers(0, classes - 1)
    train = draw(st.lists(shape, min_size=40, max_size=400))
    test = draw(st.lists(shape, max_size=100))
    coarse = np.arange(classes) // 3
    return Labels(np.asarray(train), np.asarray(test, np.int64), classes, None, coarse)


def assert_partition(split: Split, facts: Labels) -> None:
    """Every row has exactly one owner."""
    for index, y in ((split.train, facts.train), (split.test, facts.test)):
        assert np.array_equal(np.sort(index.rows), np.arange(len(y)))
        assert index.sizes.sum() == len(y)


@settings(deadline=None, max_examples=60)
@given(
    labels(),
    st.integers(1, 20),
    st.integers(0, 2**32),
    st.sampled_from(["iid", "dirichlet:5", "lda:0.1", "lda:100", "shards:2", "pachinko"]),
)
def test_a_partition_is_a_partition(facts: Labels, pool: int, seed: int, name: str) -> None:
    try:
        split = parse(name)(facts, pool, Key(seed), None)
    except ValueError as error:
        assert "use " in str(error)
        return
    assert len(split) == pool
    assert split.train.sizes.min() >= 1
    assert_partition(split, facts)


@pytest.mark.parametrize("name", ["iid", "dirichlet:0.3", "lda:0.1", "shards:2"])
def test_partitions_depend_on_the_key_alone(name: str) -> None:
    facts = balanced()
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    first = parse(name)(facts, 20, KEY, None)
    random.seed(2)
    np.random.seed(2)  # noqa: NPY002
    torch.manual_seed(2)
    again, other = parse(name)(facts, 20, KEY, None), parse(name)(facts, 20, Key(8), None)
    for part in ("train", "test"):
        one, two, three = (getattr(split, part).rows for split in (first, again, other))
        assert np.array_equal(one, two)
        assert not np.array_equal(one, three)


def test_iid_sizes_differ_by_one_at_most() -> None:
    split = parse("iid")(balanced(train=101), 7, KEY, None)
    assert set(split.train.sizes.tolist()) == {144, 145}


@pytest.mark.parametrize("name", ["iid", "lda:0.3", "shards:2"])
def test_too_many_clients_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"has no training examples under .* with 70 clients; use"):
        parse(name)(balanced(train=6), 70, KEY, None)


def test_dirichlet_gives_train_and_test_the_same_proportions() -> None:
    facts = balanced(train=6000, test=1000)
    split = parse("dirichlet:0.2")(facts, 100, KEY, None)
    train = split.train.counts(facts.train, 10)
    test = split.test.counts(facts.test, 10)
    # Cutting 6,000 and 1,000 at the same fractions, each rounded down.
    assert np.abs(train / 6 - test).max() < 2


@pytest.mark.parametrize("seed", range(20))
def test_dirichlet_draws_again_until_everyone_has_enough(seed: int) -> None:
    split = parse("dirichlet:0.2")(balanced(train=6000, test=1000), 100, Key(seed), None)
    assert split.train.sizes.min() >= 10
    assert split.test.sizes.min() >= 1


def test_dirichlet_keeps_the_best_draw_where_ten_are_too_many() -> None:
    facts = balanced(train=30)
    split = parse("dirichlet:1")(facts, 50, KEY, None)
    assert 1 <= split.train.sizes.min() <= 6
    assert_partition(split, facts)


def test_dirichlet_refuses_a_least_it_cannot_reach() -> None:
    with pytest.raises(
        ValueError, match=r"not 300, under dirichlet:0\.1 .* use `least=\d+` or less"
    ):
        parse("dirichlet:0.1")(balanced(train=6000), 100, KEY, 300)


def test_dirichlet_names_the_client_without_examples() -> None:
    with pytest.raises(
        ValueError,
        match=r"client \d+ has no training examples under dirichlet:0\.01 with 400 clients; use ",
    ):
        parse("dirichlet:0.01")(balanced(), 400, KEY, None)


def test_least_zero_leaves_clients_without_examples_out() -> None:
    facts = balanced(train=5000, test=1000)
    split = parse("dirichlet:0.05")(facts, 400, KEY, 0)
    assert 300 < len(split) < 400
    assert split.train.sizes.min() >= 1
    assert len(split.train.rows) == 50_000


def test_a_larger_alpha_is_more_even() -> None:
    facts = balanced(train=6000)
    spread = [
        parse(f"dirichlet:{alpha}")(facts, 50, KEY, 0).train.sizes.std() for alpha in (0.1, 1, 100)
    ]
    assert spread[0] > spread[1] > spread[2]


def test_lda_gives_everyone_as_many_and_a_mix_of_their_own() -> None:
    facts = balanced(train=5000, test=1000)
    split = parse("lda:0.1")(facts, 100, KEY, None)
    assert set(split.train.sizes.tolist()) == {500}
    assert set(split.test.sizes.tolist()) == {100}
    train = split.train.counts(facts.train, 10) / 500
    test = split.test.counts(facts.test, 10) / 100
    early = slice(0, 30)  # later clients get what is left
    assert np.corrcoef(train[early].ravel(), test[early].ravel())[0, 1] > 0.9
    assert np.median(train.max(axis=1)) > 0.6
    even = parse("lda:1000")(facts, 100, KEY, None).train.counts(facts.train, 10) / 500
    assert np.median(even.max(axis=1)) < 0.16


@pytest.mark.parametrize("each", [1, 2, 3, 7, 10])
def test_shards_gives_everyone_exactly_that_many_classes(each: int) -> None:
    facts = balanced()
    split = parse(f"shards:{each}")(facts, 33, KEY, None)
    train, test = split.train.counts(facts.train, 10), split.test.counts(facts.test, 10)
    assert ((train > 0).sum(axis=1) == each).all()
    assert ((test > 0) <= (train > 0)).all()
    holders = (train > 0).sum(axis=0)
    assert holders.max() - holders.min() <= 1


def test_shards_refuses_to_lose_classes() -> None:
    with pytest.raises(ValueError, match="would lose the others; use `pool=5` or more"):
        parse("shards:2")(balanced(), 4, KEY, None)


def test_pachinko_keeps_to_few_coarse_classes() -> None:
    coarse = np.arange(100) % 20
    facts = Labels(
        np.repeat(np.arange(100), 500), np.repeat(np.arange(100), 100), 100, None, coarse
    )
    split = parse("pachinko")(facts, None, KEY, None)
    assert len(split) == 500
    assert set(split.train.sizes.tolist()) == {100}
    assert set(split.test.sizes.tolist()) == {20}
    assert_partition(split, facts)
    fine = split.train.counts(facts.train, 100)
    families = np.stack([fine[:, coarse == label].sum(axis=1) for label in range(20)], axis=1)
    # Dirichlet(0.1) over 20 leaves about 3 families of some weight, each with all of its 5 classes.
    assert 2 < np.median((families >= 5).sum(axis=1)) < 6
    largest = families.argmax(axis=1)
    inside = [(fine[client, coarse == largest[client]] > 0).sum() for client in range(100)]
    assert np.mean(inside) > 4.5


def test_pachinko_needs_coarse_classes() -> None:
    with pytest.raises(ValueError, match="needs coarse classes"):
        parse("pachinko")(balanced(), 10, KEY, None)


def grouped() -> Labels:
    train, test = np.asarray([0, 0, 2, 2, 2, 3, 3]), np.asarray([0, 1, 2, 3])
    zeros = np.zeros(7, np.int64), np.zeros(4, np.int64)
    return Labels(*zeros, 1, (train, test))


def test_natural_makes_a_client_of_every_group_that_can_train() -> None:
    split = parse("natural")(grouped(), None, KEY, None)
    assert split.train.sizes.tolist() == [2, 3, 2]
    assert [split.test[id].tolist() for id in range(3)] == [[0], [2], [3]]


def test_natural_chooses_a_smaller_pool_by_key() -> None:
    chosen = {
        tuple(parse("natural")(grouped(), 2, Key(seed), None).train.sizes.tolist())
        for seed in range(30)
    }
    assert chosen == {(2, 3), (2, 2), (3, 2)}


def test_natural_refuses_a_larger_pool_and_honours_least() -> None:
    with pytest.raises(ValueError, match=r"natural has 3 clients .* not 4; use `pool=3`"):
        parse("natural")(grouped(), 4, KEY, None)
    assert parse("natural")(grouped(), None, KEY, 3).train.sizes.tolist() == [3]


def test_natural_needs_groups() -> None:
    with pytest.raises(ValueError, match="needs writers or speakers"):
        parse("natural")(balanced(), None, KEY, None)


@pytest.mark.parametrize(
    "text",
    ["iid", "dirichlet:0.2", "lda:0.1", "shards:2", "pachinko", "pachinko:0.2,5", "natural"],
)
def test_a_partition_is_written_as_it_is_read(text: str) -> None:
    assert str(parse(text)) == text


def test_shards_has_a_default() -> None:
    assert str(parse("shards")) == "shards:2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dirichlet", "write `dirichlet:ALPHA`"),
        ("dirichlet:x", "needs numbers after the colon"),
        ("dirichlet:0", "needs alpha above 0, not 0"),
        ("lda:nan", "needs alpha above 0, not nan"),
        ("shards:1.5", "needs numbers"),
        ("iid:3", "write `iid` alone"),
        ("shards:0", "needs each above 0"),
    ],
)
def test_bad_parameters_say_what_to_write(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(text)


def test_unknown_partitions_suggest_the_nearest() -> None:
    with pytest.raises(KeyError, match=r"no partition 'dirchlet'; did you mean 'dirichlet'\?"):
        parse("dirchlet:0.1")
    with pytest.raises(KeyError, match="there are iid, dirichlet, lda"):
        parse("zzz")


def test_every_partition_has_a_docstring_for_the_command_line() -> None:
    assert all(kind.__doc__ for kind in PARTITIONS.values())


@pytest.mark.parametrize(
    ("name", "pool"),
    [("dirichlet:0.1", 100), ("lda:0.1", 100), ("shards:2", 100), ("iid", 10_000)],
)
def test_partitions_of_sixty_thousand_are_quick(name: str, pool: int) -> None:
    facts = balanced(train=6000, test=1000)
    start = time.perf_counter()
    parse(name)(facts, pool, KEY, 1)
    assert time.perf_counter() - start < 2  # about 0.1 s on a quiet machine


def test_natural_takes_any_numbers_for_groups() -> None:
    like = grouped()
    assert like.groups is not None
    far = replace(like, groups=(like.groups[0] * 10**12 + 7, like.groups[1] * 10**12 + 7))
    for pool in (None, 2):
        one, two = (parse("natural")(labels, pool, KEY, None) for labels in (like, far))
        assert one.train.rows.tolist() == two.train.rows.tolist()
        assert one.test.rows.tolist() == two.test.rows.tolist()
