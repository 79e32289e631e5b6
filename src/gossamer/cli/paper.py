"""`gossamer paper`: reproduce a paper's table, published next to measured figures."""

from __future__ import annotations

import json
import shlex
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gossamer
from gossamer import data
from gossamer.cli.compare import Request, carry_out, write_files
from gossamer.cli.parsing import Parser, Refusal, refusing, say, warn
from gossamer.config import nearest
from gossamer.engine import events
from gossamer.report import report
from gossamer.report.columns import paragraph
from gossamer.report.columns import table as aligned
from gossamer.report.kept import Shelf, keep
from gossamer.reproduce import claims, pictures
from gossamer.reproduce.comparison import run_of
from gossamer.reproduce.plans import Plan
from gossamer.reproduce.published import Measured, measured_table
from gossamer.reproduce.published_text import (
    comma_separated,
    latex,
    legend,
    page_table,
    plain,
    text,
)
from gossamer.reproduce.tables import SCALES, Scale, Table, described, find

SMALLEST = "quick"
_PLANNED = ("name", "scale", "only", "seeds", "out", "results")
"""Options that decide what is run."""
_HOW = ("workers", "device", "quiet", "json")
"""Options that change no figure; they may stay in a command that is used again."""
RESULTS = Path(gossamer.__file__).parents[2] / "results"
"""In a clone, the results that come with it."""


def paper(arguments: Sequence[str]) -> int:
    """`gossamer paper NAME [--scale quick|costs|here|full]`; without a name it lists the tables."""
    parser = Parser(
        prog="gossamer paper",
        description="Reproduces a paper's table: published vs. measured figures. "
        "Without a name, lists the tables. Repeat the command to resume after an interruption.",
    )
    parser.add_argument("name", nargs="?", help="a table's name, or your own TOML file")
    parser.add_argument(
        "--scale",
        choices=SCALES,
        default=None,
        help="quick (default): minutes, checks that everything runs; costs: a few rounds with real "
        "data, for what is sent; here: an hour or two on two cores with real data; full: the "
        "paper's own rounds and seeds",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="ROW",
        help="run this row; may be repeated",
    )
    parser.add_argument(
        "--seeds",
        type=int,
        default=None,
        metavar="N",
        help="seeds per row (default: the scale's)",
    )
    parser.add_argument("--dry", action="store_true", help="list the runs without starting them")
    parser.add_argument(
        "--out", default="", metavar="FOLDER", help="default: runs/paper-NAME-SCALE"
    )
    parser.add_argument(
        "--results",
        default="",
        metavar="FOLDER",
        help="keep every finished run as a small file here, and do not repeat kept runs; "
        "default: read those that come with a clone, keep none",
    )
    parser.add_argument(
        "--kept",
        action="store_true",
        help="run nothing: the table, its claims and pictures from the results that are kept, at "
        "the scale that has most of them unless --scale names one",
    )
    parser.add_argument(
        "--pictures",
        default="",
        metavar="FOLDER",
        help="draw mask mismatch, sparsity, sparsity across clients, and accuracy against traffic",
    )
    parser.add_argument(
        "--claims",
        action="store_true",
        help="every claim of a table, or of all of them, printed vs. measured, by kept results",
    )
    parser.add_argument("--workers", default=None, metavar="N", help="number of worker threads")
    parser.add_argument("--device", default=None, metavar="TEXT", help="cpu (default) or cuda")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    options = parser.read(arguments)
    if options.claims:
        _only(options, "--claims", "name", "results", "claims")
        return _claims(options.name, options.results, options.json)
    if options.name is None:
        _only(options, "the list of tables")
        return _listed(options.json)
    with refusing():
        table = find(options.name)
    wanted = options.scale or SMALLEST
    if wanted not in table.scales and (options.scale or not options.kept):
        raise Refusal(f"{table.name} has no scale {wanted}, only {', '.join(table.scales)}")
    shelf = Shelf(Path(options.results) if options.results else RESULTS)
    if options.kept:
        _only(options, "--kept", "name", "results", "kept", "scale", "pictures")
        return _present_kept(table, shelf, options.scale, options.pictures, options.json)
    if options.seeds is not None and options.seeds < 1:
        raise Refusal(f"--seeds must be at least 1, not {options.seeds}")
    scale = table.scales[wanted]
    out = Path(options.out or Path("runs") / f"paper-{table.name}-{scale.name}")
    more = {name: value for name in ("workers", "device") if (value := getattr(options, name))}
    with refusing():
        plans = table.plans(scale, out, options.seeds or 0, more)
    todo = _chosen(table, scale, plans, options.only)
    left = [plan for plan in todo if not shelf.find(plan.config)]
    if options.dry:
        _only(options, "--dry", *_PLANNED, "dry")
        return _list_runs(table, scale, left, len(todo) - len(left), options.json)
    if not options.quiet:
        say(_heading(table, scale))
    command = shlex.join(["gossamer", "paper", *arguments])
    request = Request(
        out, command, command, quiet=options.quiet, what=table.name, resumes_any=False
    )
    if options.results:
        kept = _kept(Path(options.results) / table.name, scale)
        request = replace(request, finished=lambda plan: keep(run_of(plan), kept(plan)))
    if not options.quiet and len(left) < len(todo):
        say(f"{len(todo) - len(left)} of {len(todo)} runs are kept in {shelf.folder}")
    if left and (code := carry_out(left, request)):
        return code
    measured = measured_table(table, plans, Shelf(shelf.folder))
    _present(measured, scale, request, options.json)
    return _draw(measured, options.pictures)


