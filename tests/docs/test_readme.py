"""The README is executed: its commands in order in one folder, its Python as it stands."""

import re
import shutil
import sys
from pathlib import Path

import pytest
from transcripts import ROOT, blocks, execute, run

from gossamer.cli.compare import options_of, settings_of
from gossamer.methods import ALGORITHMS, METHODS
from gossamer.reproduce.plans import contender, plans

sys.path.insert(0, str(ROOT / "tools"))

import picture
import table

README = ROOT / "README.md"
BROWSER = next((name for name in picture.BROWSERS if shutil.which(name)), None)


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that has what the README says a clone has."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_command_of_the_readme_works(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(README, capsys) >= 9
    assert {"report.html", "model.onnx", "mine.py"} <= {path.name for path in clone.iterdir()}


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on this machine")
def test_a_picture_of_a_report_can_be_taken(
    clone: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["run", "fedavg", "--data", "synthetic", "--rounds", "2", "--out", "runs/first"]
    assert run(["gossamer", *words], capsys)[0] == 0
    monkeypatch.setattr(sys, "argv", ["picture.py", "runs/first", "-o", "report.png"])
    picture.main()
    assert 10_000 < (clone / "report.png").stat().st_size < 250_000


def test_the_readme_has_one_picture() -> None:
    shown = re.findall(r"!\[.*?\]\((.*?)\)", README.read_text())
    assert len(shown) == 1
    assert (ROOT / shown[0]).stat().st_size < 100_000


def test_the_method_of_the_readme_is_the_example() -> None:
    shown = [block.text for block in blocks(README) if "class TopK" in block.text]
    example = (ROOT / "examples" / "topk.py").read_text()
    assert shown == [example]
    assert f"## A method in {len(example.splitlines())} lines" in README.read_text()


def comparison() -> list[str]:
    """The command below the table of all methods."""
    (words,) = next(block.commands for block in blocks(table.PAGE) if block.mark == "slow")
    return words


def test_the_table_has_the_figures_that_were_measured() -> None:
    text = table.PAGE.read_text()
    known = table.figures(table.KEPT)
    assert table.filled(text, known) == text
    named = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    assert named == list(known)


def test_the_table_of_the_readme_has_every_algorithm() -> None:
    text = README.read_text()
    rows = re.findall(r"^\| (.*?`\w+`.*?) \|", text.partition("| method |")[2], re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    elsewhere = {"fedadagrad", "fedyogi"}  # `fedopt` with another optimiser
    elsewhere |= {"fedpaq", "fedcom", "powersgd", "signsgd"}  # what "..." stands for
    assert named | elsewhere >= {name for name in ALGORITHMS if "-" not in name}
    assert named <= set(METHODS)


def test_a_method_without_a_global_model_has_no_figure_of_one() -> None:
    (row,) = (line for line in README.read_text().splitlines() if line.startswith("| [`spafl`]"))
    assert row.split("|")[5].strip() == "" != row.split("|")[6].strip()


def test_the_command_of_the_table_is_understood() -> None:
    words = comparison()[2:]
    count = next(at for at, word in enumerate(words) if word.startswith("-"))
    contenders = [
        contender(word.replace("examples", str(ROOT / "examples"))) for word in words[:count]
    ]
    parser = options_of("gossamer compare", contenders)
    parser.add_argument("--out")
    options = parser.read(words[count:])
    todo = plans(contenders, settings_of(contenders, vars(options)), Path("runs"), options.seeds)
    assert [plan.name for plan in todo] == list(table.figures(table.KEPT))


@pytest.mark.slow
def test_the_table_can_be_measured_again(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = run(comparison(), capsys)
    assert code == 0, told
    again, kept = table.figures(clone / "runs/table/comparison.csv"), table.figures(table.KEPT)
    for name, cells in kept.items():
        for mine, theirs in zip(again[name], cells, strict=True):
            one, two = (float(cell.replace(",", "") or 0) for cell in (mine, theirs))
            assert one == pytest.approx(two, rel=0.1, abs=0.03), name


def test_what_make_is_asked_for_is_there() -> None:
    makefile = (ROOT / "Makefile").read_text()
    first, *_ = (block.text for block in blocks(README))
    assert re.findall(r"^make (\S+)", first, re.MULTILINE) == ["demo", "test"]
    named = set(re.findall(r"`make (\S+?)`", README.read_text()))
    assert named == {"setup", "docs"}
    assert all(f"\n{target}:" in makefile for target in named)


def test_links_of_the_documents_lead_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    for page in pages:
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for link in re.findall(r"\]\(([^)#]+?)(?:#.*?)?\)", text):
            assert link.startswith("http") or (page.parent / link).exists(), (page, link)
