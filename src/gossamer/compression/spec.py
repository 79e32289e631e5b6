"""What `--compress` says: a compressor and its memory, such as `topk:0.01+ef`."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from gossamer.compression.compressors import (
    QSGD,
    Compressor,
    LowRank,
    Natural,
    RandK,
    Sign,
    Ternary,
    TopK,
)

Feedback = Literal["", "ef", "ef21"]
HELP = "topk:SHARE, randk:SHARE, qsgd:LEVELS, natural, sign, ternary:SHARE or low_rank:R"
_FEEDBACK: tuple[Feedback, ...] = ("ef", "ef21")


@dataclass(frozen=True)
class Spec:
    """A compressor, and what the sender remembers of what was lost."""

    compressor: Compressor
    feedback: Feedback = ""

    @classmethod
    def parse(cls, text: str) -> Spec:
        """Reads `topk:0.01+ef`.

        Raises:
            ValueError: there is no such compressor, or its numbers are out of bounds.
        """
        head, *memory = text.split("+")
        name, *words = head.split(":")
        if name not in _MAKERS:
            close = difflib.get_close_matches(name, _MAKERS, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"`compress=` is {HELP}, optionally +ef or +ef21, not {text!r}{hint}")
        if len(memory) > 1 or any(word not in _FEEDBACK for word in memory):
            raise ValueError(f"`compress={text}`: behind {head} only +ef or +ef21 can follow")
        feedback: Feedback = "ef21" if memory == ["ef21"] else "ef" if memory else ""
        try:
            compressor = _MAKERS[name](words, bool(feedback))
        except (ValueError, IndexError, TypeError):
            raise ValueError(f"`compress={text}`: {_USES[name]}") from None
        return cls(compressor, feedback)


def directions(text: str) -> tuple[str, str]:
    """Compressors up and down: `topk:0.01+ef`, or `up=topk:0.01+ef,down=qsgd:16`.

    The latter is also `topk:0.01+ef/qsgd:16`, for places where commas have another meaning.
    """
    if "=" not in text:
        up, _, down = text.partition("/")
        return up, down
    ways = {"up": "", "down": ""}
    for part in text.split(","):
        way, _, spec = part.partition("=")
        if way.strip() not in ways or not spec:
            raise ValueError(f"`compress=` takes up=COMPRESSOR,down=COMPRESSOR, not {text!r}")
        ways[way.strip()] = spec.strip()
    return ways["up"], ways["down"]


def _share(words: list[str]) -> float:
    (word,) = words
    share = float(word)
    if not 0 < share <= 1:
        raise ValueError
    return share


def _whole(word: str, least: int, most: int) -> int:
    number = int(word)
    if not least <= number <= most:
        raise ValueError
    return number


def _qsgd(words: list[str], memory: bool) -> Compressor:
    levels, *rest = words
    bucket = {"bucket": _whole(rest[0], 0, 2**31)} if rest else {}
    if len(rest) > 1:
        raise ValueError
    return QSGD(_whole(levels, 1, 2047), **bucket)


def _low_rank(words: list[str], memory: bool) -> Compressor:
    (rank,) = words
    return LowRank(_whole(rank, 1, 1024))


def _alone(words: list[str], made: Compressor) -> Compressor:
    if words:
        raise ValueError
    return made


_MAKERS: dict[str, Callable[[list[str], bool], Compressor]] = {
    "topk": lambda words, memory: TopK(_share(words)),
    "randk": lambda words, memory: RandK(_share(words), unbiased=not memory),
    "qsgd": _qsgd,
    "natural": lambda words, memory: _alone(words, Natural()),
    "sign": lambda words, memory: _alone(words, Sign()),
    "ternary": lambda words, memory: Ternary(_share(words)),
    "low_rank": _low_rank,
}
_SHARED = "needs the share of values that are kept, above 0 and at most 1, e.g."
_USES = {
    "topk": f"{_SHARED} topk:0.01",
    "randk": f"{_SHARED} randk:0.01",
    "ternary": f"{_SHARED} ternary:0.01",
    "qsgd": "needs 1 to 2047 levels, e.g. qsgd:16, and may have values that share a norm behind "
    "them, e.g. qsgd:16:512; 0: all of a tensor",
    "natural": "natural takes no number",
    "sign": "sign takes no number",
    "low_rank": "needs a rank of at least 1, e.g. low_rank:2",
}
