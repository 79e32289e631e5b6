"""When devices are there: windows of duty cycles and traces, for any time."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.devices.availability import (
    ALWAYS,
    Availability,
    Duty,
    Hours,
    Trace,
    Traces,
    comes,
    is_there,
    leaves,
)
from gossamer.devices.durations import seconds

TIMES = st.floats(0, 1e9)


@st.composite
def duties(draw: st.DrawFn) -> Duty:
    period = draw(st.floats(1e-2, 1e6))
    return Duty(period, draw(st.floats(0.01, 1)), draw(st.floats(0, 1)) * period)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    edges = sorted(draw(st.sets(st.integers(0, 10_000), min_size=2, max_size=12)))
    edges = edges[: len(edges) // 2 * 2]
    period = draw(st.sampled_from((math.inf, 10_000.0, 12_345.6)))
    return Trace(np.array(edges[::2], float), np.array(edges[1::2], float), period)


@given(st.one_of(duties(), traces()), TIMES)
def test_a_window_ends_after_the_time_that_was_asked_for(hours: Availability, time: float) -> None:
    begins, ends = hours.window(time)
    assert ends > time and begins <= ends
    assert is_there(hours, time) == (begins <= time)
    assert comes(hours, time) == max(time, begins) and leaves(hours, time) == ends


@given(st.one_of(duties(), traces()), TIMES)
def test_a_device_is_there_when_it_comes_and_gone_when_it_leaves(
    hours: Availability, time: float
) -> None:
    arrival = comes(hours, time)
    if arrival < math.inf:
        assert is_there(hours, arrival)
        assert leaves(hours, arrival) > arrival


@given(duties(), TIMES)
def test_a_duty_cycle_is_there_for_its_share_of_a_period(hours: Duty, time: float) -> None:
    begins, ends = hours.window(time)
    assert ends - begins == pytest.approx(
        hours.share * hours.period, rel=1e-4, abs=1e-6 * (1 + time)
    )
    assert begins - time <= hours.period * (1 + 1e-9) + 1e-6 * time


def test_windows_of_a_duty_cycle_by_hand() -> None:
    hours = Duty(period=10, share=0.4, phase=3)  # 3 to 7, 13 to 17, ...
    assert hours.window(0) == (3, 7) and hours.window(3) == (3, 7) and hours.window(6.9) == (3, 7)
    assert hours.window(7) == (13, 17) and hours.window(25) == (23, 27)
    assert ALWAYS.window(5) == (-math.inf, math.inf)


def test_windows_of_a_trace_by_hand() -> None:
    once = Trace(np.array([1.0, 6.0]), np.array([4.0, 8.0]))
    assert once.window(0) == (1, 4) and once.window(4) == (6, 8) and not is_there(once, 5)
    assert once.window(8) == (math.inf, math.inf) and comes(once, 9) == math.inf
    again = Trace(once.begins, once.ends, period=10)
    assert again.window(8) == (11, 14) and again.window(103) == (101, 104)
    assert Trace(np.zeros(0), np.zeros(0)).window(0) == (math.inf, math.inf)


def written(folder: Path, text: str) -> Path:
    path = folder / "traces.csv"
    path.write_text(text)
    return path


def test_traces_are_read_by_client(tmp_path: Path) -> None:
    path = written(tmp_path, "client, from, until\n7,5,6\n2,0,10\n7,1,3\n")
    hours = Hours.parse(str(path))
    assert not hours.always
    assert hours.of(7, 0.5).window(0) == (1, 3) and hours.of(7, 0.5).window(4) == (5, 6)
    assert hours.of(2, 0.5).window(4) == (0, 10)
    assert hours.of(3, 0.5).window(0) == (math.inf, math.inf)
    assert Hours.parse(f"{path}@20s").of(2, 0.5).window(15) == (20, 30)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("client,from\n1,2\n", "must be client,from,until"),
        ("client,from,until\n1,2,x\n", "a line that is not"),
        ("client,from,until\n1,5,2\n", "ends before it begins"),
        ("client,from,until\n1,0,5\n1,4,9\n", "spans of client 1 overlap"),
    ],
)
def test_traces_that_make_no_sense_are_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Traces.read(written(tmp_path, text))


@pytest.mark.parametrize("text", ["duty:24h", "duty:24h:0", "duty:24h:1.5", "duty:x:0.5", "duty"])
def test_duty_cycles_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="`availability=`"):
        Hours.parse(text)


def test_lengths_of_time_have_units() -> None:
    texts = ("90", "90s", "1.5m", "0.025h", ".5d", "1e2s")
    assert [seconds(text, "deadline") for text in texts] == [90, 90, 90, 90, 43200, 100]
    for text in ("", "0s", "-1s", "5 weeks", "s", "1e400s"):
        with pytest.raises(ValueError, match="`deadline=` takes a length of time"):
            seconds(text, "deadline")
