"""The results of runs: figures for the table, and the best of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gossamer.report.curves import last, mean, spread, standard_error
from gossamer.report.groups import Group
from gossamer.report.runs import Curve, Headline, Run

SCORES = {
    "personal_mean": "personal models",
    "global_score": "global model",
    "local_mean": "clients' own models",
}
"""The scores, by the headline metric, that can be shown, and which models they are of."""

Figures = Mapping[str, float | None]


@dataclass(frozen=True)
class Row:
    """A row of the table: means over a group's runs, and how far off they may be."""

    group: Group
    figures: Figures
    spreads: Figures
    """Standard deviations over seeds; None for a single one."""
    errors: Figures
    """Standard errors of the means."""
    pareto_optimal: bool
    """Finished, and no other group on the same data and model is as accurate with as few bits."""


@dataclass(frozen=True)
class Card:
    """A headline figure."""

    title: str
    value: str
    note: str


def figures(run: Run, main: str) -> dict[str, float | None]:
    """The last figures of a run, and its best round by one of its scores."""
    own = last(run.curve("personal_density"))
    up, down = last(run.curve("up")), last(run.curve("down"))
    paper_up, paper_down = last(run.curve("paper_up")), last(run.curve("paper_down"))
    at = best_round(run, main)
    return {
        **{name: last(run.curve(name)) for name in SCORES},
        "worst": last(run.curve("personal_worst_decile")),
        "score": last(run.curve(main)),
        "valid": None if at is None else run.curve("valid_mean").get(at),
        "best": None if at is None else run.curve(main)[at],
        "best_round": at,
        "density": last(run.curve("density")) if own is None else own,
        "up": up,
        "down": down,
        "sent": None if up is None or down is None else up + down,
        "paper": None if paper_up is None or paper_down is None else paper_up + paper_down,
        "flops": last(run.curve("flops")),
        "training_seconds": last(run.curve("training_seconds")),
        "device_seconds": last(run.curve("device_seconds")),
        "epsilon": last(run.curve("epsilon")),
        "rounds": run.done,
    }


def best_round(run: Run, main: str) -> int | None:
    """The first round with the best score, on validation data if there are any.

    If clients keep models of their own, evaluations before they have any do not count.
    """
    curve = run.curve(main)
    own = run.curve("personal_density")
    rounds = [at for at in curve if at in own] or list(curve)
    score: Curve = run.curve("valid_mean") or curve
    rounds = [at for at in rounds if at in score]
    return min(rounds, key=lambda at: (run.headline.key(score[at]), at)) if rounds else None


def headline(groups: Sequence[Group]) -> Headline | None:
    """The metric of all runs; None if they have different ones."""
    known = {run.headline for group in groups for run in group.runs}
    return known.pop() if len(known) == 1 else None


def main_score(groups: Sequence[Group]) -> str:
    """The score to compare by: personal if any clients have models of their own."""
    runs = [run for group in groups for run in group.runs]
    own = any(run.curve("personal_density") for run in runs)
    order = ("personal_mean", "global_score") if own else ("global_score", "personal_mean")
    tested = [run for run in runs if any(run.curve(name) for name in order)]
    for name in order:
        if tested and all(run.curve(name) for run in tested):
            return name
    return order[0] if any(run.curve(order[0]) for run in runs) else order[1]


def rows(groups: Sequence[Group], main: str) -> list[Row]:
    """The rows of the table, one per group."""
    results = []
    for group in groups:
        each = [figures(run, main) for run in group.sound or (Run(""),)]
        means = {name: mean(one[name] for one in each) for name in each[0]}
        means["rounds"] = mean(run.done for run in group.drawn)
        known = {name: [v for one in each if (v := one[name]) is not None] for name in each[0]}
        spreads = {name: spread(values) for name, values in known.items()}
        errors = {name: standard_error(values) for name, values in known.items()}
        results.append((group, means, spreads, errors))
    compared, by = [(group, means) for group, means, *_ in results], score(groups)
    return [
        Row(group, means, spreads, errors, _is_pareto_optimal(place, compared, by))
        for place, (group, means, spreads, errors) in enumerate(results)
    ]


