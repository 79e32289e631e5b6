"""Figures of a round: what it cost, and the means of its clients' metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

import numpy as np

from gossamer.accounting import Cost
from gossamer.engine.checkpoint import Progress
from gossamer.engine.events import (
    ClientFailed,
    ClientFinished,
    ClientStopped,
    RoundFinished,
)
from gossamer.wire.errors import NOT_FINITE

WORTHLESS = 1.5
"""An accuracy of so many times that of guessing, or less, is that of a model that guesses."""


def advanced(
    progress: Progress,
    finished: Sequence[ClientFinished],
    failures: Sequence[ClientFailed],
    stopped: Sequence[ClientStopped] = (),
    *,
    now: float | None,
    seconds: float,
) -> Progress:
    """Progress after one more round.

    Args:
        progress: The progress before.
        finished: The clients that finished.
        failures: The clients that failed, and the replies that were refused.
        stopped: The clients whose part came to nothing in virtual time.
        now: The virtual time after the round; None without devices.
        seconds: Wall-clock seconds of the run so far.
    """
    left_out = {failure.client for failure in failures}
    densities = [event.density for event in finished if event.client not in left_out]
    return replace(
        progress,
        round=progress.round + 1,
        cost=progress.cost + spent(finished, failures, stopped),
        density=float(np.mean(densities)) if densities else progress.density,
        seconds=seconds,
        device_seconds=now,
        failed=progress.failed + len(failures),
        not_finite=progress.not_finite + _not_finite(failures),
        diverged=_diverged(progress, finished, failures),
    )


def _diverged(
    progress: Progress, finished: Sequence[ClientFinished], failures: Sequence[ClientFailed]
) -> str:
    """In which round the run diverged, if it did and has not recovered since.

    It does when all replies are lost, and recovers when none is.
    """
    clients = {event.client for event in finished} | {event.client for event in failures}
    lost = _not_finite(failures)
    if clients and lost == len(clients):
        reason = f"{lost} of {lost} replies were {NOT_FINITE}"
    elif finished and not any(event.density for event in finished):
        reason = "no weight is left, the density is 0"
    else:
        return progress.diverged if lost else ""
    return progress.diverged or f"diverged in round {progress.round + 1}: {reason}"


def _not_finite(failures: Sequence[ClientFailed]) -> int:
    return sum(NOT_FINITE in failure.reason for failure in failures)


def diverged(progress: Progress, guessing: float | None) -> str:
    """In which round the run diverged, and how that showed; empty if it did not.

    A run also diverged if some replies were not finite and the model that is left guesses.

    Args:
        progress: How far the run has come.
        guessing: The score of a model that guesses; None where there is no such score.
    """
    if progress.diverged or not progress.not_finite or guessing is None:
        return progress.diverged
    known = (progress.scores.get(name) for name in ("global", "personal_mean"))
    score = next((each for each in known if each is not None), None)
    if score is None or score > WORTHLESS * guessing:
        return ""
    replies = "1 reply was" if progress.not_finite == 1 else f"{progress.not_finite} replies were"
    return f"diverged: {replies} {NOT_FINITE}, and a score of {score:.4g} is that of guessing"


def spent(
    finished: Sequence[ClientFinished],
    failures: Sequence[ClientFailed],
    stopped: Sequence[ClientStopped] = (),
) -> Cost:
    """The cost of a round; clients that failed are charged what they were sent.

    Clients that were stopped are charged what they had computed and sent, too.
    """
    total = Cost()
    columns = {
        each.name: sum((getattr(event, each.name) for event in finished), getattr(total, each.name))
        for each in fields(Cost)
    }
    total = Cost(**columns)
    for failure in failures:
        total += Cost(down=failure.down, paper_down=failure.paper_down)
    for each in stopped:
        vain = {"up": each.up, "down": each.down, "paper_down": each.paper_down}
        total += Cost(**vain, flops=each.flops)
    return total


def round_finished(
    progress: Progress, finished: Sequence[ClientFinished], failures: Sequence[ClientFailed]
) -> RoundFinished:
    """A round as an event, with what the run has cost so far."""
    failed = sorted(failure.client for failure in failures)
    total = progress.cost
    return RoundFinished(
        round=progress.round,
        clients=[event.client for event in finished if event.client not in failed],
        failed=failed,
        density=progress.density,
        metrics=means([event.metrics for event in finished if event.client not in failed]),
        up=total.up,
        down=total.down,
        information_up=total.information_up,
        information_down=total.information_down,
        paper_up=total.paper_up,
        paper_down=total.paper_down,
        flops=total.flops,
        device_seconds=progress.device_seconds,
    )


def means(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each metric over the clients that have it."""
    names = sorted({name for each in metrics for name in each})
    return {
        name: float(np.mean([each[name] for each in metrics if name in each])) for name in names
    }
