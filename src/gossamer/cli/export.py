"""`gossamer export`: a trained model as a file to ship."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gossamer.cli.parsing import Parser, Refusal, say, warn
from gossamer.cli.run import refusing


def export(arguments: Sequence[str]) -> int:
    """`gossamer export RUN [-o FILE]`: the model of a run's last checkpoint, tested as written."""
    parser = Parser(prog="gossamer export", description=export.__doc__)
    parser.add_argument("run", help="the folder of a run")
    parser.add_argument(
        "-o",
        "--out",
        default="",
        metavar="FILE",
        help="ends in .safetensors, .pt2 or .onnx (default: model.safetensors in the run's folder)",
    )
    parser.add_argument("--client", type=int, default=None, metavar="N", help="its own model")
    parser.add_argument(
        "--states", default=None, metavar="DIR", help="what a Flower node keeps of its clients"
    )
    parser.add_argument(
        "--packed", action="store_true", help="leave out zeros; only in .safetensors"
    )
    parser.add_argument(
        "--compact", action="store_true", help="take out neurons and filters that change nothing"
    )
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    options = parser.read(arguments)
    target = Path(options.out or Path(options.run) / "model.safetensors")
    from gossamer import export as exporting

    if target.suffix not in exporting.FORMATS:
        formats = ", ".join(exporting.FORMATS)
        raise Refusal(f"{target} names no format; a model's file ends in one of {formats}")
    with refusing():
        model = exporting.take(options.run, options.client, options.states)
        full, share = model.weights, model.density
        if options.compact:
            model = model.compact()
        try:
            exporting.save(model, target, options.packed)
        except ImportError as missing:
            raise Refusal(str(missing)) from None
    told = model.facts
    whose = "" if options.client is None else f", client {options.client}'s own"
    say(
        f"{told['method']} after round {told['round']} of {told['rounds']}{whose}: "
        f"{full:,} numbers, {share:.1%} of the prunable weights not zero"
    )
    if model.personal:
        say("clients have models of their own: --client N writes one")
    if options.compact:
        say(f"compact: {model.weights:,} numbers are left")
    size = target.stat().st_size
    say(f"wrote {target}, {size:,} bytes")
    found = _tested(exporting, target, model)
    if options.json:
        what = {"file": str(target), "bytes": size, "numbers": model.weights, "density": share}
        print(json.dumps({**what, "accuracy": found, "facts": told}), flush=True)
    return 0


def _tested(exporting: Any, target: Path, model: Any) -> float | None:
    """Accuracy of the file as it was written, if there is something to test it on and by."""
    if not len(model.test):
        say("not tested: there are no test data here")
        return None
    try:
        predict = exporting.predictor(target, model)
    except ImportError as missing:
        warn(f"not tested: {missing}")
        return None
    found: float = exporting.accuracy(predict, model.test)
    say(f"accuracy of the file on {len(model.test):,} test examples: {found:.4f}")
    return found
