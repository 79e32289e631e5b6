"""What a method declares about the privacy of its replies.

A method that can be run under differential privacy says so by an attribute `privacy`. A method
that cannot says why, in one sentence. A method that says nothing is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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
    "each layer; use --allocation erk or uniform, which need no data"
)
UNDECLARED = Privacy(
    refused="does not declare what its replies tell about clients; give it an attribute "
    "`privacy`, see docs/privacy.md"
)


def declared(method: object) -> Privacy:
    """What a method declares; a method without a declaration is refused."""
    known = getattr(method, "privacy", UNDECLARED)
    return known if isinstance(known, Privacy) else UNDECLARED
