"""Metrics of labels that may be true together: predictions are logits."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from gossamer.task.metrics.metric import Metric, Numbers


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
