"""What a run shows while it goes, in a pipe and on a terminal."""

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest

from gossamer.cli.progress import Lines, Live, failure
from gossamer.engine import replay
from gossamer.engine.events import ClientFailed, Clock, Evaluated, Measured, RoundFinished

from .test_stopping import Command


def finished(round: int) -> RoundFinished:
    names = RoundFinished.__dataclass_fields__
    costs = {name: 10**9 for name in names if name.endswith(("up", "down", "flops"))}
    rest = {name: None for name in names if name not in costs}
    told = {"round": round, "clients": [1], "failed": [], "density": 0.5, "metrics": {}}
    return RoundFinished(**{**rest, **costs, **told})


def evaluated(round: int) -> Evaluated:
    return Evaluated(round, 0.8123, 0.5, 0.7654, 0.1, 0.6, 10)


CLOCK = Clock(0.0, 1.0)
FAILED = ClientFailed(2, 7, "step", "RuntimeError: no", 0, 0)


def test_a_pipe_gets_the_line_of_a_round_as_soon_as_it_is_evaluated() -> None:
    stream = io.StringIO()
    lines = Lines(5, stream)
    lines.emit(finished(1), CLOCK)
    lines.emit(evaluated(1), CLOCK)
    (line,) = stream.getvalue().splitlines()
    assert line.startswith("round 1/5") and "accuracy 0.8123" in line and "2 Gbit" in line


def test_the_line_of_a_round_waits_for_its_evaluation_behind_its_measures() -> None:
    stream = io.StringIO()
    lines = Lines(5, stream)
    lines.emit(finished(1), CLOCK)
    lines.emit(Measured(1, 0.1, None, {}, {}), CLOCK)
    lines.emit(evaluated(1), CLOCK)
    (line,) = stream.getvalue().splitlines()
    assert "accuracy 0.8123" in line and "density 0.5" in line


def test_the_validation_figure_is_shown_where_there_is_one() -> None:
    stream = io.StringIO()
    lines = Lines(5, stream)
    for round, valid in ((1, 0.4321), (2, None)):
        lines.emit(finished(round), CLOCK)
        lines.emit(replace(evaluated(round), valid_mean=valid), CLOCK)
    first, second = stream.getvalue().splitlines()
    assert "personal 0.7654  valid 0.4321  2 Gbit" in first and "valid" not in second


def test_a_pipe_gets_one_line_a_round_however_often_rounds_are_evaluated() -> None:
    stream = io.StringIO()
    lines = Lines(5, stream)
    for round in (1, 2, 3):
        lines.emit(finished(round), CLOCK)
        if round == 2:
            lines.emit(evaluated(round), CLOCK)
    lines.close()
    assert [line[:9] for line in stream.getvalue().splitlines()] == [
        "round 1/5",
        "round 2/5",
        "round 3/5",
    ]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_terminal_shows_every_figure_whatever_its_width(width: int) -> None:
    console = pytest.importorskip("rich.console")
    stream = io.StringIO()
    screen = console.Console(file=stream, force_terminal=True, width=width)
    live = Live(500, "fedadam-reddi", console=screen)
    live.emit(finished(123), CLOCK)
    live.emit(evaluated(123), CLOCK)
    live.close()
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    last = " ".join(shown[shown.rindex("fedadam") :].split())
    for figure in ("round 123/500", "accuracy 0.8123", "2 Gbit", "density 0.5", "examples/s"):
        assert figure in last
    assert re.search(r"left \d+:\d\d", last)


def test_a_failure_tells_how_to_replay_it_where_that_is_possible(tmp_path: Path) -> None:
    run = tmp_path / "my run"
    assert "replay" not in failure(FAILED, run)  # nothing was kept, such as of a silent node
    replay.path(run / "rounds", 2, 7).parent.mkdir(parents=True)
    replay.path(run / "rounds", 2, 7).touch()
    text = failure(FAILED, run)
    assert text.endswith(f"replay it with: gossamer replay '{run}' --round 2 --client 7")
    assert "replay" not in failure(FAILED)


def test_the_demo_compares_methods_writes_a_report_and_can_be_read_by_programs(
    gossamer: Command,
) -> None:
    found = gossamer("demo", "--rounds", "2", "--json")
    names = ["fedavg", "spafl", "spdst", "fedsparse"]
    runs = found.json["runs"]
    assert found.code == 0 and [run["method"] for run in runs] == names
    assert all(0 < run["accuracy"]["personal_mean"] < 1 and run["rounds"] == 2 for run in runs)
    assert [row["run"] for row in found.json["rows"]] == names
    assert found.out.splitlines()[-2] == "report: runs/demo/report.html"
    page = Path(found.json["report"]).read_text()
    assert "· 2 rounds ·" in page and "30 rounds" not in page and all(name in page for name in names)
    assert all(f'data-chart="{name}"' in page for name in ("rounds", "sent", "ledger", "layers"))
