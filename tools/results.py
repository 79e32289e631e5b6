"""Writes the measured tables and pictures of the pages from results/ and benchmarks/results/.

python tools/results.py          # writes them; `make results` does the same
python tools/results.py --check  # fails if a page or a picture differs from its files

A place in a page is `<!-- NAME -->` ... `<!-- /NAME -->`, and inside a sentence
`<!--NAME-->...<!--/-->`. A test refuses tables of figures that stand outside of such a place,
unless they say that they are not measured (`<!-- printed -->`, `<!-- computed -->`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import benchmark_tables as benchmarks
import finetune
import front
import language
import paper_tables as papers
import privacy
import robust
import sentences
import sparse_fl
import table
import widths
from places import Blocks, filled

import arithmetic
import compression
import devices

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES: Mapping[Path, Blocks] = {
    DOCS / "index.md": {"claims": papers.claims},
    DOCS / "papers.md": {"kept-runs": papers.progress},
    DOCS / "spafl.md": {
        "spafl-table1": lambda: papers.paper("spafl-table1"),
        "spafl-scale": lambda: papers.study("spafl-scale"),
        "spafl-tau": lambda: papers.study("spafl-tau"),
    },
    DOCS / "flash.md": {
        "flash-mnist": lambda: papers.paper("flash-mnist"),
        "flash-cifar10": lambda: papers.paper("flash-cifar10"),
    },
    DOCS / "arithmetic.md": {
        "arithmetic": arithmetic.steps,
        "single": arithmetic.single,
        "spafl": arithmetic.spafl,
    },
    DOCS / "robustness.md": {"robust": robust.tables},
    DOCS / "privacy.md": {
        "accuracy": privacy.accuracies,
        "noise": privacy.noises,
        "search": privacy.searches,
    },
    DOCS / "pffdst.md": {"pffdst-table1": lambda: papers.paper("pffdst-table1")},
    DOCS / "fedsparse.md": {
        "fedsparse-table1": lambda: papers.paper("fedsparse-table1"),
        "fedsparse-sparsity": lambda: papers.paper("fedsparse-sparsity"),
        "taken-out": benchmarks.gated,
    },
    DOCS / "fedpm.md": {"fedpm": lambda: papers.study("small", "fedpm")},
    DOCS / "zerofl.md": {
        "zerofl": lambda: papers.study("small", "zerofl"),
        "swat": benchmarks.swat,
    },
    DOCS / "priors.md": {
        "priors": lambda: papers.study("small", "fed", "laplace", "mixture", without="fedpm")
    },
    **{
        DOCS / page: {"measured": partial(table.excerpt, *names)}
        for page, names in {
            "fedmrn.md": ("fedmrn",),
            "fedrts.md": ("fedrts",),
            "ssfl.md": ("ssfl",),
            "sparsyfed.md": ("sparsyfed",),
            "personal.md": ("subfedavg", "lotteryfl", "fedspa"),
            "fedtiny.md": ("fedtiny", "fedmef"),
            "baselines.md": ("scaffold", "lg_fedavg", "fedrep", "ditto"),
        }.items()
    },
    DOCS / "benchmarks.md": {
        "speed": benchmarks.speed,
        "small-clients": benchmarks.small_clients,
        "registered": benchmarks.registered,
        "masks": benchmarks.masks,
        "numbers": benchmarks.numbers,
        "compact": benchmarks.compact,
        "page": benchmarks.page,
        "training": benchmarks.training,
    },
    DOCS / "sparse-fl.md": {
        "benchmark": lambda: sparse_fl.image("pictures"),
        "benchmark-tables": sparse_fl.tables,
    },
    DOCS / "devices.md": {
        "classes": devices.classes,
        "asynchronous": devices.asynchronous,
        "minutes": devices.table,
        "earlier": devices.earlier,
        "waited": devices.waited,
        "clock": benchmarks.clock,
        "million": benchmarks.million,
    },
    DOCS / "howto" / "tasks.md": {"language": language.table},
    DOCS / "compression.md": {"study": lambda: compression.table(compression.study())},
    DOCS / "tutorials" / "finetune.md": {
        "finetune": finetune.table,
        "finetune-commands": finetune.commands,
    },
    DOCS / "widths.md": {"widths": widths.table},
    DOCS / "flower.md": {"sockets": benchmarks.sockets, "simulation": benchmarks.simulation},
}


def written() -> dict[Path, str]:
    """Every page and picture as its files have it."""
    found = {
        page: filled(page.read_text(encoding="utf-8"), blocks, page)
        for page, blocks in PAGES.items()
    }
    drawn = {
        compression.PICTURE: compression.picture(compression.study()),
        privacy.PICTURE: privacy.picture(),
    }
    pages = (front.written(), finetune.written())
    for others in (*pages, sparse_fl.pictures(), devices.pictures(), drawn):
        for path, text in others.items():
            assert path not in found, f"{path} is written twice"
            found[path] = text
    found[table.PAGE] = table.filled(table.PAGE.read_text("utf-8"), table.figures(table.KEPT))
    for page in DOCS.rglob("*.md"):
        text = found.get(page) or page.read_text(encoding="utf-8")
        if (changed := sentences.filled(text)) != text:
            found[page] = changed
    return found


def main() -> None:
    differing = {
        path: text
        for path, text in written().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    }
    names = ", ".join(str(path.relative_to(ROOT)) for path in differing)
    if "--check" in sys.argv:
        sys.exit(f"not as in results/: {names}; run `make results`" if differing else 0)
    for path, text in differing.items():
        path.write_text(text, encoding="utf-8")
    print(f"written: {names or 'nothing, all is as in results/'}")


if __name__ == "__main__":
    main()
