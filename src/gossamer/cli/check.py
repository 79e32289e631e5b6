"""`gossamer check`: conformance tests for a method."""

from __future__ import annotations

import json
from collections.abc import Sequence

from gossamer.cli.parsing import Parser, refusing, say
from gossamer.config import Config, Experiment
from gossamer.report.columns import table


def check(arguments: Sequence[str]) -> int:
    """`gossamer check FILE:Class`: tests that a method is pure, encodable and resumable."""
    parser = Parser(prog="gossamer check", description=check.__doc__)
    parser.add_argument("method", help="my.py:Mine, or a method of `gossamer ls --all`")
    parser.add_argument("--compress", default="", metavar="COMPRESSOR", help="as in `gossamer run`")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    options = parser.read(arguments)
    from gossamer.conformance.promises import check as run_checks

    with refusing():
        chosen = Experiment(compress=options.compress)
        method = Config(options.method, experiment=chosen).build_method()
    results = list(run_checks(method))
    say(table([("ok" if each.ok else "FAILED", each.name, each.detail) for each in results]))
    failed = [each.name for each in results if not each.ok]
    if options.json:
        print(json.dumps({"method": options.method, "checks": len(results), "failed": failed}))
    return 1 if failed else 0
