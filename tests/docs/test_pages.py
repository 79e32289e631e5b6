"""Tutorials and how-tos are executed as they stand, and show what is really printed."""

from pathlib import Path

import pytest
from transcripts import ROOT, blocks, check, execute, same

DOCS = ROOT / "docs"
PAGES = [
    "tutorials/index",
    "tutorials/method",
    "howto/check",
    "howto/from_flower",
    "howto/from_pfl",
    "howto/own",
    "howto/python",
    "howto/sweep",
    "howto/tasks",
    "howto/records",
    "howto/resume",
    "howto/ship",
    "reference/index",
]
EXAMPLE = (ROOT / "examples" / "topk.py").read_text()


@pytest.mark.parametrize("page", [*PAGES, "tutorials/paper", "tutorials/flower"])
def test_what_a_page_says_can_be_done(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    found = [block for block in blocks(DOCS / f"{page}.md") if block.language in ("sh", "python")]
    assert found
    execute(DOCS / f"{page}.md", capsys)


@pytest.mark.slow
def test_the_reviewer_gets_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert execute(DOCS / "tutorials" / "paper.md", capsys, patient=True) >= 4


def test_the_method_of_the_tutorial_is_the_example() -> None:
    shown = [block.text for block in blocks(DOCS / "tutorials/method.md") if "topk" in block.title]
    assert shown == [EXAMPLE]


def test_outputs_are_compared_by_words_and_nearly_by_numbers() -> None:
    printed = "round 1/3  accuracy 0.5855\nround 2/3  accuracy 0.6725  12.1 s\n-----\nall done"
    check("round 2/3  accuracy 0.67  3 min\n…\nall done", printed)
    for other in (
        "round 2/3  accuracy 0.5  12.1 s",
        "round 1/3  loss 0.5855",
        "all done\nround 1/3",
    ):
        with pytest.raises(AssertionError, match="not printed"):
            check(other, printed)
    assert same("sent 9.774 Mbit", "sent   9.774 Mbit")
    assert not same("sent 9.774 Mbit", "sent 97.74 Mbit")
    assert not same("sent 9.774 Mbit", "sent 9.774 kbit")
