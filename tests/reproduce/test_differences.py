"""Differences between the rows of a comparison, and runs that diverged in a paper's table."""

from __future__ import annotations

import pytest

from gossamer.report import Run
from gossamer.report.paired import holm, paired
from gossamer.reproduce import differences
from gossamer.reproduce.published import Cell, Measured
from gossamer.reproduce.published_text import comma_separated, legend, text
from gossamer.reproduce.results import results
from gossamer.reproduce.tables import Column, Published, Row, Table


def run(method: str, seed: int, accuracy: float, diverged: str = "") -> Run:
    return Run(
        f"{method}-{seed}",
        {"method": method, "seed": seed, "rounds": 1, "parameters": 9},
        {"diverged": diverged},
        {"global_score": {0: 0.1, 1: accuracy}},
    )


def found(*runs: Run) -> list[differences.Difference]:
    table = results(runs)
    return differences.differences(table)


def test_each_row_is_compared_with_the_best_by_seed() -> None:
    best = [run("a", seed, 0.8 + 0.1 * seed) for seed in range(2, 5)]
    near = [run("b", seed, 0.8 + 0.1 * seed - 0.01 * (seed - 2)) for seed in range(2, 5)]
    far = [run("c", seed, 0.5 + 0.1 * seed - 0.001 * seed) for seed in range(2, 5)]
    first, second = found(*far, *best, *near)
    assert (first.best, first.other.row, second.other.row) == ("a", "c", "b")
    assert first.other.shown and not second.other.shown
    assert first.words.startswith("c: 30 ± 0.058 points below, 3 seeds, p = ")
    assert second.words.endswith("; no difference shown")
    lines = " ".join(differences.text([first, second])).split()
    assert "Holm's" in lines and "paired;" in lines
    assert [line["shown"] for line in differences.plain([first, second])] == [True, False]


def test_a_run_that_diverged_is_no_pair() -> None:
    runs = [run("a", 1, 0.9), run("a", 2, 0.9), run("b", 1, 0.8), run("b", 2, 0.1, "diverged")]
    (only,) = found(*runs)
    assert len(only.other.paired.values) == 1 and not only.other.shown
    assert only.words == "b: 10 points below, one seed; no difference shown"


def test_probabilities_are_corrected_for_all_pairs_because_the_best_is_chosen_afterwards() -> None:
    rows = {"a": (0.9, 0.91, 0.93), "b": (0.8, 0.82, 0.82), "c": (0.5, 0.51, 0.55)}
    runs = [run(name, seed, value) for name in rows for seed, value in enumerate(rows[name])]
    values = {name: dict(enumerate(each)) for name, each in rows.items()}
    pairs = [("a", "b"), ("a", "c"), ("b", "c")]
    corrected = holm([paired(values[x], values[y]).p or 0.0 for x, y in pairs])
    assert [each.other.p for each in found(*runs)] == pytest.approx(corrected[:2])


def test_one_seed_and_one_row_say_nothing() -> None:
    assert found(run("a", 1, 0.5)) == []
    assert list(differences.text(found(run("a", 1, 0.5), run("b", 1, 0.4)))) == []


def test_diverged_runs_are_marked_in_a_papers_table() -> None:
    rows = {name: Row(name, name) for name in ("all", "some")}
    columns = {"c": Column("c", "accuracy", "global", "%")}
    table = Table("t", "T", "S", columns, rows, {})
    cells = {("all", "c"): Cell(Published(90)), ("some", "c"): Cell(Published(90), (88.0,))}
    measured = Measured(table, cells, {}, diverged={"all": 2, "some": 1})
    lines = [line.split() for line in text(measured).splitlines()]
    assert ["all", "90", "diverged", "0,", "2", "diverged", "–"] in lines
    assert ["some", "90", "88.00", "1,", "1", "diverged", "-2.00"] in lines
    assert "runs that diverged are in no mean" in legend(measured)
    assert comma_separated(measured).splitlines()[1].split(",")[10:12] == ["0", "2"]
