"""Kept results: small files that are read back as runs."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from gossamer.cli import main
from gossamer.config import read
from gossamer.report import NoRun, read_run
from gossamer.report.figures import figures
from gossamer.report.groups import grouped
from gossamer.report.kept import Shelf, keep, read_kept
from gossamer.reproduce.published import measure
from gossamer.reproduce.tables import Column

RUN = "run spdst --data fmnist-mini --model mnistnet --pool 20 --clients 2 --rounds 3 --density .1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "one"
    assert main([*RUN.split(), "--quiet", "--out", str(out)]) == 0
    return out


def known(figures: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in figures.items() if value is not None}


def test_a_kept_result_has_the_figures_of_its_run(folder: Path, tmp_path: Path) -> None:
    run = read_run(folder)
    path = keep(run, tmp_path / "paper" / "one.json")
    assert path.stat().st_size < 6000
    kept = read_run(path)
    for accuracy in ("global_score", "personal_mean"):
        mine, theirs = known(figures(kept, accuracy)), known(figures(run, accuracy))
        assert mine == pytest.approx(theirs, rel=1e-5)
    for figure in ("global", "clients", "sent", "paper", "flops", "density", "mismatch"):
        column = Column(figure, figure, figure)
        assert measure(run, column) is not None
        assert measure(kept, column) == pytest.approx(measure(run, column), rel=1e-5)
    assert run.layers and kept.layers == {
        layer: {name: pytest.approx(curve, rel=1e-5) for name, curve in curves.items()}
        for layer, curves in run.layers.items()
    }
    assert kept.finished["state_hash"] == run.finished["state_hash"]
    assert kept.command == run.command
    assert kept.seed == run.seed


def test_a_result_is_found_by_its_settings(folder: Path, tmp_path: Path) -> None:
    keep(read_run(folder), tmp_path / "one.json")
    (tmp_path / "other.json").write_text("{}")
    shelf, config = Shelf(tmp_path), read(folder / "config.toml")
    assert [run.folder for run in shelf] == [str(tmp_path / "one.json")]
    assert shelf.find(config) is not None
    assert shelf.find(replace(config, options=replace(config.options, workers=1))) is not None
    elsewhere = replace(config, experiment=replace(config.experiment, device="cuda"))
    assert shelf.find(elsewhere) is not None
    other = replace(config, experiment=replace(config.experiment, seed=5))
    assert shelf.find(other) is None
    assert shelf.find(replace(config, method="pdst")) is None


def test_results_from_before_an_option_and_before_layers_are_found(
    folder: Path, tmp_path: Path
) -> None:
    path = keep(read_run(folder), tmp_path / "old.json")
    content = json.loads(path.read_bytes())
    del content["config"]["settings"]["bn"], content["layers"], content["densities"]
    path.write_text(json.dumps(content))
    config = read(folder / "config.toml")
    found = Shelf(tmp_path).find(config)
    assert found is not None and not found.layers
    other = replace(config, settings={**config.settings, "bn": "static"})
    assert Shelf(tmp_path).find(other) is None


def test_densities_of_clients_are_kept(tmp_path: Path) -> None:
    words = RUN.replace("spdst", "fedspa").split()
    assert main([*words, "--quiet", "--out", str(tmp_path / "one")]) == 0
    run = read_run(tmp_path / "one")
    assert len(run.densities) == 20 and min(run.densities) == pytest.approx(0.1, abs=0.01)
    assert read_kept(keep(run, tmp_path / "one.json")).densities == run.densities


def test_long_runs_keep_their_best_and_their_latest_evaluations(
    tmp_path: Path, folder: Path
) -> None:
    run = read_run(folder)
    curve = {at: 0.5 + (0.4 if at == 777 else at / 10_000) for at in range(1001)}
    kept = read_kept(keep(replace(run, curves={"global_score": curve}), tmp_path / "long.json"))
    shown = kept.curve("global_score")
    assert len(shown) < 90
    assert shown[777] == pytest.approx(0.9)
    assert set(range(991, 1001)) <= set(shown)


def test_kept_results_say_when_a_percent_was_first_reached_and_what_the_first_round_cost(
    tmp_path: Path, folder: Path
) -> None:
    scores = {at: 0.1 + 0.8 * (1 - 0.99**at) + 0.01 * (at % 3) for at in range(0, 1001, 2)}
    sent = {at: 1e6 * at for at in range(1, 1001)}
    run = replace(read_run(folder), curves={"global_score": scores, "up": sent})
    kept = read_kept(keep(run, tmp_path / "long.json"))
    for percent in range(10, 92):
        column = Column("up", "up", "up", reaching=percent)
        assert measure(kept, column) == measure(run, column)
    assert kept.curve("up")[1] == 1e6


def test_the_best_round_is_kept_as_the_run_has_it(tmp_path: Path, folder: Path) -> None:
    """Evaluations before clients have models of their own do not count."""
    scores = {at: 0.8 if at == 777 else 0.2 + (0.3 if at == 888 else 0) for at in range(1001)}
    own = dict.fromkeys(range(800, 1001), 0.5)
    curves = {"personal_mean": scores, "personal_density": own}
    run = replace(read_run(folder), curves=curves)
    kept = read_kept(keep(run, tmp_path / "long.json"))
    assert figures(kept, "personal_mean") == figures(run, "personal_mean")
    assert figures(kept, "personal_mean")["best_round"] == 888


def test_kept_results_remember_whether_a_goal_was_reached(tmp_path: Path) -> None:
    for goal, missed in (("bits=1", ""), ("bits=1e15", "goal missed")):
        out = tmp_path / goal
        assert main([*RUN.split(), "--until", goal, "--quiet", "--out", str(out)]) == 0
        kept = read_kept(keep(read_run(out), tmp_path / f"{goal}.json"))
        assert [group.missed for group in grouped([kept])] == [missed]


def test_only_finished_runs_are_kept(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not finished"):
        keep(replace(read_run(folder), finished={}), tmp_path / "x.json")


@pytest.mark.parametrize("text", ["{}", "[]", '{"format": 99}', '{"format": 1}', "no json"])
def test_another_file_is_refused_by_name(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(NoRun, match=r"x\.json"):
        read_run(path)


def test_a_table_is_printed_from_kept_results_without_running(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = ["paper", "flash-mnist", "--only", "spdst-0.1-1.0", "--json"]
    results, first, second = (str(tmp_path / name) for name in ("results", "a", "b"))
    rows = _rows(capsys)
    quick[3] = rows[0]
    assert main([*quick, "--out", first, "--results", results]) == 0
    mine = json.loads(capsys.readouterr().out.splitlines()[-1])["figures"]
    assert main([*quick, "--out", second, "--results", results]) == 0
    shown = capsys.readouterr().out
    assert "1 of 1 runs are kept in" in shown
    theirs = json.loads(shown.splitlines()[-1])["figures"]
    assert json.dumps(theirs)[:200] == json.dumps(mine)[:200]
    assert not list(Path(second).rglob("events.jsonl"))


def _rows(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The rows that the smallest scale runs."""
    assert main(["paper", "flash-mnist", "--dry", "--json"]) == 0
    shown = capsys.readouterr().out.splitlines()[-1]
    return [run["row"] for run in json.loads(shown)["runs"]]
