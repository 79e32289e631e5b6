"""The mechanism on hand-worked cases: clips, sums, noise, bits, adaptive clips."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from gossamer.core import Client, Exchange, Key, Masks, Params
from gossamer.methods import METHODS
from gossamer.methods.fedavg import FedAvg
from gossamer.methods.fedpm import Down as Chances
from gossamer.methods.fedpm import FedPM
from gossamer.methods.fedpm import Up as Bits
from gossamer.methods.parts.dense_model import Down, Up
from gossamer.methods.spafl import SpaFL
from gossamer.trust import change
from gossamer.trust.declared import declared
from gossamer.trust.mechanism import Mechanism, factor
from gossamer.trust.noise import Seeded, System
from gossamer.wire import WireError

SOURCE = Seeded(Key(1))


def mechanism(text: str, clients: int = 4, pool: int = 100, method: Any = FedAvg()) -> Mechanism:
    return Mechanism.of(text, method, clients, pool, rounds=10)


def replies(*changes: list[float], sent: float = 1.0) -> list[Exchange[Down, Up]]:
    start = torch.full((len(changes[0]),), sent)
    down = Down({"w": start})
    return [
        Exchange(Client(id, 10 * id + 1), down, Up({"w": start + torch.tensor(each)}))
        for id, each in enumerate(changes)
    ]


def test_a_change_within_the_clip_stays_and_a_larger_one_is_scaled() -> None:
    assert factor(0.0, 1.0) == 1 and factor(0.5, 1.0) == 1 and factor(5.0, 1.0) == 0.2


def test_clipped_changes_are_averaged_over_the_planned_clients() -> None:
    """(3, 4) is scaled to (0.6, 0.8), (0, 1) stays; a third and a fourth client are missing."""
    released, clip = mechanism("clip=1,noise=0").release(
        replies([3.0, 4.0], [0.0, 1.0]), 1.0, SOURCE
    )
    assert clip == 1.0 and len(released) == 2
    for each in released:
        assert torch.allclose(each.up.params["w"], torch.tensor([1.15, 1.45]))


def test_everybody_has_the_same_reply_so_sizes_do_not_weigh() -> None:
    """The clients have 1 and 11 examples; a weighted mean of equal replies is their mean."""
    released, _ = mechanism("clip=9,noise=1", 2).release(replies([3.0], [1.0]), 9.0, SOURCE)
    first, second = (each.up.params["w"] for each in released)
    assert torch.equal(first, second)
    assert [each.client.examples for each in released] == [1, 11]


def test_the_noise_of_the_sum_has_the_variance_of_noise_times_clip() -> None:
    """The mean of 4 has a deviation of 0.8 * 2.5 / 4 = 0.5, whatever the number of replies."""
    still = replies([0.0] * 40000, [0.0] * 40000, sent=0.0)
    released, _ = mechanism("clip=2.5,noise=0.8").release(still, 2.5, SOURCE)
    noise = released[0].up.params["w"].double()
    assert float(noise.std()) == pytest.approx(0.5, rel=0.02)
    assert abs(float(noise.mean())) < 0.5 / math.sqrt(40000) * 4


def test_noise_covers_every_tensor_of_the_record_independently() -> None:
    down = Down({"a": torch.zeros(5000), "b": torch.zeros(5000)})
    exchange = Exchange(Client(0, 1), down, Up({"a": torch.zeros(5000), "b": torch.zeros(5000)}))
    (found,), _ = mechanism("clip=1,noise=1", 1).release([exchange], 1.0, SOURCE)
    pair = torch.stack([found.up.params["a"], found.up.params["b"]])
    assert abs(float(torch.corrcoef(pair)[0, 1])) < 0.06
    assert pair.std(1).tolist() == pytest.approx([1, 1], rel=0.05)


def test_the_norm_is_that_of_all_tensors_together() -> None:
    down = Down({"a": torch.zeros(1), "b": torch.zeros(1)})
    up = Up({"a": torch.tensor([3.0]), "b": torch.tensor([4.0])})
    (found,), _ = mechanism("clip=1,noise=0", 1).release(
        [Exchange(Client(0, 1), down, up)], 1.0, SOURCE
    )
    assert [float(found.up.params[name]) for name in "ab"] == pytest.approx([0.6, 0.8])


def test_a_reply_that_is_not_finite_counts_as_no_change() -> None:
    released, _ = mechanism("clip=1,noise=0", 2).release(
        replies([math.inf], [0.5], sent=0.0), 1.0, SOURCE
    )
    assert float(released[0].up.params["w"]) == 0.25


def test_a_reply_of_another_form_is_refused() -> None:
    odd = Exchange(Client(9, 1), Down({"w": torch.zeros(3)}), Up({"w": torch.zeros(3)}))
    with pytest.raises(WireError, match="other numbers"):
        mechanism("clip=1,noise=1").release([*replies([1.0]), odd], 1.0, SOURCE)


def test_nobody_releases_nothing() -> None:
    assert mechanism("clip=1,noise=1").release([], 1.0, SOURCE) == ([], 1.0)


def test_noise_depends_on_the_key_alone() -> None:
    def released(key: int) -> list[float]:
        found, _ = mechanism("clip=1,noise=1").release(replies([1.0]), 1.0, Seeded(Key(key)))
        values: list[float] = found[0].up.params["w"].tolist()
        return values

    assert released(3) == released(3) != released(4)


def test_the_systems_noise_is_normal_and_never_the_same() -> None:
    first, second = System().normal("", 40001), System().normal("", 40001)
    assert len(first) == 40001 and not np.array_equal(first, second)
    assert abs(first.mean()) < 0.02 and first.std() == pytest.approx(1, abs=0.02)
    assert np.mean(np.abs(first) < 1.959964) == pytest.approx(0.95, abs=0.006)
    assert System().key("x") != System().key("x")


# adaptive clipping --------------------------------------------------------------------------------


def test_the_clip_moves_towards_the_quantile() -> None:
    """Andrew et al. 2021: the clip is multiplied by exp(-0.2 (share - quantile))."""
    asked = mechanism("clip=adaptive:0.5:1,noise=0")
    _, larger = asked.release(replies([3.0], [3.0], [3.0], [0.5]), 1.0, SOURCE)
    assert larger == pytest.approx(math.exp(-0.2 * (0.25 - 0.5)))
    _, smaller = asked.release(replies([0.1], [0.1], [0.1], [0.1]), 1.0, SOURCE)
    assert smaller == pytest.approx(math.exp(-0.2 * (1 - 0.5)))


def test_sum_and_count_share_the_noise() -> None:
    """Theorem 1 of Andrew et al.: 1 / z^2 = 1 / z_sum^2 + 1 / (2 s)^2, for the count's noise s."""
    asked = mechanism("clip=adaptive,noise=1", clients=100, pool=1000)
    assert asked.count_noise == 5
    assert asked.sum_noise**-2 + (2 * 5.0) ** -2 == pytest.approx(1)
    assert mechanism("clip=1,noise=1").sum_noise == 1


