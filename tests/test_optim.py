"""Local SGD against torch's own, and the schedules of the papers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from gossamer import Key, Training
from gossamer.optim import Moments, Velocity, adam, clip, pull, sgd
from helpers import linear, server_ctx


def rate(training: Training, passed: int, rounds: int = 1000) -> float:
    """The rate after `passed` whole rounds; rounds are counted from 1."""
    return training.rate(server_ctx(linear(), passed + 1, rounds))


# schedules --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("passed", "wanted"), [(0, 0.1), (300, 0.01), (600, 0.001)])
def test_exponential_to_an_end_value(passed: int, wanted: float) -> None:
    training = Training(lr=0.1, schedule="exponential-to", lr_end=0.001)
    assert rate(training, passed, 600) == pytest.approx(wanted, rel=1e-12)


def test_exponential_per_round() -> None:
    training = Training(lr=0.1, schedule="exponential", decay=0.99)
    assert [rate(training, passed) for passed in (0, 1, 10)] == pytest.approx(
        [0.1, 0.099, 0.1 * 0.99**10]
    )


@pytest.mark.parametrize(
    ("passed", "wanted"),
    [(0, 0.1), (50, 0.0505), (100, 0.001), (25, 0.001 + 0.099 * (1 + math.sqrt(0.5)) / 2)],
)
def test_cosine_falls_from_lr_to_its_end(passed: int, wanted: float) -> None:
    training = Training(lr=0.1, schedule="cosine", lr_end=0.001)
    assert rate(training, passed, 100) == pytest.approx(wanted)


def test_cosine_stays_at_its_end_after_the_last_round() -> None:
    training = Training(lr=0.1, schedule="cosine", lr_end=0.001)
    assert rate(training, 10, 10) == rate(training, 15, 10) == pytest.approx(0.001)


def test_constant_is_constant() -> None:
    assert {rate(Training(lr=0.3), passed) for passed in (0, 1, 999)} == {0.3}


def test_no_rate_falls_below_the_least() -> None:
    training = Training(lr=0.1, schedule="exponential", decay=0.5, lr_least=0.02)
    assert [rate(training, passed) for passed in range(4)] == [0.1, 0.05, 0.025, 0.02]


# SGD --------------------------------------------------------------------------------------------


def draws(*path: str | int) -> list[Tensor]:
    generator = Key(0).fold(*path).generator()
    return [torch.randn(shape, generator=generator) for shape in ((4, 3), (5,), (2, 3, 3, 3))]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize("most", [0.0, 1.0, 1e6])
def test_updates_are_those_of_torch(momentum: float, weight_decay: float, most: float) -> None:
    training = Training(momentum=momentum, weight_decay=weight_decay, clip=most)
    names = ["a", "b", "c"]
    params = dict(zip(names, draws("start"), strict=True))
    plain = [nn.Parameter(tensor.clone()) for tensor in params.values()]
    optimiser = torch.optim.SGD(
        plain, lr=0.1, momentum=momentum, weight_decay=weight_decay, foreach=False
    )
    velocity: Velocity = []
    for step in range(5):
        grads = draws("grad", step)
        for parameter, grad in zip(plain, grads, strict=True):
            parameter.grad = grad.clone()
        if most:
            nn.utils.clip_grad_norm_(plain, most)
        optimiser.step()
        training.update(params, dict(zip(names, grads, strict=True)), velocity, 0.1)
    for found, wanted in zip(params.values(), plain, strict=True):
        torch.testing.assert_close(found, wanted.detach())


def test_momentum_by_hand() -> None:
    params, velocity = [torch.tensor([1.0], dtype=torch.float64)], []
    for grad in (2.0, -1.0):
        sgd(params, [torch.tensor([grad], dtype=torch.float64)], velocity, rate=0.1, momentum=0.5)
    # v = 2, w = .8; v = .5 * 2 - 1 = 0, w = .8
    assert params[0].item() == pytest.approx(0.8)


def test_tensors_without_a_gradient_stay() -> None:
    params = {"a": torch.ones(2), "running": torch.ones(2)}
    Training(weight_decay=0.5).update(params, {"a": torch.zeros(2)}, [], 0.1)
    assert params["a"].tolist() == pytest.approx([0.95, 0.95])
    assert params["running"].tolist() == [1, 1]


def test_clipping_scales_all_gradients_together() -> None:
    grads = [torch.tensor([3.0]), torch.tensor([[4.0]])]
    clip(grads, 1.0)
    assert [float(grad) for grad in grads] == pytest.approx([0.6, 0.8], rel=1e-5)


def test_clipping_leaves_small_gradients_alone() -> None:
    grads = [torch.tensor([0.3]), torch.tensor([0.4])]
    clip(grads, 0.6)
    assert [grad.item() for grad in grads] == [pytest.approx(0.3), pytest.approx(0.4)]


def test_the_pull_is_the_gradient_of_the_squared_distance() -> None:
    params = {"w": torch.tensor([1.1, -0.9], dtype=torch.float64)}
    anchor = {"w": torch.tensor([1.0, -1.0], dtype=torch.float64)}
    grads = {"w": torch.zeros(2, dtype=torch.float64)}
    pull(grads, params, anchor, 0.5)
    assert grads["w"].tolist() == pytest.approx([0.05, 0.05])


def test_a_fused_step_shows_that_it_changed_its_tensors() -> None:
    params, grads = [torch.zeros(3)], [torch.ones(3)]
    before = params[0]._version
    sgd(params, grads, [], rate=0.1)
    assert params[0]._version > before


# Adam -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimiser", ["adam", "adamw"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_adam_is_torchs(optimiser: str, channels_last: bool) -> None:
    """Five steps with weight decay, also for filters in channels-last order."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    first = [
        torch.randn(4, 3, 2, 2, generator=Key(1).generator()).to(memory_format=layout),
        torch.randn(5, generator=Key(2).generator()),
    ]
    theirs = [nn.Parameter(each.clone()) for each in first]
    kind = torch.optim.Adam if optimiser == "adam" else torch.optim.AdamW
    reference = kind(theirs, lr=0.1, weight_decay=0.2, betas=(0.8, 0.95), eps=1e-6)
    training = Training(
        optimiser=optimiser,  # type: ignore[arg-type]
        weight_decay=0.2,
        adam_beta1=0.8,
        adam_beta2=0.95,
        adam_eps=1e-6,
    )
    params = {str(at): each.clone() for at, each in enumerate(first)}
    moments = Moments()
    for step in range(5):
        grads = {name: torch.sin(each + step) for name, each in params.items()}
        for param, grad in zip(theirs, grads.values(), strict=True):
            param.grad = grad.clone()
        reference.step()
        training.update(params, grads, moments, 0.1)
    assert moments.steps == 5
    for mine, other in zip(params.values(), theirs, strict=True):
        assert torch.allclose(mine, other, rtol=1e-5, atol=1e-6)


def test_adam_has_no_first_step_to_take_in_a_list() -> None:
    training = Training(optimiser="adam")
    with pytest.raises(TypeError, match=r"give `update` an optim\.Moments"):
        training.update({"w": torch.zeros(2)}, {"w": torch.ones(2)}, [], 0.1)


def test_weights_without_gradients_and_moments_stay_at_zero() -> None:
    weight, moments = torch.tensor([0.0, 1.0]), Moments()
    for _ in range(3):
        grad = torch.tensor([0.0, 1.0])
        adam([weight], [grad], moments, rate=0.1, weight_decay=0.1, decoupled=True)
    assert weight[0] == 0.0 and weight[1] < 1.0
