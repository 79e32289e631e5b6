"""`gossamer cost`: what a method would cost, or what a run did cost, bit by bit."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from gossamer import fields, models
from gossamer.accounting.dry_run import Bits, Blank, Line, Price, price_run
from gossamer.cli.parsing import Parser, Refusal, add_settings, given, say, table
from gossamer.cli.progress import bits
from gossamer.cli.run import refusing
from gossamer.config import Config, Experiment, absolute, enough, find_method
from gossamer.core import Key
from gossamer.data import SOURCES
from gossamer.data.budgets import deal_budgets
from gossamer.engine import Options, Run, events
from gossamer.report.reading import LOST
from gossamer.task import Task
from gossamer.wire import Mode

BY = (
    "a line for each field of a message (default) or for each tensor; masks that travel as one "
    "block share what is sent by the entropy that each has alone, and the limit and the paper's "
    "count by what each adds to them"
)
HEADER = ("", "message", "leaf", "messages", "sent", "limit", "paper")


def cost(arguments: Sequence[str]) -> int:
    """`gossamer cost METHOD [options]` without training, or `gossamer cost RUN` of a run."""
    target = arguments[0] if arguments and not arguments[0].startswith("-") else None
    if target is not None and (Path(target) / "events.jsonl").exists():
        return _of_run(Path(target), arguments[1:])
    method = find_method("fedavg")
    if target is not None:
        with refusing():
            method = find_method(target)
    parser = Parser(prog=f"gossamer cost {target or 'METHOD'}", description=cost.__doc__)
    parser.add_argument(
        "--shape", default="", metavar="CxHxW", help="of an example; default: data's"
    )
    parser.add_argument("--classes", type=int, default=0, help="default: the data set's")
    parser.add_argument(
        "--examples", type=int, default=0, help="of a client; default: data's / pool"
    )
    parser.add_argument("--by", choices=("field", "tensor"), default=None, help=BY)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    add_settings(parser, "experiment", Experiment())
    add_settings(parser, "execution", Options())
    add_settings(parser, "method", method)
    options = parser.read(arguments[1:] if target else arguments)
    if target is None:
        raise Refusal("name a method or a run, e.g. `gossamer cost fedavg --model lenet5_caffe`")
    with refusing():
        config = Config(
            absolute(target),
            given(method, options),
            fields.replace(Experiment(), given(Experiment(), options)),
            fields.replace(Options(eval_every=0), _counted(options)),
        )
        found, clients = _priced(config, options)
    _show(found.lines)
    say(f"{_times(found)}\n{_round(found)}")
    if options.json:
        figures = _figures(config.method, config.experiment, clients, found)
        print(json.dumps({**figures, "by": config.options.ledger}))
    return 0


def _counted(options: Any) -> dict[str, Any]:
    """How to run and count, where `--by` is short for `--ledger`."""
    said = given(Options(), options)
    return said if options.by is None else {**said, "ledger": options.by}


def _priced(config: Config, options: Any) -> tuple[Price, int]:
    """The price of a configuration, for the shape of its data set or one that is given."""
    wish = config.experiment
    fields.check(wish)
    fields.check(config.options)
    method = config.build_method()
    source = SOURCES.get(wish.data)
    if source is None and not (options.shape and options.classes and options.examples):
        raise ValueError(
            f"{wish.data!r} is no named data set; say --shape, --classes and --examples"
        )
    shape = _shape(options.shape) if options.shape else source.shape if source else ()
    classes = options.classes or (source.classes if source else 0)
    pool = wish.pool or 100
    examples = options.examples or max(1, (source.train if source else 0) // pool)
    clients = getattr(method, "clients", pool)
    enough(method, pool)
    key = Key(wish.division_seed).fold("data", "budgets")
    budgets = deal_budgets(wish.budgets or None, pool, key)
    dtype = torch.float32 if len(shape) == 3 or not source else _dtype(wish.data)
    name = wish.model or models.default(shape, dtype)
    module = models.build(name, shape, classes)
    patterns = [part.strip() for part in wish.prunable.split(",") if part.strip()]
    example = torch.zeros((2, *shape), dtype=dtype)
    task = Task.of(module, example, prunable=patterns or None)
    run = Run(
        method,
        task,
        Blank(task.layout.input, classes, pool, examples, budgets=budgets),
        rounds=wish.rounds,
        key=Key(wish.seed),
        options=config.options,
        wire=Mode.parse(wish.wire),
    )
    return price_run(run), clients


def _of_run(run: Path, arguments: Sequence[str]) -> int:
    """The ledger of a run, added up by leaf or by round, and the time to an accuracy."""
    parser = Parser(prog=f"gossamer cost {run}", description=_of_run.__doc__)
    parser.add_argument("--by", choices=("leaf", "round"), default="leaf", help="default: leaf")
    parser.add_argument("--target", type=float, default=None, help="an accuracy to reach")
    parser.add_argument(
        "--of",
        choices=("global", "personal"),
        default=None,
        help="whose accuracy; default: personal where clients keep models of their own",
    )
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    options = parser.read(arguments)
    log = events.read(run / "events.jsonl")
    lines = _ledger(log)
    if options.by == "leaf":
        _show(lines)
    else:
        _show_rounds(log)
    whose = options.of or ("personal" if _personal(log) else "global")
    reached = reach(log, options.target, whose) if options.target is not None else None
    if reached:
        say(_reached(options.target, reached))
    elif options.target is not None:
        say(f"{whose} accuracy {options.target} was never reached")
    if options.json:
        print(json.dumps({"run": str(run), "lines": _plain(lines), "reached": reached}))
    return 0


def _personal(log: Iterable[Mapping[str, Any]]) -> bool:
    return any(event.get("personal_density") is not None for event in log)


def reach(log: Iterable[Mapping[str, Any]], target: float, whose: str) -> dict[str, Any] | None:
    """The first evaluation with at least an accuracy: its round, bits and time on devices."""
    key = "global_accuracy" if whose == "global" else "personal_mean"
    sent: Mapping[str, Any] = {}
    for event in log:
        if event["event"] == "round-finished":
            sent = event
        accuracy = event.get(key)
        if event["event"] == "evaluated" and accuracy is not None and accuracy >= target:
            return {
                "round": event["round"],
                "of": whose,
                "accuracy": accuracy,
                "up": sent.get("up", 0),
                "down": sent.get("down", 0),
                "flops": sent.get("flops", 0),
                "device_seconds": sent.get("device_seconds"),
            }
    return None


def _ledger(log: Iterable[Mapping[str, Any]]) -> dict[Line, Bits]:
    found: dict[Line, Bits] = {}
    for event in log:
        if event["event"] == "client-failed" and event.get("down"):
            lost = Bits(1, event["down"], 0.0, event.get("paper_down") or 0)
            found["down", LOST, "all"] = found.get(("down", LOST, "all"), Bits()) + lost
        for entry in event["traffic"] if event["event"] == "client-finished" else ():
            line = (entry["direction"], entry["message"], entry["leaf"])
            here = Bits(1, entry["sent"], entry["information"], entry["paper"])
            found[line] = found.get(line, Bits()) + here
    return found


def _show(lines: Mapping[Line, Bits]) -> None:
    rows: list[tuple[object, ...]] = []
    for direction in ("down", "up"):
        total = Bits()
        for line, found in lines.items():
            if line[0] == direction:
                rows.append((*line, found.messages, *_columns(found)))
                total += found
        rows.append((direction, "", "in all", "", *_columns(total)))
    say(table(rows, HEADER))


def _show_rounds(log: Iterable[Mapping[str, Any]]) -> None:
    rows, before = [], {"up": 0, "down": 0, "paper_up": 0, "paper_down": 0, "flops": 0}
    for event in log:
        if event["event"] == "round-finished":
            spent = [event[name] - before[name] for name in before]
            rows.append((event["round"], *map(bits, spent[:4]), f"{spent[4]:.4g}"))
            before = {name: event[name] for name in before}
    say(table(rows, ("round", "up", "down", "paper up", "paper down", "FLOPs")))


def _columns(found: Bits) -> tuple[str, str, str]:
    return bits(found.sent), bits(found.information), bits(found.paper)


def _round(found: Price) -> str:
    up, down = (bits(found.total(way).sent / found.rounds) for way in ("up", "down"))
    work = found.flops / found.rounds
    return f"a round, on average: {up} up, {down} down, {work:.4g} FLOPs"


def _times(found: Price) -> str:
    text = f"FLOPs {found.flops:.4g}; {found.rounds} rounds"
    if found.exact < found.rounds:
        text += f", of which {found.exact} were gone through and the rest cost what the last does"
    if found.device_seconds is not None:
        text += f"; {found.device_seconds:.4g} s on devices"
    return text


def _figures(method: str, wish: Experiment, clients: int, found: Price) -> dict[str, Any]:
    up, down = found.total("up"), found.total("down")
    return {
        "method": method,
        "model": wish.model,
        "pool": wish.pool,
        "clients": clients,
        "rounds": found.rounds,
        "exact_rounds": found.exact,
        "bits": {
            "up": round(up.sent),
            "down": round(down.sent),
            "information_up": up.information,
            "information_down": down.information,
            "paper_up": round(up.paper),
            "paper_down": round(down.paper),
        },
        "flops": found.flops,
        "device_seconds": found.device_seconds,
        "lines": _plain(found.lines),
    }


def _plain(lines: Mapping[Line, Bits]) -> list[dict[str, Any]]:
    return [
        {
            "direction": line[0],
            "message": line[1],
            "leaf": line[2],
            "messages": found.messages,
            "sent": found.sent,
            "information": found.information,
            "paper": found.paper,
        }
        for line, found in lines.items()
    ]


def _reached(target: float, found: Mapping[str, Any]) -> str:
    text = f"{found['of']} accuracy {target} was reached in round {found['round']}, after "
    text += f"{bits(found['up'])} up and {bits(found['down'])} down"
    seconds = found["device_seconds"]
    return text if seconds is None else f"{text}, {seconds:.4g} s on devices"


def _shape(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(size) for size in text.split("x"))
    except ValueError:
        raise ValueError(f"--shape is e.g. 3x32x32 or 784, not {text!r}") from None


def _dtype(name: str) -> torch.dtype:
    return torch.int64 if name in ("sst2", "shakespeare") else torch.float32
