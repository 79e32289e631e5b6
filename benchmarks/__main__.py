"""Runs every benchmark, or those named: `python -m benchmarks speed scale`."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import (
    arithmetic,
    compact,
    flower,
    masks,
    messages,
    page,
    scale,
    single,
    small_clients,
    speed,
    thresholds,
    training,
    wire,
)
from benchmarks.machine import machine

RESULTS = Path(__file__).parent / "results"
BENCHMARKS: dict[str, Callable[[], dict[str, object]]] = {
    "speed": speed.measure,
    "scale": scale.measure,
    "masks": masks.measure,
    "wire": wire.measure,
    "thresholds": thresholds.measure,
    "arithmetic": arithmetic.measure,
    "training": training.measure,
    "single": single.measure,
    "compact": compact.measure,
    "flower": flower.measure,
    "small-clients": small_clients.measure,
    "messages": messages.measure,
    "page": page.measure,
}


def main() -> None:
    RESULTS.mkdir(exist_ok=True)
    for name in sys.argv[1:] or BENCHMARKS:
        found = {"benchmark": name, "machine": machine(), **BENCHMARKS[name]()}
        if "skipped" in found:
            print(f"{name}: {found['skipped']}")
            continue
        (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=2) + "\n")
        print(json.dumps(found, indent=2))


main()
