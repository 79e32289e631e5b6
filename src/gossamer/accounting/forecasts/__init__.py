"""Forecasts of the package's methods, by their classes."""

from __future__ import annotations

from gossamer.accounting.forecast import Forecast, own
from gossamer.accounting.forecasts import adjusted, growing, moving, personal
from gossamer.core import AnyMethod
from gossamer.methods import (
    FLASC,
    FedAvg,
    FedAvgM,
    FedDrop,
    FedOpt,
    FedProx,
    FFALoRA,
    LGFedAvg,
    Mixture,
    ZeroFL,
)
from gossamer.methods.as_published.feddrop import FedDropVariants
from gossamer.methods.as_published.priors import MixtureVariants

SAME = (FedAvg, FedProx, FedAvgM, FedOpt, LGFedAvg, ZeroFL, FedDrop, Mixture, FLASC, FFALoRA)
VARIANTS = (FedDropVariants, MixtureVariants)

FORECASTS: dict[type, Forecast] = {
    **dict.fromkeys((*SAME, *VARIANTS), Forecast()),
    **growing.FORECASTS,
    **personal.FORECASTS,
    **moving.FORECASTS,
    **adjusted.FORECASTS,
}


def forecast_of(method: AnyMethod) -> Forecast:
    """What is known about a method's costs; its own functions come first."""
    return own(method) or FORECASTS.get(type(method), Forecast(None))
