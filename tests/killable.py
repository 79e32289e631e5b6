"""A real small job in a process of its own, to be killed and resumed by tests."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import torch

from gossamer import Options
from gossamer.core import Key
from gossamer.engine import Run, start
from helpers import Toy, fedavg, normed

ROUNDS = 24

# Made once, before processes are forked: torch imports a lot when a layout is traced first.
torch.set_num_threads(1)
TASK = normed()


def job(folder: Path, every: int, resume: bool) -> None:
    """Stateful clients, two workers, checkpoints every so many rounds (0: by the clock)."""
    warnings.simplefilter("error")
    start(
        Run(
            replace(fedavg(clients=4, momentum=0.9), buffers="local"),
            TASK,
            Toy(pool=9),
            rounds=ROUNDS,
            key=Key(11),
            out=folder,
            options=Options(workers=2, eval_every=5, checkpoint_every=every),
        ),
        resume=resume,
    )
