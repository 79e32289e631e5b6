"""Threads that take turns: one at a time, apart from those in a kernel."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from gossamer import Batch, Key, Task
from gossamer.arithmetic.library import library
from gossamer.arithmetic.model import Model
from gossamer.arithmetic.turns import Turns, mine, turns
from gossamer.optim import Training

needs_kernels = pytest.mark.skipif(library() is None, reason="the kernels are not compiled here")


def test_one_thread_at_a_time_has_its_turn() -> None:
    turn, inside, most = turns(), [0], [0]

    def visit() -> None:
        for _ in range(200):
            with turn:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                inside[0] -= 1

    threads = [threading.Thread(target=visit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]


@needs_kernels
def test_a_turn_ends_even_if_the_work_fails() -> None:
    turn = turns()
    assert isinstance(turn, Turns)
    with pytest.raises(ValueError, match="stop"), turn:
        assert mine() is not None
        raise ValueError("stop")
    assert mine() is None
    with turn:
        pass


@needs_kernels
def test_a_kernel_gives_up_the_turn_and_takes_it_again() -> None:
    """Steps of threads in turns have the bits of steps without, and nobody waits for ever."""
    task = Task.of(
        nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)), torch.zeros(1, 64)
    )
    start, training = task.init(Key(0)), Training(batch=8, lr=0.1)
    x, y = torch.randn(8, 64, generator=Key(1).generator()), torch.arange(8) % 3

    def trained(task: Task) -> torch.Tensor:
        model = Model(task, task.own(start))
        for number in range(50):
            model.step(Batch(x, y, Key(number), number, 50, 0, 1, 50, 8), training, 0.1)
        return model.params["0.weight"]

    turn, found = turns(), []

    def visit() -> None:
        with turn:
            found.append(trained(task.copy()))
            assert mine() is not None

    threads = [threading.Thread(target=visit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    expected = trained(task)
    assert len(found) == 4
    assert all(torch.equal(each, expected) for each in found)
