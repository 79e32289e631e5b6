"""Whether a task's model can be run by the kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from gossamer.arithmetic.library import library, missing
from gossamer.arithmetic.plan import Plan
from gossamer.arithmetic.steps import Unsupported

if TYPE_CHECKING:
    from gossamer.task import Task


def plan_or_reason(task: Task) -> Plan | str:
    """A task's model as the kernels run it, or a sentence that says why they cannot."""
    if task.arithmetic == "torch":
        return "torch was asked for"
    if (kernels := library()) is None:
        return missing()
    if task.criterion is not functional.cross_entropy:
        return "the kernels know no criterion but cross-entropy"
    if task.precision != "f32" or task.device != "cpu":
        return f"the kernels compute in f32 on the processor, not {task.precision} on {task.device}"
    if task.image_format is torch.contiguous_format:
        return "a 1 x 1 convolution of 2 to 6 channels keeps this model out of channels-last order"
    try:
        return Plan.of(kernels, task.module, task.layout, task.constants)
    except Unsupported as reason:
        return f"the kernels cannot run this model: {reason}"
