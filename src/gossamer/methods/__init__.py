"""Every method, by name: a plain dictionary of values, where a preset is one more name."""

from typing import Any

from gossamer.core import Method
from gossamer.methods.fedavg import FedAvg
from gossamer.methods.fedavgm import FedAvgM
from gossamer.methods.fedopt import FedOpt, reddi
from gossamer.methods.fedprox import FedProx

METHODS: dict[str, Method[Any, Any, Any, Any, Any]] = {
    "fedavg": FedAvg(),
    "fedprox": FedProx(),
    "fedavgm": FedAvgM(),
    "fedopt": FedOpt(),
    "fedadam-kingma": FedOpt(),
    "fedadam-reddi": reddi("adam"),
    "fedyogi": reddi("yogi"),
    "fedadagrad": reddi("adagrad"),
}

__all__ = ["METHODS", "FedAvg", "FedAvgM", "FedOpt", "FedProx"]
