"""Every method, by name: a plain dictionary of values, where a preset is one more name."""

from typing import Any

from gossamer.core import Method
from gossamer.methods.as_published import PUBLISHED
from gossamer.methods.compressed import COMPRESSED
from gossamer.methods.ditto import Ditto
from gossamer.methods.fedavg import FedAvg
from gossamer.methods.fedavgm import FedAvgM
from gossamer.methods.fedbn import FedBN
from gossamer.methods.feddrop import FedDrop
from gossamer.methods.feddrop import paper as feddrop_paper
from gossamer.methods.feddst import FedDST, random_mask
from gossamer.methods.fedmef import FedMef
from gossamer.methods.fedmef import sparing as fedmef_sparing
from gossamer.methods.fedmrn import FedMRN
from gossamer.methods.fedopt import FedOpt, reddi
from gossamer.methods.fedpm import FedPM
from gossamer.methods.fedprox import FedProx
from gossamer.methods.fedrep import FedRep
from gossamer.methods.fedrolex import FedRolex
from gossamer.methods.fedrts import FedRTS
from gossamer.methods.fedspa import FedSpa
from gossamer.methods.fedspa import static as fedspa_static
from gossamer.methods.fedsparse import HIGH as FEDSPARSE_HIGH
from gossamer.methods.fedsparse import LOW as FEDSPARSE_LOW
from gossamer.methods.fedsparse import FedSparse
from gossamer.methods.fedtiny import FedTiny
from gossamer.methods.ffa_lora import FFALoRA
from gossamer.methods.fjord import FjORD
from gossamer.methods.flasc import FLASC
from gossamer.methods.flasc import TRAINING as LORA_TRAINING
from gossamer.methods.flash import Flash, jmwst, pdst
from gossamer.methods.heterofl import HeteroFL
from gossamer.methods.laplace import Laplace
from gossamer.methods.lg_fedavg import LGFedAvg
from gossamer.methods.lotteryfl import LotteryFL
from gossamer.methods.mixture import Mixture
from gossamer.methods.nst import NST
from gossamer.methods.parts.client_readjustment import TRAINING as FEDDST_TRAINING
from gossamer.methods.pffdst import PFFDST
from gossamer.methods.prunefl import PruneFL
from gossamer.methods.scaffold import Scaffold
from gossamer.methods.signsgd import SignSGD
from gossamer.methods.spafl import SpaFL
from gossamer.methods.sparsyfed import SparsyFed
from gossamer.methods.ssfl import SSFL
from gossamer.methods.subfedavg import SubFedAvg
from gossamer.methods.zerofl import ZeroFL

ALGORITHMS: dict[str, Method[Any, Any, Any, Any, Any]] = {
    "fedavg": FedAvg(),
    "fedprox": FedProx(),
    "fedavgm": FedAvgM(),
    "fedopt": FedOpt(),
    "fedadam-kingma": FedOpt(),
    "fedadam-reddi": reddi("adam"),
    "fedyogi": reddi("yogi"),
    "fedadagrad": reddi("adagrad"),
    "spafl": SpaFL(),
    "lg_fedavg": LGFedAvg(),
    "subfedavg": SubFedAvg(),
    "lotteryfl": LotteryFL(),
    "fedspa": FedSpa(),
    "fedspa-static": fedspa_static(),
    "feddst": FedDST(),
    "random_mask": random_mask(),
    "pffdst": PFFDST(),
    "pffdst-no-freezing": PFFDST(freezing=False, training=FEDDST_TRAINING),
    "pffdst-no-server": PFFDST(readjust="client", training=FEDDST_TRAINING),
    "prunefl": PruneFL(),
    "fedtiny": FedTiny(),
    "fedmef": FedMef(),
    "fedmef-sparing": fedmef_sparing(),
    "fedrts": FedRTS(),
    "fedpm": FedPM(),
    "zerofl": ZeroFL(),
    "nst": NST(),
    "pdst": pdst(),
    "spdst": Flash(),
    "jmwst": jmwst(),
    "fedsparse": FedSparse(),
    "fedsparse-low": FEDSPARSE_LOW,
    "fedsparse-high": FEDSPARSE_HIGH,
    "feddrop": FedDrop(),
    "feddrop-paper": feddrop_paper(),
    "laplace": Laplace(),
    "laplace-sign": Laplace(server="sign"),
    "mixture": Mixture(),
    "scaffold": Scaffold(),
    "fedbn": FedBN(),
    "fedrep": FedRep(),
    "ditto": Ditto(),
    "heterofl": HeteroFL(),
    "fjord": FjORD(),
    "fedrolex": FedRolex(),
    **COMPRESSED,
    "signsgd": SignSGD(),
    "fedavg-lora": FedAvg(training=LORA_TRAINING),
    "ffa_lora": FFALoRA(training=LORA_TRAINING),
    "flasc": FLASC(),
    "fedmrn": FedMRN(),
    "ssfl": SSFL(),
    "sparsyfed": SparsyFed(),
}
"""The methods of the papers, with the presets that the papers themselves name."""

METHODS = {**ALGORITHMS, **PUBLISHED}
"""All of these, and the authors' codes and other readings of the papers."""

__all__ = [
    "ALGORITHMS",
    "METHODS",
    "PUBLISHED",
    "Ditto",
    "FFALoRA",
    "FLASC",
    "FedAvg",
    "FedAvgM",
    "FedBN",
    "FedDST",
    "FedDrop",
    "FedMRN",
    "FedMef",
    "FedOpt",
    "FedPM",
    "FedProx",
    "FedRTS",
    "FedRep",
    "FedRolex",
    "FedSpa",
    "FedSparse",
    "FedTiny",
    "FjORD",
    "Flash",
    "HeteroFL",
    "LGFedAvg",
    "Laplace",
    "LotteryFL",
    "Mixture",
    "NST",
    "PFFDST",
    "SSFL",
    "PruneFL",
    "Scaffold",
    "SignSGD",
    "SpaFL",
    "SparsyFed",
    "SubFedAvg",
    "ZeroFL",
]
