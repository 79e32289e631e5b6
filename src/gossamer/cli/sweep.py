"""`gossamer sweep`: a method with many settings, and which were best on validation data."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gossamer import engine, fields
from gossamer.cli.comparison_progress import ComparisonProgress
from gossamer.cli.parsing import Parser, Refusal, add_settings, refusing, say, warn
from gossamer.cli.report import write
from gossamer.cli.run import INTERRUPTED, interrupts, one_line
from gossamer.cli.side_by_side import side_by_side
from gossamer.config import Config, Experiment, find_method, locate, read
from gossamer.engine import Options, Stop, checkpoint
from gossamer.engine.checkpoint import write_atomically
from gossamer.engine.processor import cores
from gossamer.fields import Setting
from gossamer.report import NoRun, report
from gossamer.reproduce import comparison, sweep_results, sweeps
from gossamer.reproduce.comparison import as_json, description, run_of
from gossamer.reproduce.plans import Contender, Plan, plans
from gossamer.reproduce.sweep_results import Trial

STATE = "sweep.json"
"""What a sweep's folder calls its own settings and results."""
HELD_OUT = "0.1"
"""The share of training data that is held out to choose on, unless --valid says another."""


def sweep(arguments: Sequence[str]) -> int:
    """`gossamer sweep METHOD --lr 0.01,0.03,0.1 [options]`, or `gossamer sweep --resume FOLDER`."""
    if any(word.partition("=")[0] == "--resume" for word in arguments):
        return _resume(arguments)
    target = arguments[0] if arguments and not arguments[0].startswith("-") else None
    if target is None and not {"-h", "--help"} & set(arguments):
        raise Refusal("name a method first, e.g. `gossamer sweep fedavg --lr 0.01,0.03,0.1`")
    with refusing():
        config = _config(target or "fedavg")
        method = find_method(config.method)
    parser = Parser(
        prog=f"gossamer sweep {target or 'METHOD'}",
        description="Tries settings. Numbers and choices may be lists such as 0.01,0.03,0.1 and, "
        "with --random, ranges such as 0.001..0.1; the best is chosen on validation data.",
    )
    parser.add_argument(
        "--seeds",
        type=int,
        default=1,
        metavar="N",
        help="runs per combination, from --seed upwards",
    )
    parser.add_argument(
        "--random", type=int, default=0, metavar="N", help="draw N combinations; 0: try all"
    )
    parser.add_argument("--out", default="", metavar="FOLDER", help="default: runs/sweep-<hash>")
    parser.add_argument("--resume", metavar="FOLDER", help="continue the sweep in a folder")
    _add_output(parser)
    add_settings(parser, "experiment", Experiment())
    add_settings(parser, "execution", Options())
    add_settings(parser, "method", method)
    options = parser.read(arguments[1:] if target else arguments)
    known = {
        item.name: item
        for record in (Experiment(), Options(), method)
        for item in fields.settings(record)
    }
    with refusing():
        values, common = _divided(known, vars(options))
        _validated(config, common)
        seed = int(common.get("seed", config.experiment.seed))
        tried = (
            sweeps.drawn(values, options.random, seed, sweeps.whole_numbers([*known.values()]))
            if options.random > 0
            else sweeps.grid(values)
        )
        contenders = [
            Contender(_word(target or "fedavg", own), config, own, (target or "").endswith(".toml"))
            for own in tried
        ]
        todo = plans(contenders, common, Path(options.out or "."), options.seeds)
    out = Path(options.out) if options.out else _default_folder(todo)
    if not options.out:
        todo = [replace(plan, folder=out / plan.folder) for plan in todo]
    command = shlex.join(["gossamer", "sweep", *arguments])
    state = {"command": command, "select": todo[0].config.options.select, "tried": tried}
    return _perform(todo, out, state, options)


def _resume(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="gossamer sweep --resume FOLDER",
        description="Continues a sweep with the settings that it was started with.",
    )
    parser.add_argument("--resume", metavar="FOLDER", required=True, help="of the sweep")
    _add_output(parser)
    options = parser.read(arguments)
    out = Path(options.resume)
    with refusing():
        todo = comparison.listed(out)
        try:
            state = json.loads((out / STATE).read_bytes())
        except (OSError, ValueError):
            raise ValueError(f"{out} holds no sweep: {out / STATE} is missing or damaged") from None
    return _perform(todo, out, state, options)


