"""Predictions of a stored model, one example or many."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from gossamer.arithmetic.library import library
from gossamer.deploy import plain
from gossamer.deploy.format import decode
from gossamer.deploy.kernels import Batches, Singles
from gossamer.deploy.stored import Floats, Stored, Unreadable

FEW = 12
"""Examples up to which one at a time is faster than all at once."""


class Predictor:
    """A function from examples to class scores; threads may share it."""

    def __init__(self, stored: Stored) -> None:
        self._stored = stored
        self.shape = stored.shape
        """The shape of an example."""
        self.classes = stored.classes
        self.facts = stored.facts
        """Method, round, data set and density, as `gossamer export` wrote them."""

    def __call__(self, x: ArrayLike) -> Floats:
        """Class scores of one example, or of a batch of any size.

        Raises:
            ValueError: the examples have another shape than the model's.
        """
        given = np.ascontiguousarray(x, np.float32)
        if given.shape == self.shape:
            scores: Floats = self._outputs(given[None])[0]
            return scores
        if given.shape[1:] == self.shape:
            return self._outputs(given)
        raise ValueError(
            f"the model reads examples of shape {self.shape}, one or a batch, not {given.shape}"
        )

    def _outputs(self, x: Floats) -> Floats:
        return self._few(x) if len(x) <= FEW else self._many(x)

    # Lists of indices differ between the two, and most users need only one of them.

    @cached_property
    def _few(self) -> Callable[[Floats], Floats]:
        kernels = library()
        return self._numpy if kernels is None else Singles(kernels, self._stored)

    @cached_property
    def _many(self) -> Callable[[Floats], Floats]:
        kernels = library()
        return self._numpy if kernels is None else Batches(kernels, self._stored)

    def _numpy(self, x: Floats) -> Floats:
        return plain.outputs(self._stored, x)


def load(path: Path | str) -> Predictor:
    """The model in a `.gsm` file, ready to predict, without torch.

    Args:
        path: a file that `gossamer export RUN -o model.gsm` wrote.

    Raises:
        Unreadable: the file is damaged, or is something else.
    """
    try:
        return Predictor(decode(Path(path).read_bytes()))
    except Unreadable as reason:
        raise Unreadable(f"{path} is not a whole sparse model: {reason}; export it again") from None
