"""Every method, by name: a plain dictionary of values, where a preset is one more name."""

from typing import Any

from gossamer.core import Method
from gossamer.methods.fedavg import FedAvg
from gossamer.methods.fedavgm import FedAvgM
from gossamer.methods.fedopt import FedOpt, reddi
from gossamer.methods.fedprox import FedProx
from gossamer.methods.flash import Flash, jmwst, pdst
from gossamer.methods.flash import code_parity as flash_code
from gossamer.methods.lg_fedavg import LGFedAvg
from gossamer.methods.nst import NST
from gossamer.methods.nst import code_parity as nst_code
from gossamer.methods.spafl import SpaFL, bytecode, release

METHODS: dict[str, Method[Any, Any, Any, Any, Any]] = {
    "fedavg": FedAvg(),
    "fedprox": FedProx(),
    "fedavgm": FedAvgM(),
    "fedopt": FedOpt(),
    "fedadam-kingma": FedOpt(),
    "fedadam-reddi": reddi("adam"),
    "fedyogi": reddi("yogi"),
    "fedadagrad": reddi("adagrad"),
    "spafl": SpaFL(),
    "spafl-iclr-bytecode": bytecode(),
    "spafl-neurips-release": release(),
    "lg_fedavg": LGFedAvg(),
    "nst": NST(),
    "pdst": pdst(),
    "spdst": Flash(),
    "jmwst": jmwst(),
    "nst-code": nst_code(NST()),
    "spdst-code": flash_code(Flash()),
    "jmwst-code": flash_code(jmwst()),
}

__all__ = ["METHODS", "FedAvg", "FedAvgM", "FedOpt", "FedProx", "Flash", "LGFedAvg", "NST", "SpaFL"]
