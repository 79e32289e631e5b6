"""`gossamer cp` and `check`: for those who write a method of their own."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from pathlib import Path

from gossamer.cli.parsing import Parser, Refusal, say, table
from gossamer.cli.run import refusing
from gossamer.config import find_method


def cp(arguments: Sequence[str]) -> int:
    """`gossamer cp METHOD FILE`: a method's source, to be changed and run as FILE:Class."""
    parser = Parser(prog="gossamer cp", description=cp.__doc__)
    parser.add_argument("method", help="a method of `gossamer ls`")
    parser.add_argument("file", help="where to write it, e.g. mine.py")
    options = parser.read(arguments)
    with refusing():
        method = type(find_method(options.method))
        source = inspect.getsource(inspect.getmodule(method) or method)
        target = Path(options.file)
        if target.exists():
            raise Refusal(f"{target} exists already; choose another name or move it away")
        target.write_text(source)
    name = f"{target}:{method.__name__}"
    say(f"wrote {target}; test it with `gossamer check {name}`, run it with `gossamer run {name}`")
    return 0


def check(arguments: Sequence[str]) -> int:
    """`gossamer check FILE:Class`: is a method pure, encodable, resumable, the same everywhere?"""
    parser = Parser(prog="gossamer check", description=check.__doc__)
    parser.add_argument("method", help="my.py:Mine, or a method of `gossamer ls`")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    options = parser.read(arguments)
    from gossamer.conformance.promises import check as conform

    with refusing():
        method = find_method(options.method)
    results = list(conform(method))
    say(table([("ok" if r.ok else "FAILED", r.name, r.detail) for r in results]))
    failed = [result.name for result in results if not result.ok]
    if options.json:
        print(json.dumps({"method": options.method, "checks": len(results), "failed": failed}))
    return 1 if failed else 0
