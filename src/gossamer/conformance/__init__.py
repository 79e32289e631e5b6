"""What every method promises the engine, and the checks of these promises."""

from gossamer.conformance.promises import Finding, check

__all__ = ["Finding", "check"]
