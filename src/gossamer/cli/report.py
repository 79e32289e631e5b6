"""`gossamer report`: an offline HTML page about runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from gossamer.cli.parsing import FAILED, Parser, Refusal, refusing, say, warn
from gossamer.engine.checkpoint import write_atomically
from gossamer.report import NoRun, Report
from gossamer.report import report as compose


def report(arguments: Sequence[str]) -> int:
    """`gossamer report RUN... [-o report.html]`: writes one self-contained page about runs."""
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
            page = compose(options.runs, options.title)
        except NoRun as problem:
            raise Refusal(f"{problem}{_hint(options.runs)}") from None
        write(page, Path(options.out))
    for text in page.notices:
        warn(text)
    runs = f"{len(page.runs)} runs" if len(page.runs) > 1 else "1 run"
    say(f"report of {runs}: {options.out}")
    if options.json:
        print(json.dumps(_figures(page, options.out)), flush=True)
    return FAILED if any(run.damaged for run in page.runs) else 0


def write(page: Report, path: Path) -> None:
    """Writes a report atomically: readers see the old or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page.html.encode())


def _hint(folders: Sequence[str]) -> str:
    """A suggestion for a folder that contains runs but is none itself."""
    for folder in map(Path, folders):
        if any(folder.glob("*/events.jsonl")):
            return f"; for the runs inside it, use: gossamer report {folder}/*/"
    return ""


def _figures(page: Report, out: str) -> dict[str, object]:
    return {
        "report": out,
        "bytes": len(page.html.encode()),
        "runs": [run.folder for run in page.runs],
        "groups": {group.label: [run.folder for run in group.runs] for group in page.groups},
        "notices": list(page.notices),
    }
