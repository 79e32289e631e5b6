"""A run that goes on beyond its end is the run that was that long from the start."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gossamer import METHODS, FedAvg, Key, Options, Training, fields
from gossamer.conformance.toys import Tiny, plain_task, small
from gossamer.core import AnyMethod
from gossamer.engine import checkpoint
from gossamer.engine.longer import LONGER, extend
from gossamer.engine.loop import start
from gossamer.engine.run_record import Run
from helpers import lines

RARE = ("-low", "-high", "-kingma", "-reddi", "fedyogi", "fedadagrad", "-sign", "-paper", "-clean")
NAMES = [name for name in METHODS if not name.endswith(RARE)]
OPTIONS = Options(workers=1, eval_every=1)


def run_of(method: AnyMethod, out: Path, rounds: int) -> Run:
    return Run(method, plain_task(), Tiny(), rounds=rounds, key=Key(2), options=OPTIONS, out=out)


@pytest.mark.parametrize("name", NAMES)
def test_every_method_goes_on_to_the_same_bits_or_says_why_not(name: str, tmp_path: Path) -> None:
    method = small(METHODS[name])
    short = run_of(method, tmp_path / "short", 3)
    start(short)
    if reason := fields.spans_rounds(method):
        with pytest.raises(checkpoint.Unusable, match="is spread over all rounds") as refused:
            extend(short, 5)
        assert reason in str(refused.value)
        return
    whole = start(run_of(method, tmp_path / "whole", 5))
    gone_on = start(extend(short, 5), resume=True)
    assert gone_on.state_hash == whole.state_hash and gone_on.rounds == 5
    assert dict(gone_on.accuracy) == dict(whole.accuracy)
    assert lines(tmp_path / "short/events.jsonl") == lines(tmp_path / "whole/events.jsonl")


SPANNING = {
    "feddst": "--readjust-until 0.5",
    "fedspa": "--search-rate 0.5",
    "pffdst": "--freezing and --trim-at",
    "pffdst-no-freezing": "--trim-at",
    "zerofl": "--schedule exponential-to",
    "spdst": "--schedule exponential-to",
    "nst-variants": "--schedule exponential-to",
    "fedavg": "",
    "random_mask": "",
    "fedspa-static": "",
    "spdst-code": "",
    "prunefl": "",
}


@pytest.mark.parametrize("name", SPANNING)
def test_what_is_spread_over_all_rounds_is_declared(name: str) -> None:
    assert fields.spans_rounds(METHODS[name]) == SPANNING[name]


def test_settings_decide_what_is_spread_over_all_rounds() -> None:
    cosine = FedAvg(training=Training(schedule="cosine"))
    assert fields.spans_rounds(cosine) == "--schedule cosine"
    for name, settings in {
        "feddst-variants": {"final_density": 0.1, "readjust_ratio": 0.0},
        "prunefl-variants": {"target_density": 0.1},
        "fedtiny": {"schedule": "exponential-to"},
    }.items():
        assert fields.spans_rounds(fields.replace(METHODS[name], settings))


def test_what_is_declared_does_change_how_a_run_begins(tmp_path: Path) -> None:
    """Otherwise runs would be refused for nothing."""
    method = FedAvg(clients=2, training=Training(schedule="cosine", lr=0.3))
    ends = {}
    for rounds in (2, 6):
        stop = _StopAfter(2)
        start(run_of(method, tmp_path / str(rounds), rounds), sinks=[stop], stop=stop.stop)
        ends[rounds] = checkpoint.newest(tmp_path / str(rounds) / "rounds")
    assert ends[2] is not None and ends[6] is not None and ends[2].server != ends[6].server


class _StopAfter:
    def __init__(self, round: int) -> None:
        from gossamer.engine import Stop

        self.round = round
        self.stop = Stop()

    def emit(self, event: object, clock: object) -> None:
        if type(event).__name__ == "RoundFinished" and event.round == self.round:  # type: ignore[attr-defined]
            self.stop.request()

    def close(self) -> None:
        pass


def test_the_log_says_how_many_rounds_there_are_even_if_that_takes_more_digits(
    tmp_path: Path,
) -> None:
    short = run_of(FedAvg(clients=2), tmp_path / "a", 9)
    start(short)
    whole = start(run_of(FedAvg(clients=2), tmp_path / "b", 11))
    assert start(extend(short, 11), resume=True).state_hash == whole.state_hash
    first = json.loads((tmp_path / "a/events.jsonl").read_text().splitlines()[0])
    assert first["rounds"] == 11
    assert lines(tmp_path / "a/events.jsonl") == lines(tmp_path / "b/events.jsonl")


def test_an_extension_that_was_killed_is_completed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = run_of(FedAvg(clients=2), tmp_path / "a", 9)
    start(short)
    whole = start(run_of(FedAvg(clients=2), tmp_path / "b", 11))
    rename = Path.replace

    def killed(self: Path, target: Path) -> Path:
        if self.name == LONGER:
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        extend(short, 11)
    monkeypatch.undo()
    assert start(extend(short, 11), resume=True).state_hash == whole.state_hash
    assert lines(tmp_path / "a/events.jsonl") == lines(tmp_path / "b/events.jsonl")
    assert not (tmp_path / "a" / LONGER).exists()


def test_fewer_rounds_and_folders_without_a_run_are_refused(tmp_path: Path) -> None:
    short = run_of(FedAvg(clients=2), tmp_path / "a", 2)
    start(short)
    with pytest.raises(checkpoint.Unusable, match="does not go beyond"):
        extend(short, 2)
    with pytest.raises(checkpoint.Unusable, match="no checkpoint to continue from"):
        extend(replace(short, out=tmp_path), 3)
    with pytest.raises(checkpoint.Unusable, match="another method"):
        extend(replace(short, key=Key(3)), 3)
