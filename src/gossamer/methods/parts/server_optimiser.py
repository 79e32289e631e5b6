"""The server's optimiser: SGD, Adam, Yogi or Adagrad along the clients' mean change.

Kingma, Ba: Adam: a method for stochastic optimization. ICLR 2015. https://arxiv.org/abs/1412.6980
Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: Adaptive federated optimization.
ICLR 2021. https://arxiv.org/abs/2003.00295
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gossamer import sparsity
from gossamer.core import Masks, Params
from gossamer.fields import option

Optimizer = Literal["sgd", "adam", "yogi", "adagrad"]


@dataclass(frozen=True)
class Moments:
    """The optimiser's state; SGD has no second moment."""

    first: Params
    second: Params
    steps: int

    def masked(self, masks: Masks) -> Moments:
        """Moments that are zero outside of these masks."""
        first, second = (sparsity.masked(each, masks) for each in (self.first, self.second))
        return Moments(first, second, self.steps)


@dataclass(frozen=True)
class ServerOptimiser:
    """An optimiser of the server; the defaults are those of Kingma and Ba."""

    optimizer: Optimizer = option("adam", "optimiser of the server")
    server_lr: float = option(1e-3, "learning rate of the server", above=0)
    beta1: float = option(0.9, "decay of the first moment (momentum, for sgd)", least=0, below=1)
    beta2: float = option(0.999, "decay of the second moment", least=0, below=1)
    eps: float = option(1e-8, "added to the root of the second moment", above=0)
    bias_correction: bool = option(True, "correct the bias of Adam's moments, as Kingma and Ba do")
    second_start: float = option(0.0, "initial second moment; Reddi: eps squared", least=0)

    def start(self, params: Params) -> Moments:
        """The moments before the first step."""
        first = {name: torch.zeros_like(each) for name, each in params.items()}
        second = {name: torch.full_like(each, self.second_start) for name, each in params.items()}
        return Moments(first, second if self.optimizer != "sgd" else {}, 0)

    def step(self, params: Params, changes: Params, moments: Moments) -> tuple[Params, Moments]:
        """One step along `changes`, which point downhill (Reddi et al., Algorithm 2).

        Returns:
            The new values of the parameters that have a change, and the new moments.
        """
        steps = moments.steps + 1
        share = 1.0 if self.optimizer == "sgd" else 1 - self.beta1
        stepped, first, second = {}, {}, {}
        for name, change in changes.items():
            moment = self.beta1 * moments.first[name] + share * change
            first[name] = moment
            if self.optimizer == "sgd":
                stepped[name] = params[name] + self.server_lr * moment
                continue
            second[name] = self._second(moments.second[name], change)
            direction = self._direction(moment, second[name], steps)
            stepped[name] = params[name] + self.server_lr * direction
        return stepped, Moments(first, second, steps)

    def _second(self, old: Tensor, change: Tensor) -> Tensor:
        square = change * change
        match self.optimizer:
            case "adam":
                return self.beta2 * old + (1 - self.beta2) * square
            case "yogi":
                return old - (1 - self.beta2) * square * torch.sign(old - square)
            case _:
                return old + square

    def _direction(self, first: Tensor, second: Tensor, steps: int) -> Tensor:
        if self.bias_correction and self.optimizer == "adam":
            first = first / (1 - self.beta1**steps)
            second = second / (1 - self.beta2**steps)
        return first / (second.sqrt() + self.eps)


def unrounded(reply: Params, sent: Params, kept: Params) -> Params:
    """Replies as if the model had not been rounded on its way down.

    A client starts from the rounded tensors it was `sent`, the server from those it `kept`. Their
    difference is no change that the client made, but Adam would take a whole step along it.
    """
    return {name: reply[name] + (tensor - sent[name]) for name, tensor in kept.items()}
