"""The results of a comparison as text, CSV, LaTeX and JSON; the same figures as in the report."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gossamer.report import Run, units
from gossamer.report.columns import paragraph, table
from gossamer.report.curves import mean, spread, standard_error
from gossamer.report.figures import Row, headline, main_score, rows, score
from gossamer.report.groups import Group, grouped
from gossamer.report.runs import number
from gossamer.task.metrics import titled

MARK = "*"
"""Marks the name of a Pareto-optimal row."""
SCORES = {
    "valid": "validation",
    "global_score": "global",
    "personal_mean": "personal",
    "worst": "worst decile",
}
CSV_FIGURES = (
    *("valid", "global_score", "personal_mean", "worst", "local_mean", "best", "density"),
    *("up", "down", "sent", "paper", "flops", "device_seconds", "training_seconds", "seconds"),
)
_ESCAPED = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_ESCAPED |= {letter: f"\\{letter}" for letter in "&%$#_{}"}
_ESCAPED |= {"±": r"$\pm$", "·": r"$\cdot$", "…": r"\dots{}", "–": "--"}


@dataclass(frozen=True)
class Results:
    """The rows of a comparison, and the score that decides which are Pareto-optimal."""

    rows: Sequence[Row]
    main: str
    metric: str = "accuracy"
    """The headline metric of all rows, or `score` if they have several."""
    rises: bool = True
    """Whether higher is better."""

    @property
    def several(self) -> bool:
        """Whether any row is of more than one seed."""
        return any(len(row.group.runs) > 1 for row in self.rows)

    @property
    def legend(self) -> str:
        """An explanation of the mark and of the figures."""
        kind = "personal" if self.main == "personal_mean" else "global"
        if score([row.group for row in self.rows]) == "valid":
            kind = "validation"
        lost = any(row.group.diverged for row in self.rows)
        figures = "means ± one standard error over n seeds; " if self.several else ""
        return (
            f"{figures}{MARK} Pareto-optimal: no other run has a {kind} "
            f"{titled(self.metric)} as {'high' if self.rises else 'low'} "
            f"with as few bits; training: seconds of local training, summed over clients"
            f"{'; runs that diverged are in no mean' if lost else ''}"
        )


def results(runs: Sequence[Run]) -> Results:
    """The figures of runs; the seeds of one configuration form one row."""
    groups = grouped(runs)
    main, metric = main_score(groups), headline(groups)
    timed = []
    for row in rows(groups, main):
        took = [value for run in row.group.sound if (value := seconds(run)) is not None]
        figures = {**row.figures, "seconds": mean(took)}
        spreads = {**row.spreads, "seconds": spread(took)}
        errors = {**row.errors, "seconds": standard_error(took)}
        timed.append(Row(row.group, figures, spreads, errors, row.pareto_optimal))
    if metric is None:
        return Results(timed, main, "score")
    return Results(timed, main, metric.name, metric.rises)


def seconds(run: Run) -> float | None:
    """How long a finished run took, without interruptions."""
    clock = run.finished.get("clock")
    return number(clock.get("seconds")) if isinstance(clock, dict) else None


def text(results: Results) -> str:
    """The table for a terminal."""
    header, body = _cells(results)
    shown = table(body, header, breaks=("Mbit up",))
    return f"{shown}\n{paragraph(results.legend)}"


def comma_separated(results: Results) -> str:
    """CSV with one row per configuration and unrounded numbers: bits, FLOPs and seconds."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    titles = [named(name, results.metric) for name in CSV_FIGURES]
    columns = [f"{name}{suffix}" for name in titles for suffix in ("", "_std", "_se")]
    known = ["run", "method", "seeds", "rounds", "pareto_best", "diverged", "replies_lost"]
    writer.writerow([*known, *columns])
    for row in results.rows:
        forms = (row.figures, row.spreads, row.errors)
        values = [form.get(name) for name in CSV_FIGURES for form in forms]
        writer.writerow(
            [
                *(row.group.label, row.group.first.method, " ".join(_seeds(row.group))),
                *(f"{row.figures['rounds']:g}", int(row.pareto_optimal)),
                len(row.group.runs) - len(row.group.sound),
                sum(run.failed for run in row.group.runs),
                *("" if value is None else repr(value) for value in values),
            ]
        )
    return stream.getvalue()


def latex(results: Results) -> str:
    """A LaTeX `tabular` for \\input; needs the package booktabs."""
    header, body = _cells(results)
    names = [_marked(first) for first, *_ in body]
    return tabular(header, names, [rest for _, *rest in body], [results.legend])