def _present_kept(table: Table, shelf: Shelf, scale: str | None, folder: str, as_json: bool) -> int:
    """Prints the table as far as results of it are kept, and draws its pictures."""
    measured, name = claims.kept_table(table, shelf, [scale] if scale else table.scales)
    if not measured.folders and not measured.diverged:
        raise Refusal(f"no run of {table.name} is kept in {shelf.folder}")
    say(_heading(table, table.scales[name]))
    judged = _shown(measured, table.scales[name])
    if as_json:
        figures = {"figures": plain(measured), "claims": claims.plain(judged)}
        print(json.dumps(events.plain({"table": table.name, "scale": name, **figures})), flush=True)
    return _draw(measured, folder)


def _draw(measured: Measured, folder: str) -> int:
    """Draws the pictures of a table, if a folder for them is given."""
    if not folder:
        return 0
    rows = {
        measured.table.rows[name].title.replace("`", ""): runs
        for name, runs in measured.runs.items()
    }
    try:
        for path in pictures.draw(rows, Path(folder)):
            say(f"picture: {path}")
    except ImportError as problem:
        warn(str(problem))
        return 1
    return 0


def _only(options: Namespace, what: str, *names: str) -> None:
    """Refuses options that have no effect where nothing is run."""
    for name, value in vars(options).items():
        if value and name not in (*names, *_HOW):
            said = f"--{name}" if name != "name" else "a table's name"
            raise Refusal(f"{what} runs nothing, so {said} has no effect; leave it out")


def _claims(name: str | None, results: str, as_json: bool) -> int:
    """Prints the claims of a table, or of all, judged by results that are kept."""
    with refusing():
        tables = None if name is None else [find(name)]
    if tables and not tables[0].claims:
        raise Refusal(f"{tables[0].name} has no claims")
    if results and not Path(results).is_dir():
        raise Refusal(f"there is no folder {results} with kept results")
    judged = claims.judge_kept(Shelf(Path(results) if results else RESULTS), tables)
    for line in claims.text(judged):
        say(paragraph(line, "- "))
    if as_json:
        print(json.dumps(events.plain({"claims": claims.plain(judged)})), flush=True)
    return 0


def _kept(folder: Path, scale: Scale) -> Callable[[Plan], Path]:
    """The file of a run; those of other scales than `here` have the scale in their names."""
    end = "" if scale.name == "here" else f"-{scale.name}"
    return lambda plan: folder / f"{plan.folder.parent.name}-{plan.folder.name}{end}.json"


