"""The README is executed: its commands in order in one folder, its Python as it stands."""

import re
import shlex
from pathlib import Path

import pytest

from gossamer.cli import main

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def commands() -> list[list[str]]:
    lines = "".join(blocks("sh")).replace("\\\n", " ").splitlines()
    words = [shlex.split(line, comments=True) for line in lines]
    return [line[1:] for line in words if line and line[0] == "gossamer"]


def test_every_command_of_the_readme_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(commands()) >= 6
    for words in commands():
        assert main(words) == 0, (words, capsys.readouterr().err)


def test_the_python_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert blocks("python")
    for code in blocks("python"):
        exec(compile(code, "README.md", "exec"), {})
    assert len(capsys.readouterr().out.split()) == 3


def test_make_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^make (\S+)", "".join(blocks("sh")), re.MULTILINE)
    assert targets == ["demo", "test"]
    assert all(f"\n{target}:" in makefile for target in targets)


def test_links_of_the_documents_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#]+?)(?:#.*?)?\)", page.read_text()):
            assert link.startswith("http") or (page.parent / link).exists(), (page, link)
