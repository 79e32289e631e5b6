"""Published figures next to measured ones: as text, CSV, LaTeX and JSON."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gossamer.engine.events import CONFIG
from gossamer.report import Run
from gossamer.report.curves import last, spread, standard_error
from gossamer.report.figures import figures
from gossamer.report.kept import Shelf
from gossamer.report.runs import number
from gossamer.reproduce.comparison import run_of
from gossamer.reproduce.plans import Plan, changed, probes
from gossamer.reproduce.tables import ACCURACIES, UNITS, Column, Published, Row, Table, training


@dataclass(frozen=True)
class Cell:
    """A figure of a row, in the column's unit: the published value, and that of each seed."""

    published: Published | None
    values: tuple[float, ...] = ()
    over: str = "mean"
    seeds: tuple[int, ...] = ()
    """The seed of each value."""

    @property
    def by_seed(self) -> Mapping[int, float]:
        """The values by their seeds."""
        return dict(zip(self.seeds, self.values, strict=True))

    @property
    def counted(self) -> Sequence[float]:
        """The values that enter the mean: all, the best, or all but the best and the worst."""
        if self.over == "max":
            return sorted(self.values)[-1:]
        if self.over == "middle" and len(self.values) > 2:
            return sorted(self.values)[1:-1]
        return self.values

    @property
    def measured(self) -> float | None:
        """The mean of these values."""
        return statistics.fmean(self.counted) if self.values else None

    @property
    def mean(self) -> float | None:
        """The mean over all seeds, also where the figure is that of the best one."""
        return (
            statistics.fmean(self.values) if self.over == "max" and self.values else self.measured
        )

    @property
    def std(self) -> float | None:
        """The standard deviation, of what enters the mean as in the paper."""
        return spread(self.values if self.over == "max" else self.counted)

    @property
    def error(self) -> float | None:
        """The standard error of the mean, from all seeds, also those that it leaves out."""
        return standard_error(self.values)

    @property
    def difference(self) -> float | None:
        """Measured minus published."""
        if self.measured is None or self.published is None:
            return None
        return self.measured - self.published.value


@dataclass(frozen=True)
class Measured:
    """A table with its measured figures."""

    table: Table
    cells: Mapping[tuple[str, str], Cell]
    """By row and column."""
    rounds: Mapping[str, int]
    """Training rounds of the rows that were run."""
    folders: tuple[Path, ...] = ()
    """The folders of its runs."""
    held_out: Mapping[str, float] = field(default_factory=dict)
    """By row: the share of their training data that clients hold out."""
    diverged: Mapping[str, int] = field(default_factory=dict)
    """By row: how many of its runs diverged; they are in no mean."""
    runs: Mapping[str, tuple[Run, ...]] = field(default_factory=dict)
    """By row: its runs, one for each seed."""

    def pool(self, row: str) -> int:
        """How many clients the runs of a row have; 0 if there are none."""
        known = [number(run.started.get("pool")) for run in self.runs.get(row, ())]
        return int(min((each for each in known if each), default=0))

    def lost(self, row: str) -> int:
        """How many replies of a row's runs were refused or never came."""
        return sum(run.failed for run in self.runs.get(row, ()))

    def line(self, row: Row, column: Column) -> Cell:
        return self.cells[row.name, column.name]

    @property
    def short(self) -> bool:
        """Whether any figure was extrapolated to the paper's rounds."""
        rows = self.table.rows
        return any(count < rows[name].training for name, count in self.rounds.items()) and any(
            column.whole for column in self.table.columns.values()
        )


def _same(plan: Plan) -> bool:
    """Whether a run has exactly the planned settings; False if it cannot be read."""
    try:
        return not changed(plan.folder, plan.config)
    except (ValueError, KeyError, OSError):
        return False


def finished_run(plan: Plan, shelf: Shelf | None = None) -> Run | None:
    """The finished run with the planned settings, in its folder or kept as a result."""
    if (plan.folder / CONFIG).exists() and _same(plan):
        run = run_of(plan)
        if run.finished:
            return run
    return shelf.find(plan.config) if shelf else None