def _listed(as_json: bool) -> int:
    """Lists all tables, one per line."""
    known = described()
    say(aligned([[each["name"], each["title"]] for each in known]))
    say("\n`gossamer paper NAME` checks that a table runs")
    say("`gossamer paper NAME --scale here` or `--scale full` reproduces it")
    if as_json:
        print(json.dumps({"tables": known}), flush=True)
    return 0


def _chosen(
    table: Table, scale: Scale, plans: Sequence[Plan], only: Sequence[str]
) -> Sequence[Plan]:
    """The selected runs."""
    for name in only:
        if name not in table.rows:
            raise Refusal(
                f"no row {name!r} in {table.name}{nearest(name, table.rows)} "
                f"rows: {', '.join(table.rows)}"
            )
        if table.rows[name].config is None:
            raise Refusal(f"row {name} has published figures only; no method here can run it")
        if name not in _names(table, scale):
            others = [each for each in table.scales.values() if name in _names(table, each)]
            hint = f"; use --scale {others[0].name}" if others else ""
            raise Refusal(f"row {name} is not run at scale {scale.name}{hint}")
    return [plan for plan in plans if not only or plan.folder.parent.name in only]


def _names(table: Table, scale: Scale) -> list[str]:
    return [row.name for row in table.runs(scale)]


def _list_runs(table: Table, scale: Scale, todo: Sequence[Plan], kept: int, as_json: bool) -> int:
    """Lists the runs of a table that are not kept, and the data sets that are missing."""
    runs = [_described(plan) for plan in todo]
    say(_heading(table, scale))
    header = ["row", "seed", "method", "data", "model", "rounds"]
    say(aligned([[run[name] for name in header] for run in runs], header))
    count = f"{len(runs)} runs" if len(runs) != 1 else "1 run"
    beside = f"; {kept} more are kept, see --kept --scale {scale.name}" if kept else ""
    say(f"{count}, {sum(run['rounds'] for run in runs)} rounds in total{beside}")
    needed = {run["data"] for run in runs}
    missing = {each.name: each.advice for each in data.ls() if each.advice and each.name in needed}
    for name, advice in missing.items():
        say(f"{name} is not here: {advice}")
    if as_json:
        figures = {"table": table.name, "scale": scale.name, "runs": runs, "missing": [*missing]}
        print(json.dumps(events.plain(figures)), flush=True)
    return 0


def _described(plan: Plan) -> dict[str, Any]:
    experiment = plan.config.experiment
    return {
        "row": plan.folder.parent.name,
        "seed": experiment.seed,
        "method": plan.config.method,
        "data": experiment.data,
        "model": experiment.model,
        "rounds": experiment.rounds,
        "folder": str(plan.folder),
    }


def _heading(table: Table, scale: Scale) -> str:
    lines = [table.title, table.source, f"scale {scale.name}: {scale.about}"]
    return "\n".join([*map(paragraph, lines), ""])


def _shown(measured: Measured, scale: Scale) -> list[claims.Judged]:
    """Prints the table with its notes and claims, which are returned."""
    judged = claims.judge(measured, scale.name) if scale.name in claims.SETTLED else []
    notes = [f"scale {scale.name}: {scale.about}", *legend(measured), *claims.text(judged)]
    say("\n".join(["", text(measured), "", *(paragraph(note, "- ") for note in notes), ""]))
    return judged


def _present(measured: Measured, scale: Scale, request: Request, as_json: bool) -> None:
    """Prints the table, and writes it as files and as a page."""
    out, table = request.out, measured.table
    out.mkdir(parents=True, exist_ok=True)
    judged = _shown(measured, scale)
    introduction = f"{table.source}. {scale.name}: {scale.about}."
    forms = {"csv": comma_separated(measured), "latex": latex(measured)}
    files = write_files(
        request,
        out / "table",
        forms,
        lambda: report(measured.folders, table.title, introduction, page_table(measured)),
    )
    if as_json:
        heads = {"table": table.name, "scale": scale.name, "out": str(out), **files}
        both = {"figures": plain(measured), "claims": claims.plain(judged)}
        print(json.dumps(events.plain({**heads, **both})), flush=True)
