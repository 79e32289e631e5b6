"""What can be wrong with a message."""


class WireError(ValueError):
    """A message that cannot be what it claims to be."""


class UnknownMask(WireError):
    """A message builds on a mask that the receiver does not hold; the whole mask would do."""
