"""`gossamer export`: a trained model as a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gossamer.cli.parsing import FAILED, Parser, Refusal, refusing, say, warn
from gossamer.report.units import score


def export(arguments: Sequence[str]) -> int:
    """`gossamer export RUN [-o FILE]`: exports the model of the last checkpoint and tests it."""
    parser = Parser(prog="gossamer export", description=export.__doc__)
    parser.add_argument("run", help="the folder of a run")
    parser.add_argument(
        "-o",
        "--out",
        default="",
        metavar="FILE",
        help="ends in .safetensors, .pt2, .onnx or .gsm (default: RUN/model.safetensors)",
    )
    parser.add_argument(
        "--client",
        type=int,
        default=None,
        metavar="N",
        help="export the personal model of client N",
    )
    parser.add_argument(
        "--best", action="store_true", help="the model of the best round (of a run --keep best)"
    )
    parser.add_argument(
        "--states",
        default=None,
        metavar="DIR",
        help="client states of a Flower node (its --states folder)",
    )
    parser.add_argument(
        "--packed", action="store_true", help="store non-zero weights only (.safetensors)"
    )
    parser.add_argument(
        "--compact", action="store_true", help="remove neurons and filters that have no effect"
    )
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    options = parser.read(arguments)
    target = Path(options.out or Path(options.run) / "model.safetensors")
    from gossamer import export as exporting

    if target.suffix not in exporting.FORMATS:
        formats = ", ".join(exporting.FORMATS)
        raise Refusal(f"{target} has no known format; use one of {formats}")
    with refusing():
        model = exporting.take(options.run, options.client, options.states, best=options.best)
        full, share = model.weights, model.density
        if options.compact:
            model = model.compact()
        try:
            exporting.save(model, target, options.packed)
        except ImportError as missing:
            raise Refusal(str(missing)) from None
    facts = model.facts
    whose = "" if options.client is None else f", personal model of client {options.client}"
    say(
        f"{facts['method']} after round {facts['round']} of {facts['rounds']}{whose}: "
        f"{full:,} parameters, {share:.1%} of the prunable weights non-zero"
    )
    if model.personal:
        say("clients have personal models; --client N exports one")
    if options.compact:
        say(f"compact: {model.weights:,} parameters remain")
    size = target.stat().st_size
    say(f"wrote {target}, {size:,} bytes")
    found, metric = _tested(exporting, target, model), model.task.goal.headline
    if options.json:
        what = {"file": str(target), "bytes": size, "numbers": model.weights, "density": share}
        print(json.dumps({**what, metric.name: found, "facts": facts}), flush=True)
    for text in model.notices:
        warn(text)
    if model.notices:
        warn(f"this is an older model, that of round {facts['round']}")
    return FAILED if model.notices else 0


def _tested(exporting: Any, target: Path, model: Any) -> float | None:
    """The headline metric of the written file; None without test data or the format's runtime."""
    if not len(model.test):
        say("not tested: no test data available")
        return None
    try:
        predict = exporting.predictor(target, model)
    except ImportError as missing:
        warn(f"not tested: {missing}")
        return None
    goal = model.task.goal
    found: float | None = exporting.score(predict, model.test, goal)
    shown = score(found)
    say(f"{goal.headline.title} of the file on {len(model.test):,} test examples: {shown}")
    return found
