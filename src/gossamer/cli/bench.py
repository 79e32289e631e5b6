"""`gossamer bench sparse-fl`: the benchmark of all methods, cell by cell, as files and a page."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from gossamer import data as sources
from gossamer.cli.paper import RESULTS
from gossamer.cli.parsing import Parser, Refusal, refusing, say, warn
from gossamer.cli.report import write
from gossamer.config import find_method, nearest
from gossamer.engine import ClientError, checkpoint
from gossamer.engine.files import write_atomically
from gossamer.report import NoRun, report
from gossamer.report.columns import table as aligned
from gossamer.report.kept import Shelf
from gossamer.reproduce import benchmark
from gossamer.reproduce.benchmark import MODELS, Cell, Size
from gossamer.reproduce.benchmark_cell import run_cell
from gossamer.reproduce.benchmark_picture import COSTS, Figures, figures, picture

NAMES = ("sparse-fl",)
USUAL = Size()


def bench(arguments: Sequence[str]) -> int:
    """`gossamer bench sparse-fl`: runs what is not done yet, writes the page and the picture."""
    parser = Parser(
        prog="gossamer bench",
        description="Runs all methods on the same federations, each at the learning rate that a "
        "small search on validation data finds for it: accuracy against bytes, operations and "
        "seconds. Repeat the command to go on after an interruption.",
    )
    parser.add_argument("name", choices=NAMES, help="the benchmark")
    parser.add_argument("--methods", default="", help="names with commas; default: all of them")
    parser.add_argument(
        "--data", default=",".join(MODELS), help=f"names with commas; default: {','.join(MODELS)}"
    )
    for option, default, text in (
        ("--rounds", USUAL.rounds, "training rounds of a final run"),
        ("--seeds", USUAL.seeds, "final runs of a method"),
        ("--search-rounds", USUAL.search_rounds, "rounds of a run of the search"),
        ("--workers", 1, "threads that train clients"),
    ):
        parser.add_argument(
            option, type=int, default=default, metavar="N", help=f"{text} (default: {default})"
        )
    rates = ",".join(f"{rate:g}" for rate in USUAL.rates)
    parser.add_argument(
        "--rates", default=rates, help=f"learning rates of the search (default: {rates})"
    )
    parser.add_argument(
        "--results", default="", metavar="FOLDER", help="of the files; default: that of a clone"
    )
    parser.add_argument(
        "--out", default="runs/bench", metavar="FOLDER", help="of the page (default: runs/bench)"
    )
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    options = parser.read(arguments)
    with refusing():
        size = _size(options.rounds, options.seeds, options.search_rounds, options.rates)
        chosen = _named(options.methods, list(benchmark.METHODS), "method")
        for name in chosen:
            find_method(name)
        data = _named(options.data, [], "data set")
    _present(data)
    if not options.results and not RESULTS.is_dir():
        raise Refusal("this is no clone with a folder of results; name one with --results FOLDER")
    results = Path(options.results) if options.results else RESULTS
    command = shlex.join(["gossamer", "bench", *arguments])
    failed = 0
    for place in data:
        for method in chosen:
            failed += _method(
                place, method, size, results, (command, options.workers, options.quiet)
            )
    folders = {place: benchmark.finals(results, place, size) for place in data}
    _show(folders, chosen, Path(options.out), options.json)
    return int(failed > 0)


def _method(data: str, method: str, size: Size, results: Path, how: tuple[str, int, bool]) -> int:
    """Searches a method's learning rate and runs it; returns how many cells failed."""
    with refusing():
        searched = benchmark.search(data, method, size, results)
    failed = _carry_out(searched, results, how)
    rate = benchmark.best_rate(searched, Shelf(results / benchmark.FOLDER))
    if failed:
        warn(f"{method} on {data}: {failed} of {len(searched)} rates failed; it is left out")
        return failed
    if rate is None:
        warn(f"{method} on {data}: it diverged at every rate; it is left out")
        return 1
    return _carry_out(benchmark.final(data, method, size, results, rate), results, how)


