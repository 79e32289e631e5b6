"""`gossamer resume RUN --rounds N`, and the model of the best round."""

from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import SMALL, Outcome, events

Command = Callable[..., Outcome]


def test_a_run_goes_on_beyond_its_end(gossamer: Command) -> None:
    gossamer("run", "fedavg", *SMALL, "--out", "a", "--quiet")
    found = gossamer("resume", "a", "--rounds", "5", "--json")
    whole = gossamer("run", "fedavg", *SMALL, "--rounds", "5", "--out", "b", "--json")
    assert found.code == 0
    assert found.json["state_hash"] == whole.json["state_hash"]
    assert events("a") == events("b")
    texts = [Path(run, "config.toml").read_text().splitlines() for run in "ab"]
    assert texts[0][1:] == texts[1][1:] and texts[0][0].startswith("# gossamer")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("resume a --rounds 3", "--rounds 3 does not go beyond"),
        ("resume a --rounds 9 --engine flower-sim", "--rounds is for --engine threads"),
        ("resume b --rounds 9", "zerofl cannot go beyond its 3 rounds: --schedule exponential-to"),
    ],
)
def test_refusals(gossamer: Command, words: str, said: str) -> None:
    gossamer("run", "fedavg", *SMALL, "--out", "a", "--quiet")
    if "resume b" in words:
        gossamer("run", "zerofl", *SMALL, "--out", "b", "--quiet")
    found = gossamer(*words.split())
    assert found.code == 2 and said in found.err and len(found.err.splitlines()) == 1


def test_the_model_of_the_best_round_is_kept_and_exported(gossamer: Command) -> None:
    words = [*SMALL, "--rounds", "6", "--lr", "0.7"]
    run = gossamer("run", "fedavg", *words, "--keep", "best", "--out", "a", "--json").json
    best, last = run["accuracy"]["best_round"], run["rounds"]
    assert best < last, "the best round must not be the last one, or this shows nothing"
    found = gossamer("export", "a", "--best", "--json")
    assert found.json["facts"]["round"] == best
    assert found.json["accuracy"] == pytest.approx(run["accuracy"]["best"])
    assert gossamer("export", "a", "--json").json["facts"]["round"] == last


def test_a_best_model_that_was_not_kept_cannot_be_exported(gossamer: Command) -> None:
    gossamer("run", "fedavg", *SMALL, "--out", "a", "--quiet")
    found = gossamer("export", "a", "--best")
    assert found.code == 2 and "run it with --keep best" in found.err
    found = gossamer("export", "a", "--best", "--client", "3")
    assert found.code == 2 and "only the server's model is kept" in found.err
