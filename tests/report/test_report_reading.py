"""Whatever a folder holds, what can be read of it is, and the rest is told in a sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_folders import LAYERS, write_run

from gossamer import run as train
from gossamer.engine.events import SCHEMA
from gossamer.report import NoRun, read_run, report
from helpers import Toy, fedavg, normed


def change(folder: Path, edit: Callable[[list[dict[str, Any]]], None]) -> Path:
    """The same folder with another log."""
    path = folder / "events.jsonl"
    log = [json.loads(text) for text in path.read_text().splitlines()]
    edit(log)
    path.write_text("".join(json.dumps(event) + "\n" for event in log))
    return folder


def test_a_whole_run_is_read_without_a_word(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a", rounds=6, sent=1000, clients=3))
    assert run.notices == ()
    assert (run.method, run.seed, run.planned, run.done) == ("spdst", 1, 6, 6)
    assert run.command == "gossamer run spdst --seed 1"
    assert run.curve("up") == {number: 3000.0 * number for number in range(1, 7)}
    assert list(run.curve("global_score")) == list(range(7))
    assert tuple(run.layers) == LAYERS
    assert run.layers["fc2.weight"]["density"][6] == pytest.approx(0.4)
    assert run.ledger["up", "Update", "values"].sent == 18 * (1000 - 72)
    assert run.ledger["down", "Train", "header"].messages == 18
    assert sum(run.histogram) == 20


def test_what_the_engine_writes_is_understood(tmp_path: Path) -> None:
    summary = train(fedavg(), normed(), Toy(), rounds=3, seed=4, out=tmp_path)
    run = read_run(tmp_path)
    assert [text for text in run.notices if "config.toml" not in text] == []
    assert run.curve("up")[3] == summary.cost.up
    assert sum(each.sent for line, each in run.ledger.items() if line[0] == "up") == summary.cost.up
    assert run.curve("personal_mean")[3] == summary.accuracy["personal_mean"]
    assert sum(run.histogram) == 6
    assert run.finished["state_hash"] == summary.state_hash


def test_a_run_that_is_still_going_is_shown_up_to_its_last_round(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", rounds=6)
    path = folder / "events.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:20]) + lines[20][:30])
    run = read_run(folder)
    assert 0 < run.done < 6
    assert run.notices == (
        f"{folder}: the log ends in the middle of a line; it is shown up to that line",
        f"{folder}: the run is at round {run.done} of 6: it is still running, or was stopped",
    )


def test_a_damaged_line_ends_what_is_shown(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", rounds=6)
    path = folder / "events.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[20] = b'{"event":"\xff\xfe\n'
    path.write_bytes(b"".join(lines))
    run = read_run(folder)
    log = folder / "events.jsonl"
    assert f"{folder}: line 21 of {log} is damaged; the log is shown up to it" in run.notices
    assert run.damaged
    assert 0 < run.done < 6


def test_a_newer_log_is_shown_as_far_as_it_is_known(tmp_path: Path) -> None:
    def newer(log: list[dict[str, Any]]) -> None:
        log[0]["schema"] = SCHEMA + 1
        log[0]["mood"] = "good"
        log[3:3] = [{"event": "dreamt", "round": 1, "of": "sheep"}] * 2
        log[-2]["accuracy_of_the_moon"] = {"deep": [1, 2]}

    folder = change(write_run(tmp_path / "a"), newer)
    run = read_run(folder)
    assert run.done == 6 and run.curve("global_score")[6] > 0
    assert [text.removeprefix(f"{folder}: ") for text in run.notices] == [
        f"the log has a newer format (schema {SCHEMA + 1}; this version knows {SCHEMA}); "
        "known entries are shown, but may have changed their meaning",
        "events of unknown kinds are omitted: dreamt (2)",
    ]


def test_events_that_lack_what_they_should_have_are_left_out(tmp_path: Path) -> None:
    def spoil(log: list[dict[str, Any]]) -> None:
        for event in log:
            if event["event"] == "evaluated" and event["round"] == 2:
                event["round"] = "two"
            if event["event"] == "evaluated" and event["round"] == 3:
                event["global_accuracy"] = event["global_score"] = "high"
                event["personal_mean"] = 10**400

    run = read_run(change(write_run(tmp_path / "a"), spoil))
    assert list(run.curve("global_score")) == [0, 1, 4, 5, 6]
    assert list(run.curve("personal_mean")) == [0, 1, 4, 5, 6]
    (text,) = run.notices
    assert text.endswith("a: line 15 of the log could not be read")


def test_logs_from_before_the_histogram_have_none(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a", histogram=False))
    assert run.histogram == () and run.notices == ()


def test_without_a_configuration_the_log_says_what_it_can(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", config=False)
    run = read_run(folder)
    assert (run.method, run.seed, run.planned, run.command) == ("spdst", 1, 6, "")
    (text,) = run.notices
    assert "there is no config.toml" in text


def test_a_configuration_that_is_damaged_is_shown_as_it_is(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    (folder / "config.toml").write_text("# gossamer run it\nmethod = \n")
    run = read_run(folder)
    assert run.text.startswith("# gossamer run it") and run.config == {}
    assert "config.toml is not valid TOML" in run.notices[0]


def test_a_run_that_has_logged_nothing_yet_has_its_configuration(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    (folder / "events.jsonl").write_bytes(b"")
    run = read_run(folder)
    assert run.method == "spdst" and run.done == 0
    assert run.notices == (f"{folder}: nothing is logged yet",)
    (folder / "events.jsonl").unlink()
    assert "there is no log yet" in read_run(folder).notices[0]
    assert "spdst" in report([folder]).html


def test_folders_that_are_no_runs_are_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(NoRun, match=r"is not a run: it has neither events\.jsonl nor config\.toml"):
        read_run(tmp_path)
    with pytest.raises(NoRun, match="there is no folder"):
        read_run(tmp_path / "nowhere")
    (tmp_path / "page.html").write_text("no run")
    with pytest.raises(NoRun, match=r"page\.html is not a folder"):
        read_run(tmp_path / "page.html")
    (tmp_path / "events.jsonl").write_text("hello\n")
    with pytest.raises(NoRun, match=r"has nothing to show: .*line 1 of .*events.jsonl is damaged"):
        read_run(tmp_path)


def test_failures_are_told(tmp_path: Path) -> None:
    failed = {"event": "client-failed", "round": 1, "client": 3, "stage": "step", "reason": "no"}
    folder = change(write_run(tmp_path / "a"), lambda log: log.insert(5, failed))
    run = read_run(folder)
    assert run.failed == 1 and "1 reply was dropped, of client 3 (see" in run.notices[0]
    folder = change(write_run(tmp_path / "b"), lambda log: log.extend([failed, failed]))
    assert "2 replies were dropped, of client 3 (2) (see" in read_run(folder).notices[-1]


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.just(10**400)
    | st.text(max_size=4)
    | st.sampled_from(["up", "\ud800", "<b>"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@settings(max_examples=30)
@given(data=st.data())
def test_no_log_makes_a_report_fail(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Any field of any events may have any value, and bytes may be missing or changed."""
    folder = write_run(tmp_path_factory.mktemp("fuzz") / "a", rounds=3, clients=2, config=False)

    def spoil(log: list[dict[str, Any]]) -> None:
        for _ in range(data.draw(st.integers(1, 8))):
            event = data.draw(st.sampled_from(log))
            event[data.draw(st.sampled_from(sorted(event)))] = data.draw(VALUES)

    path = change(folder, spoil) / "events.jsonl"
    if data.draw(st.booleans()):
        text = bytearray(path.read_bytes())
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(text[: data.draw(st.integers(1, len(text)))])
    try:
        assert report([folder]).html.endswith("</html>")
    except NoRun as problem:
        assert "has nothing to show" in str(problem)
