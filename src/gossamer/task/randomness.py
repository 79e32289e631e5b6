"""Refusing modules that draw random numbers, and leaving global generators untouched."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from gossamer.named import called

SEEDED = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
"""Modules the engine replaces by ones that draw from a key of the step."""


def refuse_randomness(module: nn.Module, batch: Tensor) -> None:
    """Raise ValueError if `module` draws from a global generator while training.

    Such draws depend on which client is computed when. nn.Dropout modules are exempt, because the
    engine gives them a seed of their own; they are switched off here.
    """
    culprits: list[str] = []
    before: list[tuple[object, ...]] = []

    def enter(part: nn.Module, _: object) -> None:
        before.append(draws())

    def leave(name: str) -> Callable[[nn.Module, object, object], None]:
        def hook(part: nn.Module, _: object, __: object) -> None:
            if before.pop() != draws():
                culprits.append(f"{type(part).__name__} {name!r}" if name else type(part).__name__)

        return hook

    module.train()
    for name, part in module.named_modules():
        if isinstance(part, SEEDED):
            part.eval()
        part.register_forward_pre_hook(enter)
        part.register_forward_hook(leave(name))
    with untouched_generators(), torch.no_grad():
        run(module, batch)
    if culprits:
        raise ValueError(
            f"{culprits[0]} draws its own random numbers in training, so results would depend on "
            f"scheduling; set its dropout to 0 and use nn.Dropout modules, which Gossamer seeds"
        )


def run(module: nn.Module, batch: Tensor) -> None:
    try:
        called(module, batch)
    except Exception as error:
        first, *_ = (str(error) or type(error).__name__).splitlines()
        raise ValueError(
            f"{type(module).__name__} does not accept inputs of shape {tuple(batch.shape[1:])} "
            f"and type {batch.dtype} ({first}); choose a model made for them"
        ) from error


def draws() -> tuple[object, ...]:
    """The state of every global generator, comparable with `==`."""
    name, words, *places = np.random.get_state(legacy=True)  # noqa: NPY002
    numbers = (name, np.asarray(words).tobytes(), *places)
    return (torch.get_rng_state().numpy().tobytes(), random.getstate(), numbers)


@contextmanager
def untouched_generators() -> Iterator[None]:
    """Put the global generators back to where they were, whatever the body draws."""
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002
