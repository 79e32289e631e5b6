"""`gossamer demo`: four methods compared on embedded real images, with a report."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gossamer.cli.compare import Request, perform
from gossamer.cli.parsing import Parser
from gossamer.config import Config, Experiment
from gossamer.engine.options import Options
from gossamer.reproduce.comparison import description
from gossamer.reproduce.plans import Plan

METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "spafl": {"lr": 0.02, "alpha": 0.001},
    "spdst": {
        "lr": 0.15,
        "density": 0.15,
        "momentum": 0.5,
        "probe_epochs": 5.0,
        "schedule": "constant",
    },
    # The paper's learning rates are for a thousand rounds.
    "fedsparse": {"lr": 0.05, "lambda0": 5e-5, "server_lr": 0.01, "threshold_lr": 0.01},
}
COMMON = {"clients": 5, "epochs": 2.0, "batch": 32, "lr": 0.1}
EXPERIMENT = Experiment(
    data="fmnist-mini", partition="dirichlet:0.2", pool=20, model="lenet5_caffe", rounds=28, seed=1
)


def demo(arguments: Sequence[str]) -> int:
    """`gossamer demo`: trains four methods, compares them, and writes a report."""
    parser = Parser(prog="gossamer demo", description=demo.__doc__)
    parser.add_argument("--out", default="runs/demo", metavar="FOLDER", help="default: runs/demo")
    parser.add_argument("--rounds", type=int, default=EXPERIMENT.rounds, help="rounds per method")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    options = parser.read(arguments)
    experiment = replace(EXPERIMENT, rounds=options.rounds)
    out = Path(options.out)
    todo = [
        Plan(
            out / name / f"seed-{experiment.seed}",
            Config(name, {**COMMON, **own}, experiment, Options(eval_every=2)),
        )
        for name, own in METHODS.items()
    ]
    introduction = (
        "A dense model (fedavg), thresholds instead of weights (spafl), a sparse mask shared by "
        "all clients (spdst), and a model that shrinks during training (fedsparse): the same "
        f"network on 10,000 real images of Fashion-MNIST, {description(experiment)}. The clients "
        "of spafl keep models of their own; its server's model is not meant to be used."
    )
    command = shlex.join(["gossamer", "demo", *arguments])
    request = Request(
        out, command, command, "Gossamer demo", introduction, json=options.json, restart=True
    )
    return perform(todo, request)
