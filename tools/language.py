"""The table of docs/howto/tasks.md, from results/language; `tools/results.py` writes it.

python tools/language.py runs/language  # keeps finished runs of a comparison as results
"""

from __future__ import annotations

import sys
from pathlib import Path

from gossamer.report.curves import last, mean, standard_error
from gossamer.report.groups import Group, grouped
from gossamer.report.kept import keep
from gossamer.report.reading import read_run

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "results" / "language"
NAMES = {"fedavg": "FedAvg", "spdst": "SPDST, density 0.1", "spafl": "SpaFL"}


def table() -> str:
    """A row for each method, means over seeds."""
    groups = grouped([read_run(path) for path in sorted(KEPT.glob("*.json"))])
    lines = [
        "| method | perplexity, global | perplexity, personal | Mbit up | Mbit down | seeds |",
        "|---|---|---|---|---|---|",
    ]
    for method, title in NAMES.items():
        (group,) = (each for each in groups if each.first.method == method)
        cells = [_scores(group, "global_score"), _scores(group, "personal_mean")]
        cells += [_bits(group, "up"), _bits(group, "down"), str(len(group.runs))]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    rounds, facts = groups[0].first.done, groups[0].first.started
    lines.append(
        f"\nAfter {rounds} rounds of 10 clients; {facts['parameters']:,} parameters, of which "
        f"{facts['prunable']:,} may be pruned; means ± one standard error."
    )
    return "\n".join(lines)


def _scores(group: Group, name: str) -> str:
    values = [value for run in group.sound if (value := last(run.curve(name))) is not None]
    error = standard_error(values)
    if not values:
        return ""
    return f"{mean(values):.2f}" + ("" if error is None else f" ± {error:.2f}")


def _bits(group: Group, name: str) -> str:
    value = mean(last(run.curve(name)) for run in group.sound)
    assert value is not None
    return f"{value / 1e6:,.4g}"


def main() -> None:
    for path in sorted(Path(sys.argv[1]).glob("*/*")):
        if path.is_dir() and (run := read_run(path)).finished:
            keep(run, KEPT / f"{run.method}-{run.seed}.json")


if __name__ == "__main__":
    main()
