"""How numbers travel: as they are, as halves, or compressed, whatever the method."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

EXTRAS = ("zstd", "ans")


@dataclass(frozen=True)
class Mode:
    """A way of writing values and masks, agreed on by both sides."""

    half: bool = False
    """float32 as scaled float16; going up, the difference to what the client received."""
    zstd: bool = False
    """Bytes of values shuffled and compressed, where that is smaller."""
    ans: bool = False
    """Masks by range coding instead of Rice codes: smaller, slower, needs an extra."""

    @classmethod
    def parse(cls, text: str) -> Mode:
        """`f32`, `f16`, and either with `+zstd` or `+ans` behind it."""
        first, *rest = text.split("+")
        for word, known in ((first, ("f32", "f16")), *((extra, EXTRAS) for extra in rest)):
            if word not in known:
                close = difflib.get_close_matches(word, known, 1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                raise ValueError(
                    f"--wire is f32 or f16, with +zstd or +ans behind it, not {text!r}{hint}"
                )
        return cls(first == "f16", "zstd" in rest, "ans" in rest)

    def __str__(self) -> str:
        return "f16" * self.half + "f32" * (not self.half) + "+zstd" * self.zstd + "+ans" * self.ans


PLAIN = Mode()