def measured_table(table: Table, plans: Sequence[Plan], shelf: Shelf | None = None) -> Measured:
    """The table with the figures of all finished runs that have the planned settings.

    Args:
        table: With its published figures.
        plans: The runs of its rows.
        shelf: Results of earlier runs, whose folders need not exist any more.
    """
    done: dict[str, list[tuple[Plan, Run]]] = {}
    diverged: Counter[str] = Counter()
    for plan in plans:
        name, run = plan.folder.parent.name, finished_run(plan, shelf)
        if run and run.diverged:
            diverged[name] += 1
        elif run:
            done.setdefault(name, []).append((plan, run))
    values = {
        (row.name, column.name): {
            plan.config.experiment.seed: value
            for plan, run in done.get(row.name, ())
            if (value := value_of(plan, run, row, column)) is not None
        }
        for row in table.rows.values()
        for column in table.columns.values()
    }
    cells = {}
    for row in table.rows.values():
        for column in table.columns.values():
            mine = values[row.name, column.name]
            if column.relative:
                mine = _related(mine, values.get((row.reference, column.name), {}), column)
            printed = row.published.get(column.name)
            # The best seed by accuracy is not the one with the highest cost.
            over = row.over if column.figure in ACCURACIES else "mean"
            cells[row.name, column.name] = Cell(printed, tuple(mine.values()), over, tuple(mine))
    rounds = {name: training(each[0][0].config) for name, each in done.items()}
    folders = tuple(Path(run.folder) for each in done.values() for _, run in each)
    held_out = {plan.folder.parent.name: plan.config.experiment.valid for plan in plans}
    runs = {name: tuple(run for _, run in each) for name, each in done.items()}
    return Measured(table, cells, rounds, folders, held_out, diverged, runs)


def measure(run: Run, column: Column) -> float | None:
    """A figure of a finished run, in bits, FLOPs or fractions.

    None if the run has no such figure, or never reached the accuracy that it is read at.
    """
    if column.reaching:
        scores, wanted = run.curve(ACCURACIES[column.by]), column.reaching / 100
        first = min((at for at, score in scores.items() if score >= wanted), default=None)
        return None if first is None else measure(run.until(first), replace(column, reaching=0))
    accuracy = ACCURACIES.get(column.figure, "personal_mean")
    known = figures(run, accuracy)
    if column.figure in ACCURACIES:
        curve = run.curve(accuracy)
        if column.at == "last-10" and curve:
            return statistics.fmean(curve[at] for at in sorted(curve)[-10:])
        return known["best" if column.at == "best" else "score"]
    if column.figure == "density" and column.at == "best":
        at = known["best_round"]
        own = run.curve("personal_density") or run.curve("density")
        return None if at is None else own.get(int(at))
    if column.figure == "client_flops":
        pool = number(run.started.get("pool"))
        return known["flops"] / pool if known["flops"] is not None and pool else None
    return known[column.figure] if column.figure in known else last(run.curve(column.figure))


def value_of(plan: Plan, run: Run, row: Row, column: Column) -> float | None:
    """A figure of a finished run in the column's unit, for all rounds of the paper if `whole`."""
    figure = measure(run, column)
    if figure is not None and column.whole:
        figure = _whole(plan, run, row, column, figure)
    if figure is None:
        return None
    return figure / (1.0 if column.relative else UNITS[column.unit])


def _whole(plan: Plan, run: Run, row: Row, column: Column, figure: float) -> float | None:
    """A sum over the rounds that train, multiplied up to the paper's; a first probe stays one.

    None if what the first round cost is not known.
    """
    times = row.training / training(plan.config)
    if times == 1.0 or not probes(plan.config.build_method()):
        return times * figure
    probe = measure(run.until(1), column)
    return None if probe is None else probe + times * (figure - probe)


def _related(
    mine: Mapping[int, float], theirs: Mapping[int, float], column: Column
) -> dict[int, float]:
    """Each seed relative to the same seed of the reference: its share, or the saving."""
    relative = {}
    for seed in mine.keys() & theirs.keys():
        above, below = mine[seed], theirs[seed]
        if column.relative == "saving":
            above, below = below, above
        if below:
            relative[seed] = above / below / UNITS[column.unit]
    return relative
