"""A task: a plain module with a criterion and metrics, and the layout of the module's tensors."""

from gossamer.task.goal import (
    CLASSIFICATION,
    GOALS,
    LANGUAGE,
    MULTILABEL,
    REGRESSION,
    Criterion,
    Goal,
)
from gossamer.task.layout import Layout, Leaf
from gossamer.task.metrics import Metric
from gossamer.task.task import Gradients, Loss, Precision, Task

__all__ = [
    "CLASSIFICATION",
    "GOALS",
    "LANGUAGE",
    "MULTILABEL",
    "REGRESSION",
    "Criterion",
    "Goal",
    "Gradients",
    "Layout",
    "Leaf",
    "Loss",
    "Metric",
    "Precision",
    "Task",
]
