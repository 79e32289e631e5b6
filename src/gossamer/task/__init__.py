"""A task: a plain module and a criterion, with the layout of the module's tensors."""

from gossamer.task.layout import Layout, Leaf
from gossamer.task.task import Criterion, Gradients, Loss, Precision, Task

__all__ = ["Criterion", "Gradients", "Layout", "Leaf", "Loss", "Precision", "Task"]
