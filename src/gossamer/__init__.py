"""Sparse, communication-efficient federated learning on PyTorch, with every bit counted."""

__version__ = "0.1.0"

from gossamer.core import (
    Batch,
    Client,
    Ctx,
    Data,
    Ensemble,
    Examples,
    Exchange,
    Job,
    Key,
    Masks,
    Method,
    Params,
    Result,
    sample,
    sample_by_budget,
    sample_richest,
)
from gossamer.engine import Options, Summary, run
from gossamer.fields import option
from gossamer.layout import Layout
from gossamer.methods import (
    METHODS,
    NST,
    FedAvg,
    FedAvgM,
    FedDrop,
    FedOpt,
    FedProx,
    FedSparse,
    Flash,
    Laplace,
    LGFedAvg,
    Mixture,
    SpaFL,
)
from gossamer.optim import Training
from gossamer.task import Gradients, Task

__all__ = [
    "METHODS",
    "NST",
    "Batch",
    "Client",
    "Ctx",
    "Data",
    "Ensemble",
    "Examples",
    "Exchange",
    "FedAvg",
    "FedAvgM",
    "FedDrop",
    "FedOpt",
    "FedProx",
    "FedSparse",
    "Flash",
    "Gradients",
    "Job",
    "Key",
    "LGFedAvg",
    "Laplace",
    "Layout",
    "Masks",
    "Method",
    "Mixture",
    "Options",
    "Params",
    "Result",
    "SpaFL",
    "Summary",
    "Task",
    "Training",
    "option",
    "run",
    "sample",
    "sample_by_budget",
    "sample_richest",
]
