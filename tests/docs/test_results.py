"""Figures of the pages come from files, and the pages agree with them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gossamer.report.kept import Shelf, read_kept
from gossamer.reproduce.claims import MOST_SEEDS
from gossamer.reproduce.tables import find, load, names

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FIGURE = re.compile(r"(?<![\w.`-])\d+\.\d+(?![\w`])|\d+(\.\d+)? ?%")
PLACE = re.compile(r"<!-- (/?)([\w-]+) -->")
NOT_MEASURED = ("printed", "computed")
"""Comments before a table of a paper's figures, or of arithmetic that tests repeat."""
MARKS = ("fails", "slow", "flower")
"""Comments before code, for the tests that run it (`transcripts.py`)."""
OTHERS = {
    "README.md": "| method | sent down",
    "docs/methods.md": "| name |",
    "docs/reference/lines.md": "|",
}
"""Tables that `tools/front.py`, `tools/table.py` and `tools/lines.py` write from files."""


def tables(page: Path) -> Iterator[tuple[int, str, str]]:
    """The tables of a page: line, text, and the place or the comment that they are in."""
    lines = page.read_text(encoding="utf-8").splitlines()
    place, code, at = "", False, 0
    while at < len(lines):
        line = lines[at]
        code ^= line.startswith("```")
        if (found := PLACE.fullmatch(line.strip())) and found[2] not in MARKS:
            place = "" if found[1] else found[2]
        end = at
        while end < len(lines) and lines[end].startswith("|") and not code:
            end += 1
        if end > at:
            yield at + 1, "\n".join(lines[at:end]), place
            place = "" if place in NOT_MEASURED else place
        at = max(end, at + 1)


def share(table: str) -> float:
    """The share of cells, but for those of the first column, that are figures."""
    cells = [c for line in table.splitlines()[2:] for c in line.strip("|").split("|")[1:]]
    filled = [cell.strip() for cell in cells if cell.strip()]
    figures = [cell for cell in filled if FIGURE.search(cell) and len(cell) < 60]
    return len(figures) / len(filled) if filled else 0.0


def test_no_table_of_figures_is_without_a_file() -> None:
    loose = [
        f"{page.relative_to(ROOT)}:{line}"
        for page in PAGES
        for line, table, place in tables(page)
        if share(table) > 0.3
        and not place
        and not table.startswith(OTHERS.get(str(page.relative_to(ROOT)), "nothing"))
    ]
    assert not loose, (
        f"{loose}: let tools/results.py write them from a file in results/, or say by a comment "
        "that they are not measured"
    )


def test_tables_are_in_places_that_a_script_fills() -> None:
    """Any other comment before a table would hide that it was typed in."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import front, results\n"
        "print(*{name for blocks in results.PAGES.values() for name in blocks}, *front.BLOCKS)"
    )
    words = [sys.executable, "-c", code, str(ROOT / "tools")]
    known = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()
    places = {place for page in PAGES for *_, place in tables(page) if place}
    assert places <= {*known, *NOT_MEASURED, "lines"}  # of tools/lines.py


def test_every_result_is_one_of_a_table_or_a_study() -> None:
    """A file whose settings no row has any more is shown nowhere."""
    studies = {path.stem: load(path) for path in (ROOT / "results" / "studies").glob("*.toml")}
    loose = []
    for folder in (path for path in (ROOT / "results").iterdir() if path.is_dir()):
        table = studies.get(folder.name) or (find(folder.name) if folder.name in names() else None)
        if table is None:
            continue
        shelf = Shelf(folder)
        plans = [
            plan
            for scale in table.scales.values()
            for plan in table.plans(scale, Path(), MOST_SEEDS)
        ]
        found = {run.folder for plan in plans if (run := shelf.find(plan.config))}
        loose += [str(path) for path in folder.glob("*.json") if str(path) not in found]
    assert not loose


def test_a_table_that_was_typed_in_would_be_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A\n\n| | accuracy |\n|---|---|\n| ours | 0.93 ± 0.01 |\n| theirs | 91.2 % |\n"
    )
    ((line, table, place),) = tables(page)
    assert (line, place) == (3, "") and share(table) == 1


def test_pages_and_pictures_agree_with_their_files() -> None:
    words = [sys.executable, str(ROOT / "tools" / "results.py"), "--check"]
    told = subprocess.run(words, check=False, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr


def test_a_figure_that_was_changed_by_hand_is_written_again() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import results\n"
        "page = results.DOCS / 'benchmarks.md'; blocks = results.PAGES[page]\n"
        "text = results.filled(page.read_text(), blocks, page)\n"
        "changed = text.replace('| 10,000 |', '| 20,000 |')\n"
        "sys.exit(0 if changed != text == results.filled(changed, blocks, page) else 1)"
    )
    words = [sys.executable, "-c", code, str(ROOT / "tools")]
    assert subprocess.run(words, check=False).returncode == 0


def test_a_figure_within_a_sentence_is_written_again() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import sentences\n"
        "print(sentences.filled('SpaFL sends <!--spafl-leanest-->2.5<!--/--> times less.'))"
    )
    words = [sys.executable, "-c", code, str(ROOT / "tools")]
    told = subprocess.run(words, check=False, capture_output=True, text=True)
    written = re.fullmatch(
        r"SpaFL sends <!--spafl-leanest-->(\d+)<!--/--> times less\.\n", told.stdout
    )
    assert written and float(written[1]) > 2.5, told


def test_every_figure_of_sentences_has_its_sentence() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import sentences; print(*sentences.FIGURES)"
    )
    words = [sys.executable, "-c", code, str(ROOT / "tools")]
    names = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()
    places = {
        name
        for page in PAGES
        for name in re.findall(r"<!--([\w-]+)-->", page.read_text(encoding="utf-8"))
    }
    assert sorted(names) == sorted(places)


@pytest.mark.parametrize("path", sorted((ROOT / "results").rglob("*.json")), ids=lambda p: p.stem)
def test_results_are_small_and_name_no_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert path.stat().st_size < 60_000
    assert not re.search(r"/(home|root|work|tmp|Users)/", text)
    if '"format"' in text[:40]:
        run = read_kept(path)
        assert run.command.startswith("gossamer ") and run.finished["state_hash"]
    else:
        json.loads(text)
