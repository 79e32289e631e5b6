"""`gossamer verify`: checks the files of a run or of a node."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from gossamer.cli.parsing import FAILED, Parser, Refusal, refusing, say, warn
from gossamer.engine.checkpoint import Unusable, held
from gossamer.engine.integrity import Finding, is_run, run_files
from gossamer.flower.node_files import node_files, node_folders
from gossamer.report.columns import table


def verify(arguments: Sequence[str]) -> int:
    """`gossamer verify FOLDER`: checks all files of a run, or of the nodes in a folder."""
    parser = Parser(prog="gossamer verify", description=verify.__doc__)
    parser.add_argument("folder", help="of a run, of a node, or a node's --states folder")
    parser.add_argument("--all", action="store_true", help="list every client's state too")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    options = parser.read(arguments)
    folder = Path(options.folder)
    with refusing():
        found = _found(folder)
    rows = _rows(found, options.all)
    say(table([(_short(path, folder), *rest) for path, *rest in rows], ("file", "what", "")))
    damaged = [finding for finding in found if finding.problem]
    for finding in damaged:
        warn(finding.problem)
    if ignored := [finding for finding in found if finding.ignored]:
        warn(f"ignored: {', '.join(str(finding.path) for finding in ignored[:3])}{_more(ignored)}")
    checked = len(found) - len(ignored)
    say(
        f"{checked} files, {len(damaged)} of them damaged"
        if damaged
        else f"{checked} files, all ok"
    )
    if options.json:
        listed = [{**vars(finding), "path": str(finding.path)} for finding in found]
        print(json.dumps({"folder": str(folder), "damaged": len(damaged), "files": listed}))
    return FAILED if damaged else 0


def _found(folder: Path) -> list[Finding]:
    """The findings about a run or about nodes."""
    if not folder.is_dir():
        raise Refusal(f"there is no folder {folder}")
    if is_run(folder):
        try:
            with held(folder):
                return run_files(folder)
        except Unusable:
            warn(f"{folder} is being run by another process; files may change meanwhile")
            return run_files(folder)
    if nodes := node_folders(folder):
        return [finding for node in nodes for finding in node_files(node)]
    raise Refusal(f"{folder} is neither the folder of a run nor that of a node")


def _rows(found: Sequence[Finding], every: bool) -> Iterator[tuple[Path, str, str]]:
    """Rows of the table; intact states of clients are counted by folder unless all are shown."""

    def place(finding: Finding) -> tuple[Path, bool]:
        counted = finding.what.startswith("state of client") and not finding.problem and not every
        return (finding.path.parent, True) if counted else (finding.path, False)

    for (path, counted), group in groupby(found, key=place):
        first, *more = group
        if counted:
            count = 1 + len(more)
            yield path, "state of a client" if count == 1 else f"states of {count} clients", "ok"
        else:
            word = "damaged" if first.problem else "ignored" if first.ignored else "ok"
            yield path, first.what, word


def _short(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder))


def _more(ignored: Sequence[Finding]) -> str:
    return f" and {len(ignored) - 3} more" if len(ignored) > 3 else ""
