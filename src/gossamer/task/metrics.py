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
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

Better: TypeAlias = Literal["higher", "lower"]
Numbers: TypeAlias = NDArray[np.float64]
IGNORED = -100
"""The label of a token that counts nowhere, such as padding."""


def mean(numbers: Numbers) -> float:
    """The mean over examples, and over targets or labels where there are several."""
    return float(numbers.mean())


@dataclass(frozen=True)
class Metric:
    """A figure of a model.

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


# classes ------------------------------------------------------------------------------------------


def _right(log_probabilities: Tensor, y: Tensor) -> Tensor:
    return log_probabilities.argmax(-1) == y


def _surprise(log_probabilities: Tensor, y: Tensor) -> Tensor:
    return functional.nll_loss(log_probabilities, y, reduction="none")


ACCURACY = Metric("accuracy", _right, bounds=(0.0, 1.0))
CLASS_LOSS = Metric("loss", _surprise, "lower")


# tokens -------------------------------------------------------------------------------------------


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


# labels that may be true together -----------------------------------------------------------------


def _scores_and_labels(logits: Tensor, y: Tensor) -> Tensor:
    return torch.cat([logits.double(), y.double()], 1)


def average_precision(numbers: Numbers) -> float:
    """Mean over labels of the area below precision against recall; labels that never occur, out.

    Examples with equal scores enter together, so their order does not matter.
    """
    scores, labels = np.split(numbers, 2, axis=1)
    found = []
    for score, label in zip(scores.T, labels.T, strict=True):
        if not label.any():
            continue
        order = np.argsort(-score, kind="stable")
        ranked, right = score[order], np.cumsum(label[order])
        ends = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)
        precision, recall = right[ends] / (ends + 1), right[ends] / right[-1]
        found.append(float(np.sum(np.diff(recall, prepend=0.0) * precision)))
    return float(np.mean(found)) if found else float("nan")


def _hits(logits: Tensor, y: Tensor) -> Tensor:
    """For every label: predicted and true, predicted, true."""
    said, true = logits > 0, y > 0.5
    return torch.stack([said & true, said, true], -1).double()


def _f1(hits: Numbers) -> float:
    """From counts of hits, predictions and true labels, summed over examples."""
    both, said, true = hits
    return float(2 * both / (said + true)) if said + true else float("nan")


def f1_micro(numbers: Numbers) -> float:
    """F1 over all labels of all examples; a label is predicted from a probability of one half."""
    return _f1(numbers.sum((0, 1)))


def f1_macro(numbers: Numbers) -> float:
    """The mean of the F1 of every label that occurs or is predicted."""
    each = [_f1(counts) for counts in numbers.sum(0)]
    known = [value for value in each if np.isfinite(value)]
    return float(np.mean(known)) if known else float("nan")


def _label_surprise(logits: Tensor, y: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(logits, y, reduction="none")


AVERAGE_PRECISION = Metric(
    "average_precision", _scores_and_labels, reduce=average_precision, bounds=(0.0, 1.0)
)
F1 = Metric("f1", _hits, reduce=f1_micro, bounds=(0.0, 1.0))
F1_MACRO = Metric("f1_macro", _hits, reduce=f1_macro, bounds=(0.0, 1.0))
LABEL_LOSS = Metric("loss", _label_surprise, "lower")


# numbers ------------------------------------------------------------------------------------------


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
