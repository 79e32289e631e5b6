"""Labels of your own data: which of them are classes, and how these are numbered."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gossamer.data.inputs import Ints
from gossamer.data.notes import note

FEW = 20
"""So many different labels are never taken for numbers of rows or measurements."""
SHOWN = 5
"""Classes that a message lists."""


def numbered(name: str, *parts: np.ndarray, keep: bool = False) -> tuple[list[Ints], int]:
    """Labels as classes from 0, and the number of classes.

    Labels stay as they are if most numbers up to the largest one occur. Otherwise, as with 0, 1000
    and 2000, or -1 and 1, they are numbered in ascending order, and a note says so.

    Args:
        name: of the data, for messages.
        parts: whole numbers, one per example; for instance of the training and of the test data.
        keep: whether labels must stay as they are.

    Raises:
        ValueError: labels are negative, or there are nearly as many as examples.
    """
    values = np.unique(np.concatenate([part.astype(np.int64) for part in parts]))
    if not len(values):
        return [part.astype(np.int64) for part in parts], 1
    lowest, highest = int(values[0]), int(values[-1])
    signs = values.tolist() == [-1, 1]
    if lowest < 0 and (keep or not signs):
        raise ValueError(f"{name} has labels from {lowest} to {highest}; number the classes from 0")
    classes_or_raise(name, len(values), sum(map(len, parts)))
    if signs or (not keep and 2 * len(values) <= highest):
        note(
            f"{name} has {len(values)} labels from {lowest} to {highest}; "
            f"they were numbered 0 to {len(values) - 1} in ascending order"
        )
        return [np.searchsorted(values, part.astype(np.int64)) for part in parts], len(values)
    if len(values) <= highest:
        unused = np.setdiff1d(np.arange(highest + 1), values)
        note(
            f"{name} has labels from {lowest} to {highest}, so the model has {highest + 1} "
            f"outputs, but no example of {_listed(unused)}"
        )
    return [part.astype(np.int64) for part in parts], highest + 1


def classes_or_raise(name: str, classes: int, examples: int) -> None:
    """Raises ValueError where labels are row numbers or the like: nearly every one is different."""
    if classes > max(FEW, examples // 2):
        raise ValueError(
            f"{name} has {classes:,} different labels in {examples:,} examples, so they are no "
            f"classes; give the labels of classes"
        )


def note_unseen(name: str, train: Ints, test: Ints) -> None:
    """Notes classes that occur in the test data only."""
    unseen = np.setdiff1d(test, train)
    if len(unseen):
        count = int(np.isin(test, unseen).sum())
        note(
            f"{name} has test examples of {_listed(unseen)} but no training examples, so no model "
            f"can learn {'them' if len(unseen) > 1 else 'it'} ({count:,} of {len(test):,} test "
            f"examples)"
        )


def _listed(classes: Sequence[int] | Ints) -> str:
    """`class 7`, or `classes 1, 2, 3 and 90 more`."""
    words = [str(value) for value in classes]
    more = f" and {len(words) - SHOWN} more" if len(words) > SHOWN else ""
    return f"class{'es' if len(words) > 1 else ''} {', '.join(words[:SHOWN])}{more}"
