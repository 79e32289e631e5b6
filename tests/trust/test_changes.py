"""A reply's change as a whole record: what is a difference, what stands as it is."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from gossamer.core import Client, Exchange, Masks, Params
from gossamer.methods.parts.dense_model import Down, Up
from gossamer.methods.parts.mask_learning import Update
from gossamer.methods.parts.sparse_model import SparseModel
from gossamer.trust import change, norm, scaled, with_change
from gossamer.wire import Packed, Revision, pack

CLIENT = Client(3, 10)


@dataclass(frozen=True)
class Train:
    model: SparseModel
    mask: Revision | None


@dataclass(frozen=True)
class Bits:
    masks: Masks
    buffers: Params


@dataclass(frozen=True)
class Differences:
    """A reply whose field is not in the request, and a number that is no tensor."""

    changes: Packed
    score: float


def dense(sent: list[float], replied: list[float]) -> Exchange[Down, Up]:
    return Exchange(CLIENT, Down({"w": torch.tensor(sent)}), Up({"w": torch.tensor(replied)}))


def sparse(weight: Tensor, mask: Tensor, bias: float = 0.0) -> SparseModel:
    return SparseModel(pack({"w": weight}, {"w": mask}), {"b": torch.tensor([bias])}, {})


def test_the_change_of_a_dense_model_is_reply_less_request() -> None:
    exchange = dense([1.0, 2.0], [4.0, -2.0])
    assert change(exchange)["params[w]"].tolist() == [3.0, -4.0]
    assert norm(change(exchange)) == 5.0


def test_scaling_halves_the_distance_from_what_was_sent() -> None:
    exchange = dense([1.0, 2.0], [4.0, -2.0])
    half = scaled(exchange, 0.5)
    assert half.up.params["w"].tolist() == [2.5, 0.0] and half.up.params["w"].dtype == torch.float32
    assert exchange.up.params["w"].tolist() == [4.0, -2.0]
    assert scaled(exchange, 1.0) is exchange


def test_the_norm_is_that_of_the_whole_record() -> None:
    mask, was = torch.tensor([True, False, True]), torch.tensor([1.0, 0.0, 1.0])
    now = torch.tensor([3.0, 0.0, 2.0])
    down, up = Train(sparse(was, mask), None), Update(sparse(now, mask, bias=2.0), None)
    exchange = Exchange(CLIENT, down, up)
    assert norm(change(exchange)) == 3.0  # the root of 2 * 2 + 1 * 1 + 2 * 2
    assert scaled(exchange, 2.0).up.model.values.values["w"].tolist() == [5.0, 3.0]
    assert scaled(exchange, 2.0).up.model.dense["b"].tolist() == [4.0]


def test_values_on_other_masks_are_compared_weight_by_weight() -> None:
    """The counts agree, the weights do not: the second is new, and was zero."""
    was, now = torch.tensor([True, False, True]), torch.tensor([True, True, False])
    down = Train(sparse(torch.tensor([1.0, 0.0, 7.0]), was), Revision({"w": was}))
    up = Update(sparse(torch.tensor([4.0, 4.0, 0.0]), now), Revision({"w": now}))
    exchange = Exchange(CLIENT, down, up)
    assert change(exchange)["model.values[w]"].tolist() == [3.0, 4.0]
    assert scaled(exchange, 0.5).up.model.values.values["w"].tolist() == [2.5, 2.0]


def test_values_on_other_masks_stand_as_they_are_if_the_old_masks_are_unknown() -> None:
    was, now = torch.tensor([True, False, True]), torch.tensor([True, True, False])
    down = Train(sparse(torch.tensor([1.0, 0.0, 7.0]), was), None)
    up = Update(sparse(torch.tensor([4.0, 4.0, 0.0]), now), Revision({"w": now}))
    assert change(Exchange(CLIENT, down, up))["model.values[w]"].tolist() == [4.0, 4.0]


def test_numbers_without_a_counterpart_are_changes_already() -> None:
    up = Differences(Packed({"w": torch.tensor([3.0, 4.0])}, {"w": (5,)}), 0.25)
    exchange = Exchange(CLIENT, Down({"w": torch.ones(5)}), up)
    assert norm(change(exchange)) == 5.0
    tenth = scaled(exchange, 0.1)
    torch.testing.assert_close(tenth.up.changes.values["w"], torch.tensor([0.3, 0.4]))
    assert tenth.up.score == 0.25 and tenth.up.changes.shapes == {"w": (5,)}


def test_a_tensor_of_another_shape_has_no_counterpart() -> None:
    exchange = Exchange(CLIENT, Down({"w": torch.ones(3)}), Up({"w": torch.tensor([3.0, 4.0])}))
    assert norm(change(exchange)) == 5.0


def test_bits_and_integers_are_left_alone() -> None:
    up = Bits({"w": torch.tensor([True, False])}, {"count": torch.tensor([7])})
    exchange = Exchange(CLIENT, Bits({}, {"count": torch.tensor([3])}), up)
    assert change(exchange) == {} and norm({}) == 0.0
    same = scaled(exchange, 0.5).up
    assert same.masks["w"].tolist() == [True, False] and same.buffers["count"].tolist() == [7]


def test_another_change_takes_the_place_of_the_old_one() -> None:
    exchange = dense([1.0, 2.0], [4.0, -2.0])
    moved = with_change(exchange, {"params[w]": torch.tensor([0.25, 0.5], dtype=torch.float64)})
    assert moved.up.params["w"].tolist() == [1.25, 2.5] and moved.client == CLIENT
    with pytest.raises(KeyError):
        with_change(replace(exchange), {})


def test_a_norm_is_not_finite_if_one_number_is_not() -> None:
    assert norm(change(dense([0.0, 0.0], [float("inf"), 1.0]))) == float("inf")
    huge = dense([0.0, 0.0], [3e38, 0.0])
    assert norm(change(huge)) == pytest.approx(3e38)  # no overflow in float64