# bits ---------------------------------------------------------------------------------------------


def bits(masks: list[list[bool]], theta: float) -> list[Exchange[Chances, Bits]]:
    down = Chances({"w": torch.full((len(masks[0]),), theta)}, {})
    return [
        Exchange(Client(i, 1), down, Bits({"w": torch.tensor(m)}, {})) for i, m in enumerate(masks)
    ]


def test_bits_change_by_their_difference_from_their_probability() -> None:
    asked = mechanism("clip=1,noise=0", 1, method=FedPM())
    (exchange,) = bits([[True, False]], 0.25)
    assert change(exchange) == {}
    assert asked.change(exchange)["masks[w]"].tolist() == [0.75, -0.25]


def test_released_bits_are_the_counts_of_the_noisy_mean() -> None:
    """Without noise and clipping, as many replies keep a weight as did before."""
    masks = [[True, True, False], [True, False, False], [True, True, False], [True, False, False]]
    asked = mechanism("clip=9,noise=0", method=FedPM())
    released, _ = asked.release(bits(masks, 0.5), 9.0, SOURCE)
    counts = torch.stack([each.up.masks["w"] for each in released]).sum(0)
    assert counts.tolist() == [4, 2, 0]
    assert all(each.up.masks["w"].dtype == torch.bool for each in released)


