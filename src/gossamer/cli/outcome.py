"""The result of a run in a few lines."""

from __future__ import annotations

from gossamer.cli.progress import bits
from gossamer.engine import Summary
from gossamer.report.units import score
from gossamer.task.metrics import titled


def outcome(summary: Summary, held_out: float = 0.0, global_model: bool = True) -> str:
    """The outcome of a run in a few lines.

    Args:
        summary: Of the run.
        held_out: The share of their training data that clients held out.
        global_model: Whether the server has a model to use.
    """
    scores, cost = summary.scores, summary.cost
    metric = titled(summary.metric)
    chosen = "test data" if summary.select == "test" else "validation data"
    word = "best" if summary.select == "test" else "at best round"
    number = scores["best_round"]
    rows: list[tuple[str, object]] = [
        (
            "rounds",
            f"{summary.rounds} ({summary.reached} reached)" if summary.reached else summary.rounds,
        ),
        (f"best round, chosen on {chosen}", None if number is None else f"{number:.0f}"),
        (f"{metric} there, on test data", scores["best"]),
        *(
            [(f"global {metric}, last ({word})", _pair(scores["global"], scores["global_best"]))]
            if global_model
            else []
        ),
        (
            f"personal {metric}, last ({word})",
            _pair(scores["personal_mean"], scores["personal_best"]),
        ),
        (
            "worst decile, last (at best round)",
            _pair(scores["personal_worst_decile"], scores["best_worst_decile"]),
        ),
        ("density, last (at best round)", _pair(summary.density, scores["best_density"])),
    ]
    if scores["personal_density"] is not None:
        both = _pair(scores["personal_density"], scores["best_personal_density"])
        rows.append((f"{metric} of clients with their own model", scores["local_mean"]))
        rows.append(("density of personal models", both))
    for name, value in summary.metrics.items():
        if global_model and name != summary.metric:
            rows.append((f"global {titled(name)}, last", value))
    if summary.privacy is not None:
        spent = summary.privacy
        guarantee = f"{spent['epsilon']:.4g} at delta {spent['delta']:g}"
        rows.append(("epsilon", f"{guarantee} ({spent['neighbours']})"))
    if held_out:
        rows.append(("training data held out", f"{100 * held_out:g} %"))
    rows += [
        ("sent up / down", f"{bits(cost.up)} / {bits(cost.down)}"),
        ("as the paper counts", f"{bits(cost.paper_up)} / {bits(cost.paper_down)}"),
        ("FLOPs", f"{cost.flops:.4g}"),
        ("seconds", f"{summary.seconds:.1f}"),
        ("run", summary.run),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name.ljust(width)}  {_shown(value)}" for name, value in rows)


def _shown(value: object) -> str:
    return "-" if value is None else score(value) if isinstance(value, float) else str(value)


def _pair(last: float | None, best: float | None) -> str:
    return "-" if last is None else f"{_shown(last)} ({_shown(best)})"
