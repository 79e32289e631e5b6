"""`gossamer demo`: methods compared on real images that come with the package, and a report."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gossamer.cli.compare import Wanted, introduction, perform
from gossamer.cli.parsing import Parser
from gossamer.config import Config, Experiment
from gossamer.engine.options import Options
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
    # The paper's rates are for a thousand rounds.
    "fedsparse": {"lr": 0.05, "lambda0": 5e-5, "server_lr": 0.01, "threshold_lr": 0.01},
}
COMMON = {"clients": 5, "epochs": 2.0, "batch": 32, "lr": 0.1}
EXPERIMENT = Experiment(
    data="fmnist-mini", partition="dirichlet:0.2", pool=20, model="lenet5_caffe", rounds=28, seed=1
)


def demo(arguments: Sequence[str]) -> int:
    """`gossamer demo`: trains, compares, and writes a report."""
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
    told = (
        "A dense model, thresholds instead of weights, a sparse mask that all clients share, and "
        "a model that shrinks while it is trained: the same network on 10,000 real images of "
        f"Fashion-MNIST, {introduction(experiment)}. Clients of spafl keep models of their own; "
        "that of their server is not meant to be used."
    )
    command = shlex.join(["gossamer", "demo", *arguments])
    wanted = Wanted(out, command, command, "Gossamer demo", told, json=options.json, replace=True)
    return perform(todo, wanted)
