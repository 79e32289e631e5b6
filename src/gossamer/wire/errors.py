"""Errors of decoding."""

NOT_FINITE = "not finite"
"""Is in the text of every error about numbers that are infinite or none at all."""


class WireError(ValueError):
    """A message is invalid, or does not fit its schema."""


class UnknownMask(WireError):
    """A message refers to a mask that the receiver does not hold; the complete mask is needed."""
