"""`gossamer watch`: a run of another process, shown from a log that grows, is cut, and ends."""

import io
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gossamer.cli.watch import Lines, Screen, follow
from gossamer.cli.watch_frame import SCORES, SHARES, frame, sparkline
from gossamer.engine import replay
from gossamer.engine.events import (
    ClientFinished,
    Clock,
    Event,
    Finished,
    Measured,
    PrivacySpent,
    Started,
    line,
)
from gossamer.report.live import LiveRun, Tail

from .test_progress import FAILED, evaluated, finished
from .test_stopping import Command

STARTED = Started(1, "spdst", {}, 4, 7, 40, {}, 10, 10, {})
ENDED = Finished(4, {}, 0.5, "abc")
CLIENT = ClientFinished(1, 0, 300, 5, 0.5, 1, 1, 1.0, 1.0, 1, 1, 1, None, {}, [])
MEASURED = Measured(1, 0.25, 0.125, {}, {})


def written(*events: Event, took: float = 3.0) -> bytes:
    return b"".join(line(event, Clock(1000.0, took)).encode() for event in events)


def a_round(number: int) -> list[Event]:
    tested = replace(evaluated(number), global_score=0.25 * number, local_mean=0.5)
    measured = replace(MEASURED, round=number)
    return [replace(CLIENT, round=number), finished(number), measured, tested]


def seen(*events: Event) -> LiveRun:
    found = LiveRun(Path("a run"))
    for each in events:
        assert found.update(written(each)) is not None
    return found


def test_lines_come_when_they_are_whole_and_all_again_when_the_log_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    tail = Tail(path)
    assert tail.read() == (False, [])
    path.write_bytes(b"one\ntw")
    assert tail.read() == (False, [b"one\n"])
    assert tail.read() == (False, [])
    path.write_bytes(b"one\ntwo\nthree\n")
    assert tail.read() == (False, [b"two\n", b"three\n"])
    path.write_bytes(b"one\n")
    assert tail.read() == (True, [b"one\n"])
    # Cut and grown beyond where it was, between two looks.
    path.write_bytes(b"ONE\ntwo\nfour\n")
    assert tail.read() == (True, [b"ONE\n", b"two\n", b"four\n"])
    path.unlink()
    assert tail.read() == (True, [])
    assert tail.read() == (False, [])


def test_a_frame_has_the_curves_costs_pace_and_what_is_left() -> None:
    found = seen(STARTED, *a_round(1), *a_round(2), *a_round(3))
    head, bar, *lines = frame(found, 1001.0)
    assert head == "spdst · seed 7 · pool of 40 clients · a run"
    # A round takes 3 s and its evaluation 3 s more; one is left.
    assert bar.endswith("3/4  10 rounds/min, 100 examples/s, left 0:06")
    assert bar.count("█") == 30 and bar.count("░") == 10
    assert lines[0].split() == ["global", "▁▅█", "0.7500", "best", "0.7500"]
    assert [text.split("  ")[0].split("▁")[0].strip() for text in lines[:4]] == [
        "global",
        "personal",
        "worst decile",
        "clients' own",
    ]
    assert lines[4] == (
        "up 1 Gbit · down 1 Gbit · density 0.5 · mask density 0.25 · mismatch 0.125"
    )
    assert len(lines) == 5
    assert "finished" in frame(seen(STARTED, *a_round(4), ENDED), 9999.0)[1]


def test_trackers_have_a_curve_of_every_figure_that_is_shown() -> None:
    tested = replace(evaluated(1), local_mean=0.5, valid_mean=0.5, personal_density=0.5)
    spent = PrivacySpent(1, 2.0, 1e-5, 1.0, 0.8, "fixed", "one client replaced by another", 1)
    assert seen(finished(1), spent, MEASURED, tested).last.keys() == {
        *(f"accuracy/{name}" for name in SCORES),
        *SHARES,
        *("bits/up", "bits/down", "flops", "loss/global", "privacy/clip"),
    }