def test_clipped_bits_are_right_on_average() -> None:
    """Everybody keeps all of 10,000: clipped to a tenth, 0.5 becomes 0.55, in 4 replies."""
    size = 10000
    asked = mechanism("clip=5,noise=0", method=FedPM())  # the norm is 0.5 * sqrt(size) = 50
    released, _ = asked.release(bits([[True] * size] * 4, 0.5), 5.0, SOURCE)
    share = float(torch.stack([each.up.masks["w"] for each in released]).float().mean())
    assert share == pytest.approx(0.55, abs=0.005)


# what is declared ---------------------------------------------------------------------------------

COVERED = {
    *("fedavg", "fedprox", "fedavgm", "fedopt", "fedadam-kingma", "fedadam-reddi", "fedyogi"),
    *("fedadagrad", "spafl", "lg_fedavg", "random_mask", "pffdst", "pffdst-no-freezing", "fedpm"),
    *("pdst", "scaffold", "fedbn", "fedrep", "ditto", "heterofl", "fjord", "fedrolex", "ssfl"),
    *("fedavg-lora", "ffa_lora"),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_covered_or_says_why_not(name: str) -> None:
    if name in COVERED:
        assert mechanism("clip=1,noise=1", method=METHODS[name]).accountant.noise == 1
        return
    with pytest.raises(ValueError, match=f"`dp=`: {type(METHODS[name]).__name__} ") as refusal:
        mechanism("clip=1,noise=1", method=METHODS[name])
    assert len(str(refusal.value)) < 260 and "\n" not in str(refusal.value)


def test_a_method_of_ones_own_must_declare_its_privacy() -> None:
    @dataclass(frozen=True)
    class Mine:
        clients: int = 3

    assert "does not declare" in declared(Mine()).refused


def test_released_thresholds_stay_within_their_range() -> None:
    from gossamer.methods.spafl import Down as Sent
    from gossamer.methods.spafl import Up as Thresholds

    down = Sent(torch.zeros(1000), torch.zeros(0, 1000))
    exchange = Exchange(Client(0, 1), down, Thresholds(torch.zeros(1000)))
    (found,), _ = mechanism("clip=1,noise=1", 1, method=SpaFL()).release([exchange], 1.0, SOURCE)
    assert float(found.up.thresholds.min()) == 0 and 0.9 < float(found.up.thresholds.max()) <= 1


def test_a_leaf_that_noise_cannot_cover_is_named() -> None:
    @dataclass(frozen=True)
    class Told:
        params: Params
        count: int

    exchange = Exchange(Client(0, 1), Down({}), Told({"w": torch.zeros(1)}, 3))
    with pytest.raises(ValueError, match="count of a Told is neither"):
        mechanism("clip=1,noise=1").release([exchange], 1.0, SOURCE)

    @dataclass(frozen=True)
    class Chose:
        mask: Masks

    chosen = Exchange(Client(0, 1), Down({}), Chose({"w": torch.ones(2, dtype=torch.bool)}))
    with pytest.raises(ValueError, match="mask of a Chose is neither"):
        mechanism("clip=1,noise=1").release([chosen], 1.0, SOURCE)


# sampling and limits ------------------------------------------------------------------------------


def test_cohorts_are_drawn_as_the_accountant_assumes() -> None:
    pool = [Client(id, 1) for id in range(1000)]
    fixed = mechanism("clip=1,noise=1", 50, 1000)
    assert len(fixed.cohort(Key(1), pool)) == 50
    coins = mechanism("clip=1,noise=1,sampling=poisson", 50, 1000)
    sizes = [len(coins.cohort(Key(seed), pool)) for seed in range(60)]
    assert np.mean(sizes) == pytest.approx(50, abs=3) and len(set(sizes)) > 5
    assert np.var(sizes) == pytest.approx(47.5, rel=0.6)  # binomial


@pytest.mark.parametrize(
    ("text", "pool", "message"),
    [
        ("clip=1,noise=1,delta=0.1", 10, "at least 1 / 10 clients"),
        ("clip=1,noise=1,sampling=poisson", 20, "without anybody is too likely"),
    ],
)
def test_values_that_do_not_fit_the_pool_are_refused(text: str, pool: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mechanism(text, 4, pool)


def test_epsilon_is_turned_into_noise() -> None:
    asked = mechanism("clip=1,epsilon=8,sampling=poisson", 50, 1000)
    assert asked.accountant.epsilon(10, 1e-5) <= 8
    assert replace(asked.accountant, noise=asked.accountant.noise - 1e-3).epsilon(10, 1e-5) > 8
