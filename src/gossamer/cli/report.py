"""`gossamer report`: runs as one page to look at, offline."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from gossamer.cli.parsing import Parser, Refusal, say, warn
from gossamer.cli.run import refusing
from gossamer.engine.checkpoint import write_atomically
from gossamer.report import NoRun, Report
from gossamer.report import report as compose


def report(arguments: Sequence[str]) -> int:
    """`gossamer report RUN... [-o report.html]`: one self-contained page about runs."""
    parser = Parser(prog="gossamer report", description=report.__doc__)
    parser.add_argument("runs", nargs="*", metavar="RUN", help="folders of runs")
    parser.add_argument(
        "-o", "--out", default="report.html", metavar="FILE", help="default: report.html"
    )
    parser.add_argument("--title", default="", help="default: the methods")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    options = parser.read(arguments)
    if not options.runs:
        raise Refusal("name the folder of a run, e.g. `gossamer report runs/demo/fedavg/seed-1`")
    with refusing():
        try:
            found = compose(options.runs, options.title)
        except NoRun as problem:
            raise Refusal(f"{problem}{_hint(options.runs)}") from None
        write(found, Path(options.out))
    for text in found.notices:
        warn(text)
    runs = f"{len(found.runs)} runs" if len(found.runs) > 1 else "1 run"
    say(f"report of {runs}: {options.out}")
    if options.json:
        print(json.dumps(_figures(found, options.out)), flush=True)
    return 0


def write(found: Report, path: Path) -> None:
    """Puts a report where a reader finds the old one or the new one, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, found.html.encode())


def _hint(folders: Sequence[str]) -> str:
    """What may have been meant by a folder that holds runs without being one."""
    for folder in map(Path, folders):
        if any(folder.glob("*/events.jsonl")):
            return f"; the folders in it are: gossamer report {folder}/*/"
    return ""


def _figures(found: Report, out: str) -> dict[str, object]:
    return {
        "report": out,
        "bytes": len(found.html.encode()),
        "runs": [run.folder for run in found.runs],
        "groups": {group.label: [run.folder for run in group.runs] for group in found.groups},
        "notices": list(found.notices),
    }
