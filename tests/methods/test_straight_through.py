"""A step of SpaFL against autograd through the straight-through step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from spafl_cases import (
    spafl,
    start,
    state,
)
from torch import Tensor, nn

from gossamer import Batch, Key, Params, Task
from gossamer.methods.as_published.spafl_training import distance
from gossamer.methods.spafl import by_layer, mask_of


class Step(torch.autograd.Function):
    """The step, with an identity or a long tail in place of its derivative."""

    @staticmethod
    def forward(ctx: Any, far: Tensor, long_tail: bool) -> Tensor:
        ctx.save_for_backward(far)
        ctx.long_tail = long_tail
        return (far > 0).to(far.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        far = ctx.saved_tensors[0].abs()
        if not ctx.long_tail:
            return gradient, None
        tail = torch.zeros_like(far).masked_fill_(far <= 1, 0.4)
        slope = (2 - 4 * far).where(far <= 0.4, tail)
        return gradient * slope, None


class Reader(nn.Module):
    """A small LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4, 2, batch_first=True)
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(self.lstm(x)[0][:, -1])
        return out


def nets() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    flat = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    images = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 6, (3, 2)), nn.Flatten()
    )
    return {"linear": (flat, (5,)), "conv": (images, (3, 4, 4)), "lstm": (Reader(), (6, 3))}


def outputs(logits: Tensor, labels: Tensor) -> Tensor:
    """A loss whose gradient is the same wherever it is taken, though logits are float32."""
    return (logits * torch.linspace(-1, 2, logits[0].numel())).sum()


def by_autograd(
    task: Task, params: Params, tau: Tensor, batch: Batch, structured: bool, long_tail: bool
) -> tuple[Params, Tensor, Params]:
    """Gradients of weights and thresholds, and of weights where the mask passes none."""
    free = {name: params[name].clone().requires_grad_() for name in task.layout.parameters}
    thresholds = tau.clone().requires_grad_()
    masked, fixed = dict(params) | free, dict(params) | free
    for name, part in by_layer(task.layout, thresholds).items():
        size = free[name].abs()
        if structured:
            size = size.flatten(1).mean(1).view(-1, *[1] * (size.dim() - 1)).expand_as(size)
        kept = Step.apply(size - part.view(-1, *[1] * (size.dim() - 1)), long_tail)
        masked[name], fixed[name] = free[name] * kept, free[name] * kept.detach()
    *found, for_tau = torch.autograd.grad(
        task.loss(masked, batch), [*free.values(), thresholds], allow_unused=True
    )
    plain = torch.autograd.grad(task.loss(fixed, batch), list(free.values()))
    return dict(zip(free, found, strict=True)), for_tau, dict(zip(free, plain, strict=True))


@pytest.mark.parametrize("ste", ["identity", "longtail"])
@pytest.mark.parametrize("structured", [False, True], ids=["single", "structured"])
@pytest.mark.parametrize("net", ["linear", "conv", "lstm"])
def test_a_step_follows_autograd_through_the_straight_through_step(
    net: str, structured: bool, ste: str
) -> None:
    module, shape = nets()[net]
    module = module.double()
    task = Task.of(
        module, torch.zeros(2, *shape, dtype=torch.float64), criterion=outputs, start="seed"
    )
    draw = Key(1).generator()
    params = {n: 2 * torch.randn(t.shape, generator=draw).double() for n, t in state(task).items()}
    tau = 3 * torch.rand(task.layout.rows, generator=draw).double()
    if structured:  # near the mean magnitudes, so that some rows are on each side
        tau = 1 + 1.5 * torch.rand(task.layout.rows, generator=draw).double()
    x = torch.randn(7, *shape, generator=draw).double()
    batch = Batch(x, torch.zeros(7, dtype=torch.int64), Key(0), 0, 1, 0, 1.0, 1)
    wanted, for_tau, plain = by_autograd(task, params, tau, batch, structured, ste == "longtail")
    parts = by_layer(task.layout, tau)
    masks = [mask_of(params[name], part, structured).double() for name, part in parts.items()]
    assert 0.2 < sum(float(mask.mean()) for mask in masks) / len(masks) < 0.9
    if ste == "longtail":  # all three parts of the slope take part
        far = torch.cat(
            [
                distance(params[name], part, structured).abs().flatten()
                for name, part in parts.items()
            ]
        )
        assert (far <= 0.4).any() and ((far > 0.4) & (far <= 1)).any()
        assert structured or (far > 1).any()

    for through_mask, weights in ((True, wanted), (False, plain)):
        method = spafl(
            phases="joint",
            lr=1.0,
            alpha=0.0,
            clamp=False,
            reset_density=0.0,
            structured=structured,
            ste=ste,
            mask_grad_to_weight=through_mask,
        )
        ctx, work = start(method, task, tau, params=params)
        if net == "conv":
            assert work.model.params["0.weight"].is_contiguous(memory_format=torch.channels_last)
        method.step(ctx, work, batch)
        torch.testing.assert_close(tau - work.thresholds, for_tau, rtol=1e-10, atol=1e-12)
        assert for_tau.count_nonzero() > len(for_tau) / 2
        for name, gradient in weights.items():
            moved = params[name] - work.model.params[name]
            torch.testing.assert_close(moved, gradient, rtol=1e-9, atol=1e-11)
