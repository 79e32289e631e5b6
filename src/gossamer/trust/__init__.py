"""What a server does not take on trust: the size of replies, and what they tell of clients."""

from gossamer.trust.changes import Change, change, mapped, norm, scaled, with_change

__all__ = ["Change", "change", "mapped", "norm", "scaled", "with_change"]
