"""Metrics of a regression: predictions are in the unit of the targets."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gossamer.task.metrics.metric import Metric, Numbers, mean


def aligned(outputs: Tensor, y: Tensor) -> Tensor:
    """Outputs in the shape of their targets: a single output needs no dimension of its own."""
    return outputs.squeeze(-1) if outputs.ndim == y.ndim + 1 else outputs


def _absolute(predictions: Tensor, y: Tensor) -> Tensor:
    return (aligned(predictions, y).double() - y.double()).abs()


def _squared(predictions: Tensor, y: Tensor) -> Tensor:
    return _absolute(predictions, y).square()


def _squared_and_target(predictions: Tensor, y: Tensor) -> Tensor:
    columns = [_squared(predictions, y), y.double()]
    return torch.cat([each.reshape(len(y), -1) for each in columns], 1)


def r2(numbers: Numbers) -> float:
    """The share of the variance that is explained, mean over targets; those that are constant, out.

    It is 0 for the mean of the examples themselves, and below it for anything worse.
    """
    squares, targets = np.split(numbers, 2, axis=1)
    spread = np.square(targets - targets.mean(0)).sum(0)
    varies = spread > 0
    if not varies.any():
        return float("nan")
    return float(np.mean(1 - squares.sum(0)[varies] / spread[varies]))


MAE = Metric("mae", _absolute, "lower", bounds=(0.0, None))
RMSE = Metric("rmse", _squared, "lower", lambda numbers: mean(numbers) ** 0.5, (0.0, None))
R2 = Metric("r2", _squared_and_target, reduce=r2, bounds=(None, 1.0))
