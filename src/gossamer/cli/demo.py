"""`gossamer demo`: methods compared on real images that come with the package, and a report."""

from __future__ import annotations

import html
import io
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gossamer import engine, fields
from gossamer.cli.parsing import Parser, say, table, warn
from gossamer.cli.progress import bits, display
from gossamer.cli.run import INTERRUPTED, interrupts, refusing
from gossamer.config import Config, Experiment
from gossamer.engine import Options, Stop, Summary, events
from gossamer.engine.checkpoint import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    report = out / "report.html"
    page = _page(rows, [out / name for name in METHODS], experiment)
    write_atomically(report, page.encode())
    say(f"report: {report}")
    if options.json:
        figures = [summary.figures() for summary in summaries]
        print(json.dumps(events.plain({"report": str(report), "runs": figures})), flush=True)
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


def _page(rows: Sequence[Sequence[object]], runs: Sequence[Path], experiment: Experiment) -> str:
    """One self-contained page: the table, the curves, and what was run."""
    cells = "\n".join(
        "<tr>"
        + "".join(
            f"<td>{f'{cell:.4f}' if isinstance(cell, float) else html.escape(str(cell))}</td>"
            for cell in row
        )
        + "</tr>"
        for row in rows
    )
    head = "".join(f"<th>{html.escape(name)}</th>" for name in HEADER)
    plain = {item.name: item.default for item in fields.settings(Experiment())}
    settings = ", ".join(
        f"{item.name} {item.default}"
        for item in fields.settings(experiment)
        if item.name == "data" or item.default != plain[item.name]
    )
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Gossamer demo</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto }}
body {{ padding: 0 1rem }}
table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }}
td, th {{ padding: .3rem .6rem; text-align: right; border-bottom: 1px solid #ddd }}
td:first-child, th:first-child {{ text-align: left }}
svg {{ width: 100%; height: auto }}
.wide {{ overflow-x: auto }}
</style>
<h1>Gossamer demo</h1>
<p>A dense model, layers that stay at home, thresholds instead of weights, a sparse mask that all
clients share, and one that they move together: the same network on 10,000 real images of
Fashion-MNIST, {settings}. Global accuracy is of the server's model on 2,000 test images; personal
accuracy is the mean over clients on each client's own test images, of its own model where it has
one. Clients of lg_fedavg and spafl have; that of their server is not meant to be used.</p>
<div class="wide"><table><tr>{head}</tr>
{cells}
</table></div>
{_curves(runs)}
{_masks(runs)}
</html>
"""


def _curves(runs: Sequence[Path]) -> str:
    """Personal accuracy against rounds and against bits sent, as an inline picture."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "<p>Install gossamer[plot] for curves.</p>"
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for run in runs:
        log = events.read(run / "events.jsonl")
        accuracy = {e["round"]: e["personal_mean"] for e in log if e["event"] == "evaluated"}
        sent = {e["round"]: e["up"] + e["down"] for e in log if e["event"] == "round-finished"}
        left.plot(list(accuracy), list(accuracy.values()), label=run.name)
        rounds = [number for number in accuracy if number in sent]
        right.plot([sent[n] for n in rounds], [accuracy[n] for n in rounds], label=run.name)
    left.set(xlabel="round", ylabel="personal accuracy, mean over clients")
    right.set(xlabel="bits sent, both directions", xscale="log")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False)
    return _inline(figure)


def _masks(runs: Sequence[Path]) -> str:
    """How far masks at the server move from round to round, and how dense its layers end."""
    found = {}
    for run in runs:
        log = events.read(run / "events.jsonl")
        # The first round of a probe replaces the mask; only what comes later is a move.
        moves = [e for e in log if e["event"] == "measured" and e["round"] > 1]
        if moves and moves[-1]["layers"]:
            found[run.name] = moves
    if not found:
        return ""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return ""
    figure = Figure(figsize=(10, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    colours = {run.name: f"C{number}" for number, run in enumerate(runs)}
    for index, (name, moves) in enumerate(found.items()):
        distances = [e["mismatch"] for e in moves]
        left.plot([e["round"] for e in moves], distances, colours[name], label=name)
        layers = moves[-1]["layers"]
        width = 0.8 / len(found)
        places = [place + width * index for place in range(len(layers))]
        right.bar(places, [each["density"] for each in layers.values()], width, color=colours[name])
    names = [name.removesuffix(".weight") for name in next(iter(found.values()))[-1]["layers"]]
    right.set_xticks([place + 0.4 - 0.4 / len(found) for place in range(len(names))], names)
    left.set(xlabel="round", ylabel="mask mismatch with the round before", ylim=(0, None))
    right.set(ylabel="density of layers, last", ylim=(0, 1))
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False)
    return "<h2>Masks</h2>\n" + _inline(figure)


def _inline(figure: Figure) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg")
    return buffer.getvalue()[buffer.getvalue().index("<svg") :]
