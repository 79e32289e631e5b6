"""Encoding modes: full or half precision, optional compression; independent of the method."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from importlib.util import find_spec

EXTRAS = ("zstd", "ans")


@dataclass(frozen=True)
class Mode:
    """The encoding of values and masks, agreed on by sender and receiver."""

    half: bool = False
    """float32 as scaled float16; uplink: the difference from what the client received."""
    zstd: bool = False
    """Values byte-shuffled and compressed by zstd, where that is smaller."""
    ans: bool = False
    """Masks range-coded instead of Rice-coded: smaller and slower; needs `gossamer[ans]`."""

    @classmethod
    def parse(cls, text: str) -> Mode:
        """Parses `f32` or `f16`, optionally followed by `+zstd` and `+ans`."""
        first, *rest = text.split("+")
        for word, known in ((first, ("f32", "f16")), *((extra, EXTRAS) for extra in rest)):
            if word not in known:
                close = difflib.get_close_matches(word, known, 1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                raise ValueError(
                    f"`wire=` is f32 or f16, optionally with +zstd or +ans, not {text!r}{hint}"
                )
        return cls(first == "f16", "zstd" in rest, "ans" in rest)

    def check(self) -> None:
        """Raises ImportError if a package that the mode needs is not installed."""
        needs = ((self.zstd, "zstandard", "zstd"), (self.ans, "constriction", "ans"))
        for used, package, extra in needs:
            if used and find_spec(package) is None:
                raise ImportError(
                    f"`wire=` with +{extra} needs {package}; pip install 'gossamer[{extra}]'"
                )

    def __str__(self) -> str:
        return "f16" * self.half + "f32" * (not self.half) + "+zstd" * self.zstd + "+ans" * self.ans


PLAIN = Mode()