def test_failures_silence_damage_and_newer_logs_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    failures = [replace(FAILED, client=number) for number in range(5)]
    for event in failures:
        kept = replay.path(Path("a run/rounds"), event.round, event.client)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.touch()
    Path("a run/config.toml").touch()
    found = seen(replace(STARTED, schema=9), *a_round(1), *failures)
    for damage in (b"{\n", b"[]\n", b'{"event": "finished"}\n', b'{"event": []}\n', b"\xff\n"):
        assert found.update(damage) is None
    assert found.update(b'{"event": "new", "clock": {"time": 1000, "seconds": 0}}\n') is None
    text = "\n".join(frame(found, 1000.0 + 125))
    assert "dropped replies: 5; the latest:" in text and text.count("gossamer replay") == 3
    assert "client 1 failed" not in text and "client 4 failed" in text
    assert "unreadable lines in the log: 5" in text
    assert "newer format (9; this version knows 2)" in text
    assert "no events for 2:05; if the run was stopped: gossamer resume 'a run'" in text
    assert "no events" not in "\n".join(frame(found, 1030.0))
    Path("a run/config.toml").unlink()
    assert "if the run was stopped: `gossamer serve` its project again" in frame(found, 1125.0)[-1]


def test_curves_are_drawn_from_their_lowest_to_their_highest() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█" and sparkline([0.3, 0.3]) == "▁▁"
    long = sparkline([float(place) for place in range(1000)], 8)
    assert long == "▁▂▃▄▅▆▇█"


def steps(*acts: Callable[[], object]) -> Callable[[], None]:
    """What happens elsewhere while one waits; more waiting than that is a failure."""
    left: Iterator[Callable[[], object]] = iter(acts)
    return lambda: (next(left)(), None)[1]


def test_a_pipe_gets_a_line_a_round_also_of_a_run_that_begins_later_and_is_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "events.jsonl"
    begun = written(STARTED, *a_round(1))
    cut = begun + written(*a_round(2))
    follow(
        Tail(path),
        tmp_path,
        Lines(),
        steps(
            lambda: path.write_bytes(begun[:-9]),
            lambda: path.write_bytes(cut + written(finished(3))),
            lambda: path.write_bytes(begun),  # killed, and resumed from its first round
            lambda: path.write_bytes(
                begun + written(*a_round(2), *a_round(3), FAILED, *a_round(4), ENDED, took=4.0)
            ),
        ),
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"waiting for {path}"
    assert [text[:9] for text in lines[1:5]] == ["round 1/4", "round 2/4", "round 3/4", "round 4/4"]
    assert "global 0.2500  personal 0.7654  worst decile 0.6000" in lines[1]
    assert "up 1 Gbit  down 1 Gbit  density 0.5" in lines[1] and "left 0:18" in lines[1]
    assert "finished" in lines[6] and "dropped replies: 1" in lines[-2]


def test_a_terminal_keeps_one_frame_in_place(tmp_path: Path) -> None:
    console = pytest.importorskip("rich.console")
    stream = io.StringIO()
    screen = Screen(console.Console(file=stream, force_terminal=True, width=120))
    path = tmp_path / "events.jsonl"
    events: list[Event] = [STARTED, *a_round(1)]
    follow(
        Tail(path),
        tmp_path,
        screen,
        steps(
            lambda: path.write_bytes(written(*events)),
            lambda: path.write_bytes(written(*events, *a_round(4), ENDED)),
        ),
    )
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    assert "waiting for" in text and "1/4  10 rounds/min" in text
    assert "4/4  finished" in text[text.rindex("spdst · seed 7") :]


def test_a_real_run_is_watched_to_its_end(gossamer: Command) -> None:
    words = ["--data", "synthetic", "--pool", "6", "--clients", "2", "--rounds", "2", "--workers"]
    run = gossamer("run", "spafl", *words, "1", "--out", "a", "--quiet", "--json").json
    told = gossamer("watch", "a").out.splitlines()
    assert [text[:9] for text in told[:2]] == ["round 1/2", "round 2/2"]
    assert f"personal {run['accuracy']['personal_mean']:.4f}" in told[1]
    once = gossamer("watch", "a", "--once").out.splitlines()
    assert once == told[2:] and "2/2  finished" in once[1]
    assert "unreadable" not in "".join(once)


def test_what_cannot_be_watched_is_refused(gossamer: Command) -> None:
    Path("all/one").mkdir(parents=True)
    Path("all/one/events.jsonl").write_bytes(b"")
    Path("file").touch()
    for words, reason in {
        "nowhere --once": "there is no run to show yet in nowhere/events.jsonl",
        "all/one --once": "there is no run to show yet",
        "all": "all holds several runs; the newest is: gossamer watch all/one",
        "file": "file is not a folder",
        "all/one --every 0": "--every must be between",
    }.items():
        found = gossamer("watch", *words.split())
        assert found.code == 2 and reason in found.err


def test_the_log_of_the_run_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(written(STARTED, *a_round(4), ENDED))
    before = path.read_bytes()
    follow(Tail(path), tmp_path, Lines(), steps())
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == [path.name]
    assert json.loads(before.splitlines()[0])["event"] == "started"
