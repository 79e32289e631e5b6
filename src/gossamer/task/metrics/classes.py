"""Metrics of classes: predictions are log-probabilities."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from gossamer.task.metrics.metric import Metric


def _right(log_probabilities: Tensor, y: Tensor) -> Tensor:
    return log_probabilities.argmax(-1) == y


def _surprise(log_probabilities: Tensor, y: Tensor) -> Tensor:
    return functional.nll_loss(log_probabilities, y, reduction="none")


ACCURACY = Metric("accuracy", _right, bounds=(0.0, 1.0))
CLASS_LOSS = Metric("loss", _surprise, "lower")
