"""Runs side by side: each in a process of its own, as many at a time as there are cores."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from multiprocessing.synchronize import Event as Flag
from pathlib import Path
from typing import Any

from gossamer import engine, fields
from gossamer.config import read
from gossamer.engine import Stop, Summary
from gossamer.engine.events import CONFIG, Clock, Event
from gossamer.engine.resuming import begun
from gossamer.reproduce.plans import Plan

SECONDS = 0.2
"""Between two looks at whether the user wants to stop."""

_stopping: list[Flag] = []
"""In a process of the pool: the flag by which the first process stops it."""


@dataclass(frozen=True)
class Ended:
    """A run that came to an end, or did not."""

    plan: Plan
    summary: Summary | None
    problem: str = ""


def side_by_side(
    plans: Sequence[Plan], processes: int, workers: int, stop: Stop
) -> Iterator[Ended]:
    """Trains runs whose configurations are written, and yields each as it ends.

    A run that was interrupted continues from its checkpoint. When `stop` is requested, running
    ones finish their round and save it.
    """
    context = multiprocessing.get_context("spawn")  # threads of torch do not survive a fork
    flag = context.Event()
    with ProcessPoolExecutor(processes, context, _prepare, (flag,)) as pool:
        waiting: dict[Future[Summary], Plan] = {
            pool.submit(_train, plan.folder, plan.name, workers): plan for plan in plans
        }
        while waiting:
            ready, _ = wait(waiting, SECONDS, FIRST_COMPLETED)
            if stop.after_round() and not flag.is_set():
                flag.set()
                for future in waiting:
                    future.cancel()
            for future in ready:
                yield _ended(waiting.pop(future), future)


def _ended(plan: Plan, future: Future[Summary]) -> Ended:
    try:
        return Ended(plan, future.result())
    except CancelledError:
        return Ended(plan, None)
    except Exception as problem:  # of the run's method, model or data, or a process that died
        reason = problem.args[0] if isinstance(problem, KeyError) and problem.args else problem
        return Ended(plan, None, str(reason) or type(problem).__name__)


def _prepare(flag: Flag) -> None:
    """Leaves Ctrl-C to the first process, which asks all others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _stopping.append(flag)


def _train(folder: Path, name: str, workers: int) -> Summary:
    config = read(folder / CONFIG)
    config = replace(config, options=fields.replace(config.options, {"workers": workers}))
    run = replace(config.build_run(folder), name=name)
    stop = Stop()
    summary = engine.start(run, sinks=[_Asked(stop)], stop=stop, resume=begun(folder))
    nothing: Any = None
    return replace(summary, state=nothing)  # a model need not travel to the first process


class _Asked:
    """Stops a run after its round when the first process wants it."""

    def __init__(self, stop: Stop) -> None:
        self._stop = stop

    def emit(self, event: Event, clock: Clock) -> None:
        if _stopping and _stopping[0].is_set() and not self._stop.after_round():
            self._stop.request()

    def close(self) -> None:
        """Has nothing to close."""
