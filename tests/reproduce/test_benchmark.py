"""The benchmark: which runs it has, which rate is chosen, and what is drawn of them."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gossamer import fields
from gossamer.engine.events import Clock, Evaluated, Measured, RoundFinished
from gossamer.methods import ALGORITHMS, METHODS
from gossamer.report import Run
from gossamer.report.kept import Shelf, keep, read_kept
from gossamer.reproduce import benchmark
from gossamer.reproduce.benchmark import Size
from gossamer.reproduce.benchmark_cell import TrainingTime
from gossamer.reproduce.benchmark_picture import figures, lines, picture

LEFT_OUT = {
    *("fedavg-lora", "ffa_lora", "flasc"),  # for adapters
    *("heterofl", "fjord", "fedrolex"),  # for clients that cannot hold the model
    *("fedbn",),  # without normalisation it is fedavg
    *("signsgd", "fedcom"),  # a step a round; fedpaq with other levels
    *("fedadam-kingma", "fedadam-reddi", "fedyogi", "fedadagrad", "feddrop-paper"),
    *("fedspa-static", "pffdst-no-freezing", "pffdst-no-server", "fedmef-sparing"),
    *("fedsparse-low", "fedsparse-high", "laplace-sign"),  # variants of what is in it
}


def finished(method: str, seed: int, score: float, rate: float = 0.1, diverged: str = "") -> Run:
    """A run whose accuracy grows to a score while its costs double."""
    rounds = {0: 0.1, 1: score / 2, 2: score}
    return Run(
        f"{method}-{seed}",
        {"seed": seed, "method": method},
        {"state_hash": "0", "diverged": diverged, "clock": {"seconds": 1.0}},
        {
            "global_score": rounds,
            "personal_mean": {at: value + 0.05 for at, value in rounds.items()},
            "valid_mean": rounds,
            "up": {1: 8e6, 2: 16e6},
            "down": {1: 8e6, 2: 16e6},
            "flops": {1: 1e9, 2: 2e9},
            "training_seconds": {0: 0.0, 1: 1.0, 2: 3.0},
        },
        config={"method": method, "settings": {"lr": rate}, "experiment": {"seed": seed}},
        text="# gossamer bench sparse-fl\n",
    )


def test_every_method_is_in_it_or_is_left_out_for_a_reason() -> None:
    assert set(benchmark.METHODS) <= set(METHODS)
    assert set(ALGORITHMS) - set(benchmark.METHODS) == LEFT_OUT


@pytest.mark.parametrize("method", benchmark.METHODS)
def test_all_methods_are_searched_alike(method: str, tmp_path: Path) -> None:
    cells = benchmark.search("fmnist", method, Size(), tmp_path)
    chosen = [cell.config for cell in cells]
    assert [config.settings["lr"] for config in chosen] == list(Size().rates)
    assert {(config.experiment.seed, config.experiment.valid) for config in chosen} == {(100, 0.2)}
    assert all(config.options.select == "valid" for config in chosen)
    ends = benchmark.final("fmnist", method, Size(), tmp_path, 0.03)
    assert [(cell.config.experiment.seed, cell.config.experiment.valid) for cell in ends] == [
        (0, 0.0),
        (1, 0.0),
    ]
    built = ends[0].config.build_method()
    assert (fields.value(built, "clients"), fields.value(built, "batch")) == (10, 32)
    assert fields.value(built, "lr") == 0.03
    own = benchmark.METHODS[method]
    assert {name: fields.value(built, name) for name in own} == own
    for name, value in {**benchmark.COMMON, **own}.items():
        assert fields.value(built, name, value) == value
    assert len({cell.path for cell in (*cells, *ends)}) == 6


def stored(cell: benchmark.Cell, score: float, diverged: str = "") -> None:
    import tomllib

    run = finished(cell.config.method, 100, score, diverged=diverged)
    keep(replace(run, config=tomllib.loads(cell.config.toml())), cell.path)


def test_the_best_rate_on_validation_data_is_chosen_and_divergence_never(tmp_path: Path) -> None:
    cells = benchmark.search("fmnist", "fedavg", Size(), tmp_path)
    assert benchmark.best_rate(cells, Shelf(tmp_path)) is None
    for cell, score in zip(cells, (0.5, 0.7, 0.7, 0.9), strict=True):
        stored(cell, score, "diverged in round 3" if score == 0.9 else "")
    assert benchmark.best_rate(cells, Shelf(tmp_path)) == 0.03


def test_the_longest_runs_are_shown_and_divergence_is_in_no_mean(tmp_path: Path) -> None:
    place = tmp_path / "benchmark" / "fmnist"
    for rounds, seed, score in ((9, 0, 0.2), (10, 0, 0.6), (10, 1, 0.8), (10, 2, 0.1)):
        lost = "diverged in round 1" if seed == 2 else ""
        keep(
            finished("fedavg", seed, score, diverged=lost),
            place / f"rounds-{rounds}" / f"fedavg-seed-{seed}.json",
        )
    keep(finished("spafl", 0, 0.9), place / "rounds-10" / "spafl-seed-0.json")
    folder = benchmark.largest(tmp_path, "fmnist")
    assert folder == place / "rounds-10" and benchmark.largest(tmp_path, "cifar10") is None
    rows = benchmark.kept(folder)
    own, dense = figures(rows)
    assert (own.method, own.own, own.accuracy, own.error) == ("spafl", True, 0.95, None)
    assert dense.accuracy == pytest.approx(0.7) and dense.error == pytest.approx(0.1)
    assert (dense.seeds, dense.diverged, dense.rate) == (2, 1, 0.1)
    assert dense.costs == {"bytes": 4e6, "flops": 2e9, "seconds": 3.0}
    assert lines(rows, "seconds")["fedavg"] == [
        pytest.approx((1.0, 0.35)),
        pytest.approx((3.0, 0.7)),
    ]


def test_the_picture_marks_own_models_and_is_always_the_same() -> None:
    rows = {"fedavg": [finished("fedavg", 0, 0.6)], "spafl": [finished("spafl", 0, 0.9)]}
    text = picture({"fmnist": rows, "cifar10": rows})
    assert text == picture({"fmnist": rows, "cifar10": rows})
    assert text.count("<polyline") == 2 * 3 * 2
    assert ">spafl *<" in text and ">fedavg<" in text and "own models" in text
    assert {"bytes sent, both ways", "operations", "seconds of training"} <= set(
        re.findall(r">([^<>]+)<", text)
    )
    assert ">2</text>" in text  # costs that are near each other have more marks than powers of ten
    assert "own models" not in picture({"fmnist": {"fedavg": rows["fedavg"]}})


def test_a_kept_result_has_the_seconds_of_training(tmp_path: Path) -> None:
    path = keep(finished("fedavg", 0, 0.6), tmp_path / "a.json")
    assert read_kept(path).curve("training_seconds") == {0: 0.0, 1: 1.0, 2: 3.0}
    assert json.loads(path.read_text())["command"] == "gossamer bench sparse-fl"


def event(kind: Any, number: int) -> Any:
    """An event of which only the round is looked at."""
    known = dict.fromkeys(kind.__dataclass_fields__)
    return kind(**{**known, "round": number})


def test_evaluation_is_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "process_time", lambda: now[0])
    timed = TrainingTime()
    story = ((Evaluated, 0, 5), (RoundFinished, 1, 2), (Measured, 1, 1), (Evaluated, 1, 7))
    for kind, number, passed in (*story, (RoundFinished, 2, 3)):
        now[0] += passed
        timed.emit(event(kind, number), Clock(0, 0))
    assert timed.curve == {0: 0, 1: 2, 2: 5}


def test_seeds_at_another_rate_are_in_no_mean(tmp_path: Path) -> None:
    """A search with more rates found another one; only the first seed was run at it so far."""
    for seed, rate in ((0, 0.3), (1, 0.1), (2, 0.1)):
        keep(finished("fedavg", seed, 0.5, rate), tmp_path / f"fedavg-seed-{seed}.json")
    runs = benchmark.kept(tmp_path)["fedavg"]
    assert [run.seed for run in runs] == [0]
    assert figures({"fedavg": runs})[0].rate == 0.3
