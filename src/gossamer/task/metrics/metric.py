"""Metrics: numbers per example, how they become one figure, and which way is better.

Metrics receive predictions: log-probabilities of classes (or of tokens), logits of labels, or
targets in their own unit. Numbers are kept per example, so that the figure of the whole test set
and those of its clients come from one pass over the data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Better: TypeAlias = Literal["higher", "lower"]
Numbers: TypeAlias = NDArray[np.float64]


def mean(numbers: Numbers) -> float:
    """The mean over examples, and over targets or labels where there are several."""
    return float(numbers.mean())


@dataclass(frozen=True)
class Metric:
    """A figure of a model.

    >>> import torch
    >>> error = Metric("error", lambda outputs, y: outputs.argmax(-1) != y, "lower")
    >>> error.of(torch.tensor([[0.0, 1.0], [2.0, 1.0]]), torch.tensor([1, 1]))
    0.5
    """

    name: str
    numbers: Callable[[Tensor, Tensor], Tensor]
    """From predictions and labels, one number or one row of numbers per example."""
    better: Better = "higher"
    reduce: Callable[[Numbers], float] = mean
    """The figure of some examples, from their numbers; NaN if it is not defined for them."""
    bounds: tuple[float | None, float | None] = (None, None)
    """The lowest and the highest value that it can have."""

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ValueError(
                f"a metric is called {self.name!r}; use letters, digits and underscores"
            )
        if self.better not in ("higher", "lower"):
            raise ValueError(f"`better=` is higher or lower, not {self.better!r}")

    @property
    def title(self) -> str:
        """The name in a sentence."""
        return titled(self.name)

    def per_example(self, predictions: Tensor, y: Tensor) -> Numbers:
        """The numbers of a batch, in float64."""
        numbers = self.numbers(predictions, y)
        if not numbers.ndim or len(numbers) != len(y):
            raise ValueError(
                f"the metric {self.name} gave numbers of shape {tuple(numbers.shape)} for "
                f"{len(y)} examples; give one number, or one row, per example"
            )
        found: Numbers = numbers.detach().double().cpu().numpy()
        return found

    def figure(self, numbers: Numbers) -> float | None:
        """The figure of examples; None where there are none, or it is not defined for them."""
        if not len(numbers):
            return None
        value = float(self.reduce(numbers))
        return value if np.isfinite(value) else None

    def of(self, predictions: Tensor, y: Tensor) -> float | None:
        """The figure of a batch."""
        return self.figure(self.per_example(predictions, y))


ABBREVIATIONS = ("mae", "rmse", "r2", "f1", "auc")


def titled(name: str) -> str:
    """The name of a metric in a sentence.

    >>> titled("average_precision"), titled("mae"), titled("f1_macro")
    ('average precision', 'MAE', 'F1 macro')
    """
    words = name.split("_")
    return " ".join(word.upper() if word in ABBREVIATIONS else word for word in words)


def is_better(better: Better, value: float, than: float) -> bool:
    """Whether a figure is better than another one."""
    return value > than if better == "higher" else value < than
