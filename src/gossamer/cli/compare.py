"""`gossamer compare`: methods on the same federation, several seeds, one table and one page."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gossamer import engine, fields
from gossamer.cli.parsing import Parser, Refusal, given, say, warn
from gossamer.cli.report import write
from gossamer.cli.run import INTERRUPTED, interrupts, one_line, refusing
from gossamer.cli.whole import Whole
from gossamer.config import Experiment, read
from gossamer.engine import ClientError, Options, Stop, checkpoint, events
from gossamer.engine.checkpoint import write_atomically
from gossamer.engine.events import CONFIG
from gossamer.report import NoRun, Report, Run, read_run, report
from gossamer.reproduce.plans import Plan, changed, contender, flat, idle, parser, plans
from gossamer.reproduce.results import comma_separated, latex, plain, results, seconds, text

LIST = "comparison.json"
"""In the folder of a comparison: its runs, in the order of the table."""
SUFFIXES = {"csv": ".csv", "latex": ".tex"}


@dataclass(frozen=True)
class Wanted:
    """How a comparison is done and shown."""

    out: Path
    command: str
    """What was typed."""
    again: str
    """The command that goes on with it."""
    title: str = ""
    introduction: str = ""
    quiet: bool = False
    json: bool = False
    replace: bool = False
    """Runs with other settings, where these should be, begin anew instead of being refused."""
    what: str = "comparison"
    keeps: bool = True
    """Whether `again` goes on with the settings that are there, whatever they are."""


def compare(arguments: Sequence[str]) -> int:
    """`gossamer compare METHOD... [options]`, or `gossamer compare --resume FOLDER`."""
    if any(word.partition("=")[0] == "--resume" for word in arguments):
        return _resume(arguments)
    count = next((at for at, word in enumerate(arguments) if word.startswith("-")), len(arguments))
    words = arguments[:count]
    helped = bool({"-h", "--help"} & set(arguments))
    if not words and not helped:
        raise Refusal("name methods first, e.g. `gossamer compare fedavg spafl --rounds 20`")
    contenders = [contender(word) for word in words or ("fedavg",)]
    found = parser(f"gossamer compare {shlex.join(words) or 'METHOD...'}", contenders)
    found.add_argument(
        "--out", default="", metavar="FOLDER", help="default: runs/compare-<what is compared>"
    )
    found.add_argument("--resume", metavar="FOLDER", help="go on with the comparison in a folder")
    _add_output(found)
    options = found.read(arguments[count:])
    todo = plans(contenders, options, Path(options.out or "."))
    out = Path(options.out) if options.out else _place(todo)
    if not options.out:
        todo = [replace(plan, folder=out / plan.folder) for plan in todo]
    if not options.quiet:
        for note in idle(contenders, options):
            say(f"note: {note}")
    wanted = Wanted(
        out, _typed(arguments), _again(out), options.title, "", options.quiet, options.json
    )
    return perform(todo, wanted)


def perform(todo: Sequence[Plan], wanted: Wanted) -> int:
    """Runs what is not done yet, then shows all of it."""
    return carry_out(todo, wanted) or _shown(todo, wanted)


def carry_out(todo: Sequence[Plan], wanted: Wanted) -> int:
    """Runs what is not done yet; 0 if all of it came to its end."""
    out = wanted.out
    with refusing():
        left = _ready(todo, wanted)
    if not wanted.quiet:
        done = f", {len(todo) - len(left)} of them done already" if len(left) < len(todo) else ""
        runs = f"{len(todo)} runs" if len(todo) != 1 else "1 run"
        say(f"{wanted.what} in {out}: {runs}{done}")
    stop = Stop()
    with Whole(todo, left, wanted.quiet) as whole, interrupts(stop):
        for plan in left:
            if code := _one(plan, whole, stop, wanted):
                return code
    return 0


def introduction(experiment: Experiment) -> str:
    """On what methods were compared, in one sentence."""
    usual = {item.name: item.default for item in fields.settings(Experiment())}
    return ", ".join(
        f"{item.name} {item.default}"
        for item in fields.settings(experiment)
        if item.name == "data" or item.default != usual[item.name]
    )


def _resume(arguments: Sequence[str]) -> int:
    if not arguments[0].startswith("-"):
        raise Refusal("--resume goes on with what is in a folder; name no methods beside it")
    found = Parser(
        prog="gossamer compare --resume FOLDER",
        description="Goes on with a comparison, with the settings that it was begun with.",
    )
    found.add_argument("--resume", metavar="FOLDER", required=True, help="of the comparison")
    found.add_argument("--workers", default=None, metavar="N", help="other number of workers")
    _add_output(found)
    options = found.read(arguments)
    out = Path(options.resume)
    with refusing():
        todo = _listed(out)
    if options.workers is not None:
        workers = given(Options(), options)
        todo = [
            replace(
                plan,
                config=replace(plan.config, options=fields.replace(plan.config.options, workers)),
            )
            for plan in todo
        ]
    wanted = Wanted(
        out, _typed(arguments), _again(out), options.title, "", options.quiet, options.json
    )
    return perform(todo, wanted)


def _typed(arguments: Sequence[str]) -> str:
    return shlex.join(["gossamer", "compare", *arguments])


def _listed(out: Path) -> list[Plan]:
    """The runs of a comparison that was begun before."""
    path = out / LIST
    if not path.exists():
        raise ValueError(f"{out} holds no comparison: there is no {path}")
    try:
        folders = [str(word) for word in json.loads(path.read_bytes())["runs"]]
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            f"{path} is damaged; give the command that began the comparison again"
        ) from None
    return [Plan(out / folder, read(out / folder / CONFIG)) for folder in folders]


def _ready(todo: Sequence[Plan], wanted: Wanted) -> list[Plan]:
    """The runs that are left; raises whatever is wrong with any of them, before the first."""
    anew = []
    for plan in todo:
        if not (plan.folder / CONFIG).exists():
            continue
        if not (differences := changed(plan.folder, plan.config)):
            continue
        if not wanted.replace:
            these = f"`{wanted.again}` goes on with those, " if wanted.keeps else ""
            raise Refusal(
                f"{plan.folder} is a run with other settings ({'; '.join(differences[:3])}); "
                f"{these}another --out begins anew"
            )
        anew.append(plan)
    left = [plan for plan in todo if plan in anew or not run_of(plan).finished]
    first = {plan.folder.parent: plan for plan in reversed(left)}  # the first seed of each
    each_seed = {plan.config.experiment.seed: plan for plan in reversed(left)}
    for plan in {plan.folder: plan for plan in (*first.values(), *each_seed.values())}.values():
        _check(plan)
    checkpoint.ready(wanted.out, 2**20)
    for plan in todo:
        if plan in anew:
            (plan.folder / "events.jsonl").unlink(missing_ok=True)
        if plan in anew or not (plan.folder / CONFIG).exists():
            plan.folder.mkdir(parents=True, exist_ok=True)
            config = plan.config.toml(one_line(wanted.command))
            write_atomically(plan.folder / CONFIG, config.encode())
    names = [str(plan.folder.relative_to(wanted.out)) for plan in todo]
    write_atomically(wanted.out / LIST, json.dumps({"runs": names}, indent=1).encode())
    return left


def _check(plan: Plan) -> None:
    try:
        engine.check_run(plan.config.build_run())
    except (ValueError, KeyError) as problem:
        raise ValueError(f"{plan.title}: {problem.args[0]}") from problem


def _one(plan: Plan, whole: Whole, stop: Stop, wanted: Wanted) -> int:
    """One run from where it stands; 0 if it came to its end."""
    with refusing():
        run = replace(plan.config.build_run(plan.folder), name=plan.name)
    try:
        resume = (plan.folder / "events.jsonl").exists()
        summary = engine.start(run, sinks=[whole.begin(plan)], stop=stop, resume=resume)
    except checkpoint.Unusable as problem:
        raise Refusal(str(problem)) from problem
    except (ClientError, OSError) as problem:
        warn(f"{plan.title}: {problem}")
        warn(f"what was done is saved; go on with: {wanted.again}")
        return 1
    if summary.interrupted:
        warn(f"stopped in {plan.title} after round {summary.rounds}; go on with: {wanted.again}")
        return INTERRUPTED
    whole.end(plan, summary)
    return 0


def _shown(todo: Sequence[Plan], wanted: Wanted) -> int:
    """The table, the files beside it, and the page."""
    out = wanted.out
    runs = [run_of(plan) for plan in todo]
    found = results(runs)
    if not wanted.quiet:
        say(text(found))
    experiment = todo[0].config.experiment
    told = wanted.introduction or f"Compared on the same federation: {introduction(experiment)}."
    folders = [plan.folder for plan in todo]
    forms = {"csv": comma_separated(found), "latex": latex(found)}
    files = filed(wanted, out / "comparison", forms, lambda: report(folders, wanted.title, told))
    if wanted.json:
        figures = {"out": str(out), **files, "rows": plain(found), "runs": list(map(_told, runs))}
        print(json.dumps(events.plain(figures)), flush=True)
    return 0


def filed(
    wanted: Wanted, stem: Path, forms: Mapping[str, str], page: Callable[[], Report]
) -> dict[str, str]:
    """Writes a table as CSV and LaTeX, and the page beside it; says and returns where they are."""
    paths = {name: stem.with_suffix(SUFFIXES[name]) for name in forms}
    for name, path in paths.items():
        write_atomically(path, forms[name].encode())
    try:
        write(page(), stem.with_name("report.html"))
        paths["report"] = stem.with_name("report.html")
    except (ImportError, NoRun) as problem:
        warn(str(problem))
    if not wanted.quiet:
        for name, path in paths.items():
            say(f"{name}: {path}")
    return {name: str(path) for name, path in paths.items()}


def _told(run: Run) -> dict[str, Any]:
    """A finished run for programs."""
    curves = ("up", "down", "paper_up", "paper_down", "flops")
    last = {name: int(curve[max(curve)]) for name in curves if (curve := run.curve(name))}
    return {
        "method": run.method,
        "run": run.folder,
        "seed": run.seed,
        "rounds": run.done,
        "accuracy": run.finished.get("accuracy"),
        "density": run.finished.get("density"),
        "flops": last.pop("flops", None),
        "bits": last,
        "seconds": seconds(run),
        "state_hash": run.finished.get("state_hash"),
    }


def run_of(plan: Plan) -> Run:
    """What a folder has of a run, nothing if it is not there."""
    try:
        return read_run(plan.folder)
    except NoRun:
        return Run(str(plan.folder))


def _place(todo: Sequence[Plan]) -> Path:
    """A folder for just these runs: the same command finds it again, another makes another."""
    what = [[str(plan.folder), flat(plan.config)] for plan in todo]
    code = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()
    return Path("runs") / f"compare-{code[:8]}"


def _again(out: Path) -> str:
    return f"gossamer compare --resume {shlex.quote(str(out))}"


def _add_output(found: Parser) -> None:
    found.add_argument("--title", default="", help="of the report; default: the methods")
    found.add_argument("--json", action="store_true", help="end with one line of JSON")
    found.add_argument("--quiet", action="store_true", help="show no progress and no table")