def _carry_out(cells: Sequence[Cell], results: Path, how: tuple[str, int, bool]) -> int:
    """Runs the cells that have no file yet; returns how many failed."""
    command, workers, quiet = how
    shelf, failed = Shelf(results / benchmark.FOLDER), 0
    for cell in cells:
        if shelf.find(cell.config):
            continue
        try:
            checkpoint.ready(cell.path.parent, 2**20)
            run = run_cell(cell, command, workers)
        except (ClientError, ValueError, OSError) as problem:
            warn(f"{cell.title}: {problem}")
            failed += 1
            continue
        if not quiet:
            score = run.curve(benchmark.score_of(run.method))
            last = f"{score[max(score)]:.4f}" if score else "–"
            say(f"{cell.title}: {run.diverged or last}")
    return failed


def _show(folders: Mapping[str, Path], methods: Sequence[str], out: Path, as_json: bool) -> None:
    """Prints the table, and writes the page of each data set and the picture of all."""
    by_data, shown = {}, {}
    out.mkdir(parents=True, exist_ok=True)
    for name, folder in folders.items():
        rows = {at: runs for at, runs in benchmark.kept(folder).items() if at in methods}
        if not rows:
            continue
        by_data[name] = rows
        found = figures(rows)
        rounds = folder.name.removeprefix("rounds-")
        say(f"\n{name}, {rounds} rounds\n{aligned(*_table(found))}")
        shown[name] = [_plain(each) for each in found]
        own = ", ".join(each.method for each in found if each.own)
        try:
            page = report(
                [run.folder for runs in rows.values() for run in runs],
                f"The benchmark on {benchmark.TITLES.get(name, name)}",
                "Learning rates were chosen by the same search on validation data for every method."
                + (f" Without a global model, see personal models: {own}." if own else ""),
            )
            write(page, out / f"{name}.html")
            say(f"report: {out / name}.html")
        except (ImportError, NoRun) as problem:
            warn(str(problem))
    if by_data:
        write_atomically(out / "benchmark.svg", picture(by_data).encode())
        say(f"picture: {out / 'benchmark.svg'}")
    if as_json:
        print(json.dumps({"out": str(out), "data": shown}), flush=True)


def _table(found: Sequence[Figures]) -> tuple[list[list[str]], list[str]]:
    header = ["method", "lr", "accuracy", "seeds", "MB", "TFLOP", "seconds"]
    body = []
    for each in found:
        score = "diverged" if each.accuracy is None else f"{each.accuracy:.4f}"
        score += "" if each.error is None else f" ± {each.error:.2g}"
        units = zip(COSTS, (1e6, 1e12, 1), strict=True)
        costs = [f"{(each.costs[name] or 0) / unit:.4g}" for name, unit in units]
        name = f"{each.method} (own models)" if each.own else each.method
        body.append([name, f"{each.rate:g}", score, str(each.seeds), *costs])
    return body, header


def _plain(each: Figures) -> dict[str, object]:
    return {
        "method": each.method,
        "own_models": each.own,
        "lr": each.rate,
        "accuracy": each.accuracy,
        "se": each.error,
        "seeds": each.seeds,
        "diverged": each.diverged,
        **each.costs,
    }


def _size(rounds: int, seeds: int, search_rounds: int, rates: str) -> Size:
    for name, value in (("rounds", rounds), ("seeds", seeds), ("search_rounds", search_rounds)):
        if value < 1:
            raise ValueError(f"`{name}=` must be at least 1, not {value}")
    try:
        tried = tuple(float(word) for word in rates.split(","))
    except ValueError:
        raise ValueError(
            f"`rates=` are numbers with commas such as 0.01,0.1, not {rates}"
        ) from None
    return Size(rounds, seeds, tried, search_rounds)


def _named(words: str, usual: Sequence[str], what: str) -> list[str]:
    """Names with commas; the usual ones if there are none."""
    names = [word.strip() for word in words.split(",") if word.strip()] or list(usual)
    if not names:
        raise ValueError(f"name a {what}")
    return names


def _present(names: Sequence[str]) -> None:
    """Raises Refusal if a data set is unknown or is not here."""
    known = {each.name: each.advice for each in sources.ls()}
    for name in names:
        if name not in known:
            raise Refusal(f"no data set {name!r}{nearest(name, known)}")
        if known[name]:
            raise Refusal(f"{name} is not here: {known[name]}")
