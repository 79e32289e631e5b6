"""`gossamer cp`: a method as a file to change."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from gossamer.cli.parsing import Parser, Refusal, refusing, say
from gossamer.config import find_method
from gossamer.standalone import standalone


def cp(arguments: Sequence[str]) -> int:
    """`gossamer cp METHOD FILE`: copies a method's source to a file that runs as it does."""
    parser = Parser(prog="gossamer cp", description=cp.__doc__)
    parser.add_argument("method", help="a method of `gossamer ls --all`")
    parser.add_argument("file", help="the file to write, e.g. mine.py")
    options = parser.read(arguments)
    target = Path(options.file)
    with refusing():
        copy = standalone(find_method(options.method))
        if target.suffix != ".py":
            raise Refusal(f"{target} does not end in .py, so `gossamer run` could not load it")
        if target.exists():
            raise Refusal(f"{target} exists already; choose another name or move it away")
        target.write_text(copy.source, encoding="utf-8")
    name = shlex.quote(f"{target}:{copy.member}")
    say(f"wrote {target}\nrun it:   gossamer run {name}\ntest it:  gossamer check {name}")
    return 0
