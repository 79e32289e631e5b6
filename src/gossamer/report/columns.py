"""Tables of text: rows as aligned columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(rows: Iterable[Sequence[object]], header: Sequence[str] = ()) -> str:
    """Rows as aligned columns, numbers to the right.

    >>> print(table([("fedavg", 12), ("spafl", 3)], ("method", "bits")))
    method  bits
    ------  ----
    fedavg    12
    spafl      3
    """
    cells = [[str(cell) for cell in row] for row in ([header] if header else [])]
    cells += [[_text(cell) for cell in row] for row in rows]
    if not cells:
        return ""
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    lines = []
    for row in cells:
        padded = [
            cell.rjust(width) if _is_number(cell) else cell.ljust(width)
            for cell, width in zip(row, widths, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    if header:
        lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def _text(cell: object) -> str:
    return f"{cell:.4f}" if isinstance(cell, float) else "-" if cell is None else str(cell)


def _is_number(cell: str) -> bool:
    return cell.replace(".", "").replace(",", "").replace("-", "").isdecimal()
