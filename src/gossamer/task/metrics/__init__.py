"""Metrics: numbers per example, how they become one figure, and which way is better."""

from gossamer.task.metrics.classes import ACCURACY, CLASS_LOSS
from gossamer.task.metrics.labels import AVERAGE_PRECISION, F1, F1_MACRO, LABEL_LOSS
from gossamer.task.metrics.metric import Better, Metric, Numbers, is_better, mean, titled
from gossamer.task.metrics.numbers import MAE, R2, RMSE, aligned
from gossamer.task.metrics.tokens import IGNORED, PERPLEXITY, TOKEN_ACCURACY, TOKEN_LOSS

__all__ = [
    "ACCURACY",
    "AVERAGE_PRECISION",
    "CLASS_LOSS",
    "F1",
    "F1_MACRO",
    "IGNORED",
    "LABEL_LOSS",
    "MAE",
    "PERPLEXITY",
    "R2",
    "RMSE",
    "TOKEN_ACCURACY",
    "TOKEN_LOSS",
    "Better",
    "Metric",
    "Numbers",
    "aligned",
    "is_better",
    "mean",
    "titled",
]