def score(groups: Sequence[Group]) -> str:
    """The figure that decides which is best: on validation data, if all select their rounds on it.

    The last score on test data otherwise.
    """
    runs = [run for group in groups for run in group.sound if run.curves]
    held_out = bool(runs) and all(run.curve("valid_mean") for run in runs)
    return "valid" if held_out else "score"


def _is_pareto_optimal(
    place: int, groups: Sequence[tuple[Group, Figures]], name: str = "score"
) -> bool:
    """Whether no comparable group is better in its score or bits and no worse in the other."""
    group, mine = groups[place]
    own, sent = mine[name], mine["sent"]
    key = group.first.headline.key
    alike = [m for g, m in groups if _problem(g) == _problem(group)]
    if own is None or sent is None or len(alike) < 2 or not group.finished:
        return False
    for other in alike:
        theirs, price = other[name], other["sent"]
        if theirs is None or price is None or (theirs, price) == (own, sent):
            continue
        if key(theirs) <= key(own) and price <= sent:
            return False
    return True


def _problem(group: Group) -> str:
    """Data, model and metric; only groups with the same problem are comparable."""
    data = group.first.started.get("data")
    facts = data if isinstance(data, dict) else {}
    what = [facts.get(name) for name in ("name", "partition", "pool", "train")]
    return repr([*what, group.first.started.get("parameters"), group.first.headline])


def cards(table: Sequence[Row], shown: Mapping[str, Callable[[float | None], str]]) -> list[Card]:
    """The headline figures: those of the only group, or the best of several.

    Unfinished groups are ignored if there are finished ones, as their costs still grow.
    """
    by, metric = score([row.group for row in table]), headline([row.group for row in table])
    held_out = by == "valid" and len(table) > 1
    headlines: list[tuple[str, str, str, Callable[..., float]]] = []
    if metric is not None:
        kind = f"validation {metric.title}" if held_out else metric.title
        title = metric.title[0].upper() + metric.title[1:]
        headlines.append(("valid" if held_out else "score", title, f"Highest {kind}", max))
        if not metric.rises:
            headlines[0] = (*headlines[0][:2], f"Lowest {kind}", min)
    headlines += [
        ("sent", "Sent", "Fewest bits sent", min),
        ("density", "Density", "Lowest density", min),
        ("flops", "Computed", "Fewest operations", min),
    ]
    made = []
    for name, alone, several, choose in headlines:
        ended = [row for row in table if row.group.finished] or table
        known = [(value, row) for row in ended if (value := row.figures[name]) is not None]
        if not known:
            continue
        best = choose(value for value, _ in known)
        if len(table) == 1:
            made.append(Card(alone, shown[name](best), _alone(name, table[0], shown)))
            continue
        text = shown[name](best)
        winners = [row.group.label for value, row in known if shown[name](value) == text]
        note = "all equal" if len(winners) == len(ended) > 1 else ", ".join(winners[:2])
        most, last = max(known, key=lambda pair: pair[0])
        if name in ("sent", "density", "flops") and best > 0 and most / best >= 1.05:
            note += f" · {most / best:.3g} times less than {last.group.label}"
        made.append(Card(several, text, note))
    return made


def _alone(name: str, row: Row, shown: Mapping[str, Callable[[float | None], str]]) -> str:
    """The note below a headline figure if there is one group."""
    figures = row.figures
    if name == "sent":
        return f"{shown['up'](figures['up'])} up, {shown['down'](figures['down'])} down"
    if name == "score" and figures["best"] is not None:
        return f"last; best {shown['score'](figures['best'])}"
    if name == "flops" and figures["device_seconds"] is not None:
        return f"{shown['device_seconds'](figures['device_seconds'])} on devices"
    return {"density": "of prunable weights", "flops": "floating-point operations"}.get(name, "")
