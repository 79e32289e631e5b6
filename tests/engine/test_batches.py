"""The batch loop: every example once per epoch, in an order drawn from the key."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gossamer import Batch, Ctx, Examples, FedAvg, Job, Key, Task, Training
from gossamer.core import rows
from gossamer.engine.client import Abandoned, Stage, batches, train
from gossamer.methods.parts.dense_model import Down
from helpers import Toy, client_ctx, linear, normed

LINEAR, NORMED = linear(), normed()


def numbered(count: int, task: Task = LINEAR, seed: int = 0) -> Ctx:
    """A client whose example number i is a row of i's."""
    x = torch.arange(count, dtype=torch.float32)[:, None].repeat(1, 5)
    return client_ctx(task, Examples(x, torch.arange(count)), seed=seed)


def loop(ctx: Ctx, epochs: float, batch: int) -> list[Batch]:
    return list(batches(ctx, Job(None, epochs, batch)))


sizes = st.integers(1, 40)


@given(sizes, sizes, st.integers(1, 4), st.booleans())
def test_every_example_comes_once_per_epoch(
    count: int, batch: int, epochs: int, norm: bool
) -> None:
    found = loop(numbered(count, NORMED if norm else LINEAR), epochs, batch)
    for epoch in range(epochs):
        seen = [label for each in found if each.epoch == epoch for label in each.y.tolist()]
        assert sorted(seen) == list(range(count))
    assert len(found) == found[0].steps == epochs * found[0].per_epoch
    assert [each.step for each in found] == list(range(len(found)))


@given(sizes, st.integers(1, 20), st.floats(0.01, 3.0))
def test_fractional_epochs_take_that_share_of_the_steps(
    count: int, batch: int, epochs: float
) -> None:
    found = loop(numbered(count), epochs, batch)
    per_epoch = math.ceil(count / batch)
    assert len(found) == max(1, math.ceil(epochs * per_epoch - 1e-9))
    assert all((each.steps, each.epochs) == (len(found), epochs) for each in found)
    whole = loop(numbered(count), math.ceil(epochs), batch)
    assert all(torch.equal(a.y, b.y) for a, b in zip(found, whole, strict=False))


def test_float_noise_does_not_add_a_step() -> None:
    assert 100 * 0.07 > 7  # so a plain ceil would give eight
    assert len(loop(numbered(100), 0.07, 1)) == 7


@given(sizes, st.integers(1, 20), st.integers(1, 3))
def test_an_epoch_ends_with_its_last_batch(count: int, batch: int, epochs: int) -> None:
    found = loop(numbered(count), epochs, batch)
    seen = 0
    for each in found:
        seen += len(each.y)
        assert each.ends_epoch == (seen % count == 0)


def test_a_job_that_stops_within_an_epoch_does_not_end_it() -> None:
    assert [each.ends_epoch for each in loop(numbered(20), 1.5, 5)] == [
        *(False, False, False, True),
        *(False, False),
    ]


def test_inputs_and_labels_stay_together() -> None:
    for each in loop(numbered(23), 2, 5):
        assert torch.equal(each.x[:, 0].long(), each.y)


def test_each_epoch_and_each_client_has_an_order_of_its_own() -> None:
    first, second = loop(numbered(30), 2, 30)
    assert not torch.equal(first.y, second.y)
    assert torch.equal(loop(numbered(30), 1, 30)[0].y, first.y)
    assert not torch.equal(loop(numbered(30, seed=1), 1, 30)[0].y, first.y)


def test_every_step_has_a_key_of_its_own() -> None:
    found = loop(numbered(30), 2, 7)
    assert len({each.key.digest() for each in found}) == len(found)


@pytest.mark.parametrize(
    ("task", "count", "wanted"),
    [
        (NORMED, 17, [8, 9]),
        (LINEAR, 17, [8, 8, 1]),
        (NORMED, 18, [8, 8, 2]),
        (NORMED, 16, [8, 8]),
        (NORMED, 1, [1]),
    ],
)
def test_a_lone_last_example_joins_the_batch_before_where_statistics_need_two(
    task: Task, count: int, wanted: list[int]
) -> None:
    assert [len(each.y) for each in loop(numbered(count, task), 1, 8)] == wanted


def test_batch_norm_trains_with_a_lone_last_example() -> None:
    ctx = client_ctx(NORMED, Toy().make(Key(1), 17))
    method = FedAvg(training=Training(epochs=2, batch=8))
    done = train(method, ctx, Down(NORMED.init(Key(0))), None)
    assert (done.steps, done.examples) == (4, 34)


def test_augmentation_draws_from_the_key_of_the_step() -> None:
    keys: list[Key] = []

    def shifted(x: Tensor, key: Key) -> Tensor:
        keys.append(key)
        return x + 1000

    found = list(batches(numbered(20), Job(None, 1, 8), shifted))
    assert all(torch.equal(each.x[:, 0].long(), each.y + 1000) for each in found)
    assert keys == [each.key.fold("augment") for each in found]


def test_images_keep_their_values_and_have_channels_innermost() -> None:
    x = torch.randn(6, 3, 4, 5, generator=Key(0).generator())
    order = torch.tensor([4, 0, 0, 2])
    for laid_out in (x, x.to(memory_format=torch.channels_last)):
        found = rows(laid_out, order)
        assert torch.equal(found, x[order])
        assert found.is_contiguous(memory_format=torch.channels_last)


def test_stages_are_announced_in_order() -> None:
    stages: list[Stage] = []
    train(
        FedAvg(),
        client_ctx(LINEAR, Toy().make(Key(1), 5)),
        Down(LINEAR.init(Key(0))),
        None,
        at=stages.append,
    )
    assert stages == ["begin", "step", "finish"]


def test_abandoned_work_stops_at_the_next_batch() -> None:
    asked = Counter[str]()

    def abandoned() -> bool:
        asked["times"] += 1
        return asked["times"] > 3

    with pytest.raises(Abandoned):
        train(
            FedAvg(training=Training(epochs=9, batch=1)),
            client_ctx(LINEAR, Toy().make(Key(1), 5)),
            Down(LINEAR.init(Key(0))),
            None,
            abandoned=abandoned,
        )
    assert asked["times"] == 4


def test_no_epochs_means_no_steps() -> None:
    assert loop(numbered(10), 0, 4) == []
