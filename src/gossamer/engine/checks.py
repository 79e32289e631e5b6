"""What is checked before the first round of a run."""

from __future__ import annotations

from gossamer import fields
from gossamer.core import AnyMethod, Ctx, Key
from gossamer.data.federation import Federation
from gossamer.engine import conditions, until
from gossamer.engine.client import server_ctx
from gossamer.engine.evaluate import check_selection
from gossamer.engine.options import Options
from gossamer.engine.run_record import Run
from gossamer.task import Task
from gossamer.trust import aggregation


def check(
    method: AnyMethod,
    task: Task,
    federation: Federation,
    *,
    rounds: int,
    seed: int = 0,
    options: Options = Options(),
) -> None:
    """Raises what `run` would raise before its first round, and leaves no trace."""
    check_run(Run(method, task, federation, rounds=rounds, key=Key(seed), options=options))


def check_run(run: Run) -> None:
    """Raises what `start` would raise before the first round, and leaves no trace."""
    check_settings(run)
    run.method.init(ctx_of(run, 0))


def check_settings(run: Run) -> None:
    """Raises if settings, data and installed packages do not fit each other."""
    fields.check(run.method)
    if run.rounds < 1:
        raise ValueError(f"a run needs at least 1 round, not {run.rounds}; use `rounds=1` or more")
    check_selection(run.options, run.federation)
    metric, evaluated = run.task.goal.headline.name, bool(run.options.eval_every)
    until.check(run.options.until, metric, evaluated, run.fleet is not None)
    conditions.check(run)
    _check_optimiser(run)
    run.wire.check()
    aggregation.check(run.options.aggregate, run.method, run.name)
    if run.mechanism is not None:
        run.mechanism.accountant.epsilon(1, run.mechanism.spec.delta)  # needs its library


def _check_optimiser(run: Run) -> None:
    """Raises if a method does not train by the optimiser, or keep what it remembers, as asked.

    A method says so by the class attributes `own_optimiser` and `keeps_moments`.
    """
    other = fields.value(run.method, "optimiser", "sgd") != "sgd"
    if other and _declares(run.method, "own_optimiser"):
        raise ValueError(
            f"clients of {run.name} train by an optimiser of their own; leave out `optimiser=`"
        )
    kept = fields.value(run.method, "moments", "reset") == "kept"
    if kept and not _declares(run.method, "keeps_moments"):
        raise ValueError(
            f"clients of {run.name} keep no moments of their optimiser; leave out `moments='kept'`"
        )


def _declares(method: AnyMethod, name: str) -> bool:
    """Whether a method, or the one that a variants class holds, has a class attribute set."""
    return any(getattr(each, name, False) for each in (method, getattr(method, "pure", None)))


def ctx_of(run: Run, number: int) -> Ctx:
    """Where the server stands in a round."""
    return server_ctx(run.task, run.key, number, run.rounds, run.budgets, len(run.federation.pool))
