"""What commands print in columns fits a terminal of 80 characters."""

from __future__ import annotations

import pytest

from gossamer.cli import main

TENSORS = [
    *("cost", "spdst", "--allocation", "erk", "--rounds", "1", "--model", "resnet18"),
    *("--by", "tensor", "--pool", "2", "--clients", "1", "--examples", "2"),
]


@pytest.mark.parametrize(
    "words",
    [
        ["ls", "--all"],
        ["paper"],
        ["paper", "spafl-table1", "--scale", "here", "--dry"],
        ["cost", "fedavg", "--rounds", "1"],
        TENSORS,
        ["partition", "--data", "fmnist-mini"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_no_line_is_longer_than_a_terminal(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    # How to get data that are missing is a command, which is not broken.
    assert [line for line in lines if len(line) > 80 and " is not here: " not in line] == []
    assert len(lines) > 5


def test_the_table_of_data_sets_fits(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["data", "ls"]) == 0
    top, below = capsys.readouterr().out.split("\n\n")
    assert max(map(len, top.splitlines())) <= 80
    assert below.splitlines()[0].split() == ["name", "location"]


def test_a_wide_terminal_shows_every_column(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(TENSORS) == 0
    narrow = capsys.readouterr().out.splitlines()[0].split()
    monkeypatch.setenv("COLUMNS", "140")
    assert main(TENSORS) == 0
    wide = capsys.readouterr().out.splitlines()[0].split()
    assert narrow == ["message", "field", "sent", "entropy", "paper"]
    assert wide == ["message", "field", "messages", "sent", "entropy", "paper"]
