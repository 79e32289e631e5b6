"""What every method promises the engine, and the checks that hold it to that."""

from gossamer.conformance.promises import Finding, check

__all__ = ["Finding", "check"]
