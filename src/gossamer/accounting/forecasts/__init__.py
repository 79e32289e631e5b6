"""Forecasts of the package's methods, by their classes."""

from __future__ import annotations

from gossamer.accounting.forecast import Forecast, own
from gossamer.accounting.forecasts import adjusted, growing, moving, personal, rolling
from gossamer.core import AnyMethod
from gossamer.methods import (
    FLASC,
    Ditto,
    FedAvg,
    FedAvgM,
    FedBN,
    FedDrop,
    FedOpt,
    FedProx,
    FedRep,
    FedRolex,
    FFALoRA,
    FjORD,
    HeteroFL,
    LGFedAvg,
    Mixture,
    Scaffold,
    ZeroFL,
)
from gossamer.methods.as_published.feddrop import FedDropVariants
from gossamer.methods.as_published.priors import MixtureVariants

DENSE = (FedAvg, FedProx, FedAvgM, FedOpt, LGFedAvg, Scaffold, FedBN, FedRep, Ditto)
SAME = (*DENSE, ZeroFL, FedDrop, Mixture, HeteroFL, FjORD, FLASC, FFALoRA)
VARIANTS = (FedDropVariants, MixtureVariants)

FORECASTS: dict[type, Forecast] = {
    **dict.fromkeys((*SAME, *VARIANTS), Forecast()),
    FedRolex: Forecast(rolling.alike),
    **growing.FORECASTS,
    **personal.FORECASTS,
    **moving.FORECASTS,
    **adjusted.FORECASTS,
}


def forecast_of(method: AnyMethod) -> Forecast:
    """What is known about a method's costs; its own functions come first."""
    return own(method) or FORECASTS.get(type(method), Forecast(None))
