"""`gossamer paper`: a table of a paper, run as far as a machine allows, beside what was printed."""

from __future__ import annotations

import json
import shlex
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gossamer import data
from gossamer.cli.compare import Wanted, carry_out, filed
from gossamer.cli.parsing import Parser, Refusal, say
from gossamer.cli.parsing import table as aligned
from gossamer.cli.run import refusing
from gossamer.config import nearest
from gossamer.engine import events
from gossamer.report import report
from gossamer.reproduce.plans import Plan
from gossamer.reproduce.published import beside, comma_separated, latex, legend, plain, text
from gossamer.reproduce.tables import SCALES, Scale, Table, described, find

SMALLEST = "quick"
WIDTH = 100
"""Columns of text around a table."""


def paper(arguments: Sequence[str]) -> int:
    """`gossamer paper NAME [--scale quick|here|full]`; without a name it lists the tables."""
    parser = Parser(
        prog="gossamer paper",
        description="Runs a table of a paper and prints published beside measured; "
        "without a name, lists the tables. The same command goes on where it was stopped.",
    )
    parser.add_argument("name", nargs="?", help="a table, or a file of your own")
    parser.add_argument(
        "--scale",
        choices=SCALES,
        default=SMALLEST,
        help="quick (default): minutes, does everything run; here: an hour or two on two cores "
        "and real data; full: the paper's own rounds and seeds",
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="ROW", help="run this row; may be repeated"
    )
    parser.add_argument(
        "--seeds", type=int, default=None, metavar="N", help="instead of the scale's"
    )
    parser.add_argument("--dry", action="store_true", help="say what would be run, and run nothing")
    parser.add_argument(
        "--out", default="", metavar="FOLDER", help="default: runs/paper-NAME-SCALE"
    )
    parser.add_argument("--workers", default=None, metavar="N", help="worker threads")
    parser.add_argument("--device", default=None, metavar="TEXT", help="cpu (default), or cuda")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--quiet", action="store_true", help="show no progress and no table")
    options = parser.read(arguments)
    if options.name is None:
        return _listed(options.json)
    with refusing():
        table = find(options.name)
    if options.scale not in table.scales:
        raise Refusal(f"{table.name} has no scale {options.scale}, only {', '.join(table.scales)}")
    if options.seeds is not None and options.seeds < 1:
        raise Refusal(f"--seeds must be at least 1, not {options.seeds}")
    scale = table.scales[options.scale]
    out = Path(options.out or Path("runs") / f"paper-{table.name}-{scale.name}")
    more = {name: value for name in ("workers", "device") if (value := getattr(options, name))}
    with refusing():
        plans = table.plans(scale, out, options.seeds or 0, more)
    todo = _chosen(table, scale, plans, options.only)
    if options.dry:
        return _foreseen(table, scale, todo, options.json)
    if not options.quiet:
        say(_heading(table, scale))
    command = shlex.join(["gossamer", "paper", *arguments])
    wanted = Wanted(out, command, command, quiet=options.quiet, what=table.name, keeps=False)
    return carry_out(todo, wanted) or _shown(table, scale, plans, wanted, options.json)


def _listed(as_json: bool) -> int:
    """All tables, a line each."""
    known = described()
    say(aligned([[each["name"], each["title"]] for each in known]))
    say("\n`gossamer paper NAME` checks that a table runs; --scale here and full go further")
    if as_json:
        print(json.dumps({"tables": known}), flush=True)
    return 0


def _chosen(
    table: Table, scale: Scale, plans: Sequence[Plan], only: Sequence[str]
) -> Sequence[Plan]:
    """The runs that were asked for."""
    for name in only:
        if name not in table.rows:
            raise Refusal(
                f"no row {name!r} in {table.name}{nearest(name, table.rows)} "
                f"rows: {', '.join(table.rows)}"
            )
        if table.rows[name].config is None:
            raise Refusal(f"row {name} has published figures, and nothing here that could run it")
        if name not in _names(table, scale):
            others = [each for each in table.scales.values() if name in _names(table, each)]
            hint = f"; use --scale {others[0].name}" if others else ""
            raise Refusal(f"row {name} is not run at scale {scale.name}{hint}")
    return [plan for plan in plans if not only or plan.folder.parent.name in only]


def _names(table: Table, scale: Scale) -> list[str]:
    return [row.name for row in table.runs(scale)]


def _foreseen(table: Table, scale: Scale, todo: Sequence[Plan], as_json: bool) -> int:
    """What would be run."""
    runs = [_told(plan) for plan in todo]
    say(_heading(table, scale))
    header = ["row", "seed", "method", "data", "model", "rounds"]
    say(aligned([[run[name] for name in header] for run in runs], header))
    many = f"{len(runs)} runs" if len(runs) != 1 else "1 run"
    say(f"{many}, {sum(run['rounds'] for run in runs)} rounds in all")
    wanted = {run["data"] for run in runs}
    missing = {each.name: each.advice for each in data.ls() if each.advice and each.name in wanted}
    for name, advice in missing.items():
        say(f"{name} is not here: {advice}")
    if as_json:
        figures = {"table": table.name, "scale": scale.name, "runs": runs, "missing": [*missing]}
        print(json.dumps(events.plain(figures)), flush=True)
    return 0


def _told(plan: Plan) -> dict[str, Any]:
    wish = plan.config.experiment
    return {
        "row": plan.folder.parent.name,
        "seed": wish.seed,
        "method": plan.config.method,
        "data": wish.data,
        "model": wish.model,
        "rounds": wish.rounds,
        "folder": str(plan.folder),
    }


def _heading(table: Table, scale: Scale) -> str:
    lines = [table.title, table.source, f"scale {scale.name}: {scale.about}"]
    return "\n".join([*map(_wrapped, lines), ""])


def _wrapped(line: str, first: str = "") -> str:
    return textwrap.fill(line, WIDTH, initial_indent=first, subsequent_indent=" " * len(first))


def _shown(table: Table, scale: Scale, plans: Sequence[Plan], wanted: Wanted, as_json: bool) -> int:
    """The table, the files beside it, and the page."""
    out = wanted.out
    found = beside(table, plans)
    notes = [f"scale {scale.name}: {scale.about}", *legend(found)]
    if not wanted.quiet:
        say("\n".join(["", text(found), "", *(_wrapped(note, "- ") for note in notes), ""]))
    told = f"{table.source}. {scale.name}: {scale.about}."
    forms = {"csv": comma_separated(found), "latex": latex(found)}
    files = filed(wanted, out / "table", forms, lambda: report(found.folders, table.title, told))
    if as_json:
        figures = {"table": table.name, "scale": scale.name, "out": str(out), **files}
        print(json.dumps(events.plain({**figures, "figures": plain(found)})), flush=True)
    return 0
