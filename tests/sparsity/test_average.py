"""Averages of clients with masks of their own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mask_toys import Case, cases, channels_last, equal, fewer_examples, mask, weights

from gossamer import Key, Masks, Params, merge
from gossamer.sparsity import (
    Averaging,
    apportion,
    count,
    largest,
    masked,
    masked_mean,
    random_masks,
    sensitivity,
)

Reply = tuple[Params, Masks, float]


def scalars(*clients: tuple[float, bool, float]) -> list[Reply]:
    return [
        ({"w": torch.tensor([float(value)])}, {"w": torch.tensor([has])}, share)
        for value, has, share in clients
    ]


@pytest.mark.parametrize(("averaging", "weighted", "plain"), [("fedavg", 1.4, 2), ("wfa", 3.5, 3)])
def test_weights_of_some_clients(averaging: Averaging, weighted: float, plain: float) -> None:
    """Oracle A1: of three clients two have the weight; what the third sends there is ignored."""
    sizes = scalars((2, True, 10), (4, True, 30), (7, False, 60))
    assert masked_mean(sizes, averaging).params["w"].item() == pytest.approx(weighted)
    equals = scalars((2, True, 1), (4, True, 1), (0, False, 1))
    assert masked_mean(equals, averaging).params["w"].item() == plain


@pytest.mark.parametrize("averaging", ["fedavg", "wfa"])
def test_what_nobody_has_is_zero(averaging: Averaging) -> None:
    """The other half of A1."""
    nan = float("nan")
    found = masked_mean(scalars((2, False, 10), (nan, False, 30)), averaging)
    assert found.params["w"].tolist() == [0] and found.owned["w"].tolist() == [False]
    weightless = masked_mean(scalars((2, True, 0)), averaging)
    assert weightless.params["w"].tolist() == [0] and weightless.owned["w"].tolist() == [True]


def test_what_nobody_has_can_stay_as_it_was() -> None:
    """The vector of Sub-FedAvg and LotteryFL; biases are averaged plainly."""
    replies = [
        ({"w": torch.tensor([1.0, 0, 3]), "b": torch.tensor(2.0)}, {"w": mask("101")}, 1.0),
        ({"w": torch.tensor([3.0, 0, 0]), "b": torch.tensor(4.0)}, {"w": mask("100")}, 1.0),
    ]
    found = masked_mean(replies, "wfa", otherwise={"w": torch.full((3,), 9.0)})
    assert found.params["w"].tolist() == [2, 9, 3] and found.params["b"].item() == 3
    assert found.owned["w"].tolist() == [True, False, True] and "b" not in found.owned
    assert found.densities == {"w": Fraction(1, 2)}


def test_nobody_sent_anything() -> None:
    found = masked_mean(iter(()))
    assert found.params == found.owned == found.densities == {}


def replies_of(case: Case, clients: int) -> list[Reply]:
    """Clients with weights and masks of their own, and a bias without a mask."""
    found = []
    for client in range(clients):
        key = Key(case.key.seed).fold(client)
        masks = random_masks(key, case.layout, case.counts)
        params = masked(weights(case.layout, case.key.seed + client), masks)
        found.append(({**params, "bias": torch.tensor([float(client)])}, masks, 1.0 + client))
    return found


@fewer_examples
@given(cases(), st.integers(1, 4))
def test_both_ways_agree_with_their_definition(case: Case, clients: int) -> None:
    replies = replies_of(case, clients)
    plain = merge.mean((params, share) for params, _, share in replies)
    found = masked_mean(replies, "fedavg")
    assert all(torch.allclose(found.params[name], plain[name]) for name in plain)
    owners = masked_mean(replies, "wfa")
    assert torch.equal(owners.params["bias"], found.params["bias"])
    for name in case.layout.prunable:
        own = torch.stack([share * masks[name].double() for _, masks, share in replies]).sum(0)
        parts = [share * params[name].double() for params, _, share in replies]
        expected = torch.where(own > 0, torch.stack(parts).sum(0) / own, 0).float()
        assert torch.allclose(owners.params[name], expected)
        assert torch.equal(owners.owned[name], own > 0)
        assert torch.equal(owners.owned[name], found.owned[name])
        assert not owners.params[name][own == 0].any()


@fewer_examples
@given(cases(), st.sampled_from(["fedavg", "wfa"]))
def test_neither_order_nor_memory_matters(case: Case, averaging: Averaging) -> None:
    replies = replies_of(case, 3)
    first = masked_mean(replies, averaging).params
    for order in itertools.permutations(replies):
        for name, tensor in masked_mean(order, averaging).params.items():
            assert torch.allclose(tensor, first[name], atol=1e-6)
    other = [(channels_last(params), channels_last(masks), w) for params, masks, w in replies]
    assert equal(first, masked_mean(other, averaging).params)


@given(cases())
def test_equal_masks_make_both_ways_equal(case: Case) -> None:
    replies = [(masked(weights(case.layout, seed), case.masks), case.masks, 2.0) for seed in (1, 2)]
    assert equal(masked_mean(replies, "fedavg").params, masked_mean(replies, "wfa").params)


def test_clients_are_as_far_apart_as_two_of_them_on_average(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of masks 1100, 1010, 1010 and 0101: distances 2/3, 2/3, 2/3, 0, 1 and 1."""
    sets = [{"w": mask(text)} for text in ("1100", "1010", "1010", "0101")]
    replies = [({"w": torch.ones(4)}, masks, 1.0) for masks in sets]
    assert masked_mean(replies).mean_jaccard == pytest.approx((3 * 2 / 3 + 0 + 1 + 1) / 6)
    assert masked_mean(replies[1:3]).mean_jaccard == masked_mean(replies[:1]).mean_jaccard == 0
    assert masked_mean([replies[0], replies[0]]).mean_jaccard == 0
    assert masked_mean([replies[0], replies[0], replies[3]]).mean_jaccard == pytest.approx(4 / 9)
    monkeypatch.setattr("gossamer.sparsity.average.COMPARED", 2)
    assert masked_mean(replies).mean_jaccard == pytest.approx(2 / 3)  # of the first two


