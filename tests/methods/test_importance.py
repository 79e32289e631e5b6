"""How weights follow thresholds that others changed: one version, many versions, and none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from spafl_cases import WEIGHT, close, exact, layer, spafl
from torch import Tensor, nn

from gossamer import Key, Params
from gossamer.methods.as_published.spafl import MOVES, signed
from gossamer.methods.as_published.spafl import follow as follow_as_read
from gossamer.methods.spafl import follow
from gossamer.task.layout import Layout
from helpers import server_ctx

CHANGES = (-0.03, 0.06)


def after(params: Params, changes: Tensor, reading: str = "signed", clamp: bool = True) -> Params:
    versions = torch.stack([torch.zeros_like(changes), changes])
    method = spafl(importance_rule=reading, clamp=clamp)
    found = method.followed(layer().layout, params, versions)
    if reading in ("signed", "none") and clamp:
        plain = spafl(importance=reading == "signed")
        assert torch.equal(
            plain.followed(server_ctx(layer()), params, versions)["weight"], found["weight"]
        )
    return found


@pytest.mark.parametrize(
    ("reading", "wanted"),
    [
        ("signed", [[0.51, -0.19, 0.11], [-0.38, 0.32, -0.58]]),
        ("xor01", [[0.49, -0.21, 0.09], [-0.38, 0.32, -0.58]]),
        ("xorpm", [[0.49, -0.21, 0.09], [-0.38, 0.32, -0.58]]),
        ("none", WEIGHT),
    ],
)
def test_the_worked_example(reading: str, wanted: list[list[float]]) -> None:
    found = after({"weight": exact(WEIGHT)}, exact(CHANGES), reading)
    close(found["weight"], wanted)


@pytest.mark.parametrize(
    ("row", "change", "signed", "xor01", "xorpm"),
    [
        (0.1, 0.03, -0.01, 0.0, -0.01),
        (0.1, -0.03, 0.01, -0.01, -0.01),
        (-0.1, 0.03, 0.01, 0.01, 0.01),
        (-0.1, -0.03, -0.01, 0.0, 0.01),
        (0.0, 0.03, 0.0, 0.0, 0.0),
        (0.0, -0.03, 0.0, 0.0, 0.0),
        (0.1, 0.0, 0.0, 0.0, 0.0),
    ],
)
def test_the_truth_table(
    row: float, change: float, signed: float, xor01: float, xorpm: float
) -> None:
    """Rows with a positive, a negative and no sum; thresholds that rise, fall and stay."""
    weight = exact([[row] * 3, [0.5, -0.25, -0.25]])  # the second row has no sum
    for reading, wanted in (("signed", signed), ("xor01", xor01), ("xorpm", xorpm)):
        found = after({"weight": weight}, exact([change, change]), reading)["weight"]
        close(found, [[row + wanted] * 3, [0.5, -0.25, -0.25]])


def test_masked_weights_move_with_their_row_and_nothing_else_does() -> None:
    rest = {"bias": exact([1.0, 2.0])}
    found = after({"weight": exact(WEIGHT), **rest}, exact(CHANGES))
    assert found["bias"] is rest["bias"]
    close(found["weight"][0, 2], 0.11)  # masked at .15


def test_weights_stay_in_range() -> None:
    weight = exact([[0.995, 0.5, 0.5], [-0.995, -0.5, -0.5]])
    change = exact([-0.03, -0.03])
    found = after({"weight": weight}, change)
    close(found["weight"], [[1.0, 0.51, 0.51], [-1.0, -0.51, -0.51]])
    found = after({"weight": weight}, change, clamp=False)
    close(found["weight"], [[1.005, 0.51, 0.51], [-1.005, -0.51, -0.51]])


def convolutions() -> Layout:
    module = nn.Sequential(nn.Conv2d(20, 3, 5), nn.Conv1d(3, 2, 4), nn.Flatten(), nn.Linear(4, 2))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.two, self.one, _, self.flat = module

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.flat(self.one(self.two(x).flatten(2)).flatten(1))
            return out

    return Layout.trace(Net(), torch.zeros(2, 20, 5, 9))


def test_a_change_is_divided_by_the_fan_in_or_by_the_kernel() -> None:
    """LeNet's second convolution: 500 inputs of a filter, or the 25 of one channel."""
    layout = convolutions()
    assert {name: layout[name].fan_in for name in layout.prunable} == {
        "two.weight": 500,
        "one.weight": 12,
        "flat.weight": 4,
    }
    params = {
        "two.weight": torch.full((3, 20, 5, 5), 0.1),
        "one.weight": torch.full((2, 3, 4), -0.1),
        "flat.weight": torch.full((2, 4), 0.1),
    }
    versions = torch.stack([torch.zeros(7), torch.full((7,), -0.6)])
    for divisor, moves in (("fan_in", (0.0012, -0.05, 0.15)), ("kernel", (0.024, -0.15, 0.15))):
        found = spafl(importance_divisor=divisor).followed(layout, params, versions)
        for (name, before), move in zip(params.items(), moves, strict=True):
            torch.testing.assert_close(found[name], before + move)


def test_nothing_happens_where_no_threshold_changed() -> None:
    params = {"weight": exact(WEIGHT)}
    for versions in (exact([[0.1, 0.2]]), exact([[0.1, 0.2]] * 3)):
        assert spafl().followed(server_ctx(layer()), params, versions) is params
        assert spafl(clamp=True).followed(layer().layout, params, versions) is params


