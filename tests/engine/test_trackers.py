"""Trackers get curves and can do no harm."""

from pathlib import Path

import pytest

from gossamer.engine.events import Clock, Evaluated, Event, Finished, Measured, RoundFinished
from gossamer.engine.trackers import Guarded, scalars, tracker

CLOCK = Clock(0.0, 0.0)
EVALUATED = Evaluated(3, 0.5, 1.0, None, None, None, 0)


class Broken:
    """A tracker that loses its connection."""

    def __init__(self) -> None:
        self.calls = 0

    def emit(self, event: Event, clock: Clock) -> None:
        self.calls += 1
        raise ConnectionError("the network is gone")

    def close(self) -> None:
        self.calls += 1


def test_a_tracker_that_fails_is_let_go_with_one_word() -> None:
    told: list[str] = []
    inner = Broken()
    guarded = Guarded(inner, "broken", told.append)
    for _ in range(3):
        guarded.emit(EVALUATED, CLOCK)
    guarded.close()
    assert inner.calls == 1
    assert told == ["broken failed and is left out from here on: the network is gone"]


def test_scalars_leave_out_what_a_method_does_not_have() -> None:
    assert scalars(EVALUATED) == {"accuracy/global": 0.5, "loss/global": 1.0}
    finished = RoundFinished(1, [0], [], 0.25, {"loss": 2.0}, 10, 20, 9.5, 19.5, 30, 40, 50, None)
    assert scalars(finished) == {
        "bits/up": 10.0,
        "bits/down": 20.0,
        "flops": 50.0,
        "density": 0.25,
        "train/loss": 2.0,
    }


def test_measures_have_curves_of_the_whole_and_of_each_layer() -> None:
    start = Measured(0, 0.5, None, {"a": {"density": 0.5, "mismatch": None}}, {})
    assert scalars(start) == {"density/global": 0.5, "layer/a/density": 0.5}
    later = Measured(1, 0.5, 0.25, {"a": {"density": 0.5, "mismatch": 0.25}}, {"norm": 3.0})
    assert scalars(later) == {
        "density/global": 0.5,
        "mismatch": 0.25,
        "server/norm": 3.0,
        "layer/a/density": 0.5,
        "layer/a/mismatch": 0.25,
    }
    assert scalars(Measured(1, None, None, {}, {"norm": 3.0})) == {"server/norm": 3.0}


def test_a_tracker_that_cannot_start_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(out: Path, name: str) -> Broken:
        raise RuntimeError("no server\nand a long story")

    monkeypatch.setattr("gossamer.engine.trackers.TRACKERS", {"broken": refuse})
    with pytest.raises(ValueError, match=r"--track broken cannot start: no server$"):
        tracker("broken", tmp_path, "run", print)


def test_tensorboard_has_one_curve_of_a_run_that_repeats_rounds(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for rounds, accuracy in (((0, 1, 2, 3), 0.25), ((2, 3, 4), 0.5)):
        board = tracker("tensorboard", tmp_path, "run", pytest.fail)
        for number in rounds:
            found = Evaluated(number, accuracy, 1.0, 0.5, 0.1, 0.25, 3, local_mean=0.75)
            board.emit(found, CLOCK)
            board.emit(Measured(number, 0.5, 0.125, {}, {}), CLOCK)
        board.close()
    finished = tracker("tensorboard", tmp_path, "run", pytest.fail)
    finished.emit(Finished(4, {}, 1.0, ""), CLOCK)  # all there is of a run resumed after its end
    finished.close()
    log = EventAccumulator(str(tmp_path / "tensorboard"))
    log.Reload()
    curves = {
        name: [(each.step, each.value) for each in log.Scalars(name)]
        for name in log.Tags()["scalars"]
    }
    assert curves["accuracy/global"] == [(0, 0.25), (1, 0.25), (2, 0.5), (3, 0.5), (4, 0.5)]
    assert curves.keys() == {
        *("accuracy/global", "accuracy/personal_mean", "accuracy/personal_worst_decile"),
        *("accuracy/local_mean", "loss/global", "density/global", "mismatch"),
    }
