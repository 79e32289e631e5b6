"""The text of `--dp`: clipping, noise and delta, as it is written and as it is used."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

Sampling = Literal["fixed", "poisson"]
"""Cohorts of a fixed size, drawn without replacement; or every client by a coin of its own."""

LOCAL = "local:"
"""How `--dp` begins if clients add the noise."""
FIRST_CLIP = 0.1
"""Where adaptive clipping begins (Andrew et al. 2021, section 3)."""
EXAMPLE = "clip=1.0,noise=0.8,delta=1e-5"


@dataclass(frozen=True)
class Spec:
    """What `--dp` asks for."""

    clip: float
    """The largest norm of a client's change; the first one if clipping is adaptive."""
    noise: float | None
    """The standard deviation of the noise, as a multiple of the clip."""
    epsilon: float | None
    """The guarantee after the last round, from which the noise is found."""
    delta: float
    quantile: float | None
    """The share of changes that adaptive clipping leaves as they are; None: the clip is fixed."""
    sampling: Sampling
    local: bool
    """Whether clients add the noise, each to its own reply."""

    @classmethod
    def parse(cls, text: str) -> Spec:
        """Reads `--dp`.

        Raises:
            ValueError: it cannot be read; the message has an example.
        """
        local = text.startswith(LOCAL)
        entries = _entries(text.removeprefix(LOCAL))
        clip, quantile = _clip(entries.pop("clip", ""))
        sampling = entries.pop("sampling", "fixed")
        numbers = {name: _number(name, value) for name, value in entries.items()}
        found = cls(
            clip,
            numbers.get("noise"),
            numbers.get("epsilon"),
            numbers.get("delta", 1e-5),
            quantile,
            sampling,  # type: ignore[arg-type]
            local,
        )
        found.check("sampling" in text)
        return found

    def check(self, sampled: bool) -> None:
        """Raises ValueError if the values cannot be used, alone or together."""
        if self.sampling not in get_args(Sampling):
            raise ValueError(f"`dp=`: sampling is fixed or poisson, not {self.sampling!r}")
        if (self.noise is None) == (self.epsilon is None):
            raise ValueError(f"`dp=` needs noise or epsilon, one of the two, e.g. {EXAMPLE}")
        bounds: dict[str, tuple[float | None, Callable[[float], bool], str]] = {
            "clip": (self.clip, lambda x: x > 0, "above 0"),
            "noise": (self.noise, lambda x: x >= 0, "0 or more"),
            "epsilon": (self.epsilon, lambda x: x > 0, "above 0"),
            "delta": (self.delta, lambda x: 0 < x < 1, "between 0 and 1"),
            "the quantile of clip=adaptive": (
                self.quantile,
                lambda x: 0 < x < 1,
                "between 0 and 1",
            ),
        }
        for name, (value, fits, words) in bounds.items():
            if value is not None and not (math.isfinite(value) and fits(value)):
                raise ValueError(f"`dp=`: {name} must be {words}, not {value:g}")
        if self.local and self.quantile is not None:
            raise ValueError(
                "`dp=` local: adaptive clipping needs to know how many changes were clipped, "
                "which clients do not tell; use a fixed clip, e.g. local:clip=1.0,noise=4"
            )
        if self.local and sampled:
            raise ValueError(
                "`dp=` local: the server sees every reply, so sampling hides nobody; leave it out"
            )


def _entries(text: str) -> dict[str, str]:
    entries: dict[str, str] = {}
    known = ("clip", "noise", "epsilon", "delta", "sampling")
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals or name not in known or name in entries:
            raise ValueError(
                f"`dp=` cannot read {part!r}; it takes each of {', '.join(known)} once, "
                f"e.g. {EXAMPLE}, and local: before them"
            )
        entries[name] = value
    return entries


def _clip(text: str) -> tuple[float, float | None]:
    if not text:
        raise ValueError(f"`dp=` needs clip, the largest norm of a client's change, e.g. {EXAMPLE}")
    if not text.startswith("adaptive"):
        return _number("clip", text), None
    _, *rest = text.split(":")
    if text.split(":")[0] != "adaptive" or len(rest) > 2:
        raise ValueError(f"`dp=`: clip is a number or adaptive:QUANTILE[:START], not {text!r}")
    quantile = _number("clip=adaptive", rest[0]) if rest else 0.5
    return (_number("clip=adaptive", rest[1]) if len(rest) > 1 else FIRST_CLIP), quantile


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"`dp=`: {name} is a number, not {text!r}; e.g. {EXAMPLE}") from None