# many versions ----------------------------------------------------------------------------------

SHAPES = {"conv": (2, 2, 2, 2), "flat": (3, 4)}
NEURONS = 2 + 3
KERNEL = 4
"""Weights of a filter in one input channel, and of a neuron of the linear layer."""


@dataclass(frozen=True)
class Case:
    """Weights of a client, and the thresholds it went through.

    Dyadic numbers are added without rounding, so that sums of rows reach zero and stay there.
    """

    dyadic: bool
    params: Params
    versions: Tensor


@st.composite
def cases(draw: st.DrawFn) -> Case:
    dyadic, draws = draw(st.booleans()), Key(draw(st.integers(0, 2**32))).generator()
    size, step = draw(st.sampled_from([0.02, 0.5, 1.0])), draw(st.sampled_from([0.05, 1.0]))

    def numbers(shape: Sequence[int], least: float, most: float, grid: int) -> Tensor:
        found = least + (most - least) * torch.rand(*shape, generator=draws)
        return (found * grid).round() / grid if dyadic else found

    params = {name: numbers(shape, -size, size, 256) for name, shape in SHAPES.items()}
    if draw(st.booleans()):
        params["flat"][0] = 0
        params["conv"][1].clamp_(0).mul_(2).clamp_(0, 1)
    versions = numbers((draw(st.integers(1, 12)), NEURONS), 0, step, 32)
    return Case(dyadic, params, versions)


def literal(
    reading: str, divisor: int, params: Params, versions: Tensor, clamp: bool
) -> tuple[Params, float]:
    """Section 2.4 as it stands, broadcast by broadcast, and how near to zero a sum came."""
    found, nearest, first = {}, 1.0, 0
    for name, (count, *_) in SHAPES.items():
        weight = params[name].double()
        size = divisor or weight[0].numel()
        for old, new in pairwise(versions.double()):
            change = (new - old)[first : first + count].tolist()
            sums = weight.flatten(1).sum(1).tolist()
            nearest = min([nearest, *(abs(each) for each in sums if each)])
            moves = [increment(reading, *pair) for pair in zip(sums, change, strict=True)]
            weight = weight + exact(moves).view(-1, *[1] * (weight.dim() - 1)) / size
            weight = weight.clamp(-1, 1) if clamp else weight
        found[name] = weight.float()
        first += count
    return found, nearest


def increment(reading: str, total: float, change: float) -> float:
    """The readings of equation 12, before dividing."""
    if total == 0 or change == 0:
        return 0.0
    same = (total > 0) == (change > 0)
    match reading:
        case "xor01":
            return 0.0 if same else change
        case "xorpm":
            return -change if same else change
    return -change if total > 0 else change


@pytest.mark.parametrize("reading", ["signed", "xor01", "xorpm"])
@settings(max_examples=150)
@given(case=cases(), divisor=st.sampled_from([0, KERNEL]), clamp=st.booleans())
def test_many_versions_at_once_equal_one_after_the_other(
    reading: str, divisor: int, clamp: bool, case: Case
) -> None:
    before = {name: tensor.clone() for name, tensor in case.params.items()}
    wanted, nearest = literal(reading, divisor, case.params, case.versions, clamp)
    assume(case.dyadic or nearest > 1e-5)  # else rounding decides on the sign of a sum
    changes = case.versions.double().diff(dim=0).split([2, 3], dim=1)
    for (name, weight), part in zip(case.params.items(), changes, strict=True):
        if len(part):  # a single version is no change
            if reading == "signed" and clamp and not divisor:
                assert torch.equal(
                    follow(weight, part), follow_as_read(weight, part, signed, 0, True)
                )
            weight = follow_as_read(weight, part, MOVES[reading], divisor, clamp)
        torch.testing.assert_close(weight, wanted[name], rtol=0, atol=1e-6)
        assert not clamp or weight.abs().max() <= 1
        assert torch.equal(case.params[name], before[name])


def test_a_sum_that_changes_its_sign_on_the_way_is_followed() -> None:
    """Rising thresholds take the row past zero, from where falling ones take it further."""
    versions = torch.tensor([[0.0], [0.25], [0.0]])
    found = follow(torch.full((1, 4), 0.01), versions.double().diff(dim=0))
    # .01 - .0625 = -.0525, whose sign is the other one: -.0525 - .0625.
    torch.testing.assert_close(found, torch.full((1, 4), -0.115))


def test_clamping_in_between_is_not_forgotten() -> None:
    weight = torch.tensor([[0.9, 0.5]])
    changes = torch.tensor([[-0.5], [0.5]]).double()
    found = follow(weight, changes)
    torch.testing.assert_close(found, torch.tensor([[0.75, 0.5]]))  # .9 -> 1.15 -> 1 -> .75
    torch.testing.assert_close(follow_as_read(weight, changes, signed, 0, clamp=False), weight)


def test_a_row_that_reaches_zero_stays_there() -> None:
    versions = torch.tensor([[0.0], [0.5], [0.25], [1.0]])
    found = follow(torch.tensor([[0.25, 0.25]]), versions.double().diff(dim=0))
    assert found.tolist() == [[0.0, 0.0]]
