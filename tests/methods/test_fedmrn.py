"""FedMRN: noise under masks, by hand and on average."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from quadratic_cases import half_square
from torch import Tensor, nn

from gossamer import Client, Examples, Exchange, FedMRN, Key, Task, Training
from gossamer.engine.client import train
from gossamer.methods.fedavg import Server
from gossamer.methods.fedmrn import LEAST, Down, Up
from gossamer.wire import WireError
from helpers import batch_of, client_ctx, mlp, normed, server_ctx

METHOD = FedMRN(training=Training(batch=1, lr=0.5), magnitude=1.0, noise="bernoulli")


def line() -> Task:
    module = nn.Linear(1, 1, bias=False)
    return Task.of(module, torch.ones(2, 1), criterion=half_square, prunable=["weight"])


def tensor(*values: float) -> Tensor:
    return torch.tensor([values])


# masks ------------------------------------------------------------------------------------------


def test_masked_noise_is_kept_or_has_its_sign_set() -> None:
    noise, mask = tensor(0.5, -0.5, 0.25), torch.tensor([[True, True, False]])
    assert METHOD.masked(noise, mask).tolist() == [[0.5, -0.5, 0]]
    assert replace(METHOD, mask="signed").masked(noise, mask).tolist() == [[0.5, -0.5, -0.25]]


@pytest.mark.parametrize(
    ("mask", "wanted"),
    [("binary", [0.25, 0.5, 0, 0, -0.3]), ("signed", [0.25, 0.5, -0.5, -0.1, -0.3])],
)
def test_an_update_is_clipped_to_what_masked_noise_can_be(mask: str, wanted: list[float]) -> None:
    noise, update = tensor(0.5, 0.5, 0.5, -0.5, -0.5), tensor(0.25, 0.9, -0.9, 0.1, -0.3)
    method = replace(METHOD, mask=mask)
    if mask == "signed":
        wanted = [0.25, 0.5, -0.5, 0.1, -0.3]
    assert method.clipped(update, noise).tolist() == [pytest.approx(wanted)]


@pytest.mark.parametrize("mask", ["binary", "signed"])
def test_masked_noise_is_the_clipped_update_on_average(mask: str) -> None:
    method = replace(METHOD, mask=mask)
    noise = tensor(0.5, -0.5, 0.5, 0.5, -0.5).repeat(20000, 1)
    update = tensor(0.2, -0.4, 0.8, -0.3, 0.2).repeat(20000, 1)
    drawn = method.masked(noise, method.draw(Key(1), update, noise))
    wanted = method.clipped(update, noise)[0]
    torch.testing.assert_close(drawn.mean(0), wanted, atol=0.015, rtol=0)


@pytest.mark.parametrize("noise", ["uniform", "gauss", "bernoulli"])
def test_noise_comes_from_the_seed_and_is_never_zero(noise: str) -> None:
    method, ctx = replace(METHOD, noise=noise, magnitude=0.01), server_ctx(mlp())
    one, again, other = (method.drawn(ctx, seed)["0.weight"] for seed in (5, 5, 6))
    assert torch.equal(one, again) and not torch.equal(one, other)
    assert one.abs().min() >= LEAST and 0.002 < one.abs().mean() < 0.02


# one client, by hand ----------------------------------------------------------------------------


def test_a_step_is_taken_by_the_update_behind_the_mask() -> None:
    """Noise 1 or -1, w = 2, aim 1. Without an update no noise is kept, so the gradient is 1.

    The update becomes -0.5. Where noise is -1, half of the masks keep it; where it is 1, none do.
    """
    task = line()
    ctx = client_ctx(task, Examples(torch.ones(1, 1), torch.ones(1, 1)))
    kept = {1.0: 0, -1.0: 0}
    for seed in range(200):
        noise = float(METHOD.drawn(ctx, seed)["weight"])
        work = METHOD.begin(ctx, Down({"weight": tensor(2.0)}, seed), None).work
        work = METHOD.step(ctx, work, batch_of(torch.ones(1, 1), torch.ones(1, 1)))
        assert work.trained["weight"].tolist() == [[-0.5]]
        here = replace(ctx, key=Key(seed))
        kept[noise] += bool(METHOD.finish(here, work).up.masks["weight"])
    assert kept[1.0] == 0 and 30 < kept[-1.0] < 70


def test_in_the_first_steps_a_part_of_the_entries_is_clipped_instead_of_masked() -> None:
    """An update of 0.5 under noise of 1: masked it is 0 or 1, clipped 0.5; in step 1 of 4 a
    quarter is masked."""
    task = Task.of(nn.Linear(400, 1, bias=False), torch.ones(2, 400), criterion=half_square)
    seen: list[Tensor] = []

    class Watched(FedMRN):
        def masked(self, noise: Tensor, mask: Tensor) -> Tensor:
            seen.append(mask)
            return super().masked(noise, mask)

    x, y = torch.eye(400)[:1], torch.zeros(1, 1)
    ctx = client_ctx(task, Examples(x, y))
    method = Watched(noise="bernoulli", magnitude=1.0, training=Training(lr=1e-9))
    work = method.begin(ctx, Down({"weight": torch.zeros(1, 400)}, 3), None).work
    work.trained["weight"].copy_(0.5 * work.noise["weight"])
    effective: list[Tensor] = []
    plain = task.gradients

    def watched(params: dict[str, Tensor], batch: object) -> object:
        effective.append(params["weight"])
        return plain(params, batch)  # type: ignore[arg-type]

    object.__setattr__(task, "gradients", watched)
    early = replace(batch_of(x, y), steps=4)
    method.step(replace(ctx, task=task), work, early)
    clipped = (effective[0].abs() == 0.5).float().mean()
    assert 0.65 < float(clipped) < 0.85
    method.step(replace(ctx, task=task), work, replace(early, step=3))
    assert not bool((effective[1].abs() == 0.5).any())


# the server -------------------------------------------------------------------------------------


def test_the_server_adds_the_mean_of_the_masked_noises() -> None:
    task = line()
    ctx = server_ctx(task)
    state = Server({"weight": tensor(2.0)})
    downs = [METHOD.down(ctx, state, Client(id, 10 * (id + 1))) for id in range(2)]
    assert downs[0].seed != downs[1].seed
    noises = [float(METHOD.drawn(ctx, down.seed)["weight"]) for down in downs]
    masks = [torch.tensor([[True]]), torch.tensor([[True]])]
    exchanges = [
        Exchange(Client(id, 10 * (id + 1)), downs[id], Up({"weight": masks[id]}, {}))
        for id in range(2)
    ]
    wanted = 2 + (noises[0] * 10 + noises[1] * 20) / 30
    assert float(METHOD.merge(ctx, state, exchanges).params["weight"]) == pytest.approx(wanted)


def test_biases_and_norms_are_sent_whole() -> None:
    task = normed()
    ctx = server_ctx(task)
    down = FedMRN().down(ctx, FedMRN().init(ctx), Client(0, 1))
    (up,) = FedMRN().replies(ctx, down)
    assert set(up.masks) == set(task.layout.prunable)
    assert set(up.rest) == set(task.layout.names) - set(task.layout.prunable)


def test_a_mask_of_another_shape_is_refused() -> None:
    ctx, state = server_ctx(line()), Server({"weight": tensor(2.0)})
    down = METHOD.down(ctx, state, Client(0, 1))
    odd = Exchange(Client(0, 1), down, Up({"weight": torch.ones(3, 1, dtype=torch.bool)}, {}))
    with pytest.raises(WireError, match="weight came back"):
        METHOD.merge(ctx, state, [odd])


def test_a_client_learns() -> None:
    """Towards 1 from 2, with noise of at most 0.3: as near as the noise can come."""
    task = line()
    ctx = client_ctx(task, Examples(torch.ones(8, 1), torch.ones(8, 1)))
    method = FedMRN(training=Training(epochs=20, batch=4, lr=0.1), magnitude=0.3, clients=8)
    state, here = Server({"weight": tensor(2.0)}), server_ctx(task)
    for round in range(1, 31):
        here = server_ctx(task, round)
        downs = [method.down(here, state, Client(id, 8)) for id in range(8)]
        ups = [
            train(method, replace(ctx, key=Key(id, (round,))), down, None)
            for id, down in enumerate(downs)
        ]
        state = method.merge(
            here, state, [Exchange(Client(id, 8), downs[id], ups[id].result.up) for id in range(8)]
        )
    assert abs(float(state.params["weight"]) - 1) < 0.1
