"""Numbers with suitable units: bits, FLOPs and durations."""

from __future__ import annotations

PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def scaled(value: float, unit: str) -> str:
    """A number with four digits and a prefix: 1234567 bits are 1.235 Mbit."""
    for prefix in PREFIXES:
        if float(f"{value:.4g}") < 1000 or prefix == PREFIXES[-1]:
            return f"{value:.4g} {prefix}{unit}"
        value /= 1000
    return ""


def bits(value: float | None) -> str:
    return "–" if value is None else scaled(value, "bit")


def operations(value: float | None) -> str:
    return "–" if value is None else scaled(value, "FLOP")


def seconds(value: float | None) -> str:
    """A duration in seconds, minutes, hours or days."""
    if value is None:
        return "–"
    for size, unit, limit in ((1, "s", 120), (60, "min", 7200), (3600, "h", 172800)):
        if value < limit:
            return f"{value / size:.4g} {unit}"
    return f"{value / 86400:.4g} days"


def score(value: float | None) -> str:
    """A metric: four decimals, or four digits from 10 on; 0.9123, 23.45, 1234.

    >>> score(0.91234), score(23.4567), score(123456.7)
    ('0.9123', '23.46', '123457')
    """
    if value is None:
        return "–"
    if abs(value) < 10:
        return f"{value:.4f}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def share(value: float | None) -> str:
    """An accuracy or density, as a fraction of one."""
    return "–" if value is None else f"{value:.4f}"
