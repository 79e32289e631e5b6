"""Tables of text: rows as aligned columns that fit the terminal."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Collection, Iterable, Sequence

GAP = "  "
WIDTH = 80
"""Characters of a line if there is no terminal to ask."""
NARROWEST = 24
"""Columns wider than this are wrapped if a table would be wider than the terminal."""
_WORDS = re.compile(r"\s+|[^\s\[\]./]+[\[\]./]*|[\[\]./]+")
"""Where a cell may be broken: at spaces, and inside names such as `model.values[conv1.weight]`."""


def terminal_width() -> int:
    """Characters of a line: those of the terminal or of the variable COLUMNS, otherwise 80."""
    return shutil.get_terminal_size((WIDTH, 24)).columns


def paragraph(text: str, first: str = "") -> str:
    """A text as lines that fit the terminal, the first of them after a mark."""
    indent = " " * len(first)
    return textwrap.fill(text, terminal_width(), initial_indent=first, subsequent_indent=indent)


def table(
    rows: Iterable[Sequence[object]],
    header: Sequence[str] = (),
    *,
    keys: int = 1,
    optional: Collection[str] = (),
    breaks: Collection[str] = (),
    width: int | None = None,
) -> str:
    """Rows as aligned columns, numbers to the right.

    A table that is too wide leaves out its optional columns, then wraps its widest ones, and is
    continued below if that does not suffice.

    >>> print(table([("fedavg", 12), ("spafl", 3)], ("method", "bits")))
    method  bits
    ------  ----
    fedavg    12
    spafl      3

    Args:
        rows: the cells; all rows have as many.
        header: the titles of the columns.
        keys: the first columns, which are repeated in every part of a table that is continued.
        optional: titles of columns that may be left out.
        breaks: titles of columns that begin another part of a table that is too wide.
        width: of a line; by default, that of the terminal.
    """
    cells = [[str(cell) for cell in row] for row in ([header] if header else [])]
    cells += [[_text(cell) for cell in row] for row in rows]
    if not cells:
        return ""
    limit = terminal_width() if width is None else width
    columns = [list(column) for column in zip(*cells, strict=True)]
    if header and _narrowest(columns) > limit:
        columns = [column for column in columns if column[0] not in optional] or columns
    parts = _parts(columns, keys, limit, breaks if header else ())
    return "\n\n".join(_drawn(part, bool(header), limit) for part in parts)


def _parts(
    columns: list[list[str]], keys: int, limit: int, breaks: Collection[str]
) -> list[list[list[str]]]:
    """The columns in groups that fit when they are wrapped, each with the keys before it."""
    if _narrowest(columns) <= limit:
        return [columns]
    head, rest = columns[:keys], columns[keys:]
    parts = [head]
    for column in rest:
        grown = [*parts[-1], column]
        full = _narrowest(grown) > limit or column[0] in breaks
        if full and len(parts[-1]) > len(head):
            parts.append([*head, column])
        else:
            parts[-1] = grown
    return parts


def _narrowest(columns: Sequence[Sequence[str]]) -> int:
    """The width of a table whose wide columns are wrapped."""
    widths = (min(_width(column), NARROWEST) for column in columns)
    return sum(widths) + len(GAP) * (len(columns) - 1)


def _drawn(columns: Sequence[Sequence[str]], titled: bool, limit: int) -> str:
    """Lines of text; the first cell of every column is its title, if there are titles."""
    widths = _fitted([_width(column) for column in columns], limit)
    lines = []
    for row in zip(*columns, strict=True):
        wrapped = [_wrapped(cell, width) for cell, width in zip(row, widths, strict=True)]
        for place in range(max(map(len, wrapped))):
            pieces = [part[place] if place < len(part) else "" for part in wrapped]
            padded = [
                piece.rjust(width) if _is_number(piece) else piece.ljust(width)
                for piece, width in zip(pieces, widths, strict=True)
            ]
            lines.append(GAP.join(padded).rstrip())
        if titled and len(lines) == max(map(len, wrapped)):
            lines.append(GAP.join("-" * width for width in widths))
            titled = False
    return "\n".join(lines)


def _fitted(widths: list[int], limit: int) -> list[int]:
    """The widths, of which the largest shrink until all fit or none is wide."""
    excess = sum(widths) + len(GAP) * (len(widths) - 1) - limit
    while excess > 0 and max(widths) > NARROWEST:
        widths[widths.index(max(widths))] -= 1
        excess -= 1
    return widths


def _wrapped(cell: str, width: int) -> list[str]:
    """A cell as lines of at most `width` characters; continued lines are indented."""
    if len(cell) <= width:
        return [cell]
    before = min(len(cell) - len(cell.lstrip()), width // 2)
    indent = " " * min(before + 2, width // 2)
    lines = [" " * before]
    for word in _WORDS.findall(cell.lstrip()):
        while len(lines[-1] + word.rstrip()) > width:
            if lines[-1].strip():
                lines[-1] = lines[-1].rstrip()
                lines.append(indent)
                word = word.lstrip()
            else:
                room = width - len(lines[-1])
                lines[-1], word = lines[-1] + word[:room], word[room:]
        lines[-1] += word
    return [line.rstrip() for line in lines if line.strip()]


def _width(column: Sequence[str]) -> int:
    return max(map(len, column))


def _text(cell: object) -> str:
    return f"{cell:.4f}" if isinstance(cell, float) else "-" if cell is None else str(cell)


def _is_number(cell: str) -> bool:
    return cell.replace(".", "").replace(",", "").replace("-", "").isdecimal()
