"""Remarks about data that can be used, but perhaps not as was meant."""

from __future__ import annotations

import warnings


class DataWarning(UserWarning):
    """Something about your data that you should know; the command line prints it as a note."""


def note(text: str) -> None:
    """Warns about data; the same text is shown once."""
    warnings.warn(text, DataWarning, stacklevel=2)
