"""A command line to call in this process, and small jobs to give it."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gossamer.cli import main

SMALL = [
    "--data",
    "fmnist-mini",
    "--model",
    "mlp:hidden=16",
    "--pool",
    "20",
    "--clients",
    "4",
    "--rounds",
    "3",
    "--partition",
    "dirichlet:0.3",
    "--seed",
    "1",
]


@dataclass(frozen=True)
class Outcome:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The last line of standard output."""
        return json.loads(self.out.splitlines()[-1])


@pytest.fixture
def gossamer(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Outcome]:
    """Runs a command in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> Outcome:
        code = main(words)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call


def events(run: Path | str) -> list[dict[str, Any]]:
    """The event log of a run without its times."""
    lines = (Path(run) / "events.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    for event in found:
        del event["clock"]
    return found
