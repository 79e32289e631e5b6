"""Pages that are executed: commands in order in one folder, files as shown, outputs as promised.

A block of `sh` is run, a block of `python` with a title is written to that file and one without is
run, and a block of `text` is what the block of `sh` before it must have printed: all of its lines
in that order, where `…` stands for any others. `<!-- fails -->` before a block means that it ends
with an error, `<!-- slow -->` and `<!-- flower -->` that only a patient test runs it.
"""

from __future__ import annotations

import re
import runpy
import shlex
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from gossamer.cli import main

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>\w+) -->\n)?"
    r'```(?P<language>\w+)(?: title="(?P<title>[^"]*)")?\n(?P<text>.*?)^```',
    re.MULTILINE | re.DOTALL,
)
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
TIME = re.compile(r"# (?:s|ms|min|h)\b")
MORE = "…"
PATIENT = ("slow", "flower")


@dataclass(frozen=True)
class Block:
    """A part of a page that is code."""

    language: str
    title: str
    text: str
    mark: str

    @property
    def commands(self) -> list[list[str]]:
        """Lines as words; those that end in a backslash go on."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [words for line in lines if (words := shlex.split(line, comments=True))]


def blocks(page: Path) -> list[Block]:
    """All code of a page."""
    found = BLOCK.finditer(page.read_text())
    return [Block(m["language"], m["title"] or "", m["text"], m["mark"] or "") for m in found]


def execute(page: Path, capsys: pytest.CaptureFixture[str], patient: bool = False) -> int:
    """Does what a page says, in the folder that is current; returns how many commands it has."""
    told, count, skipped = "", 0, False
    for block in blocks(page):
        if block.language != "text":
            skipped = block.mark in PATIENT and not patient
        if skipped:
            continue
        match block.language:
            case "sh":
                told = ""
                for words in block.commands:
                    code, said = run(words, capsys)
                    told += said
                    assert bool(code) == (block.mark == "fails"), (words, told)
                    count += 1
            case "text":
                check(block.text, told)
            case "python" if block.title:
                Path(block.title).write_text(block.text)
            case "python":
                perform(block.text, page)
    return count


def perform(code: str, page: Path) -> None:
    """Python of a page, in a module of its own, as dataclasses need one."""
    module = ModuleType(f"page_{page.stem}")
    sys.modules[module.__name__] = module
    try:
        exec(compile(code, str(page), "exec"), module.__dict__)
    finally:
        del sys.modules[module.__name__]


def run(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """One command, in this process; its exit code and all that it printed."""
    match words:
        case ["gossamer", *rest]:
            try:
                code = main(rest)
            except Exception:
                traceback.print_exc()
                code = 1
        case ["python", file]:
            runpy.run_path(file, run_name="__main__")
            code = 0
        case ["make", *targets]:
            makefile = (ROOT / "Makefile").read_text()
            code = int(not all(f"\n{target}:" in makefile for target in targets))
        case [".", ".venv/bin/activate"]:
            code = 0
        case ["pip", "install", wish]:
            extra = wish.removeprefix("gossamer[").removesuffix("]")
            code = int(f"\n{extra} = [" not in (ROOT / "pyproject.toml").read_text())
        case _:
            raise AssertionError(f"no test can run {shlex.join(words)}")
    out, err = capsys.readouterr()
    return code, out + err


def check(shown: str, told: str) -> None:
    """Every line that is shown was printed, in that order; numbers may differ as machines do."""
    lines: Iterator[str] = iter(told.splitlines())
    for line in shown.splitlines():
        if line.strip() != MORE:
            assert any(same(line, printed) for printed in lines), f"not printed: {line}\n{told}"


def same(shown: str, printed: str) -> bool:
    """The same words, and nearly the same numbers; how long a thing took is nobody's promise."""
    (first, mine), (second, theirs) = parted(shown), parted(printed)
    return first == second and all(map(near, mine, theirs))


def parted(line: str) -> tuple[str, list[float]]:
    """A line without its numbers, and the numbers."""
    masked = re.sub(r"\s+", " ", re.sub(r"-{2,}", "--", NUMBER.sub("#", line))).strip()
    numbers = [float(number.replace(",", "")) for number in NUMBER.findall(line)]
    words = masked.split("#")
    timed = [bool(TIME.match(f"#{after}")) for after in words[1:]]
    kept = [number for number, is_time in zip(numbers, timed, strict=True) if not is_time]
    return TIME.sub("time", masked), kept


def near(one: float, two: float) -> bool:
    """Within what other processors may round differently."""
    return abs(one - two) <= max(0.05 * abs(one), 0.08 if abs(one) <= 1 else 0.0)
