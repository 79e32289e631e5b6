"""The asynchronous server, as `--asynchronous` describes it.

Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba: Federated learning with buffered asynchronous
aggregation (FedBuff). AISTATS 2022. https://arxiv.org/abs/2106.06639
Xie, Koyejo, Gupta: Asynchronous federated optimization (FedAsync). 2019.
https://arxiv.org/abs/1903.03934
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

EXAMPLE = "buffer=10,concurrency=50,staleness=polynomial:0.5"


@dataclass(frozen=True)
class Staleness:
    """How much a change counts whose client began some merges ago (FedAsync, section 5.2)."""

    kind: Literal["constant", "polynomial", "hinge"] = "polynomial"
    first: float = 0.5
    second: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Staleness:
        """Reads `constant`, `polynomial:A` or `hinge:A:B`."""
        kind, *words = text.split(":")
        try:
            numbers = [float(word) for word in words]
        except ValueError:
            numbers = [math.nan]
        fits = all(0 <= number < math.inf for number in numbers)
        match kind, len(numbers):
            case "constant", 0:
                return cls("constant", 0.0)
            case "polynomial", 1 if fits:
                return cls("polynomial", numbers[0])
            case "hinge", 2 if fits:
                return cls("hinge", *numbers)
        raise ValueError(
            f"`asynchronous=`: staleness is constant, polynomial:0.5 or hinge:10:4, not {text!r}"
        )

    def weight(self, age: int) -> float:
        """The weight of a change that is `age` merges old; 1 if it is fresh."""
        match self.kind:
            case "polynomial":
                return float((1 + age) ** -self.first)
            case "hinge" if age > self.second:
                return 1 / (self.first * (age - self.second) + 1)
            case _:
                return 1.0


@dataclass(frozen=True)
class Asynchronous:
    """How many clients train at once, and when and how the server merges."""

    buffer: int = 10
    """Replies in a merge."""
    concurrency: int = 50
    """Clients that train at the same time."""
    staleness: Staleness = Staleness()
    rate: float = 1.0
    """By which the server multiplies changes."""
    merge: Literal["changes", "models"] = "changes"
    """Changes of what the client was sent (FedBuff), or differences to the server's model now
    (FedAsync mixes models)."""

    @classmethod
    def parse(cls, text: str) -> Asynchronous:
        """Reads `fedbuff`, `fedasync`, or settings such as `buffer=10,concurrency=50`.

        Raises:
            ValueError: A setting is unknown or out of bounds.
        """
        head, *rest = text.split(",")
        known = KINDS.get(head)
        values: dict[str, Any] = {}
        for part in rest if known else text.split(","):
            name, _, value = part.strip().partition("=")
            values[name] = _value(name, value, text)
        return replace(known or cls(), **values)


KINDS: Mapping[str, Asynchronous] = {
    "fedbuff": Asynchronous(),
    "fedasync": Asynchronous(buffer=1, rate=0.6, merge="models"),
}


def _value(name: str, value: str, text: str) -> Any:
    match name:
        case "staleness":
            return Staleness.parse(value)
        case "merge" if value in ("changes", "models"):
            return value
        case "buffer" | "concurrency" if value.isascii() and value.isdecimal() and int(value):
            return int(value)
        case "rate":
            try:
                if 0 < (rate := float(value)) < math.inf:
                    return rate
            except ValueError:
                pass
    raise ValueError(
        f"`asynchronous=` takes fedbuff, fedasync or settings such as {EXAMPLE},rate=1,"
        f"merge=changes, not {text!r}"
    )
