"""Fine-tuning MiniLM on SST-2: the study of docs/tutorials/finetune.md, its table and its picture.

python tools/finetune.py              # all runs, one after another; goes on where it was stopped
python tools/finetune.py --seeds 1    # the first seed only

A run that has ended is kept in results/finetune; `tools/results.py` writes the page from there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import log10
from pathlib import Path

from gossamer.report.curves import last, mean, standard_error
from gossamer.report.kept import keep
from gossamer.report.reading import read_run
from gossamer.report.runs import Run

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "results" / "finetune"
PICTURE = ROOT / "docs" / "pictures" / "finetune.svg"
SHARE = "0.03"
"""Of the training phrases: 2,020 of 67,349, about a hundred for each client."""
COMMON = (
    *("--data", "examples/finetune.py:make", "--partition", "dirichlet:1.0", "--pool", "20"),
    *("--clients", "5", "--rounds", "12", "--eval-every", "3", "--batch", "16"),
    *("--optimiser", "adamw"),
)


@dataclass(frozen=True)
class Plan:
    """A row of the table: its name, the method, and its settings."""

    title: str
    words: tuple[str, ...]
    colour: str

    def command(self, seed: int, out: Path) -> list[str]:
        return ["run", *self.words, *COMMON, "--seed", str(seed), "--out", str(out)]


def _adapters(method: str, *more: str) -> tuple[str, ...]:
    return (method, "--model", "examples/finetune.py:adapters", "--lr", "0.002", *more)


def _flasc(density: str) -> tuple[str, ...]:
    sparse = ("--down-density", density, "--up-density", density)
    return _adapters("flasc", *sparse, "--server-lr", "0.01")


PLANS = {
    "whole": Plan(
        "`fedavg`, all but the embeddings",
        ("fedavg", "--model", "examples/finetune.py:whole", "--lr", "0.0001"),
        "#1f77b4",
    ),
    "lora": Plan("`fedavg-lora`, rank 8", _adapters("fedavg-lora"), "#2ca02c"),
    "flasc-4": Plan("`flasc`, rank 8, density 1/4", _flasc("0.25"), "#9467bd"),
    "flasc-16": Plan("`flasc`, rank 8, density 1/16", _flasc("0.0625"), "#d62728"),
    "spdst": Plan(
        "`spdst`, density 0.1",
        (
            *("spdst", "--model", "examples/finetune.py:whole", "--density", "0.1"),
            *("--probe-clients", "5", "--probe-epochs", "1", "--lr", "0.0005"),
        ),
        "#ff7f0e",
    ),
}


def study(seeds: int, out: Path, workers: int) -> None:
    """Runs what is not kept yet, seeds outermost."""
    for seed in range(1, seeds + 1):
        for name, plan in PLANS.items():
            kept = KEPT / f"{name}-{seed}.json"
            if kept.exists():
                continue
            folder = out / f"{name}-{seed}"
            again = (folder / "config.toml").exists()
            words = ["resume", str(folder)] if again else plan.command(seed, folder)
            call = [sys.executable, "-m", "gossamer", *words, "--workers", str(workers)]
            subprocess.run(call, check=True, cwd=ROOT, env={**os.environ, "SST2_SHARE": SHARE})
            keep(read_run(folder), kept)
            _relocate(kept)


def _relocate(kept: Path) -> None:
    """Takes this machine's folders out of a file, which is valid in any clone."""
    text = kept.read_text(encoding="utf-8")
    for inner in (json.dumps(f"{ROOT}/")[1:-1], f"{ROOT}/"):
        text = text.replace(inner, "")
    kept.write_text(text, encoding="utf-8")


def runs(name: str) -> list[Run]:
    """The runs of a row that are kept, one for each seed."""
    return [read_run(path) for path in sorted(KEPT.glob(f"{name}-[0-9]*.json"))]


