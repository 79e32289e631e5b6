"""How pages are written: their length and lines, the order of methods' pages, their figures."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from transcripts import ROOT

DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = [README, *sorted(DOCS.rglob("*.md"))]
TEXTS = [*PAGES, *(ROOT / f"{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY"))]
MOST_CHARACTERS = 120
MOST_LINES = 250
MOST_OF_README = 180
ORDER = [
    "The idea",
    "The algorithm",
    "What travels",
    "Options",
    "Measured",
    "Differences from the paper",
    "Citation",
]
METHODS = (
    *(
        "baselines",
        "fedmrn",
        "fedpm",
        "fedrts",
        "fedsparse",
        "fedtiny",
        "flash",
        "lora",
        "personal",
    ),
    *("pffdst", "priors", "spafl", "sparsyfed", "ssfl", "widths", "zerofl"),
)
MEASURED = re.compile(r"(?<![\w.`/-])\d+\.\d+(?![\w`.])|\d+(\.\d+)? ?%")
"""A figure with decimals or in percent."""


def prose(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a page that are neither code nor rows of a table, with their numbers."""
    code = False
    for number, line in enumerate(text.splitlines(), 1):
        fence = line.lstrip().startswith("```")
        code ^= fence
        if not code and not fence and not line.lstrip().startswith("|"):
            yield number, line


def too_long(text: str) -> list[int]:
    """Numbers of lines that are too long, unless they are one link that cannot be broken."""
    return [
        number
        for number, line in prose(text)
        if len(line) > MOST_CHARACTERS and not re.fullmatch(r"\s*\[?!?\[.*\]\(.*\)", line)
    ]


def by_hand(text: str) -> list[str]:
    """Figures of the README's sentences that no script has written."""
    generated = re.sub(r"<!-- (\w+) -->.*?<!-- /\1 -->", "", text, flags=re.DOTALL)
    return [
        found[0]
        for _, line in prose(generated)
        for found in MEASURED.finditer(re.sub(r"`[^`]*`|Python \d\.\d+|Apache-2\.0", "", line))
    ]


@pytest.mark.parametrize("page", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_line_is_too_long(page: Path) -> None:
    assert not too_long(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_page_is_too_long(page: Path) -> None:
    lines = len(page.read_text(encoding="utf-8").splitlines())
    assert lines <= (MOST_OF_README if page == README else MOST_LINES)


@pytest.mark.parametrize("name", METHODS)
def test_pages_of_methods_have_the_same_order(name: str) -> None:
    text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    heads = [line[3:] for _, line in prose(text) if line.startswith("## ")]
    assert heads == ORDER


def test_every_page_of_a_method_is_in_the_navigation_below_methods() -> None:
    part = (ROOT / "mkdocs.yml").read_text().partition("- Methods:\n")[2].partition("- Explan")[0]
    assert sorted(re.findall(r": (\w+)\.md", part)) == sorted([*METHODS, "methods"])


def test_figures_of_the_readme_are_written_by_a_script() -> None:
    assert by_hand(README.read_text(encoding="utf-8")) == []


def test_drawings_are_those_of_the_script() -> None:
    words = [sys.executable, str(ROOT / "tools" / "drawings.py"), "--check"]
    assert subprocess.run(words, check=False).returncode == 0


def test_pictures_of_pages_are_used_and_small() -> None:
    used = {
        Path(link).name
        for page in PAGES
        for link in re.findall(r"!\[[^]]*\]\(([^)]*pictures/[^)]*)\)", page.read_text("utf-8"))
    }
    there = {path.name for path in (DOCS / "pictures").iterdir()}
    assert there == used
    assert all(path.stat().st_size < 250_000 for path in (DOCS / "pictures").iterdir())


def test_what_is_refused_here_would_be_found() -> None:
    row, word = "| " + "x" * 130 + " |\n", "x" * 130
    assert too_long(f"{row}```\n{word}\n```\nshort\n{word}\n[a]({word})") == [6]
    assert by_hand("It is 2.5 times faster.\n<!-- a -->\n3.1 %\n<!-- /a -->\n`--lr 0.1`") == ["2.5"]
