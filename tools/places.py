"""Places of a page that are written from files, `<!-- NAME -->` ... `<!-- /NAME -->`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

Blocks = Mapping[str, Callable[[], str]]
"""What is written into each place of a page."""


def filled(text: str, blocks: Blocks, page: Path, apart: str = "\n") -> str:
    """A page with the tables of its files in their places, `apart` from the comments.

    Raises:
        SystemExit: the page lacks a place.
    """
    for name, write in blocks.items():
        before, start, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- /{name} -->")
        if not start or not end:
            raise SystemExit(
                f"{page} has no place for {name}: <!-- {name} --> ... <!-- /{name} -->"
            )
        text = f"{before}{start}{apart}{write()}\n{apart}{end}{after}"
    return text