def table() -> str:
    """A row for each plan, means over seeds."""
    lines = [
        "| run | trained | accuracy | best | Mbit up | Mbit down | seeds |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, plan in PLANS.items():
        found = runs(name)
        if not found:
            continue
        scores = [[value for _, value in _points(run)] for run in found]
        cells = [
            f"{found[0].started['parameters']:,}",
            _scores([each[-1] for each in scores]),
            _scores([max(each) for each in scores]),
            *(_megabits(found, way) for way in ("up", "down")),
            str(len(found)),
        ]
        lines.append(f"| {plan.title} | {' | '.join(cells)} |")
    if len(lines) == 2:
        return f"No runs are kept in {KEPT.relative_to(ROOT)} yet."
    first = next(run for name in PLANS for run in runs(name))
    about = first.started["environment"]
    times = [run.finished["clock"]["seconds"] for name in PLANS for run in runs(name)]
    lines.append(
        f"\nAfter {first.done} rounds of 5 of 20 clients; accuracy of the global model on the 872 "
        f"phrases of the dev set,\nafter the last round and at its best; ± one standard error. "
        f"All runs together took\n{sum(times) / 60:.0f} minutes on {about['machine']}, "
        f"torch {about['torch']}.\n\n"
        f"![accuracy against Mbit sent](../pictures/{PICTURE.name})"
    )
    return "\n".join(lines)


def commands() -> str:
    """The command of every row."""
    rows = [f"export SST2_SHARE={SHARE}", f'common="{_wrapped(COMMON)}"']
    rows += [f"gossamer run {' '.join(plan.words)} $common --seed 1" for plan in PLANS.values()]
    return "<!-- slow -->\n```sh\n" + "\n".join(map(_folded, rows)) + "\n```"


def _wrapped(words: Sequence[str]) -> str:
    half = words.index("--clients")
    return f"{' '.join(words[:half])} \\\n    {' '.join(words[half:])}"


def _folded(line: str) -> str:
    if len(line) <= 118 or "\n" in line:
        return line
    cut = line.rindex(" --", 0, 110)
    return f"{line[:cut]} \\\n   {line[cut:]}"


def _points(run: Run) -> list[tuple[int, float]]:
    return [(at, score) for at, score in run.curve("global_score").items() if score is not None]


def _megabits(found: list[Run], way: str) -> str:
    value = mean(last(run.curve(way)) for run in found)
    assert value is not None
    return f"{value / 1e6:,.4g}"


def _scores(values: list[float]) -> str:
    error = standard_error(values)
    return f"{mean(values):.3f}" + ("" if error is None else f" ± {error:.3f}")


def written() -> dict[Path, str]:
    """The picture: accuracy against what was sent, the first seed of every row."""
    found = {name: kept[0] for name in PLANS if (kept := runs(name))}
    return {PICTURE: picture(found)} if found else {}


def picture(found: dict[str, Run]) -> str:
    """Lines in a plane of Mbit, on a logarithmic scale, and accuracy."""
    width, height, left, right, bottom, top = 720, 360, 56, 220, 44, 16
    lines = {name: _line(run) for name, run in found.items()}
    sent = [bits for line in lines.values() for bits, _ in line]
    low, high = log10(min(sent)), log10(max(sent))

    def x(bits: float) -> float:
        return left + (log10(bits) - low) / (high - low) * (width - left - right)

    def y(score: float) -> float:
        return height - bottom - (score - 0.4) / 0.5 * (height - bottom - top)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    parts += [
        f'<path d="M{left} {y(score):.1f}H{width - right}" stroke="#ddd"/>'
        f'<text x="{left - 6}" y="{y(score) + 4:.1f}" text-anchor="end">{score:.1f}</text>'
        for score in (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    ]
    parts += [
        f'<text x="{x(10**power):.1f}" y="{height - 24}" text-anchor="middle">'
        f"{10 ** (power - 6):,g}</text>"
        for power in range(1, 12)
        if low <= power <= high
    ]
    middle = (left + width - right) / 2
    parts.append(
        f'<text x="{middle:.1f}" y="{height - 6}" text-anchor="middle">Mbit sent, both ways</text>'
    )
    for row, (name, line) in enumerate(lines.items()):
        plan = PLANS[name]
        path = " ".join(f"{x(bits):.1f},{y(score):.1f}" for bits, score in line)
        here = 40 + 22 * row
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{plan.colour}" stroke-width="2"/>'
            f'<circle cx="{width - right + 16}" cy="{here - 4}" r="4" fill="{plan.colour}"/>'
            f'<text x="{width - right + 26}" y="{here}">{plan.title.replace("`", "")}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _line(run: Run) -> list[tuple[float, float]]:
    """Bits of all messages so far, and accuracy, at every evaluation after the first round."""
    up, down = run.curve("up"), run.curve("down")
    sent = {at: (up[at] or 0) + (down.get(at) or 0) for at in up}
    return [(sent[at], score) for at, score in _points(run) if sent.get(at)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "finetune")
    wish = parser.parse_args()
    study(wish.seeds, wish.out.resolve(), wish.workers)


if __name__ == "__main__":
    main()
