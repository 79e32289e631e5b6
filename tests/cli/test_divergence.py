"""A run that diverged says so, has an exit code of its own, and is in no mean."""

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gossamer.accounting import Cost
from gossamer.engine.checkpoint import Progress
from gossamer.engine.events import ClientFailed, ClientFinished, plain_line
from gossamer.engine.files import chained, unchained
from gossamer.engine.round_figures import advanced, diverged
from gossamer.report import Run
from gossamer.reproduce.results import comma_separated, results, text
from gossamer.task import CLASSIFICATION
from gossamer.task.goal import goal_of

from .conftest import SMALL, Outcome, events

Command = Callable[..., Outcome]
WILD = [*SMALL, "--lr", "1e30"]
SAID = "diverged in round 1: 4 of 4 replies were not finite"


def test_a_run_that_diverged_says_so_and_exits_with_3(gossamer: Command) -> None:
    found = gossamer("run", "fedavg", *WILD, "--out", "a", "--json")
    assert found.code == 3
    assert f"{SAID}; try a lower --lr" in found.err
    assert found.json["diverged"] == SAID
    assert events("a")[-1]["diverged"] == SAID
    assert gossamer("run", "fedavg", *SMALL, "--out", "b", "--json").json["diverged"] is None


def test_diverged_runs_are_marked_and_in_no_mean(gossamer: Command) -> None:
    words = ["fedavg", "fedavg:lr=1e30", *SMALL, "--out", "c", "--json"]
    found = gossamer("compare", *words)
    assert found.code == 0 and SAID in found.err
    said = " ".join(found.out.split())  # lines are folded to the terminal's width
    assert "(diverged)" in said and "runs that diverged are in no mean" in said
    good, bad = found.json["rows"]
    assert good["diverged"] == [] and bad["diverged"] == [1]
    assert good["mean"]["global_accuracy"] is not None
    assert bad["mean"]["global_accuracy"] is None and not bad["pareto_best"]
    with Path("c/comparison.csv").open() as file:
        assert [row["diverged"] for row in csv.DictReader(file)] == ["0", "1"]
    page = Path("c/report.html").read_text()
    assert ">diverged</span>" in page and "Runs that diverged are in no mean." in page


def test_the_mean_over_seeds_leaves_out_those_that_diverged(
    gossamer: Command, tmp_path: Path
) -> None:
    gossamer("compare", "fedavg", *SMALL, "--seeds", "2", "--out", "d", "--json")
    log = tmp_path / "d/fedavg/seed-2/events.jsonl"
    *lines, last = log.read_bytes().splitlines(keepends=True)
    event = {**json.loads(unchained(last)), "diverged": SAID}
    before = json.loads(lines[-1])["clock"]["chain"]
    changed, _ = chained(before, plain_line(event).encode())
    log.write_bytes(b"".join([*lines, changed]))
    found = gossamer("compare", "--resume", "d", "--json")
    (row,) = found.json["rows"]
    alone = json.loads((tmp_path / "d/fedavg/seed-1/events.jsonl").read_text().splitlines()[-1])
    assert row["diverged"] == [2] and "1 of 2 diverged" in found.out
    assert row["mean"]["global_accuracy"] == pytest.approx(alone["accuracy"]["global"])
    assert row["std"]["global_accuracy"] is None


# when a run counts as diverged --------------------------------------------------------------------


def done(client: int, density: float = 1.0) -> ClientFinished:
    return ClientFinished(1, client, 5, 1, density, 0, 0, 0.0, 0.0, 0, 0, 0, None, {}, [])


def refused(client: int, reason: str = "params holds values that are not finite") -> ClientFailed:
    return ClientFailed(1, client, "wire", reason, 0, 0)


def after(progress: Progress, finished: list[ClientFinished], failed: list[ClientFailed]) -> str:
    return advanced(progress, finished, failed, now=None, seconds=0.0).diverged


def test_a_run_diverges_when_all_replies_are_lost_and_recovers_when_none_is() -> None:
    start = Progress(round=2, cost=Cost())
    said = "diverged in round 3: 2 of 2 replies were not finite"
    assert after(start, [done(1), done(2)], [refused(1), refused(2)]) == said
    assert after(start, [done(1), done(2)], [refused(1)]) == ""
    assert after(start, [done(1)], [refused(1, "masks came back with 9 weights")]) == ""
    assert after(start, [], []) == ""
    later = Progress(round=7, diverged=said)
    assert after(later, [done(4)], [refused(4)]) == said
    assert after(later, [done(4), done(5)], [refused(4)]) == said
    assert after(later, [done(4)], []) == ""


def test_a_model_without_weights_has_diverged() -> None:
    said = "diverged in round 1: no weight is left, the density is 0"
    assert after(Progress(), [done(1, 0.0), done(2, 0.0)], []) == said
    assert after(Progress(), [done(1, 0.0), done(2, 0.1)], []) == ""


def test_a_model_that_guesses_after_replies_were_lost_has_diverged() -> None:
    lost = advanced(Progress(), [done(1), done(2)], [refused(1)], now=None, seconds=0.0)
    assert lost.not_finite == lost.failed == 1 and not lost.diverged
    guesses = replace(lost, scores={"global": 0.11, "personal_mean": 0.5})
    said = "diverged: 1 reply was not finite, and a score of 0.11 is that of guessing"
    assert diverged(guesses, 0.1) == said
    assert diverged(replace(guesses, scores={"global": 0.4}), 0.1) == ""
    assert diverged(guesses, None) == "", "there is no score of guessing"
    assert diverged(replace(guesses, not_finite=0), 0.1) == "", "it only learns slowly"
    own = replace(guesses, scores={"global": None, "personal_mean": 0.1})
    assert diverged(own, 0.1).endswith("a score of 0.1 is that of guessing")


def test_only_an_accuracy_of_classes_has_a_score_of_guessing() -> None:
    assert CLASSIFICATION.guessing(10) == 0.1
    assert goal_of("regression").guessing(10) is None


def test_a_comparison_says_how_many_replies_were_lost() -> None:
    started = {"method": "fedavg", "rounds": 2}
    runs = [Run(f"a/seed-{seed}", {**started, "seed": seed}, failed=seed) for seed in (1, 2)]
    found = results(runs)
    assert "fedavg (3 replies lost)" in " ".join(text(found).split())
    (row,) = csv.DictReader(io.StringIO(comma_separated(found)))
    assert row["replies_lost"] == "3" and row["diverged"] == "0"
