"""Costs of a finished or running experiment, read from its event log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gossamer.accounting.prices import Bits, Line

LOST = "failed clients"
"""Stands for the message in a ledger line about traffic to clients that failed."""
STOPPED = "stopped clients"
"""The same for clients that were stopped, or were too late, in virtual time."""
Log = Iterable[Mapping[str, Any]]


def ledger(log: Log) -> dict[Line, Bits]:
    """All traffic of a run, added up by direction, message and leaf."""
    lines: dict[Line, Bits] = {}
    for event in log:
        if event["event"] == "client-failed" and event.get("down"):
            lost = Bits(1, event["down"], 0.0, event.get("paper_down") or 0)
            lines["down", LOST, "all"] = lines.get(("down", LOST, "all"), Bits()) + lost
        if event["event"] == "client-stopped":
            for way, paper in (("down", event["paper_down"]), ("up", 0)):
                vain = Bits(1, event[way], 0.0, paper)
                lines[way, STOPPED, "all"] = lines.get((way, STOPPED, "all"), Bits()) + vain
        for entry in event["traffic"] if event["event"] == "client-finished" else ():
            line = (entry["direction"], entry["message"], entry["leaf"])
            bits = Bits(1, entry["sent"], entry["information"], entry["paper"])
            lines[line] = lines.get(line, Bits()) + bits
    return lines


def by_round(log: Log) -> Iterator[tuple[int, dict[str, int]]]:
    """Bits and FLOPs of every round."""
    before = {"up": 0, "down": 0, "paper_up": 0, "paper_down": 0, "flops": 0}
    for event in log:
        if event["event"] == "round-finished":
            yield event["round"], {name: event[name] - before[name] for name in before}
            before = {name: event[name] for name in before}


def has_personal_models(log: Log) -> bool:
    """Whether clients keep models of their own."""
    return any(event.get("personal_density") is not None for event in log)


def reach(log: Log, target: float, whose: str) -> dict[str, Any] | None:
    """The first evaluation that reaches a value of the headline metric, with the costs up to it.

    Args:
        log: the events of a run.
        target: the value to reach: at least, or at most where lower is better.
        whose: `global` or `personal`.

    Returns:
        Round, score, bits, FLOPs and device time; None if it was never reached.
    """
    keys = ("global_score", "global_accuracy") if whose == "global" else ("personal_mean",)
    sent: Mapping[str, Any] = {}
    for event in log:
        if event["event"] == "round-finished":
            sent = event
        if event["event"] != "evaluated":
            continue
        score = next((event[key] for key in keys if event.get(key) is not None), None)
        metric, lower = event.get("metric", "accuracy"), event.get("better") == "lower"
        if score is not None and (score <= target if lower else score >= target):
            return {
                "round": event["round"],
                "of": whose,
                "metric": metric,
                metric: score,
                "up": sent.get("up", 0),
                "down": sent.get("down", 0),
                "flops": sent.get("flops", 0),
                "device_seconds": sent.get("device_seconds"),
            }
    return None
