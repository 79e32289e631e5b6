"""`gossamer cost`: the estimated costs of a method, or the measured costs of a run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from gossamer import fields, goals
from gossamer.accounting.blank_data import Blank
from gossamer.accounting.dry_run import price_run
from gossamer.accounting.log import by_round, has_personal_models, ledger, reach
from gossamer.accounting.prices import Bits, Line, Price, total
from gossamer.cli.parsing import (
    FAILED,
    Parser,
    Refusal,
    add_settings,
    given,
    option_of_variants,
    refusing,
    say,
    warn,
)
from gossamer.cli.progress import bits
from gossamer.config import (
    Config,
    Experiment,
    absolute,
    enough,
    find_method,
    locate,
    read,
    start_of,
)
from gossamer.core import Key
from gossamer.data import SOURCES
from gossamer.data.budgets import deal_budgets
from gossamer.engine import Options, Run, checkpoint
from gossamer.engine.events import CONFIG, PROJECT, LogReader
from gossamer.engine.files import Damaged
from gossamer.engine.resuming import LOG, ROUNDS, judged
from gossamer.report.columns import table
from gossamer.task import Task
from gossamer.task.metrics import titled
from gossamer.wire import Mode

BY = (
    "one line per field of a message (default) or per tensor; of masks that are coded in one "
    "block, each tensor is charged for its part of the entropy"
)
HEADER = ("", "message", "field", "messages", "sent", "entropy", "paper")


def cost(arguments: Sequence[str]) -> int:
    """`gossamer cost METHOD|FILE.toml` estimates costs; `gossamer cost RUN` reads them."""
    target = arguments[0] if arguments and not arguments[0].startswith("-") else None
    if target is not None and _is_run(Path(target)):
        return _of_run(Path(target), arguments[1:])
    base = Config("fedavg")
    if target is not None:
        with refusing():
            base = read(locate(target)) if target.endswith(".toml") else Config(target)
            find_method(base.method)
    method = find_method(base.method)
    parser = Parser(prog=f"gossamer cost {target or 'METHOD'}", description=cost.__doc__)
    parser.add_argument(
        "--shape", default="", metavar="CxHxW", help="of an example (default: the data set's)"
    )
    parser.add_argument(
        "--classes", type=int, default=0, metavar="N", help="default: the data set's"
    )
    parser.add_argument(
        "--examples",
        type=int,
        default=0,
        metavar="N",
        help="per client (default: the data set's, divided by the pool)",
    )
    parser.add_argument("--by", choices=("field", "tensor"), default=None, help=BY)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    add_settings(parser, "experiment", Experiment())
    add_settings(parser, "execution", Options())
    add_settings(parser, "method", method)
    words = arguments[1:] if target else arguments
    options = parser.read(words, option_of_variants(base.method, "cost"))
    if target is None:
        raise Refusal("name a method or a run, e.g. `gossamer cost fedavg --model lenet5_caffe`")
    with refusing():
        config = Config(
            absolute(base.method),
            {**base.settings, **given(method, options)},
            fields.replace(base.experiment, given(Experiment(), options)),
            fields.replace(replace(base.options, eval_every=0), _counted(options)),
        )
        price_list, clients = _priced(config, options)
    _show(price_list.most, price_list.least)
    for note in _assumed(price_list, config.experiment, options):
        say(f"note: {note}")
    say(f"{_times(price_list)}\n{_round(price_list)}")
    if options.json:
        figures = _figures(config.method, config.experiment, clients, price_list)
        print(json.dumps({**figures, "by": config.options.ledger}))
    return 0


def _counted(options: Any) -> dict[str, Any]:
    """The execution options; `--by` is short for `--ledger`."""
    values = given(Options(), options)
    return values if options.by is None else {**values, "ledger": options.by}


def _priced(config: Config, options: Any) -> tuple[Price, int]:
    """The estimated costs of a configuration, and its clients per round."""
    experiment = config.experiment
    config.check()
    method = config.build_method()
    source = SOURCES.get(experiment.data)
    if source is None and not (options.shape and options.classes and options.examples):
        raise ValueError(
            f"{experiment.data!r} is not a named data set; set --shape, --classes and --examples"
        )
    shape = _shape(options.shape) if options.shape else source.shape if source else ()
    classes = options.classes or (source.classes if source else 0)
    pool = _pool(experiment)
    if goals.kind_of(experiment.task) == "language" and not options.examples:
        raise ValueError("set --examples: how many sequences a client has depends on the text")
    examples = options.examples or max(1, (source.train if source else 0) // pool)
    clients = fields.value(method, "clients", pool)
    enough(method, pool)
    key = Key(experiment.division_seed).fold("data", "budgets")
    budgets = deal_budgets(experiment.budgets or None, pool, key)
    dtype = torch.float32 if len(shape) == 3 or not source else _dtype(experiment.data)
    goal = goals.for_data(experiment.task, experiment.metric, {})
    module = goals.model(experiment.model, shape, dtype, classes, goal, {})
    patterns = [part.strip() for part in experiment.prunable.split(",") if part.strip()]
    example = torch.zeros((2, *shape), dtype=dtype)
    start = start_of(experiment.start, experiment.model)
    task = Task.of(module, example, prunable=patterns or None, goal=goal, start=start)
    label = task.blank_labels(task.layout.input.blank(1))
    run = Run(
        method,
        task,
        Blank(task.layout.input, classes, pool, examples, budgets=budgets, label=label),
        rounds=experiment.rounds,
        key=Key(experiment.seed),
        options=config.options,
        wire=Mode.parse(experiment.wire),
    )
    with counter() as progress:
        return price_run(run, progress=progress), clients


def _pool(experiment: Experiment) -> int:
    """The number of clients; where only the data know it, that of most data sets."""
    return experiment.pool or (500 if experiment.partition.startswith("pachinko") else 100)


def _assumed(price_list: Price, experiment: Experiment, options: Any) -> list[str]:
    """What the price depends on and nobody said."""
    notes = [price_list.learned.what] if price_list.learned else []
    natural = experiment.partition.startswith("natural")
    if natural and not (experiment.pool and options.examples):
        notes.append(f"a pool of {_pool(experiment)}; set --pool and --examples, data are not read")
    return notes


@contextmanager
def counter() -> Iterator[Callable[[int, int], None]]:
    """Shows how far a long pricing has come, on a terminal."""
    shown = False

    def show(done: int, rounds: int) -> None:
        nonlocal shown
        if sys.stderr.isatty() and done % 10 == 0:
            shown = True
            sys.stderr.write(f"\rround {done} of {rounds}")
            sys.stderr.flush()

    try:
        yield show
    finally:
        if shown:
            sys.stderr.write("\r\033[K")


def _of_run(run: Path, arguments: Sequence[str]) -> int:
    """The traffic of a run by field or by round, and the costs of reaching a score."""
    parser = Parser(prog=f"gossamer cost {run}", description=_of_run.__doc__)
    parser.add_argument("--by", choices=("field", "round"), default="field", help="default: field")
    what = "an accuracy to reach, or a value of the run's headline metric"
    parser.add_argument("--target", type=float, default=None, metavar="X", help=what)
    parser.add_argument(
        "--of",
        choices=("global", "personal"),
        default=None,
        help="of which models (default: personal if clients keep models of their own)",
    )
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    options = parser.read(arguments)
    log, problem = _read(run)
    lines = ledger(log)
    if options.by == "field":
        _show(lines)
    else:
        say(_rounds(log))
    whose = options.of or ("personal" if has_personal_models(log) else "global")
    reached = reach(log, options.target, whose) if options.target is not None else None
    if reached:
        say(_reached(options.target, reached))
    elif options.target is not None:
        metric = titled(next((e["metric"] for e in log if e.get("metric")), "accuracy"))
        say(f"{whose} {metric} {options.target} was never reached")
    if options.json:
        print(json.dumps({"run": str(run), "lines": _plain(lines), "reached": reached}))
    if problem:
        last = max(
            (event["round"] for event in log if event["event"] == "round-finished"), default=0
        )
        warn(f"{problem}; these are the costs up to round {last} only")
    return FAILED if problem else 0


def _is_run(folder: Path) -> bool:
    """Whether a folder holds a run, possibly without its log."""
    return any((folder / name).exists() for name in (LOG, ROUNDS, CONFIG, PROJECT))


def _read(run: Path) -> tuple[list[dict[str, Any]], str]:
    """The intact events of a run, and what is wrong with its log."""
    with refusing():
        try:
            saved = checkpoint.newest(run / ROUNDS)
        except checkpoint.Unusable as older:
            warn(f"the log is not verified: {older}")
            saved = None
        reader = LogReader(run / LOG, (saved.events,) if saved else ())
        if not (run / LOG).exists():
            if saved:
                raise Damaged(f"{run / LOG} is missing, so its costs are unknown")
            raise FileNotFoundError(f"{run} has no costs yet: there is no {run / LOG}")
        log = [event for _, event in reader if isinstance(event, dict)]
    return log, (judged(reader, saved) if saved else "") or reader.problem


def _show(lines: Mapping[Line, Bits], least: Mapping[Line, Bits] | None = None) -> None:
    """A table of the lines; where they are at least something else, of ranges."""
    low = lines if least is None else least
    rows: list[tuple[object, ...]] = []
    for direction in ("down", "up"):
        for line, cost_of_line in lines.items():
            if line[0] == direction:
                columns = _columns(low.get(line, Bits()), cost_of_line)
                rows.append((*line, cost_of_line.messages, *columns))
        columns = _columns(total(low, direction), total(lines, direction))
        rows.append((direction, "", "total", "", *columns))
    say(table(rows, HEADER, keys=3, optional=("messages",)))


def _rounds(log: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for number, costs in by_round(log):
        *traffic, flops = costs.values()
        rows.append((number, *map(bits, traffic), f"{flops:.4g}"))
    return table(rows, ("round", "up", "down", "paper up", "paper down", "FLOPs"))


def _columns(low: Bits, high: Bits) -> tuple[str, str, str]:
    return (
        span(bits(low.sent), bits(high.sent)),
        span(bits(low.information), bits(high.information)),
        span(bits(low.paper), bits(high.paper)),
    )


def span(low: str, high: str) -> str:
    """A range, or one value; `1 Mbit` and `2 Mbit` are `1-2 Mbit`."""
    if low == high:
        return high
    number, _, unit = low.partition(" ")
    return f"{number}-{high}" if high.endswith(f" {unit}") else f"{low}-{high}"


def _round(price_list: Price) -> str:
    rounds = price_list.rounds
    up, down = (
        span(*(bits(total(end, way).sent / rounds) for end in (price_list.least, price_list.most)))
        for way in ("up", "down")
    )
    work = span(*(f"{each / rounds:.4g}" for each in price_list.flops_bounds))
    return f"per round, on average: {up} up, {down} down, {work} FLOPs"


def _times(price_list: Price) -> str:
    work = span(*(f"{each:.4g}" for each in price_list.flops_bounds))
    text = f"FLOPs {work}; {price_list.rounds} rounds"
    if price_list.exact < price_list.rounds:
        text += f", {price_list.exact} of them simulated and the others like these"
    if price_list.device_seconds is not None:
        most = "at most " if price_list.learned else ""
        text += f"; {most}{price_list.device_seconds:.4g} s on devices"
    return text


def _figures(
    method: str, experiment: Experiment, clients: int, price_list: Price
) -> dict[str, Any]:
    return {
        "method": method,
        "model": experiment.model,
        "pool": experiment.pool,
        "clients": clients,
        "rounds": price_list.rounds,
        "exact_rounds": price_list.exact,
        "bits": _bits(price_list.most),
        "bits_least": _bits(price_list.least),
        "learned": price_list.learned.what if price_list.learned else None,
        "flops": price_list.flops_bounds[1],
        "flops_least": price_list.flops_bounds[0],
        "device_seconds": price_list.device_seconds,
        "lines": _plain(price_list.most),
        "lines_least": _plain(price_list.least),
    }


def _bits(lines: Mapping[Line, Bits]) -> dict[str, float]:
    up, down = total(lines, "up"), total(lines, "down")
    return {
        "up": round(up.sent),
        "down": round(down.sent),
        "information_up": up.information,
        "information_down": down.information,
        "paper_up": round(up.paper),
        "paper_down": round(down.paper),
    }


def _plain(lines: Mapping[Line, Bits]) -> list[dict[str, Any]]:
    return [
        {
            "direction": line[0],
            "message": line[1],
            "leaf": line[2],
            "messages": cost_of_line.messages,
            "sent": cost_of_line.sent,
            "information": cost_of_line.information,
            "paper": cost_of_line.paper,
        }
        for line, cost_of_line in lines.items()
    ]


def _reached(target: float, reached: Mapping[str, Any]) -> str:
    metric = titled(reached["metric"])
    text = f"{reached['of']} {metric} {target} was reached in round {reached['round']}, after "
    text += f"{bits(reached['up'])} up and {bits(reached['down'])} down"
    seconds = reached["device_seconds"]
    return text if seconds is None else f"{text}, {seconds:.4g} s on devices"


def _shape(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(size) for size in text.split("x"))
    except ValueError:
        raise ValueError(f"--shape is e.g. 3x32x32 or 784, not {text!r}") from None


def _dtype(name: str) -> torch.dtype:
    return torch.int64 if name in ("sst2", "shakespeare") else torch.float32
