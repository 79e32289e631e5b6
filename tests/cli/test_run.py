"""`gossamer run` and what a run directory holds."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import SMALL, Outcome, events

Command = Callable[..., Outcome]


def test_json_is_the_last_line_and_has_every_figure(gossamer: Command) -> None:
    found = gossamer("run", "fedavg", *SMALL, "--out", "a", "--json")
    assert found.code == 0
    figures = found.json
    assert {
        "method",
        "run",
        "rounds",
        "accuracy",
        "density",
        "bits",
        "flops",
        "seconds",
        "state_hash",
    } <= set(figures)
    assert {"global", "personal_mean", "personal_worst_decile", "best"} <= set(figures["accuracy"])
    assert {"up", "down", "paper_up", "paper_down"} <= set(figures["bits"])
    assert figures["rounds"] == 3 and figures["density"] == 1.0
    weights = 784 * 16 + 16 + 16 * 10 + 10
    assert figures["bits"]["paper_up"] == 3 * 4 * 32 * weights
    assert figures["bits"]["up"] == 3 * 4 * (32 * weights + 72)
    assert 0.3 < figures["accuracy"]["global"] < 0.95


def test_the_same_command_twice_gives_the_same_log_and_state(gossamer: Command) -> None:
    first = gossamer("run", "fedavg", *SMALL, "--out", "a", "--json", "--quiet").json
    second = gossamer("run", "fedavg", *SMALL, "--out", "b", "--json", "--quiet").json
    other = gossamer("run", "fedavg", *SMALL, "--seed", "2", "--out", "c", "--json").json
    assert first["state_hash"] == second["state_hash"] != other["state_hash"]
    assert events("a") == events("b") != events("c")


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fedavgm", "fedopt", "lg_fedavg"])
def test_the_number_of_workers_changes_nothing(gossamer: Command, method: str) -> None:
    one = gossamer("run", method, *SMALL, "--out", "a", "--workers", "1", "--json").json
    two = gossamer("run", method, *SMALL, "--out", "b", "--workers", "2", "--json").json
    assert one["state_hash"] == two["state_hash"]
    assert events("a") == events("b")


def test_a_round_can_be_chosen_on_validation_data(gossamer: Command) -> None:
    words = ["--valid", "0.2", "--select", "valid"]
    found = gossamer("run", "lg_fedavg", *SMALL, *words, "--rounds", "6", "--out", "a", "--json")
    assert found.code == 0 and "  valid 0." in found.out
    log = {event["round"]: event for event in events("a") if event["event"] == "evaluated"}
    accuracy = found.json["accuracy"]
    chosen = log[accuracy["best_round"]]
    assert chosen["valid_mean"] == max(event["valid_mean"] for event in log.values())
    assert accuracy["best"] == chosen["personal_mean"] and found.json["select"] == "valid"
    told = dict(line.split("  ", 1) for line in found.out.splitlines() if "  " in line)
    assert told["best round, chosen on validation data"].strip() == str(accuracy["best_round"])
    assert f"({accuracy['best_worst_decile']:.4f})" in told["worst decile, last (at best round)"]
    again = gossamer("run", "a/config.toml", "--out", "b", "--json").json
    assert again["accuracy"] == accuracy and events("a") == events("b")


def test_the_outcome_is_told_with_its_best_round_and_what_it_cost(gossamer: Command) -> None:
    found = gossamer("run", "fedavg", *SMALL, "--out", "a", "--json")
    accuracy = found.json["accuracy"]
    told = dict(line.split("  ", 1) for line in found.out.splitlines() if "  " in line)
    assert told["best round, chosen on test data"].strip() == str(accuracy["best_round"])
    assert f"{accuracy['best']:.4f}" in told["accuracy there, on test data"]
    last, best = accuracy["personal_worst_decile"], accuracy["best_worst_decile"]
    assert told["worst decile, last (at best round)"].strip() == f"{last:.4f} ({best:.4f})"
    assert told["density, last (at best round)"].strip() == "1.0000 (1.0000)"
    assert "Mbit / " in told["as the paper counts"] and "density of all" not in found.out


def test_the_global_model_can_be_left_out(gossamer: Command) -> None:
    plain = gossamer("run", "lg_fedavg", *SMALL, "--out", "a", "--json").json
    found = gossamer("run", "lg_fedavg", *SMALL, "--no-global-model", "--out", "b", "--json").json
    assert plain["state_hash"] == found["state_hash"]
    assert found["accuracy"]["global"] is None and found["accuracy"]["global_best"] is None
    assert found["accuracy"]["personal_mean"] == plain["accuracy"]["personal_mean"]
    assert found["accuracy"]["best"] == plain["accuracy"]["best"]


def test_a_run_directory_holds_what_resuming_and_reporting_need_and_no_more(
    gossamer: Command,
) -> None:
    gossamer("run", "fedavg", *SMALL, "--out", "a", "--quiet")
    assert {path.name for path in Path("a").iterdir()} == {"config.toml", "events.jsonl", "rounds"}


def test_a_saved_configuration_repeats_the_run(gossamer: Command) -> None:
    options = ["--lr", "0.1", "--schedule", "cosine", "--no-personal"]
    first = gossamer("run", "fedprox", *SMALL, *options, "--out", "a", "--json").json
    again = gossamer("run", "a/config.toml", "--out", "b", "--json").json
    assert first["state_hash"] == again["state_hash"]
    assert events("a") == events("b")
    saved = tomllib.loads(Path("a/config.toml").read_text())
    assert saved["settings"]["lr"] == 0.1 and saved["options"]["personal"] is False


def test_options_on_the_command_line_win_over_the_file(gossamer: Command) -> None:
    gossamer("run", "fedavg", *SMALL, "--out", "a", "--quiet")
    found = gossamer("run", "a/config.toml", "--rounds", "1", "--out", "b", "--json").json
    assert found["rounds"] == 1


def test_quiet_prints_the_result_alone_and_a_pipe_gets_a_line_a_round(gossamer: Command) -> None:
    quiet = gossamer("run", "fedavg", *SMALL, "--out", "a", "--quiet").out
    assert "global accuracy, last (best)" in quiet and "round 1/3" not in quiet
    lines = gossamer("run", "fedavg", *SMALL, "--out", "b").out.splitlines()
    rounds = [line for line in lines if line.startswith("round ")]
    assert [line.split()[1] for line in rounds] == ["1/3", "2/3", "3/3"]
    for word in ("accuracy", "personal", "bit", "density", "examples/s", "left"):
        assert word in rounds[-1]


def test_without_out_the_folder_is_named_by_time_and_method(gossamer: Command) -> None:
    found = gossamer("run", "fedavg", *SMALL, "--json").json
    assert found["run"].startswith("runs/") and found["run"].endswith("-fedavg")


def test_evaluation_happens_as_often_as_asked(gossamer: Command) -> None:
    gossamer("run", "fedavg", *SMALL, "--out", "a", "--eval-every", "2", "--quiet")
    assert [e["round"] for e in events("a") if e["event"] == "evaluated"] == [0, 2, 3]
    found = gossamer("run", "fedavg", *SMALL, "--out", "b", "--eval-every", "0", "--json").json
    assert found["accuracy"]["global"] is None
    assert not [e for e in events("b") if e["event"] == "evaluated"]


def test_bfloat16_trains(gossamer: Command) -> None:
    words = ["--precision", "bf16", "--rounds", "5", "--lr", "0.1"]
    found = gossamer("run", "fedavg", *SMALL, *words, "--json").json
    assert found["accuracy"]["global"] > 0.3


def test_tensorboard_gets_the_scalars(gossamer: Command) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = gossamer("run", "fedavg", *SMALL, "--out", "a", "--track", "tensorboard", "--json").json
    log = EventAccumulator("a/tensorboard")
    log.Reload()
    curve = [(point.step, point.value) for point in log.Scalars("accuracy/global")]
    assert [step for step, _ in curve] == [0, 1, 2, 3]
    assert curve[-1][1] == pytest.approx(found["accuracy"]["global"])


def test_the_started_event_tells_what_was_run(gossamer: Command) -> None:
    gossamer("run", "fedavg", *SMALL, "--out", "a", "--quiet")
    started = events("a")[0]
    assert started["event"] == "started" and started["schema"] == 2
    assert started["data"]["partition"] == "dirichlet:0.3" and started["pool"] == 20
    assert started["settings"]["clients"] == 4 and "torch" in started["environment"]
    json.dumps(started)


def test_a_run_that_reached_its_goal_can_go_on_to_another(gossamer: Command) -> None:
    words = [*SMALL, "--out", "a", "--json", "--quiet"]
    first = gossamer("run", "fedavg", *words, "--until", "bits=1")
    assert first.json["rounds"] == 1 and first.json["reached"] == "bits=1"
    assert "1 (bits=1 reached)" in first.out
    further = gossamer("resume", "a", "--until", "flops=1e30", "--json", "--quiet").json
    whole = gossamer("run", "fedavg", *SMALL, "--out", "b", "--json", "--quiet").json
    assert further["rounds"] == 3 and further["state_hash"] == whole["state_hash"]
