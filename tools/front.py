"""Writes what the README measures: the picture, the claims and their figures, the methods' table.

`tools/results.py` puts them into their places, `<!-- NAME -->` ... `<!-- /NAME -->`. The picture is
that of the benchmark of all methods (results/benchmark) or, before it was run, of the demo.
"""

from __future__ import annotations

import csv
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import frontier
import paper_tables
import sparse_fl
from places import Blocks, filled

import arithmetic
from arithmetic import read
from gossamer.method_names import has_global_model

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "pictures" / "frontier.svg"
FIGURES = ROOT / "docs" / "reference" / "methods.csv"
HEAD = "| method | sent down |"
CONTENDERS = re.compile(r"`(\w+)`")


def prose(text: str) -> str:
    """A paragraph in lines of at most 118 characters that do not break within code."""
    whole = re.sub(r"`[^`]+`", lambda code: code[0].replace(" ", "\0"), text)
    lines = textwrap.fill(whole, 118, break_on_hyphens=False, break_long_words=False)
    return lines.replace("\0", " ")


def picture() -> str:
    """The picture, and what it shows."""
    if sparse_fl.rows():
        rounds = max(rounds for rounds, _ in sparse_fl.rows().values())
        text = (
            f"{sparse_fl.methods()} methods after {rounds} rounds, each at the best of a few "
            f"learning rates on validation data, {sparse_fl.seeds()}: "
            "[the benchmark](docs/sparse-fl.md), which `gossamer bench sparse-fl` runs in full."
        )
        return f"{sparse_fl.image('docs/pictures')}\n\n{prose(text)}"
    alt = "Accuracy against megabytes sent and against seconds of local training"
    return f"![{alt}](docs/pictures/{PICTURE.name})\n\n{prose(frontier.shown().caption)}"


def training() -> str:
    """Whole runs: how many times faster sparse models train."""
    found = read("training")
    ratios = [found[name]["ratio_of_training"] for name in ("lenet5_caffe", "resnet18:width=32")]
    times = " to ".join(sorted({f"{ratio:.1f}" for ratio in ratios}, key=float))
    text = prose(
        f"**Sparse models train {times} times faster because they are sparse.** "
        "Gossamer's own kernels compute at the non-zeros only ([how](docs/arithmetic.md)). "
        "`python -m benchmarks training` repeats this measurement on two cores; small dense models "
        "have kernels too, so FedAvg is shown with torch's and with ours:"
    )
    return f"{text}\n\n{arithmetic.training()}"


def bits() -> str:
    """How near messages are to their entropy."""
    masks, numbers, wire = read("masks")["rice"], read("numbers"), read("wire")["messages"]
    share = 100 * max(each["encoding_share_of_round"] for each in wire.values())
    return prose(
        "**Every bit is counted, at the entropy limit.** Messages are encoded to real bytes in the "
        "simulator too, and every run lists them field by field ([the wire](docs/wire.md)). Random "
        f"masks take {masks['lenet']['bits_over_limit']:.3f} times their entropy, quantised "
        f"numbers at most {numbers['most_over_entropy']:.3f} times theirs, and encoding at most "
        f"{share:.1f} % of a round (`python -m benchmarks masks numbers wire`)."
    )


def places() -> str:
    """Where a method can run, and how fast beside Flower's own simulation."""
    ratios = [read("flower")[job]["trained"]["flower_over_engine"] for job in ("lenet", "mlp")]
    least, most = sorted(each["running"] for each in ratios)
    return prose(
        "**The same results on a laptop, a Ray cluster and a Flower network.** One worker, "
        "several, Ray (`--engine flower-sim`), [nodes on a network](docs/tutorials/flower.md), and "
        "a run that was killed and resumed all end with the same hash of the final state, on "
        f"identical hardware and software. The simulator is {least:.1f} to {most:.1f} times as "
        "fast as Flower's own ([two jobs](docs/flower.md#against-flowers-own-simulation), "
        "`python -m benchmarks flower`)."
    )


def papers() -> str:
    """How many claims of the papers hold."""
    verdicts = Counter(each.verdict for each in paper_tables.judged())
    counts = [f"{verdicts[word]} {word}" for word in ("reproduced", "not reproduced", "undecided")]
    return prose(
        "**Four papers, claim by claim.** `gossamer paper --claims` judges by paired tests and "
        f"intervals: of {verdicts.total()}, {counts[0]}, {counts[1]} and {counts[2]} "
        "([each with its error and reason](docs/index.md#what-the-papers-claim))."
    )


BLOCKS: Blocks = {
    "picture": picture,
    "training": training,
    "bits": bits,
    "places": places,
    "papers": papers,
}


def _measured() -> dict[str, Mapping[str, str]]:
    with FIGURES.open(newline="") as file:
        return {row["method"]: row for row in csv.DictReader(file)}


def _rows(lines: list[str], known: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """The table of methods, with figures of every method that a row names."""
    dense, inside = float(known["fedavg"]["sent"]), False
    for line in lines:
        inside = line.startswith(HEAD) or (inside and line.startswith("|"))
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        names = CONTENDERS.findall(cells[0]) if inside else []
        if not names:
            yield line
            continue
        rows = [known.get(name) for name in names]
        scores = [row and _score(row) for row in rows]
        sent = [row and f"{100 * float(row['sent']) / dense:.3g}" for row in rows]
        yield f"| {' | '.join([*cells[:-2], _joined(scores), _joined(sent)])} |\n"


def _score(row: Mapping[str, str]) -> str:
    known = has_global_model(row["method"])
    return f"{float(row['global_accuracy']):.2f}" if known else ""


def _joined(figures: list[str | None]) -> str:
    """The figures of a row in the order of its methods; empty if none has any."""
    return ", ".join(figure or "–" for figure in figures) if any(figures) else ""


def written() -> dict[Path, str]:
    """The README, and the picture."""
    text = filled(README.read_text("utf-8"), BLOCKS, README, apart="")
    text = "".join(_rows(text.splitlines(keepends=True), _measured()))
    return {README: text, PICTURE: frontier.shown().svg}
