"""Metrics of tokens, each counting the same: predictions are log-probabilities."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from gossamer.task.metrics.metric import Metric, Numbers

IGNORED = -100
"""The label of a token that counts nowhere, such as padding."""


def _counted(values: Tensor, y: Tensor) -> Tensor:
    """Sums over the tokens of an example that count, and how many these are."""
    counts = y != IGNORED
    return torch.stack([(values.double() * counts).sum(-1), counts.double().sum(-1)], -1)


def _per_token(numbers: Numbers) -> float:
    total, tokens = numbers.sum(0)
    return float(total / tokens) if tokens else float("nan")


def _perplexity(numbers: Numbers) -> float:
    with np.errstate(over="ignore"):
        return float(np.exp(_per_token(numbers)))


def _token_surprise(log_probabilities: Tensor, y: Tensor) -> Tensor:
    flat = functional.nll_loss(
        log_probabilities.flatten(0, -2), y.flatten(), reduction="none", ignore_index=IGNORED
    )
    return _counted(flat.view_as(y), y)


def _token_right(log_probabilities: Tensor, y: Tensor) -> Tensor:
    return _counted(log_probabilities.argmax(-1) == y, y)


PERPLEXITY = Metric("perplexity", _token_surprise, "lower", _perplexity, (1.0, None))
TOKEN_LOSS = Metric("loss", _token_surprise, "lower", _per_token)
TOKEN_ACCURACY = Metric("accuracy", _token_right, reduce=_per_token, bounds=(0.0, 1.0))
