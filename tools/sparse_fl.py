"""The benchmark's tables and picture, from the files in results/benchmark/."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from textwrap import wrap

from gossamer.reproduce import benchmark
from gossamer.reproduce.benchmark_picture import COSTS, Figures, Rows, figures, picture

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
PICTURE = ROOT / "docs" / "pictures" / "benchmark.svg"
UNITS = {"bytes": (1e6, "MB sent"), "flops": (1e12, "TFLOP"), "seconds": (1, "seconds of training")}
assert UNITS.keys() == COSTS.keys()
WIDTH = 114
SEARCHED = re.compile(r"(?P<method>.+)-lr-(?P<rate>[\d.e+-]+)")
NOTHING = "No run is kept yet: `gossamer bench sparse-fl` makes them, and this part of the page."


@cache
def rows() -> dict[str, tuple[int, Rows]]:
    """By data set: the rounds and the runs of each method."""
    found = {}
    for data in benchmark.MODELS:
        if folder := benchmark.largest(RESULTS, data):
            found[data] = (int(folder.name.removeprefix("rounds-")), benchmark.kept(folder))
    return found


def image(folder: str) -> str:
    """The picture for a page; what makes it, if there is none."""
    about = f"Accuracy of {methods()} methods against bytes, operations and seconds of training"
    where = " and ".join(benchmark.TITLES[data] for data in rows())
    return f"![{about}, {where}]({folder}/{PICTURE.name})" if rows() else NOTHING


def methods() -> int:
    """How many methods were run on at least one data set."""
    return len({method for _, runs in rows().values() for method in runs})


def seeds() -> str:
    """With how many seeds the methods were run."""
    counts = {len(each) for _, runs in rows().values() for each in runs.values()}
    words = " to ".join(map(str, sorted({min(counts), max(counts)})))
    return "one seed" if words == "1" else f"{words} seeds"


def pictures() -> dict[Path, str]:
    """The picture, if anything was run."""
    by_data = {data: runs for data, (_, runs) in rows().items()}
    return {PICTURE: picture(by_data)} if by_data else {}


def tables() -> str:
    """A table for each data set, from the most accurate method to the least."""
    return "\n\n".join(_table(data, *each) for data, each in rows().items()) or NOTHING


def _table(data: str, rounds: int, runs: Rows) -> str:
    titles = [title for _, title in UNITS.values()]
    lines = [
        f"**{benchmark.TITLES[data]}**, {rounds} rounds:",
        "",
        f"| | learning rate | accuracy, % | {' | '.join(titles)} | seeds |",
        "|---" * (len(titles) + 4) + "|",
        *(_line(each, sum(run.failed for run in runs[each.method])) for each in figures(runs)),
        "",
        *wrap(_rates(data, runs), 120, break_on_hyphens=False),
        "",
        "Made by",
        "",
        "```sh",
        *_commands(runs),
        "```",
    ]
    return "\n".join(lines)


def _rates(data: str, runs: Rows) -> str:
    """Which learning rates were tried, and how many methods chose one at an end of them."""
    folder = max((RESULTS / benchmark.FOLDER / data).glob("search-*"), key=_number)
    found = [SEARCHED.fullmatch(path.stem) for path in folder.iterdir()]
    tried: dict[str, list[float]] = {}
    for match in filter(None, found):
        tried.setdefault(match["method"], []).append(float(match["rate"]))
    chosen = [(name, rate) for name, rate in benchmark.rates_of(runs) if name in tried]
    ends = sum(rate in (min(tried[name]), max(tried[name])) for name, rate in chosen)
    rates = ", ".join(f"{rate:g}" for rate in sorted(set().union(*tried.values())))
    return (
        f"Learning rates {rates} were tried for {_number(folder)} rounds each. {ends} of "
        f"{len(chosen)} methods have one at an end of that range: a wider search may find better "
        "ones."
    )


def _number(folder: Path) -> int:
    return int(folder.name.partition("-")[2])


def _commands(runs: Rows) -> list[str]:
    """The commands that made the runs, a line for what fits, without the folders of this run."""
    lines = []
    for command in sorted({run.command for each in runs.values() for run in each}):
        first, *options = command.partition(" --results")[0].split(" --")
        folded = [first]
        for option in options:
            if len(folded[-1]) + len(option) > WIDTH:
                folded[-1] += " \\"
                folded.append("   ")
            folded[-1] += f" --{option}"
        lines += folded
    return lines


def _line(each: Figures, lost: int) -> str:
    score = "diverged" if each.accuracy is None else f"{100 * each.accuracy:.1f}"
    score += "" if each.error is None else f" ± {100 * each.error:.2g}"
    costs = [_cost(each.costs[name], unit) for name, (unit, _) in UNITS.items()]
    seeds = f"{each.seeds}" + (f", {each.diverged} diverged" if each.diverged else "")
    seeds += f", {lost} replies lost" if lost > 1 else ", 1 reply lost" if lost else ""
    name = f"`{each.method}`, own models" if each.own else f"`{each.method}`"
    return f"| {name} | {each.rate:g} | {score} | {' | '.join(costs)} | {seeds} |"


def _cost(value: float | None, unit: float) -> str:
    return "" if value is None else f"{value / unit:,.4g}"
