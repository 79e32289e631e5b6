"""`gossamer demo`: methods compared on real images that come with the package, and a report."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gossamer import engine, fields
from gossamer.cli.parsing import Parser, say, table, warn
from gossamer.cli.progress import bits, display
from gossamer.cli.report import write
from gossamer.cli.run import INTERRUPTED, interrupts, refusing
from gossamer.config import Config, Experiment
from gossamer.engine import Options, Stop, Summary, events
from gossamer.engine.checkpoint import write_atomically
from gossamer.report import report

_MASKED = {"density": 0.1, "schedule": "constant", "momentum": 0.5, "probe_epochs": 5.0}
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "lg_fedavg": {"momentum": 0.0},
    "spafl": {"lr": 0.02, "alpha": 0.002},
    "spdst": _MASKED,
    "jmwst": {**_MASKED, "mask_every": 5},
}
COMMON = {"clients": 8, "epochs": 2.0, "batch": 32, "lr": 0.05}
EXPERIMENT = Experiment(
    data="fmnist-mini", partition="dirichlet:0.3", pool=40, model="lenet5_caffe", rounds=30, seed=1
)
HEADER = ("method", "global", "personal", "worst decile", "density", "sent", "seconds")


def demo(arguments: Sequence[str]) -> int:
    """`gossamer demo`: trains, compares, and writes a report."""
    parser = Parser(prog="gossamer demo", description=demo.__doc__)
    parser.add_argument("--out", default="runs/demo", metavar="FOLDER", help="default: runs/demo")
    parser.add_argument("--rounds", type=int, default=EXPERIMENT.rounds, help="rounds per method")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    options = parser.read(arguments)
    out = Path(options.out)
    experiment = replace(EXPERIMENT, rounds=options.rounds)
    configs = {
        name: Config(name, {**COMMON, **settings}, experiment, Options(eval_every=1))
        for name, settings in METHODS.items()
    }
    with refusing():  # all of them, before the first is run
        for config in configs.values():
            engine.check(*config.build(), rounds=experiment.rounds, seed=experiment.seed)
    summaries: list[Summary] = []
    stop = Stop()
    with interrupts(stop):
        for name, config in configs.items():
            summaries.append(_one(config, out / name, stop))
            if summaries[-1].interrupted:
                again = shlex.join(["gossamer", "demo", *arguments])
                warn(f"stopped in round {summaries[-1].rounds} of {name}; go on with: {again}")
                return INTERRUPTED
    rows = [_row(summary) for summary in summaries]
    say(table(rows, HEADER))
    page = out / "report.html"
    with refusing():
        runs = [out / name for name in METHODS]
        write(report(runs, "Gossamer demo", _introduction(experiment)), page)
    say(f"report: {page}")
    if options.json:
        figures = [summary.figures() for summary in summaries]
        print(json.dumps(events.plain({"report": str(page), "runs": figures})), flush=True)
    return 0


def _one(config: Config, out: Path, stop: Stop) -> Summary:
    """Runs one method, or goes on where an interrupted demo stopped."""
    if not sys.stdout.isatty():
        say(config.method)
    with refusing():
        method, task, federation = config.build()
        known = (out / "config.toml").exists()
        same = known and (out / "config.toml").read_text() == config.toml()
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(out / "config.toml", config.toml().encode())
    return engine.run(
        method,
        task,
        federation,
        rounds=config.experiment.rounds,
        seed=config.experiment.seed,
        out=out,
        name=config.method,
        options=config.options,
        sinks=[display(config.experiment.rounds, config.method)],
        stop=stop,
        resume=same,
    )


def _row(summary: Summary) -> tuple[object, ...]:
    accuracy = summary.accuracy
    own = accuracy["personal_density"]
    return (
        summary.method,
        accuracy["global"],
        accuracy["personal_mean"],
        accuracy["personal_worst_decile"],
        summary.density if own is None else own,
        bits(summary.cost.up + summary.cost.down),
        f"{summary.seconds:.1f}",
    )


def _introduction(experiment: Experiment) -> str:
    """What is compared, on what, and how to read it."""
    plain = {item.name: item.default for item in fields.settings(Experiment())}
    settings = ", ".join(
        f"{item.name} {item.default}"
        for item in fields.settings(experiment)
        if item.name == "data" or item.default != plain[item.name]
    )
    return (
        "A dense model, layers that stay at home, thresholds instead of weights, a sparse mask "
        "that all clients share, and one that they move together: the same network on 10,000 real "
        f"images of Fashion-MNIST, {settings}. Clients of lg_fedavg and spafl keep models of their "
        "own; that of their server is not meant to be used."
    )
