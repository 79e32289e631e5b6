"""Lets examples in docstrings stand on the site as code: a paragraph of `>>>` becomes a block."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^( *)>>> .*(?:\n(?! *$).*)*", re.MULTILINE)


def fenced(text: str) -> str:
    """The text with every example, up to the next empty line, in a fence."""
    return EXAMPLE.sub(lambda found: f"{found[1]}```pycon\n{found[0]}\n{found[1]}```", text)


class Doctests(griffe.Extension):
    """Looks at every docstring that is read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
