"""Where a sub-model is inside of a larger one."""

from __future__ import annotations

import torch

from gossamer import Key, Task
from gossamer.methods.parts.widths import add_at, cut, take_at
from gossamer.models import build
from helpers import mlp


def test_places_lead_from_the_larger_sub_model_to_the_smaller() -> None:
    for task in (mlp(), Task.of(build("resnet8", (3, 32, 32), 10), torch.zeros(2, 3, 32, 32))):
        params = task.init(Key(0))
        for outer in (1.0, 0.5):
            larger, smaller = cut(task, outer), cut(task, 0.25)
            places, have = smaller.within(larger), larger.take(params)
            found = {name: take_at(tensor, places.get(name)) for name, tensor in have.items()}
            wanted = smaller.take(params)
            assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_a_part_is_added_where_it_belongs() -> None:
    rows, columns = torch.tensor([0, 2]), torch.tensor([1])
    for place, wanted in {
        (rows, columns): [[0, 1], [0, 0], [0, 1]],
        (rows, None): [[1, 1], [0, 0], [1, 1]],
        (None, columns): [[0, 1], [0, 1], [0, 1]],
        None: [[1, 1], [1, 1], [1, 1]],
    }.items():
        whole = torch.zeros(3, 2)
        add_at(whole, place, torch.ones_like(take_at(whole, place)))
        assert whole.tolist() == wanted
