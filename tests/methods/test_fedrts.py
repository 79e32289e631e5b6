"""FedRTS: outcomes move Beta distributions, and draws from them choose the mask."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from flash_cases import LAYERS, bench, net

from gossamer import Key, fields, sparsity
from gossamer.conformance.bench import Round
from gossamer.core import Exchange
from gossamer.methods.fedrts import FedRTS, Server, Up, Votes
from gossamer.methods.parts.sparse_model import SparseModel
from gossamer.wire import WireError, pack
from helpers import server_ctx

SMALL: dict[str, Any] = {
    "clients": 4,
    "batch": 8,
    "epochs": 1.0,
    "density": 0.25,
    "adjust_every": 2,
    "adjust_until": 20,
    "adjust_ratio": 0.4,
}


def toy(**changes: Any) -> FedRTS:
    return fields.replace(FedRTS(), {**SMALL, **changes})


@cache
def played(rounds: int = 4) -> list[Round]:
    return list(bench(toy(), rounds).history())


MASKS = {"w": torch.tensor([True, True, True, False, False, False])}


def reply(values: list[float], grow: list[int]) -> Up:
    params = {"w": torch.tensor([*values, 0.0, 0.0, 0.0])}
    places = torch.zeros(6, dtype=torch.bool)
    places[grow] = True
    return Up(SparseModel(pack(params, MASKS), {}, {}), {"w": places})


def test_a_case_worked_by_hand() -> None:
    """Three of six weights are active, two of them win a round, and one is to be adjusted.

    Client A has 1 example of 4 and weights 3, 1, 2; B has 3 and weights 1, 2, 3. A votes for the
    first and the third, B for the second and the third. Their mean is 1.5, 1.75, 2.75, and its
    votes are for the second and the third. With half of the say for each,

        outcomes: .5 * 0 + .5 * 1/4 = 1/8,  .5 * 1 + .5 * 3/4 = 7/8,  .5 * 1 + .5 * 1 = 1.

    A names the fourth weight to grow, B the fifth; of the mean nothing is known:

        outcomes: .5 * .5 + .5 * 1/4 = 3/8,  .5 * .5 + .5 * 3/4 = 5/8,  .5 * .5 = 1/4.
    """
    votes = Votes(MASKS, {"w": 2}, {"w": 1})
    votes.read(reply([3.0, 1.0, 2.0], [3]), 1.0)
    votes.read(reply([1.0, 2.0, 3.0], [4]), 3.0)
    mean = {"w": torch.tensor([1.5, 1.75, 2.75, 0, 0, 0])}
    ones = {"w": torch.ones(6)}
    wins, losses = toy(evidence=8.0).observed(votes, mean, (ones, ones))
    assert wins["w"].tolist() == [2, 8, 9, 4, 6, 3]
    assert losses["w"].tolist() == [8, 2, 1, 6, 4, 7]
    votes = Votes(MASKS, {"w": 2}, {})
    votes.read(replace(reply([3.0, 1.0, 2.0], []), grow=None), 1.0)
    wins, losses = toy(evidence=8.0, fusion=1.0).observed(votes, mean, (ones, ones))
    assert wins["w"].tolist() == [9, 1, 9, 1, 1, 1] and losses["w"].tolist() == [1, 9, 1, 1, 1, 1]


def test_draws_follow_the_distributions_and_keep_the_count() -> None:
    wins = {"w": torch.tensor([1.0, 1e6, 1.0, 1e6, 1.0])}
    losses = {"w": torch.tensor([1e6, 1.0, 1e6, 1.0, 1e6])}
    ctx = server_ctx(net(), round=3)
    chosen = FedRTS().chosen(ctx, (wins, losses), {"w": 2})
    assert chosen["w"].tolist() == [False, True, False, True, False]
    even = {"w": torch.ones(1000)}
    draws = [
        FedRTS().chosen(replace(ctx, key=Key(seed)), (even, even), {"w": 300})["w"]
        for seed in range(2)
    ]
    assert int(draws[0].sum()) == int(draws[1].sum()) == 300
    assert not torch.equal(draws[0], draws[1])


def test_masks_move_in_rounds_that_adjust_and_keep_their_counts() -> None:
    states: list[Server] = [each.merged for each in played()]
    versions = [state.model.version for state in states]
    assert versions[:2] == [0, 0] and versions[2] == 1  # the third round is the first to adjust
    first = sparsity.count(states[0].model.masks)
    assert all(sparsity.count(state.model.masks) == first for state in states)
    for state in states:
        for name, mask in state.model.masks.items():
            assert not bool(state.model.params[name][~mask].any())
    assert set(first) == set(LAYERS)


def test_every_round_is_evidence_for_active_weights_only() -> None:
    before, after = played()[0].state, played()[0].merged
    for name, mask in before.model.masks.items():
        seen = after.wins[name] + after.losses[name] - before.wins[name] - before.losses[name]
        torch.testing.assert_close(seen, 10.0 * mask)


@pytest.mark.parametrize("wrong", ["missing", "active", "many"])
def test_places_that_were_not_asked_for_are_refused(wrong: str) -> None:
    good = reply([3.0, 1.0, 2.0], [3])
    bad = {
        "missing": replace(good, grow=None),
        "active": reply([3.0, 1.0, 2.0], [0]),
        "many": reply([3.0, 1.0, 2.0], [3, 4]),
    }
    with pytest.raises(WireError, match="asked for"):
        Votes(MASKS, {"w": 2}, {"w": 1}).read(bad[wrong], 1.0)


def test_an_empty_round_changes_nothing() -> None:
    method, ctx = toy(), server_ctx(net(), round=3)
    state = method.init(server_ctx(net(), round=0))
    nobody: list[Exchange[Any, Up]] = []
    after = method.merge(ctx, state, nobody)
    assert after.model == state.model and after.wins is state.wins
