"""Regression, multi-label and language models from the command line, their reports included."""

from __future__ import annotations

import csv
import json
import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Outcome, events

Gossamer = Callable[..., Outcome]
JOB = ["--model", "mlp:hidden=16", "--pool", "6", "--clients", "3", "--rounds", "4", "--quiet"]
JOB += ["--batch", "8"]


@pytest.fixture
def houses(tmp_path: Path) -> str:
    """Prices that follow from rooms, area and age, in amounts that no learning rate suits."""
    draw, path = random.Random(1), tmp_path / "houses.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["rooms", "area", "price", "age"])
        for _ in range(240):
            rooms, area, age = draw.randint(1, 6), draw.uniform(30, 200), draw.uniform(0, 80)
            price = 50_000 + 20_000 * rooms + 1_500 * area - 800 * age + draw.gauss(0, 5_000)
            writer.writerow([rooms, f"{area:.1f}", f"{price:.0f}", f"{age:.1f}"])
    return f"csv:{path}"


@pytest.fixture
def tags(tmp_path: Path) -> str:
    """Four numbers and three labels that may be true together."""
    draw, path = random.Random(2), tmp_path / "tags.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["a", "is_red", "b", "is_big", "c", "is_old", "d"])
        for _ in range(240):
            a, b, c, d = (draw.gauss(0, 1) for _ in range(4))
            writer.writerow([a, int(a + b > 0.3), b, int(c > 0.8), c, int(d > a), d])
    return f"csv:{path}"


# regression -------------------------------------------------------------------------------------


def test_a_regression_on_a_table_end_to_end(gossamer: Gossamer, houses: str) -> None:
    words = ["--data", houses, "--task", "regression", "--label", "price", "--keep", "best"]
    found = gossamer("run", "fedavg", *words, *JOB, "--lr", "0.1", "--out", "run", "--json")
    assert found.code == 0, found.err
    figures = found.json
    assert figures["metric"] == "mae" and figures["better"] == "lower"
    assert "accuracy" not in figures
    assert figures["metrics"].keys() == {"mae", "r2", "rmse"}
    log = events("run")
    started, ended = log[0], log[-1]
    assert started["schema"] == 2 and started["data"]["task"] == "regression"
    assert started["task"] == {
        "name": "regression",
        "kind": "regression",
        "metric": "mae",
        "better": "lower",
        "bounds": [0.0, None],
        "metrics": {"mae": "lower", "r2": "higher", "rmse": "lower"},
    }
    tested = [event for event in log if event["event"] == "evaluated"]
    assert {event["global_accuracy"] for event in tested} == {None}
    errors = {event["round"]: event["global_score"] for event in tested}
    # In the unit of the prices, whose deviation is about 80,000.
    assert errors[0] > 40_000 > errors[4]
    assert figures["scores"]["best"] == min(errors.values())
    assert figures["scores"]["best_round"] == min(errors, key=lambda at: errors[at])
    assert ended["accuracy"] == {} and ended["scores"] == figures["scores"]
    assert all(event["personal_worst_decile"] >= event["personal_mean"] for event in tested)

    assert gossamer("report", "run", "-o", "page.html").code == 0
    page = Path("page.html").read_text()
    for text in ("<th>global MAE</th>", "MAE against rounds", "Lower is better"):
        assert text in page
    assert "accuracy" not in page.partition("</style>")[2].partition("<script")[0].lower()


def test_the_best_file_is_that_of_the_lowest_error(gossamer: Gossamer, houses: str) -> None:
    words = ["--data", houses, "--task", "regression", "--label", "price", "--keep", "best"]
    gossamer("run", "fedavg", *words, *JOB, "--lr", "0.1", "--out", "run")
    found = gossamer("export", "run", "-o", "best.safetensors", "--best", "--json")
    assert found.code == 0, found.err
    scores = [e["global_score"] for e in events("run") if e["event"] == "evaluated"]
    assert found.json["mae"] == pytest.approx(min(scores), rel=1e-6)


