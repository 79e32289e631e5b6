"""Groups of seeds, means and bands, fewer points, and who is best at what."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_folders import write_run

from gossamer.engine.events import ClientFailed, Clock, line
from gossamer.report import read_run, report
from gossamer.report.curves import table, thin
from gossamer.report.figures import best_round, cards, main_score, rows
from gossamer.report.groups import differing, grouped
from gossamer.report.page import SHOWN
from gossamer.report.page_data import page_data
from gossamer.report.runs import Run
from gossamer.report.units import bits, operations, seconds, share

# groups -------------------------------------------------------------------------------------------


def test_seeds_of_one_configuration_are_one_group(tmp_path: Path) -> None:
    """Workers may differ as well: they change nothing."""
    runs = [read_run(write_run(tmp_path / f"s{seed}", seed=seed)) for seed in (1, 2, 3)]
    (group,) = grouped(runs)
    assert group.label == "spdst" and [run.seed for run in group.runs] == [1, 2, 3]


def test_other_settings_are_other_groups_named_by_what_differs(tmp_path: Path) -> None:
    runs = [
        read_run(write_run(tmp_path / "a", density=0.1)),
        read_run(write_run(tmp_path / "b", density=0.2)),
        read_run(write_run(tmp_path / "c", density=0.2, seed=2)),
        read_run(write_run(tmp_path / "d", "fedavg", density=0.2)),
    ]
    groups = grouped(runs)
    assert [group.label for group in groups] == [
        "spdst · density 0.1",
        "spdst · density 0.2",
        "fedavg",
    ]
    assert [len(group.runs) for group in groups] == [1, 2, 1]
    firsts = [group.first for group in groups]
    assert differing(firsts) == {"settings.density": [0.1, 0.2, 0.2]}


def test_the_same_seed_twice_is_no_second_seed(tmp_path: Path) -> None:
    runs = [read_run(write_run(tmp_path / name)) for name in ("first", "second")]
    assert [group.label for group in grouped(runs)] == ["spdst · first", "spdst · second"]
    places = [tmp_path / "one" / "run", tmp_path / "two" / "run"]
    again = grouped([read_run(write_run(place)) for place in places])
    assert [group.label for group in again] == [f"spdst · {place}" for place in places]


def test_runs_without_a_configuration_are_matched_by_their_logs(tmp_path: Path) -> None:
    runs = [
        read_run(write_run(tmp_path / "a", config=False, seed=1)),
        read_run(write_run(tmp_path / "b", config=False, seed=2)),
        read_run(write_run(tmp_path / "c", config=False, seed=3, density=0.2)),
    ]
    assert [len(group.runs) for group in grouped(runs)] == [2, 1]


# curves -------------------------------------------------------------------------------------------


def test_means_and_standard_errors_are_those_made_by_hand() -> None:
    """In round 2 only one run has a figure: its own is the mean, and there is no error."""
    runs = [{"y": {1: 1.0, 2: 4.0}, "x": {1: 10.0, 2: 20.0}}, {"y": {1: 3.0}, "x": {1: 30.0}}]
    assert table(runs, ("y", "missing"), ("x",)) == {
        "round": [1, 2],
        "y": [2, 4],
        "y±": [1, None],
        "y#": [2, 1],
        "x": [20, 20],
    }
    assert table(runs[:1], ("y",)) == {"round": [1, 2], "y": [1, 4]}


COLUMN = st.lists(st.floats(-10, 10) | st.none(), min_size=60, max_size=60)


@settings(max_examples=25)
@given(st.lists(COLUMN, min_size=1, max_size=3), st.integers(14, 80))
def test_thinning_keeps_the_ends_and_the_extremes(
    columns: list[list[float | None]], most: int
) -> None:
    kept = thin(columns, most)
    assert kept == sorted(set(kept)) and len(kept) <= max(most, 2 + 2 * len(columns))
    assert kept[0] == 0 and kept[-1] == 59
    for column in columns:
        known = [value for value in column if value is not None]
        left = [value for at in kept if (value := column[at]) is not None]
        if known:
            assert min(left) == min(known) and max(left) == max(known)


def test_a_long_curve_is_thinned_and_a_short_one_is_not() -> None:
    draw = random.Random(3).random
    long = {at: draw() for at in range(20_000)}
    long[12_345] = 7.0
    found = table([{"y": long}], ("y",))
    assert 900 <= len(found["y"]) <= 1000 and 7 in found["y"]
    assert found["round"][0] == 0 and found["round"][-1] == 19_999
    assert len(table([{"y": dict.fromkeys(range(1000), 0.5)}], ("y",))["y"]) == 1000


# figures ------------------------------------------------------------------------------------------


def made(accuracy: dict[int, float], sent: float = 1.0, **more: dict[int, float]) -> Run:
    curves = {"global_score": accuracy, "up": {1: sent}, "down": {1: sent}, **more}
    name = f"{accuracy}{sent}"
    return Run(name, started={"method": name}, finished={"round": 1}, curves=curves)


def test_a_row_is_pareto_optimal_if_none_is_as_accurate_with_as_few_bits() -> None:
    """By accuracy and bits: (.9, 9) and (.5, 1) stay; (.5, 2) and (.8, 9) are beaten."""
    runs = [made({1: a}, sent) for a, sent in ((0.9, 9), (0.5, 1), (0.5, 2), (0.8, 9))]
    found = rows(grouped(runs), "global_score")
    assert [row.pareto_optimal for row in found] == [True, True, False, False]


def test_nobody_is_best_alone_or_among_other_data() -> None:
    one = made({1: 0.5})
    assert not rows(grouped([one]), "global_score")[0].pareto_optimal
    other = replace(one, folder="b", started={"method": "b", "data": {"name": "other"}})
    assert not any(row.pareto_optimal for row in rows(grouped([one, other]), "global_score"))


def test_a_run_that_is_still_going_is_not_praised_for_what_it_has_not_sent_yet() -> None:
    ended, going = made({1: 0.9}, 9), replace(made({1: 0.5}, 1), finished={})
    found = rows(grouped([ended, going]), "global_score")
    assert [row.pareto_optimal for row in found] == [True, False]
    titles = {card.title: card.value for card in cards(found, SHOWN)}
    assert titles["Fewest bits sent"] == "18 bit"


def test_the_best_round_is_chosen_as_the_engine_does() -> None:
    curve = {0: 0.95, 1: 0.2, 2: 0.7, 3: 0.7, 4: 0.6}
    assert best_round(made(curve), "global_score") == 0
    assert best_round(made(curve, personal_density={2: 0.1, 3: 0.1}), "global_score") == 2
    assert best_round(made(curve, valid_mean={1: 0.1, 4: 0.3}), "global_score") == 4
    assert best_round(made({}), "global_score") is None


def test_runs_are_compared_by_personal_accuracy_once_models_are_personal(tmp_path: Path) -> None:
    shared = read_run(write_run(tmp_path / "a"))
    own = read_run(write_run(tmp_path / "b", "fedsparse", personal=True))
    assert main_score(grouped([shared])) == "global_score"
    assert main_score(grouped([shared, own])) == "personal_mean"
    assert main_score(grouped([own, made({1: 0.5})])) == "global_score"


def test_cards_name_the_best_and_by_how_much(tmp_path: Path) -> None:
    groups = grouped(
        [
            read_run(write_run(tmp_path / "a", "fedavg", sent=100_000, density=1.0, top=0.9)),
            read_run(write_run(tmp_path / "b", "spdst", sent=10_000, top=0.8)),
        ]
    )
    found = {card.title: card for card in cards(rows(groups, "global_score"), SHOWN)}
    assert found["Highest accuracy"].note == "fedavg"
    assert found["Fewest bits sent"].value == "360 kbit"
    assert found["Fewest bits sent"].note == "spdst · 10 times less than fedavg"
    assert found["Fewest operations"].note == "all equal"
    alone = {card.title: card for card in cards(rows(groups[1:], "global_score"), SHOWN)}
    assert alone["Sent"].note == "180 kbit up, 180 kbit down"


def test_the_data_of_a_page_are_those_of_the_log(tmp_path: Path) -> None:
    runs = [read_run(write_run(tmp_path / f"{seed}", seed=seed)) for seed in (1, 2)]
    (group,) = page_data(grouped(runs), [], "global_score")["groups"]
    evaluated = group["evaluated"]
    assert evaluated["round"] == [0, 1, 2, 3, 4, 5, 6]
    assert evaluated["sent"] == [60_000 * number for number in range(7)]
    assert evaluated["device_seconds"] == [0, 0.5, 1, 1.5, 2, 2.5, 3]
    assert evaluated["flops"] == [3 * 10**9 * number for number in range(7)]
    both = [run.curve("global_score")[6] for run in runs]
    assert evaluated["global_score"][6] == pytest.approx(sum(both) / 2, rel=1e-5)
    assert evaluated["global_score±"][6] == pytest.approx(abs(both[0] - both[1]) / 2, rel=1e-4)
    assert evaluated["global_score#"] == [2] * 7
    assert group["rounds"]["mismatch"][:3] == [None, None, 0.05]
    assert group["layers"]["conv2.weight"]["density"]["density"] == [0.2] * 7
    found = group["layers"]["conv2.weight"]["sensitivity"]
    assert found["round"] == [1, 2, 3, 4, 5, 6] and found["sensitivity"][:2] == [0.5, 0.25]
    assert sum(group["histogram"]) == pytest.approx(1)
    assert ["up", "Update values", 18 * 9928, 18 * 9928] in group["ledger"]


def test_a_report_is_the_same_for_the_same_runs(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / f"{seed}", seed=seed) for seed in (1, 2)]
    assert report(folders).html == report(folders).html


# numbers ------------------------------------------------------------------------------------------


def test_numbers_are_written_in_units_that_suit_them() -> None:
    assert [bits(n) for n in (0, 999, 1234567, 999_999, 5e12)] == [
        "0 bit",
        "999 bit",
        "1.235 Mbit",
        "1 Mbit",
        "5 Tbit",
    ]
    assert operations(3e9) == "3 GFLOP" and operations(None) == "–"
    assert [seconds(n) for n in (90, 600, 7200, 864_000)] == ["90 s", "10 min", "2 h", "10 days"]
    assert share(0.5) == "0.5000" and share(None) == bits(None) == seconds(None) == "–"


def test_seeds_that_wait_for_their_turn_are_of_the_group(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / f"s{seed}", seed=seed) for seed in (1, 2, 3)]
    for folder in folders[1:]:
        (folder / "events.jsonl").unlink()
    (group,) = grouped([read_run(folder) for folder in folders])
    assert group.label == "spdst" and [run.seed for run in group.runs] == [1, 2, 3]


def test_methods_of_two_files_are_not_seeds_of_one(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / f"s{seed}", "Mine", seed=seed) for seed in (1, 2)]
    for folder, file in zip(folders, ("a.py", "b.py"), strict=True):
        config = folder / "config.toml"
        config.write_text(config.read_text().replace('= "Mine"', f'= "/x/{file}:Mine"'))
    assert len(grouped([read_run(folder) for folder in folders])) == 2


def test_what_was_sent_in_vain_is_in_the_ledger(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", rounds=1, clients=1)
    lost = line(ClientFailed(1, 9, "network", "no answer", 500, 400), Clock(0.0, 0.0))
    with (folder / "events.jsonl").open("a") as file:
        file.write(lost * 2)
    (group,) = page_data(grouped([read_run(folder)]), [], "global_score")["groups"]
    assert ["down", "failed clients all", 1000, 800] in group["ledger"]
