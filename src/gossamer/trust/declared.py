"""What a method declares about the privacy of its replies.

A method that can be run under differential privacy says so by an attribute `privacy`. A method
that cannot may say why, in one sentence. A method that says nothing is refused; if the types of its
replies show that clients send masks, that is the reason.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gossamer.wire import Revision


@dataclass(frozen=True)
class Privacy:
    """Which numbers of a reply are to be covered, or why they cannot be."""

    refused: str = ""
    """The reason, as the end of a sentence that begins with the method's name; empty: none."""
    bits: Mapping[str, str] = field(default_factory=dict)
    """Fields of the reply that hold bits, and the fields of the request with their probabilities.

    The change of a bit is its difference from the probability. What is released is a probability
    again, from which bits are drawn for the method's merge.
    """
    least: float | None = None
    """Released numbers are at least this; noise may take them elsewhere."""
    most: float | None = None
    """Released numbers are at most this."""


COVERED = Privacy()
"""Replies are numbers at places that do not depend on the client's data."""
CHOSEN_MASKS = Privacy(
    refused="sends masks that clients choose by their data, and a choice can be neither clipped "
    "nor covered by noise; use a method with fixed masks, such as random_mask or pdst"
)
OWN_SUBMODELS = Privacy(
    refused="sends every client another part of the model, and replies of different form have no "
    "common sum; use a method with one mask for all, such as random_mask or pdst"
)
LEARNED_DENSITIES = Privacy(
    refused="begins with a few clients that learn masks from their data and send the density of "
    "each layer; use `allocation='erk'` or uniform, which need no data"
)
UNDECLARED = Privacy(
    refused="does not declare what its replies tell about clients; give it an attribute "
    "`privacy`, see docs/privacy.md"
)


def declared(method: object) -> Privacy:
    """What a method declares; a method without a declaration is refused."""
    known = getattr(method, "privacy", None)
    if isinstance(known, Privacy):
        return known
    words = set(_annotations(_reply(method)))
    return CHOSEN_MASKS if words & {"Masks", "Revision"} else UNDECLARED


def _reply(method: object) -> Any:
    """The type of a method's replies: the first argument of what `finish` returns."""
    finish = getattr(type(method), "finish", None)
    result = typing.get_type_hints(finish).get("return") if finish else None
    return next(iter(typing.get_args(result)), None)


def _annotations(hint: Any) -> Iterator[str]:
    """The words of the annotations in a type's fields, as written: masks are dictionaries too."""
    for argument in typing.get_args(hint):
        yield from _annotations(argument)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint) and hint is not Revision:
        for each in dataclasses.fields(hint):
            yield from re.findall(r"\w+", str(each.type))
        for inner in typing.get_type_hints(hint).values():
            yield from _annotations(inner)