def test_another_metric_leads_and_decides(gossamer: Gossamer, houses: str) -> None:
    words = ["--data", houses, "--task", "regression", "--label", "price", "--metric", "r2"]
    found = gossamer("run", "fedavg", *words, *JOB, "--lr", "0.1", "--out", "run", "--json")
    assert found.json["metric"] == "r2" and found.json["better"] == "higher"
    scores = [e["global_score"] for e in events("run") if e["event"] == "evaluated"]
    assert found.json["scores"]["best"] == max(scores) <= 1
    wrong = gossamer("run", "fedavg", "--data", houses, "--task", "regression", "--metric", "r22")
    assert wrong.code != 0 and "did you mean 'r2'" in wrong.err


def test_a_comparison_prefers_the_lower_error(gossamer: Gossamer, houses: str) -> None:
    words = ["--data", houses, "--task", "regression", "--label", "price"]
    runs = ["fedavg:lr=0.1", "fedavg:lr=0.0001"]
    found = gossamer("compare", *runs, *words, *JOB, "--out", "both", "--json")
    assert found.code == 0, found.err
    good, bad = sorted(found.json["rows"], key=lambda row: row["mean"]["mae"])
    assert "lr 0.1" in good["run"] and good["pareto_best"] and not bad["pareto_best"]
    with Path("both/comparison.csv").open() as file:
        header = next(csv.reader(file))
    assert "global_mae" in header and "global_accuracy" not in header
    assert "as low" in gossamer("compare", "--resume", "both").out


def test_a_sweep_finds_the_lower_error(gossamer: Gossamer, houses: str) -> None:
    words = ["--data", houses, "--task", "regression", "--label", "price", "--lr", "0.0001,0.1"]
    found = gossamer("sweep", "fedavg", *words, *JOB, "--processes", "1", "--out", "sweep")
    assert found.code == 0, found.err
    assert "best: lr=0.1" in found.out


def test_costs_of_reaching_an_error(gossamer: Gossamer, houses: str) -> None:
    words = ["--data", houses, "--task", "regression", "--label", "price"]
    gossamer("run", "fedavg", *words, *JOB, "--lr", "0.1", "--out", "run")
    scores = [e["global_score"] for e in events("run") if e["event"] == "evaluated"]
    found = gossamer("cost", "run", "--target", str(min(scores)), "--json")
    assert found.json["reached"]["round"] == scores.index(min(scores))
    assert "global MAE" in found.out
    never = gossamer("cost", "run", "--target", "0.001")
    assert "global MAE 0.001 was never reached" in never.out


def test_measurements_are_refused_as_classes_with_the_task_that_fits(
    gossamer: Gossamer, houses: str
) -> None:
    Path("measured.csv").write_text(
        "x,y\n" + "".join(f"{at},{math.sqrt(at + 2)}\n" for at in range(100))
    )
    found = gossamer("run", "fedavg", "--data", "csv:measured.csv", *JOB)
    assert found.code != 0 and "--task regression" in found.err
    wrong = gossamer("run", "fedavg", "--data", houses, "--task", "regresion", *JOB)
    assert wrong.code != 0 and "did you mean 'regression'" in wrong.err


# labels that may be true together ---------------------------------------------------------------


def test_several_labels_end_to_end(gossamer: Gossamer, tags: str) -> None:
    words = ["--data", tags, "--task", "multilabel", "--label", "is_*", "--lr", "0.5"]
    found = gossamer("run", "fedavg", *words, *JOB, "--out", "run", "--json")
    assert found.code == 0, found.err
    assert found.json["metric"] == "average_precision"
    assert found.json["metrics"].keys() == {"average_precision", "f1", "f1_macro"}
    scores = [e["global_score"] for e in events("run") if e["event"] == "evaluated"]
    assert scores[-1] > scores[0] and scores[-1] > 0.7
    assert gossamer("report", "run", "-o", "page.html").code == 0
    page = Path("page.html").read_text()
    assert "Average precision against rounds" in page and "Higher is better" in page