def _perform(todo: Sequence[Plan], out: Path, state: Mapping[str, Any], options: Any) -> int:
    """Runs what is not done yet, side by side, then presents the results."""
    again = f"gossamer sweep --resume {shlex.quote(str(out))}"
    with refusing():
        left = _prepare(todo, out, state, again)
    processes = min(options.processes or cores(), max(1, len(left)))
    workers = max(1, cores() // processes)
    if not options.quiet:
        done = f", {len(todo) - len(left)} of them finished already" * (len(left) < len(todo))
        say(f"sweep in {out}: {len(todo)} runs{done}, {processes} at a time")
    stop, failed = Stop(), False
    with ComparisonProgress(todo, left, options.quiet) as progress, interrupts(stop):
        for ended in side_by_side(left, processes, workers, stop):
            if ended.problem:
                failed = True
                warn(f"{ended.plan.title}: {ended.problem}")
            elif ended.summary is not None and not ended.summary.interrupted:
                progress.end(ended.plan, ended.summary)
    if stop.after_round():
        warn(f"stopped; continue with: {again}")
        return INTERRUPTED
    _present(todo, out, state, options)
    if failed:
        warn(f"some runs failed; try them again with: {again}")
    return int(failed)


def _prepare(todo: Sequence[Plan], out: Path, state: Mapping[str, Any], again: str) -> list[Plan]:
    """Checks every combination, writes the configurations, and returns the runs that are left."""
    others = comparison.with_other_settings(todo)
    if others:
        folder, differences = next(iter(others.items()))
        raise Refusal(
            f"{folder} holds a run with other settings ({'; '.join(differences[:3])}); "
            f"`{again}` continues it, another --out starts a new one"
        )
    left = comparison.remaining(todo, ())
    for plan in comparison.representatives(left):
        try:
            engine.check_run(plan.config.build_run())
        except (ValueError, KeyError) as problem:
            raise ValueError(f"{plan.title}: {problem.args[0]}") from problem
    checkpoint.ready(out, 2**20)
    comparison.write(out, todo, (), one_line(str(state["command"])))
    write_atomically(out / STATE, json.dumps(state, indent=1).encode())
    return left


def _present(todo: Sequence[Plan], out: Path, state: Mapping[str, Any], options: Any) -> None:
    """Prints the table, and writes it as CSV, as JSON and as a page."""
    select = state["select"]
    trials = _trials(todo, state["tried"])
    told = sweep_results.verdict(trials, select)
    say(f"{sweep_results.text(trials, select)}\n{told}")
    winner = sweep_results.best(trials, select)
    if winner is not None:
        say(f"run it: {_command(todo[0], winner)}")
    write_atomically(out / "sweep.csv", sweep_results.comma_separated(trials, select).encode())
    files = {"csv": str(out / "sweep.csv")}
    experiment = todo[0].config.experiment
    try:
        page = report(
            [plan.folder for plan in todo],
            options.title or f"Sweep of {todo[0].name}",
            f"{told[0].upper()}{told[1:]}. Tried on {description(experiment)}.",
        )
        write(page, out / "report.html")
        files["report"] = str(out / "report.html")
    except (ImportError, NoRun) as problem:
        warn(str(problem))
    if not options.quiet:
        for name, path in files.items():
            say(f"{name}: {path}")
    if options.json:
        figures = {
            "out": str(out),
            **files,
            "select": select,
            "best": None if winner is None else dict(winner.settings),
            "trials": [
                {"settings": dict(trial.settings), "missing": trial.missing, "runs": trial.figures}
                for trial in sweep_results.ranked(trials, select)
            ],
        }
        print(json.dumps(figures), flush=True)


def _trials(todo: Sequence[Plan], tried: Sequence[Mapping[str, str]]) -> list[Trial]:
    """The runs by combination; all seeds of one are in one folder."""
    folders = dict.fromkeys(plan.folder.parent for plan in todo)
    trials = []
    for folder, settings in zip(folders, tried, strict=True):
        runs = [run_of(plan) for plan in todo if plan.folder.parent == folder]
        ended = [as_json(run) for run in runs if run.finished]
        trials.append(Trial(settings, ended, len(runs) - len(ended)))
    return trials


def _divided(
    known: Mapping[str, Setting], given: Mapping[str, Any]
) -> tuple[dict[str, list[str]], dict[str, Any]]:
    """The settings with several values, and those with one."""
    values, common = {}, {}
    for name, value in given.items():
        if name not in known:
            continue
        words = sweeps.listed(known[name], value) if isinstance(value, str) else [value]
        if len(words) > 1 or sweeps.RANGE in str(words[0]):
            values[name] = words
        else:
            common[name] = words[0]
    if "seed" in values:
        raise ValueError("a sweep takes its seeds from --seed upwards; use --seeds 3")
    return values, common


def _validated(config: Config, common: dict[str, Any]) -> None:
    """Validation data decide unless test data are asked to."""
    if common.setdefault("select", "valid") == "test":
        warn("note: --select test chooses on test data, so its score there is too good")
    elif "valid" not in common and not config.experiment.valid:
        common["valid"] = HELD_OUT
        warn(f"note: --valid {HELD_OUT} holds out a tenth of the training data to choose on")


def _config(target: str) -> Config:
    if target.endswith(".toml"):
        return read(locate(target))
    find_method(target)
    return Config(target)


def _word(target: str, own: Mapping[str, str]) -> str:
    return f"{target}:{','.join(f'{key}={value}' for key, value in own.items())}" if own else target


def _default_folder(todo: Sequence[Plan]) -> Path:
    """A folder for exactly these runs: the same command finds it again."""
    return Path(str(comparison.default_folder(todo)).replace("compare-", "sweep-"))


def _command(plan: Plan, winner: Trial) -> str:
    """The command that runs the best settings."""
    config = plan.config
    words = ["gossamer", "run", config.method]
    usual = {item.name: item.default for item in fields.settings(find_method(config.method))}
    usual |= {item.name: item.default for item in fields.settings(Experiment())}
    shown = {item.name: item.default for item in fields.settings(config.experiment)}
    shown |= {item.name: item.default for item in fields.settings(config.build_method())}
    for name, value in {**shown, **winner.settings}.items():
        if name in winner.settings or value != usual[name]:
            words += _flag(name, value)
    return shlex.join(words)


def _flag(name: str, value: object) -> list[str]:
    flag = fields.flag(name)
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}", str(value)]


def _add_output(parser: Parser) -> None:
    parser.add_argument(
        "--processes", type=int, default=0, metavar="N", help="runs at a time; 0: one per core"
    )
    parser.add_argument("--title", default="", help="of the report; default: the method")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
