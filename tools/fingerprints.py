"""Fingerprints of every method: what must not change when code is rearranged.

    python tools/fingerprints.py > before.txt
    python tools/fingerprints.py --against before.txt

Every entry of METHODS is run on small jobs that pass through all of its phases. A line has the hash
of all states, the hash of all models, bits in the three columns, FLOPs and accuracies. With
`--options`, every option of every entry is changed as well, one at a time.

States are hashed with the names of their fields, so regrouping a record changes `state` only.
An option that is no longer an entry's own is looked for in the entry NAME-variants.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import gossamer as gs
from gossamer import fields
from gossamer.conformance.fingerprints import JOBS, SMALL, fingerprint, small

ROUNDS, ROUNDS_OF_OPTIONS = 12, 6
FAMILY = {"spdst": "flash"}
"""Entries whose variants have the name of the family."""


@dataclass(frozen=True)
class Case:
    """One run: an entry of METHODS, a job, and at most one option that is changed."""

    method: str
    job: str
    name: str = ""
    value: Any = None

    def __str__(self) -> str:
        changed = f" {self.name}={self.value}" if self.name else ""
        return f"{self.method} {self.job}{changed}"


def fingerprint_of(case: Case) -> str:
    """Runs a case and describes what came of it in one line."""
    method = gs.METHODS[case.method]
    try:
        changed = {case.name: case.value} if case.name else {}
        method = fields.replace(method, {**small(method), **changed})
        rounds = ROUNDS_OF_OPTIONS if case.name else ROUNDS
        figures = fingerprint(method, case.job, rounds)
        return " ".join(f"{name}={value}" for name, value in figures.items())
    except (ValueError, gs.engine.ClientError) as refusal:
        cause = getattr(refusal, "cause", refusal)
        return f"refused ({type(cause).__name__})"


def cases(methods: list[str], options: bool) -> Iterator[Case]:
    """Every entry on every job and, if asked for, with every option changed."""
    yield from (Case(name, job) for name, job in product(methods, JOBS))
    common = {setting.name for setting in fields.settings(gs.Training())}
    for name in methods if options else ():
        method = gs.METHODS[name]
        if method != type(method)():
            continue  # a preset, whose options are those of another entry
        for setting in fields.settings(method):
            if name == "fedavg" or setting.name not in common:
                yield from (Case(name, "bn", setting.name, value) for value in _others(setting))


def _others(setting: fields.Setting) -> list[Any]:
    """Values to try in place of a default."""
    value = SMALL.get(setting.name, setting.default)
    if setting.choices:
        return [choice for choice in setting.choices if choice != value]
    match value:
        case bool():
            return [not value]
        case int():
            return [value + 1]
        case float():
            return [value / 2 if value > 0 else 0.25]
        case _:
            return []


def compare(before: dict[str, str], after: dict[str, str]) -> int:
    """Prints what differs; returns how many lines are gone, or differ in more than their states."""
    changed = regrouped = missing = 0
    for key, old in before.items():
        method, rest = key.split(" ", 1)
        new = after.get(key) or after.get(f"{FAMILY.get(method, method)}-variants {rest}")
        if new is None:
            missing += 1
            print(f"missing  {key}")
        elif _without_state(old) != _without_state(new):
            changed += 1
            print(f"changed  {key}\n  before {old}\n  after  {new}")
        elif old != new:
            regrouped += 1
    print(f"{len(before)} before: {changed} changed, {missing} missing, {regrouped} regrouped")
    return changed + missing


def _without_state(line: str) -> str:
    return " ".join(part for part in line.split(" ") if not part.startswith("state="))


def read(path: Path) -> dict[str, str]:
    """Lines by what they are of."""
    lines = (line.split(": ", 1) for line in path.read_text().splitlines() if ": " in line)
    return dict(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("methods", nargs="*", help="entries of METHODS; none: all")
    parser.add_argument("--options", action="store_true", help="also change every option")
    parser.add_argument("--against", type=Path, help="compare with the output of an earlier run")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    arguments = parser.parse_args()
    chosen = list(cases(arguments.methods or list(gs.METHODS), arguments.options))
    found = {}
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for case, figures in zip(
            chosen, pool.map(fingerprint_of, chosen, chunksize=4), strict=True
        ):
            found[str(case)] = figures
            if not arguments.against:
                print(f"{case}: {figures}", flush=True)
    if not arguments.against:
        return 0
    before = read(arguments.against)
    names = {name.removesuffix("-variants") for name in arguments.methods or gs.METHODS}
    asked = {key: line for key, line in before.items() if key.split(" ")[0] in names}
    if not arguments.options:
        asked = {key: line for key, line in asked.items() if len(key.split(" ")) == 2}
    return 1 if compare(asked, found) else 0


if __name__ == "__main__":
    sys.exit(main())
