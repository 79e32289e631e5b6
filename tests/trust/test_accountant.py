"""Epsilon against published figures and closed forms."""

from __future__ import annotations

import math

import pytest

from gossamer.trust.accountant import Accountant, noise_for


def moments(rate: float, noise: float, steps: int, delta: float) -> float:
    """Epsilon by hand: the moments of Abadi et al. (CCS 2016), at whole orders.

    At order a, the divergence is log(sum of binomial(a, k) (1-q)^(a-k) q^k e^((k^2-k)/(2 s^2))) /
    (a - 1); Mironov, Talwar and Zhang (2019), section 3.3.
    """
    found = math.inf
    for order in range(2, min(65, int(noise * 37))):  # beyond that, exponentials overflow
        terms = [
            math.comb(order, k)
            * (1 - rate) ** (order - k)
            * rate**k
            * math.exp((k * k - k) / (2 * noise**2))
            for k in range(order + 1)
        ]
        divergence = steps * math.log(math.fsum(terms)) / (order - 1)
        found = min(found, divergence + math.log(1 / delta) / (order - 1))
    return found


@pytest.mark.parametrize(
    ("noise", "epochs", "published"), [(1.12, 60, 2.92), (0.6, 30, 9.74), (1.2, 10, 1.20)]
)
def test_poisson_sampling_agrees_with_the_tutorials_of_tensorflow_privacy(
    noise: float, epochs: int, published: float
) -> None:
    """tensorflow/privacy, tutorials/README.md: MNIST, batches of 256 in 60,000, delta 1e-5.

    The published figures are those of moments. Privacy loss distributions are tighter: below, but
    not by more than two fifths.
    """
    steps = epochs * 60000 // 256
    assert moments(256 / 60000, noise, steps, 1e-5) == pytest.approx(published, rel=0.03)
    found = Accountant(noise, "poisson", 256, 60000).epsilon(steps, 1e-5)
    assert 0.6 * published < found < published


def test_local_noise_agrees_with_the_analytic_gaussian_mechanism() -> None:
    """Balle and Wang (ICML 2018): epsilon 1 at delta 1e-5 needs 3.7306 times the sensitivity.

    A reply can move by twice the clip, so the noise is twice that, in clips.
    """
    found = Accountant(2 * 3.7306316, "local", 1, 1).epsilon(1, 1e-5)
    assert found == pytest.approx(1, abs=2e-3)


def test_many_local_replies_are_one_with_less_noise() -> None:
    """Four Gaussian releases are worth one with half the noise."""
    four = Accountant(8.0, "local", 1, 1).epsilon(4, 1e-5)
    assert four == pytest.approx(Accountant(4.0, "local", 1, 1).epsilon(1, 1e-5), rel=1e-2)


def test_fixed_sampling_of_everybody_is_the_gaussian_mechanism_on_replaced_clients() -> None:
    """With all clients in every round nothing is amplified: the closed form of Rényi divergence.

    A Gaussian with noise s has divergence a / (2 s^2) at order a. Mironov (CSF 2017), proposition
    3: epsilon is at most that plus log(1 / delta) / (a - 1). The library's conversion is tighter.
    """
    noise, rounds, delta = 6.0, 5, 1e-5
    found = Accountant(noise, "fixed", 10, 10).epsilon(rounds, delta)
    half = noise / 2
    bound = min(rounds * a / (2 * half**2) + math.log(1 / delta) / (a - 1) for a in range(2, 257))
    exact = Accountant(noise, "local", 10, 10).epsilon(rounds, delta)
    assert exact < found < bound


def test_replacing_a_client_costs_more_than_removing_one() -> None:
    fixed = Accountant(2.0, "fixed", 50, 1000).epsilon(50, 1e-5)
    poisson = Accountant(2.0, "poisson", 50, 1000).epsilon(50, 1e-5)
    assert fixed > 2 * poisson > 0


def test_sampling_hides_clients() -> None:
    few, many = (Accountant(2.0, "fixed", n, 1000).epsilon(10, 1e-5) for n in (10, 500))
    assert few < many / 5


def test_epsilon_grows_with_rounds_from_zero() -> None:
    asked = Accountant(3.0, "fixed", 50, 1000)
    found = [asked.epsilon(rounds, 1e-5) for rounds in (0, 1, 5, 20)]
    assert found[0] == 0 and found == sorted(set(found))


def test_without_noise_nothing_is_hidden() -> None:
    assert Accountant(0.0, "fixed", 5, 10).epsilon(1, 1e-5) == math.inf


@pytest.mark.parametrize("scheme", ["fixed", "poisson", "local"])
def test_the_noise_for_an_epsilon_is_the_smallest_of_its_grid(scheme: str) -> None:
    noise = noise_for(4.0, 1e-5, 10, scheme, 50, 1000)  # type: ignore[arg-type]
    enough = Accountant(noise, scheme, 50, 1000)  # type: ignore[arg-type]
    less = Accountant(noise - 1e-3, scheme, 50, 1000)  # type: ignore[arg-type]
    assert enough.epsilon(10, 1e-5) <= 4.0 < less.epsilon(10, 1e-5)
