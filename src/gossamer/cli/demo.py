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
from gossamer.report.figures import Figures
from gossamer.reproduce.plans import Plan
from gossamer.reproduce.results import Results

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


NAMES = {"fedavg": "FedAvg", "spafl": "SpaFL", "spdst": "SPDST", "fedsparse": "FedSparse"}


def sentence(results: Results) -> str:
    """What the demo shows, in one sentence: accuracy, bits and training time beside FedAvg's."""
    rows = {row.group.first.method: row.figures for row in results.rows}
    base = rows.pop("fedavg")
    parts = [f"{_accuracy(base)} with dense FedAvg"]
    for name, own in sorted(rows.items(), key=lambda row: -(row[1]["personal_mean"] or 0)):
        bits, seconds = (_share(own, base, cost) for cost in ("sent", "training_seconds"))
        costs = f"{bits} of the bits and {seconds} the training time"
        parts.append(f"{_accuracy(own)} with {NAMES[name]}, for {costs}")
    *first, last = parts
    return f"On their own test data, clients reach {'; '.join(first)}; and {last}."


def _accuracy(figures: Figures) -> str:
    return f"{100 * (figures['personal_mean'] or 0):.1f} %"


def _share(own: Figures, base: Figures, cost: str) -> str:
    """A cost as a part or a multiple of FedAvg's."""
    ratio = (own[cost] or 0) / (base[cost] or 1)
    share = f"{100 * ratio:.2g} %" if ratio < 0.995 else f"{ratio:.1f} times"
    return f"{share} of" if cost != "sent" and ratio < 0.995 else share


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
        "FedAvg averages a dense model. SPDST trains one sparse model that all clients share. "
        "FedSparse prunes filters and neurons while it trains. SpaFL sends one threshold per "
        "neuron instead of weights; its clients keep models of their own, and there is no global "
        "model. All four train the same network on 10,000 real images of Fashion-MNIST."
    )
    command = shlex.join(["gossamer", "demo", *arguments])
    request = Request(
        out,
        command,
        command,
        "Gossamer demo",
        introduction,
        sentence,
        json=options.json,
        restart=True,
    )
    return perform(todo, request)
