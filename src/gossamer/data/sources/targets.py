"""Labels that are no classes: numbers, labels that may be true together, and tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gossamer.task.metrics import IGNORED

OTHER = ("regression", "multilabel", "language")
"""Tasks whose labels are no classes."""


def targets(name: str, task: str, parts: Sequence[np.ndarray]) -> tuple[list[np.ndarray], int]:
    """Labels as a task takes them, and the number of outputs that a model needs.

    Args:
        name: of the data, for messages.
        task: regression, multilabel or language.
        parts: labels, for instance those of the training and of the test data.

    Raises:
        ValueError: labels do not fit the task.
    """
    match task:
        case "regression":
            return _numbers(name, parts)
        case "multilabel":
            return _flags(name, parts)
        case _:
            return _tokens(name, parts)


def _numbers(name: str, parts: Sequence[np.ndarray]) -> tuple[list[np.ndarray], int]:
    first = parts[0]
    if first.dtype.kind not in "iubf" or first.ndim not in (1, 2):
        raise ValueError(
            f"targets of {name} are {first.dtype} of shape {first.shape}; a regression needs one "
            f"number, or one row of numbers, per example"
        )
    with np.errstate(over="ignore"):
        made = [part.astype(np.float32) for part in parts]
    if not all(np.isfinite(part).all() for part in made):
        raise ValueError(f"{name} has targets that are not finite; remove such examples")
    return made, 1 if first.ndim == 1 else first.shape[1]


def _flags(name: str, parts: Sequence[np.ndarray]) -> tuple[list[np.ndarray], int]:
    first = parts[0]
    if first.dtype.kind not in "iubf" or first.ndim != 2:
        raise ValueError(
            f"labels of {name} are {first.dtype} of shape {first.shape}; multilabel needs a row of "
            f"0 and 1 per example, one column per label"
        )
    odd = next((part[(part != 0) & (part != 1)] for part in parts if len(part)), np.zeros(0))
    if len(odd):
        raise ValueError(f"{name} has the label {odd[0]}; multilabel needs 0 and 1")
    return [part.astype(np.float32) for part in parts], first.shape[1]


def _tokens(name: str, parts: Sequence[np.ndarray]) -> tuple[list[np.ndarray], int]:
    first = parts[0]
    if first.dtype.kind not in "iu" or first.ndim != 2:
        raise ValueError(
            f"labels of {name} are {first.dtype} of shape {first.shape}; language needs the number "
            f"of the next token for every token"
        )
    made = [part.astype(np.int64) for part in parts]
    lowest = min(int(part[part != IGNORED].min(initial=0)) for part in made)
    if lowest < 0:
        raise ValueError(f"{name} has the token {lowest}; number tokens from 0, {IGNORED} is none")
    return made, 1 + max(int(part.max(initial=0)) for part in made)
