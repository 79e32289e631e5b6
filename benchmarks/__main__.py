"""Runs every benchmark, or those named: `python -m benchmarks speed scale`.

Studies of accuracy take longer and run only if they are named; their files are in `results/`.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import (
    arithmetic,
    clock,
    compact,
    compression,
    devices,
    files,
    flower,
    low_bits,
    masks,
    messages,
    page,
    robust,
    scale,
    single,
    small_clients,
    speed,
    swat,
    thresholds,
    training,
    widths,
    wire,
)
from benchmarks.machine import machine

RESULTS = Path(__file__).parent / "results"
BENCHMARKS: dict[str, Callable[[], dict[str, object]]] = {
    "speed": speed.measure,
    "scale": scale.measure,
    "devices": devices.measure,
    "clock": clock.measure,
    "masks": masks.measure,
    "wire": wire.measure,
    "numbers": low_bits.measure,
    "thresholds": thresholds.measure,
    "arithmetic": arithmetic.measure,
    "swat": swat.measure,
    "training": training.measure,
    "single": single.measure,
    "compact": compact.measure,
    "widths": widths.measure,
    "flower": flower.measure,
    "small-clients": small_clients.measure,
    "messages": messages.measure,
    "page": page.measure,
}
STUDIES: dict[str, Callable[[], dict[str, object]]] = {
    "robust": robust.measure,
    "compression": compression.measure,
}
STUDIED = Path(__file__).parents[1] / "results"


def main() -> None:
    for name in sys.argv[1:] or BENCHMARKS:
        measure = {**BENCHMARKS, **STUDIES}[name]
        found = {"benchmark": name, "machine": machine(), **measure()}
        if "skipped" in found:
            print(f"{name}: {found['skipped']}")
            continue
        folder = STUDIED if name in STUDIES else RESULTS
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.json").write_text(files.text(found))
        print(files.text(found), end="")


main()
