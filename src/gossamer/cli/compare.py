"""`gossamer compare`: methods on the same federation, several seeds, one table and one page."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gossamer import engine, fields
from gossamer.cli.comparison_progress import ComparisonProgress
from gossamer.cli.parsing import (
    FAILED,
    Parser,
    Refusal,
    add_settings,
    given,
    refusing,
    say,
    warn,
)
from gossamer.cli.report import write
from gossamer.cli.run import INTERRUPTED, interrupts, one_line
from gossamer.config import Experiment
from gossamer.engine import ClientError, Options, Stop, checkpoint, events
from gossamer.engine.files import Damaged, write_atomically
from gossamer.engine.resuming import begun
from gossamer.report import NoRun, Report, report
from gossamer.report.columns import paragraph
from gossamer.reproduce import comparison, differences
from gossamer.reproduce.comparison import as_json, default_folder, description, run_of
from gossamer.reproduce.plans import (
    EQUAL,
    Contender,
    Plan,
    common_settings,
    contender,
    partial_settings,
    plans,
    union,
)
from gossamer.reproduce.results import Results, comma_separated, latex, plain, results, text

SUFFIXES = {"csv": ".csv", "latex": ".tex"}


@dataclass(frozen=True)
class Request:
    """How a comparison is carried out and presented."""

    out: Path
    command: str
    """The command as typed."""
    resume: str
    """The command that continues it."""
    title: str = ""
    introduction: str = ""
    summary: Callable[[Results], str] | None = None
    """Sums up the results in a sentence, which is printed and opens the page."""
    quiet: bool = False
    json: bool = False
    restart: bool = False
    """Runs with other settings in these folders start again instead of being refused."""
    what: str = "comparison"
    resumes_any: bool = True
    """Whether `resume` continues the runs in the folder whatever their settings are."""
    finished: Callable[[Plan], object] = lambda plan: None
    """Called with every run as soon as it has finished."""


def compare(arguments: Sequence[str]) -> int:
    """`gossamer compare METHOD... [options]`, or `gossamer compare --resume FOLDER`."""
    if any(word.partition("=")[0] == "--resume" for word in arguments):
        return _resume(arguments)
    count = next((at for at, word in enumerate(arguments) if word.startswith("-")), len(arguments))
    words = arguments[:count]
    if not words and not {"-h", "--help"} & set(arguments):
        raise Refusal("name methods first, e.g. `gossamer compare fedavg spafl --rounds 20`")
    with refusing():
        contenders = [contender(word) for word in words or ("fedavg",)]
    parser = options_of(f"gossamer compare {shlex.join(words) or 'METHOD...'}", contenders)
    parser.add_argument(
        "--out", default="", metavar="FOLDER", help="default: runs/compare-<hash of the settings>"
    )
    parser.add_argument("--resume", metavar="FOLDER", help="continue the comparison in a folder")
    _add_output(parser)
    options = parser.read(arguments[count:])
    settings = settings_of(contenders, vars(options))
    with refusing():
        todo = plans(contenders, settings, Path(options.out or "."), options.seeds, options.equal)
    out = Path(options.out) if options.out else default_folder(todo)
    if not options.out:
        todo = [replace(plan, folder=out / plan.folder) for plan in todo]
    if not options.quiet:
        for note in partial_settings(contenders, settings):
            say(f"note: {note}")
    request = Request(
        out,
        _typed(arguments),
        _again(out),
        options.title,
        quiet=options.quiet,
        json=options.json,
    )
    return perform(todo, request)


def options_of(program: str, contenders: Sequence[Contender]) -> Parser:
    """A parser for the options of a comparison and every setting that any of the methods has."""
    parser = Parser(
        prog=program,
        description="Runs methods on the same federation and compares them. "
        "An option applies to every method that has it, spafl:alpha=0.002 to one method only.",
    )
    parser.add_argument(
        "--seeds", type=int, default=1, metavar="N", help="runs per method, from --seed upwards"
    )
    parser.add_argument(
        "--equal",
        choices=EQUAL,
        default="rounds",
        help="what --rounds counts: all rounds (default), or training rounds, so that "
        "methods with a probing first round get one more",
    )
    add_settings(parser, "experiment", Experiment())
    add_settings(parser, "execution", Options())
    add_settings(parser, "methods", union([each.method for each in contenders]))
    return parser


def settings_of(contenders: Sequence[Contender], values: Mapping[str, object]) -> dict[str, object]:
    """The values that are settings of the methods, the experiment or the execution."""
    known = set(common_settings())
    for each in contenders:
        known |= {item.name for item in fields.settings(each.method)}
    return {name: value for name, value in values.items() if name in known}


def perform(todo: Sequence[Plan], request: Request) -> int:
    """Runs what is not done yet, then presents the results."""
    return carry_out(todo, request) or _present(todo, request)


def carry_out(todo: Sequence[Plan], request: Request) -> int:
    """Runs what is not done yet; returns 0 if everything finished."""
    out = request.out
    with refusing():
        left = _prepare(todo, request)
    if not request.quiet:
        done = (
            f", {len(todo) - len(left)} of them finished already" if len(left) < len(todo) else ""
        )
        runs = f"{len(todo)} runs" if len(todo) != 1 else "1 run"
        say(f"{request.what} in {out}: {runs}{done}")
    for plan in todo:
        if plan not in left:
            request.finished(plan)
    stop = Stop()
    with ComparisonProgress(todo, left, request.quiet) as progress, interrupts(stop):
        for plan in left:
            if code := _one(plan, progress, stop, request):
                return code
            request.finished(plan)
    return 0


def _resume(arguments: Sequence[str]) -> int:
    if not arguments[0].startswith("-"):
        raise Refusal("--resume continues the comparison in a folder; name no methods with it")
    parser = Parser(
        prog="gossamer compare --resume FOLDER",
        description="Continues a comparison with the settings that it was started with.",
    )
    parser.add_argument("--resume", metavar="FOLDER", required=True, help="of the comparison")
    parser.add_argument("--workers", default=None, metavar="N", help="number of workers")
    _add_output(parser)
    options = parser.read(arguments)
    out = Path(options.resume)
    with refusing():
        todo = comparison.listed(out)
    if options.workers is not None:
        workers = given(Options(), options)
        todo = [
            replace(
                plan,
                config=replace(plan.config, options=fields.replace(plan.config.options, workers)),
            )
            for plan in todo
        ]
    request = Request(
        out,
        _typed(arguments),
        _again(out),
        options.title,
        quiet=options.quiet,
        json=options.json,
    )
    return perform(todo, request)


def _typed(arguments: Sequence[str]) -> str:
    return shlex.join(["gossamer", "compare", *arguments])


def _prepare(todo: Sequence[Plan], request: Request) -> list[Plan]:
    """Checks every run, writes the configurations, and returns the runs that are left."""
    restarted = comparison.with_other_settings(todo)
    if restarted and not request.restart:
        folder, differences = next(iter(restarted.items()))
        hint = f"`{request.resume}` continues it, " if request.resumes_any else ""
        raise Refusal(
            f"{folder} holds a run with other settings ({'; '.join(differences[:3])}); "
            f"{hint}another --out starts a new one"
        )
    left = comparison.remaining(todo, restarted)
    for plan in comparison.representatives(left):
        _check(plan)
    checkpoint.ready(request.out, 2**20)
    comparison.write(request.out, todo, restarted, one_line(request.command))
    return left


def _check(plan: Plan) -> None:
    try:
        engine.check_run(plan.config.build_run())
    except (ValueError, KeyError) as problem:
        raise ValueError(f"{plan.title}: {problem.args[0]}") from problem


def _one(plan: Plan, progress: ComparisonProgress, stop: Stop, request: Request) -> int:
    """Starts or resumes one run; returns 0 if it finished."""
    with refusing():
        run = replace(plan.config.build_run(plan.folder), name=plan.name)
    try:
        resume = begun(plan.folder)
        summary = engine.start(run, sinks=[progress.begin(plan)], stop=stop, resume=resume)
    except checkpoint.Unusable as problem:
        raise Refusal(str(problem)) from problem
    except Damaged as problem:
        raise Refusal(f"{plan.title}: {problem}", FAILED) from problem
    except (ClientError, OSError) as problem:
        warn(f"{plan.title}: {problem}")
        warn(f"progress is saved; continue with: {request.resume}")
        return 1
    if summary.interrupted:
        warn(f"stopped {plan.title} after round {summary.rounds}; continue with: {request.resume}")
        return INTERRUPTED
    progress.end(plan, summary)
    if summary.diverged:
        warn(f"{plan.title} {summary.diverged}; try a lower --lr")
    return 0


def _present(todo: Sequence[Plan], request: Request) -> int:
    """Prints the table, and writes it as files and as a page."""
    out = request.out
    runs = [run_of(plan) for plan in todo]
    rows = results(runs)
    say(text(rows))
    found = differences.differences(rows)
    for line in differences.text(found):
        say(line)
    experiment = todo[0].config.experiment
    introduction = request.introduction or (
        f"Compared on the same federation: {description(experiment)}."
    )
    if request.summary:
        sentence = request.summary(rows)
        say(f"\n{paragraph(sentence)}\n")
        introduction = f"{sentence}\n\n{introduction}"
    folders = [plan.folder for plan in todo]
    forms = {"csv": comma_separated(rows), "latex": latex(rows)}
    files = write_files(
        request, out / "comparison", forms, lambda: report(folders, request.title, introduction)
    )
    if request.json:
        figures = {"out": str(out), **files, "rows": plain(rows), "runs": list(map(as_json, runs))}
        figures["differences"] = differences.plain(found)
        print(json.dumps(events.plain(figures)), flush=True)
    return 0


def write_files(
    request: Request, stem: Path, forms: Mapping[str, str], page: Callable[[], Report]
) -> dict[str, str]:
    """Writes a table as CSV and LaTeX, and the page next to it.

    Args:
        stem: the path of the table's files without a suffix.
        forms: the table by its format.
        page: makes the report.

    Returns:
        The path of every file by its format.
    """
    paths = {name: stem.with_suffix(SUFFIXES[name]) for name in forms}
    for name, path in paths.items():
        write_atomically(path, forms[name].encode())
    try:
        write(page(), stem.with_name("report.html"))
        paths["report"] = stem.with_name("report.html")
    except (ImportError, NoRun) as problem:
        warn(str(problem))
    for name, path in paths.items():
        say(f"{name}: {path}")
    return {name: str(path) for name, path in paths.items()}


def _again(out: Path) -> str:
    return f"gossamer compare --resume {shlex.quote(str(out))}"


def _add_output(parser: Parser) -> None:
    parser.add_argument("--title", default="", help="of the report; default: the methods")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
