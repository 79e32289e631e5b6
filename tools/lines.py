"""Lines of every method, before and now: the table in docs/reference/lines.md.

    python tools/lines.py              # writes the table
    python tools/lines.py --print      # prints it
    python tools/lines.py --count DIR  # counts another source tree, as CSV

`own` is a method's file; `read` is that file and every module of `methods/` that it imports,
directly or indirectly, with the mathematics of gates, groups and sub-models that one family uses.
The counts of version 0.1 are in results/lines-0.1.csv, made by this script.
"""

from __future__ import annotations

import argparse
import ast
import csv
import sys
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "gossamer"
BEFORE = ROOT / "results" / "lines-0.1.csv"
PAGE = ROOT / "docs" / "reference" / "lines.md"
START, END = "<!-- lines -->", "<!-- /lines -->"
BESIDE = (
    *("masks/importance.py", "sparsity/importance.py"),
    *("gates.py", "sparsity/hard_concrete.py", "sparsity/gated_training.py", "sparsity/groups.py"),
    *("sparsity/grouping.py", "sparsity/budgets.py", "sparsity/adjustment.py"),
    *("submodels/compaction.py", "submodels/behind.py", "submodels/dropping.py"),
)
"""Modules outside of `methods/` that belong to one family, in 0.1 and now."""


def lines(path: Path) -> int:
    """The lines of a file."""
    return len(path.read_text(encoding="utf-8").splitlines())


def imported(path: Path, source: Path) -> set[Path]:
    """The modules of `methods/`, and those beside it, that a file imports."""
    places = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gossamer"):
            folder = source.joinpath(*(node.module or "").split(".")[1:])
            names = [folder, *(folder / alias.name for alias in node.names)]
            places |= {place.with_suffix(".py") for place in names}
    beside = {source / name for name in BESIDE}
    return {
        each
        for each in places
        if each.is_file() and (source / "methods" in each.parents or each in beside)
    }


def closure(path: Path, source: Path) -> set[Path]:
    """A file and all modules behind it."""
    known, new = set(), {path}
    while new:
        known |= new
        new = {each for one in new for each in imported(one, source)} - known
    return known


def count(source: Path) -> dict[str, tuple[int, int, int]]:
    """Own lines, lines to read and files to read of every module directly in `methods/`."""
    methods, found = source / "methods", {}
    for path in sorted(methods.glob("[!_]*.py")):
        files = closure(path, source)
        found[path.stem] = (lines(path), sum(map(lines, files)), len(files))
    return found


def before() -> dict[str, dict[str, str]]:
    """The counts of version 0.1, by name."""
    with BEFORE.open(newline="", encoding="utf-8") as file:
        return {row.pop("name"): row for row in csv.DictReader(file)}


def totals(source: Path) -> dict[str, int]:
    """Lines of the methods that 0.1 had, of what they use, of new ones, and the median file."""
    methods, known = source / "methods", before()
    published = set((methods / "as_published").glob("*.py"))
    files = set(methods.glob("[!_]*.py"))  # not the list of all methods, which grows with them
    new = {path for path in files if path.stem not in known}
    old = files - new
    used = {each for path in old | published for each in closure(path, source)} - new
    added = {each for path in new for each in closure(path, source)} - used
    parts = {path for path in (methods / "parts").glob("*.py") if path not in added}
    found = {"algorithms": sum(map(lines, old)), "parts": sum(map(lines, parts))}
    found["as_published"] = sum(map(lines, published))
    found["added"] = sum(lines(path) for path in added if methods in path.parents)
    found["beside"] = sum(lines(source / name) for name in BESIDE if (source / name).is_file())
    found["median of methods"] = int(median(lines(p) for p in methods.glob("[!_]*.py")))
    found["median of all files"] = int(median(lines(p) for p in source.rglob("*.py")))
    return found


def table() -> str:
    """The table as Markdown."""
    known = before()
    rows = ["| method | own lines, 0.1 | own lines | lines to read, 0.1 | lines to read |"]
    rows.append("|---|---|---|---|---|")
    for name, (own, read, files) in count(SOURCE).items():
        old = known.get(name, {"own": "-"})
        was = f"{old['read']} in {old['files']}" if name in known else "-"
        rows.append(f"| {name} | {old['own']} | {own} | {was} | {read} in {files} |")
    now = totals(SOURCE)
    rows += ["", "| | 0.1 | now |", "|---|---|---|"]
    whole = now["algorithms"] + now["parts"]
    pairs = {
        "algorithms and parts": whole,
        "with authors' codes and variants": whole + now["as_published"],
        "algorithms, parts, and mathematics of one family beside them": whole + now["beside"],
        "all of these": whole + now["beside"] + now["as_published"],
        "median of `methods/*.py`": now["median of methods"],
        "median file of `src/`": now["median of all files"],
    }
    rows += [f"| {name} | {known[name]['own']} | {value} |" for name, value in pairs.items()]
    rows.append(f"| methods and parts that 0.1 did not have | - | {now['added']} |")
    return "\n".join(rows)


def written(page: str) -> str:
    """The page with the table of today."""
    head, _, rest = page.partition(START)
    _, _, tail = rest.partition(END)
    return f"{head}{START}\n{table()}\n{END}{tail}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--print", action="store_true", help="print the table, and write nothing")
    parser.add_argument("--count", type=Path, metavar="DIR", help="count another src/gossamer")
    arguments = parser.parse_args()
    if arguments.count:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(["name", "own", "read", "files"])
        writer.writerows([name, *each] for name, each in count(arguments.count).items())
        now = totals(arguments.count)
        whole = now["algorithms"] + now["parts"]
        writer.writerow(["algorithms and parts", whole])
        writer.writerow(["with authors' codes and variants", whole + now["as_published"]])
        both = whole + now["beside"]
        writer.writerow(["algorithms, parts, and mathematics of one family beside them", both])
        writer.writerow(["all of these", both + now["as_published"]])
        writer.writerow(["median of `methods/*.py`", now["median of methods"]])
        writer.writerow(["median file of `src/`", now["median of all files"]])
    elif arguments.print:
        print(table())
    else:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
