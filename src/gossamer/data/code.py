"""Data that a function of the user's makes: `my.py:make`."""

from __future__ import annotations

from gossamer.data.federation import Federation

DIVIDING = ("partition", "pool", "least", "valid", "scale", "augment", "budgets")
"""Settings that divide data or prepare it."""


def divided_already(made: object, name: str, asked: object, usual: object) -> Federation:
    """The federation that a function made, which no setting divides again.

    Args:
        made: what the function returned.
        name: the reference to it.
        asked: a record of settings.
        usual: the record with its defaults.

    Raises:
        ValueError: it is no federation, or a setting would divide it.
    """
    if not hasattr(made, "pool") or not hasattr(made, "client"):
        raise ValueError(
            f"{name} returned a {type(made).__name__}; return a federation or data.Arrays"
        )
    for setting in DIVIDING:
        if getattr(asked, setting) != getattr(usual, setting):
            raise ValueError(
                f"{name} returned a federation, which is divided already; leave out "
                f"`{setting}=`, or return data.Arrays"
            )
    return made  # type: ignore[return-value]