def test_labels_must_be_named(gossamer: Gossamer, tags: str) -> None:
    found = gossamer("run", "fedavg", "--data", tags, "--task", "multilabel", *JOB)
    assert found.code != 0 and "--label" in found.err


# language ---------------------------------------------------------------------------------------


@pytest.fixture
def plays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A play of three speakers who repeat themselves."""
    folder = tmp_path / "data" / "shakespeare" / "all_data"
    folder.mkdir(parents=True)
    lines = ["To be, or not to be: that is the question. ", "Out, out, brief candle! ", "abc "]
    users = {f"speaker {at}": {"raw": line * 80} for at, line in enumerate(lines)}
    (folder / "all_data.json").write_text(json.dumps({"user_data": users}))
    monkeypatch.setenv("GOSSAMER_DATA", str(tmp_path / "data"))


def test_a_language_model_is_judged_by_perplexity(gossamer: Gossamer, plays: None) -> None:
    words = ["--data", "shakespeare", "--task", "language", "--model", "char_lstm:hidden=16"]
    words += ["--clients", "3", "--rounds", "4", "--batch", "4", "--clip", "5", "--quiet"]
    words += ["--optimiser", "adamw", "--lr", "0.02", "--epochs", "4"]
    found = gossamer("run", "fedavg", *words, "--out", "run", "--json")
    assert found.code == 0, found.err
    tested = [event for event in events("run") if event["event"] == "evaluated"]
    first, last = tested[0], tested[-1]
    assert 60 < first["global_score"] < 100  # that of guessing one of 80 characters
    assert last["global_score"] < 20
    assert last["global_score"] == pytest.approx(math.exp(last["global_loss"]))
    assert last["global_accuracy"] == last["global_metrics"]["accuracy"]
    assert gossamer("report", "run", "-o", "page.html").code == 0
    assert "Perplexity against rounds" in Path("page.html").read_text()


def test_a_model_of_one_answer_does_not_fit_a_language_task(
    gossamer: Gossamer, plays: None
) -> None:
    words = ["--data", "shakespeare", "--task", "language", "--model", "text", "--clients", "3"]
    found = gossamer("run", "fedavg", *words, "--rounds", "1")
    assert found.code != 0
    assert "language needs outputs of shape (examples, tokens, vocabulary)" in found.err


# goals of the user's ----------------------------------------------------------------------------


GOAL = """
import gossamer as gs
from torch.nn import functional


def pinball(outputs, y):
    error = y - outputs.squeeze(-1)
    return (0.9 * error).maximum(-0.1 * error)


def build():
    return gs.Goal(
        lambda outputs, y: pinball(outputs, y).mean(),
        [gs.Metric("pinball", pinball, "lower", bounds=(0, None))],
        kind="regression",
        name="upper decile",
    )


def nothing():
    return 7
"""


def test_a_goal_of_the_users_trains_and_judges(gossamer: Gossamer, houses: str) -> None:
    Path("mine.py").write_text(GOAL)
    words = ["--data", houses, "--task", "mine.py:build", "--label", "price", "--lr", "0.1"]
    found = gossamer("run", "fedavg", *words, *JOB, "--out", "run", "--json")
    assert found.code == 0, found.err
    assert found.json["metric"] == "pinball" and found.json["better"] == "lower"
    scores = [e["global_score"] for e in events("run") if e["event"] == "evaluated"]
    assert scores[-1] < scores[0]
    again = gossamer("run", "run/config.toml", "--quiet", "--out", "again", "--json")
    assert again.json["state_hash"] == found.json["state_hash"]
    wrong = gossamer("run", "fedavg", "--data", houses, "--task", "mine.py:nothing", *JOB)
    assert wrong.code != 0 and "mine.py:nothing returned a int; return a gs.Goal" in wrong.err
