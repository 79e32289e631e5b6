"""Runs that end at a target or a budget: there, evaluated, and with the bits of a longer run."""

from __future__ import annotations

import pytest

from gossamer import FedAvg, Run, Training
from gossamer.accounting import Cost
from gossamer.engine import Options, Summary, start
from gossamer.engine.checkpoint import Progress
from gossamer.engine.checks import check
from gossamer.engine.until import Goal, parse, reached
from helpers import Toy, linear, refused

METHOD = FedAvg(clients=2, training=Training(epochs=1, batch=8, lr=0.1))


def trained(until: str, rounds: int = 12, **options: object) -> Summary:
    chosen = Options(workers=1, until=until, **options)  # type: ignore[arg-type]
    return start(Run(METHOD, linear(), Toy(6), rounds=rounds, options=chosen))


def test_goals_are_read_in_the_order_given() -> None:
    assert parse("accuracy=0.85, bits=1e9") == (Goal("accuracy", 0.85), Goal("bits", 1e9))
    assert parse("") == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("acuracy=0.5", "did you mean 'accuracy'?"),
        ("bits=much", "needs a positive number for bits, not 'much'"),
        ("bits=nan", "needs a positive number"),
        ("seconds=-1", "needs a positive number"),
        ("accuracy=85", "an accuracy is between 0 and 1"),
        ("bits=1,bits=2", "has bits twice"),
    ],
)
def test_goals_that_mean_nothing_are_refused(text: str, words: str) -> None:
    with refused(words):
        parse(text)


def test_goals_that_a_run_cannot_reach_are_refused_before_it_begins() -> None:
    whole = (METHOD, linear(), Toy(6))
    with refused("needs evaluations"):
        check(*whole, rounds=1, options=Options(until="accuracy=0.5", eval_every=0))
    with refused("needs devices, e.g. --devices phone-2024"):
        check(*whole, rounds=1, options=Options(until="device_seconds=5"))
    check(*whole, rounds=1, options=Options(until="device_seconds=5", network="4g"))


def test_accuracy_is_that_of_personal_models_where_there_are_any() -> None:
    figures = {"global": 0.9, "personal_mean": 0.5, "personal_density": None}
    assert reached("accuracy=0.8", Progress(scores=figures)) == "accuracy=0.8"
    assert not reached("accuracy=0.8", Progress(scores={**figures, "personal_density": 1.0}))
    assert not reached("accuracy=0.8", Progress())


def test_a_metric_that_falls_is_reached_from_above() -> None:
    lower = ("perplexity", "lower")
    assert not reached("perplexity=20", Progress(scores={"global": 20.5}), *lower)
    assert reached("perplexity=20", Progress(scores={"global": 20.0}), *lower) == "perplexity=20"
    with refused("takes perplexity, bits"):
        parse("accuracy=0.5", "perplexity")


def test_bits_count_both_ways() -> None:
    assert not reached("bits=100", Progress(cost=Cost(up=60, down=39)))
    assert reached("bits=100", Progress(cost=Cost(up=60, down=40))) == "bits=100"


def test_a_budget_of_bits_ends_a_run_at_the_round_that_uses_it_up() -> None:
    whole = trained("")
    each = (whole.cost.up + whole.cost.down) / 12
    cut = trained(f"bits={4.5 * each}", eval_every=3)
    assert cut.rounds == 5 and cut.reached.startswith("bits=") and not cut.interrupted
    same = trained("", rounds=5)
    assert cut.state_hash == same.state_hash
    assert cut.accuracy["global"] == same.accuracy["global"], "the last round is evaluated"


def test_a_target_ends_a_run_in_the_first_round_that_reaches_it() -> None:
    curve = trained("").history["global_accuracy"]
    goal = sorted(value for value in curve if value is not None)[len(curve) // 2]
    first = next(place for place, value in enumerate(curve) if value and value >= goal)
    found = trained(f"accuracy={goal}")
    assert found.rounds == first and found.reached == f"accuracy={goal:g}"


def test_a_run_that_reaches_nothing_says_so() -> None:
    found = trained("accuracy=1.0,bits=1e15", rounds=2)
    assert found.rounds == 2 and not found.reached and found.figures()["reached"] is None


def test_seconds_and_operations_are_budgets_too() -> None:
    assert trained("seconds=1e-9").rounds == 1
    assert trained("flops=1").rounds == 1
    assert trained("device_seconds=1e-9", network="4g").rounds == 1
