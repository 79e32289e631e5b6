"""Which arithmetic computes a run's layers, as events and for people.

It is a function of the masks, so a resumed run reports the same.
"""

from __future__ import annotations

from gossamer import fields, sparsity
from gossamer.arithmetic.choice import LayerChoice, choices
from gossamer.arithmetic.library import library
from gossamer.core import Masks
from gossamer.engine.events import ArithmeticChosen
from gossamer.engine.run_record import Run


def layer_choices(run: Run, masks: Masks) -> list[LayerChoice]:
    """How every layer is computed under these masks; empty if the kernels cannot run the model."""
    plan = run.task.planned
    if isinstance(plan, str):
        return []
    densities = {name: float(share) for name, share in sparsity.layer_densities(masks).items()}
    return choices(plan, densities, run.batch, run.task.arithmetic)


def arithmetic_chosen(run: Run, round: int, masks: Masks) -> ArithmeticChosen:
    """The event for these masks."""
    kernels, planned = library(), run.task.planned
    return ArithmeticChosen(
        round,
        kernels.build if kernels else "",
        planned if isinstance(planned, str) else "",
        {choice.name: choice.way for choice in layer_choices(run, masks)},
        steps_by_torch(run),
    )


def steps_by_torch(run: Run) -> str:
    """Why torch takes the optimiser's steps though the kernels run the model; empty otherwise."""
    optimiser = fields.value(run.method, "optimiser", "sgd")
    if optimiser == "sgd" or isinstance(run.task.planned, str):
        return ""
    return f"the kernels step by SGD only: they compute gradients, and torch steps by {optimiser}"