def tabular(
    header: Sequence[str],
    names: Sequence[str],
    body: Sequence[Sequence[str]],
    below: Sequence[str],
) -> str:
    """A LaTeX `tabular` with comments below it; `names`, the first column, are LaTeX already."""
    lines = [
        r"% needs \usepackage{booktabs}",
        rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}",
        r"\toprule",
        f"{' & '.join(map(escaped, header))} \\\\",
        r"\midrule",
        *(
            f"{' & '.join([name, *map(escaped, cells)])} \\\\"
            for name, cells in zip(names, body, strict=True)
        ),
        r"\bottomrule",
        r"\end{tabular}",
        *(f"% {line}" for line in below),
    ]
    return "\n".join(lines) + "\n"


def plain(results: Results) -> list[dict[str, Any]]:
    """The table for programs."""
    return [
        {
            "run": row.group.label,
            "seeds": [run.seed for run in row.group.runs],
            "pareto_best": row.pareto_optimal,
            "diverged": [run.seed for run in row.group.runs if run.diverged],
            "metric": row.group.first.headline.name,
            "better": "higher" if row.group.first.headline.rises else "lower",
            **{
                form: {named(name, results.metric): value for name, value in figures.items()}
                for form, figures in (
                    ("mean", row.figures),
                    ("std", row.spreads),
                    ("se", row.errors),
                )
            },
        }
        for row in results.rows
    ]


def _cells(results: Results) -> tuple[list[str], list[list[str]]]:
    shown = [n for n in SCORES if any(row.figures[n] is not None for row in results.rows)]
    timed = any(row.figures["device_seconds"] is not None for row in results.rows)
    trained = any(row.figures["training_seconds"] is not None for row in results.rows)
    factor, operations = _unit([row.figures["flops"] for row in results.rows])
    most = max((row.figures["sent"] or 0.0 for row in results.rows), default=0.0)
    header = ["run", *(["n"] * results.several), *(SCORES[name] for name in shown), "density"]
    ends = any(run.goals for row in results.rows for run in row.group.runs)
    header += [
        *(["rounds"] * ends),
        "Mbit up",
        "Mbit down",
        "bits",
        operations,
        *(["device time"] * timed),
        *(["training"] * trained),
        "time",
    ]
    body = []
    for row in results.rows:
        figures = row.figures
        sent = figures["sent"]
        body.append(
            [
                f"{MARK if row.pareto_optimal else ' '} {_label(row.group)}",
                *([str(len(row.group.sound))] * results.several),
                *(_score(row, name) for name in shown),
                units.share(figures["density"]),
                *([_digits(figures["rounds"], 1)] * ends),
                *(_digits(figures[name], 1e6) for name in ("up", "down")),
                "–" if sent is None or not most else f"{100 * sent / most:.3g} %",
                _digits(figures["flops"], factor),
                *([units.seconds(figures["device_seconds"])] if timed else []),
                *([units.seconds(figures["training_seconds"])] if trained else []),
                units.seconds(figures["seconds"]),
            ]
        )
    return header, body


def named(figure: str, metric: str) -> str:
    """What files call a figure: the global model's is called by its metric."""
    return {"global_score": f"global_{metric}", "score": metric}.get(figure, figure)


def _score(row: Row, name: str) -> str:
    value, error = units.score(row.figures[name]), row.errors[name]
    return value if error is None else f"{value} ± {error:.2g}"


def _digits(value: float | None, factor: float) -> str:
    """A number with four digits and no exponent."""
    if value is None:
        return "–"
    value /= factor
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _unit(values: Sequence[float | None]) -> tuple[float, str]:
    """The unit of a column: the one that suits its largest number."""
    most = max((value for value in values if value is not None), default=0.0)
    _, unit = units.scaled(most, "FLOP").split(" ")
    return 1000.0 ** units.PREFIXES.index(unit.removesuffix("FLOP")), unit


def _label(group: Group) -> str:
    """The name of a row; it says if runs diverged, lost replies, or missed their goals."""
    notes = ", ".join(filter(None, (group.diverged, group.lost, group.missed)))
    return f"{group.label} ({notes})" if notes else group.label


def _seeds(group: Group) -> list[str]:
    return [str(run.seed) for run in group.runs]


def escaped(cell: str) -> str:
    """Text with LaTeX's special characters escaped."""
    return "".join(_ESCAPED.get(letter, letter) for letter in cell)


def _marked(label: str) -> str:
    name = escaped(label[2:])
    return rf"\textbf{{{name}}}$^\ast$" if label.startswith(MARK) else name
