"""`gossamer run METHOD --explain-arithmetic`: how each layer would be computed, and why."""

from __future__ import annotations

from gossamer.arithmetic import choice
from gossamer.arithmetic.library import library
from gossamer.cli.parsing import say
from gossamer.engine.arithmetic import layer_choices, steps_by_torch
from gossamer.engine.client import server_ctx
from gossamer.engine.measure import measures
from gossamer.engine.run_record import Run


def explain(run: Run) -> int:
    """Prints a row for each layer, at the densities of the method's first masks."""
    planned, kernels = run.task.planned, library()
    if isinstance(planned, str):
        say(f"torch computes all layers: {planned}")
        return 0
    assert kernels is not None
    ctx = server_ctx(run.task, run.key, 0, run.rounds, run.budgets)
    rows = layer_choices(run, measures(run.method, ctx, run.method.init(ctx)).masks)
    total = sum(row.macs for row in rows)
    active = sum(row.macs * row.density for row in rows) / max(total, 1)
    width = max(len(row.name) for row in rows)
    say(f"kernels: {kernels.build}; --arithmetic {run.task.arithmetic}")
    say(f"{'layer':{width}}  {'MACs':>12}  {'density':>7}  {'sparse up to':>12}  computed by")
    for row in rows:
        layer = planned.layers[row.name]
        bound = choice.bound(layer.convolution, run.batch)
        say(f"{row.name:{width}}  {row.macs:12,}  {row.density:7.3f}  {bound:12.2f}  {row.way}")
    say(
        f"{100 * active:.0f} % of {total / 1e6:,.1f} million multiplications an example, "
        f"in batches of {run.batch}; docs/arithmetic.md has the rule"
    )
    if reason := steps_by_torch(run):
        say(reason)
    return 0
