"""The settings that a sweep tries: a grid, or draws from lists and ranges."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TypeVar, get_args

from gossamer.core import Key
from gossamer.fields import Setting, convert

RANGE = ".."
DECADES = 10
"""A range whose ends are so many times apart is drawn from logarithmically."""
DIGITS = 3

T = TypeVar("T")
Values = Mapping[str, Sequence[str]]
"""The values to try of every setting, as texts; a range is one text such as `0.001..0.1`."""


def listed(setting: Setting, text: str) -> list[str]:
    """The values of an option: `0.01,0.03,0.1`, or a range.

    Texts have no lists: a comma may be part of them.
    """
    if not (setting.choices or _is_number(setting) or setting.type is bool):
        return [text]
    values = [word.strip() for word in text.split(",")]
    for word in values:
        for end in word.split(RANGE) if RANGE in word else [word]:
            convert(setting, end)
    if len(set(values)) < len(values):
        raise ValueError(f"`{setting.name}={text}` names a value twice")
    return values


def grid(values: Values) -> list[dict[str, str]]:
    """Every combination, the last setting changing fastest.

    Raises:
        ValueError: a value is a range.

    >>> grid({"lr": ["0.1", "1"], "batch": ["8"]})
    [{'lr': '0.1', 'batch': '8'}, {'lr': '1', 'batch': '8'}]
    """
    for name, words in values.items():
        if ranges := [word for word in words if RANGE in word]:
            raise ValueError(
                f"`{name}={ranges[0]}` is a range, from which values are drawn; add `random=20`, "
                f"or list values"
            )
    return combinations(values)


def combinations(values: Mapping[str, Sequence[T]]) -> list[dict[str, T]]:
    """Every choice of one value per setting."""
    return [dict(zip(values, each, strict=True)) for each in itertools.product(*values.values())]


def drawn(values: Values, count: int, seed: int, whole: Sequence[str] = ()) -> list[dict[str, str]]:
    """Up to `count` different combinations at random; the same seed draws the same ones.

    Args:
        values: lists and ranges; a range of 1 to 10 or more is drawn from logarithmically.
        count: how many to draw; fewer if there are not as many.
        seed: of the draw.
        whole: settings that are whole numbers.
    """
    found: list[dict[str, str]] = []
    for attempt in range(20 * count):
        draw = Key(seed).fold("sweep", attempt).numpy()
        chosen = {}
        for name, words in values.items():
            word = words[int(draw.integers(len(words)))]
            chosen[name] = _between(word, float(draw.random()), name in whole)
        if chosen not in found:
            found.append(chosen)
        if len(found) == count:
            break
    return found


def _between(word: str, share: float, whole: bool) -> str:
    if RANGE not in word:
        return word
    low, high = map(float, word.split(RANGE))
    if low > high:
        raise ValueError(f"the range {word} ends before it begins")
    if low > 0 and high >= DECADES * low * (1 - 1e-9):
        value = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
    else:
        value = low + share * (high - low)
    return str(min(round(value), int(high))) if whole else f"{value:.{DIGITS}g}"


def whole_numbers(settings: Sequence[Setting]) -> list[str]:
    """The names of settings that are whole numbers."""
    return [item.name for item in settings if item.type is int]


def _is_number(setting: Setting) -> bool:
    kinds = get_args(setting.type) or (setting.type,)
    return int in kinds or float in kinds