def test_replies_are_taken_one_at_a_time() -> None:
    """Memory is that of one client: the next is asked for when the last has been added."""
    alive: list[int] = []

    def stream() -> Iterator[Reply]:
        for client in range(3):
            values = torch.full((2,), float(client))
            alive.append(client)
            yield {"w": values}, {"w": mask("11")}, 1.0
            values.fill_(float("nan"))  # whoever kept it would find nothing in it

    assert masked_mean(stream()).params["w"].tolist() == [1, 1] and alive == [0, 1, 2]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_a_mean_has_the_type_of_its_parts_and_loses_no_small_ones(dtype: torch.dtype) -> None:
    values = (2.0**24, 1.0, 1.0) if dtype != torch.bfloat16 else (256.0, 1.0, 1.0)
    replies = [({"w": torch.tensor([v], dtype=dtype)}, {"w": mask("1")}, 1.0) for v in values]
    found = masked_mean(replies).params["w"]
    assert found.dtype == dtype
    assert torch.equal(found, torch.tensor([sum(values) / 3], dtype=dtype))


def test_clients_that_disagree_about_masks_are_refused() -> None:
    good: Reply = ({"w": torch.ones(2)}, {"w": mask("11")}, 1.0)
    for bad in (
        ({"w": torch.ones(2)}, {}, 1.0),
        ({"w": torch.ones(2)}, {"w": mask("1")}, 1.0),
        ({"w": torch.ones(1)}, {"w": mask("1")}, 1.0),
    ):
        with pytest.raises(ValueError, match="clients must agree on what is masked"):
            masked_mean([good, bad])


@given(cases(), st.integers(2, 4))
def test_the_server_brings_the_union_back_to_its_density(case: Case, clients: int) -> None:
    """JMWST: average, rescale the clients' densities, keep the largest of each layer."""
    found = masked_mean(replies_of(case, clients), "fedavg")
    total, size = sum(case.counts.values()), sum(m.numel() for m in case.masks.values())
    assert sum(count(found.owned).values()) >= total
    density = Fraction(total, size)
    assert found.densities == {
        name: Fraction(number, case.layout[name].count) for name, number in case.counts.items()
    }
    shares = sensitivity(case.layout, found.densities, density)
    wanted = apportion(case.layout, shares, least=0)
    assert wanted == case.counts
    masks = largest(found.params, wanted, least=0)
    assert sum(count(masks).values()) == total
