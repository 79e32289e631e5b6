"""`gossamer bench`: cell by cell, resumed without repeating any."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gossamer.report.kept import read_kept

from .conftest import Outcome

SMALL = (
    *("bench", "sparse-fl", "--data", "fmnist-mini", "--methods", "fedavg,lg_fedavg"),
    *("--rounds", "2", "--seeds", "1", "--search-rounds", "1", "--rates", "0.01,0.1"),
    *("--results", "kept", "--out", "page"),
)


def test_a_small_benchmark_writes_files_a_page_and_a_picture(
    gossamer: Callable[..., Outcome], tmp_path: Path
) -> None:
    done = gossamer(*SMALL, "--json")
    assert done.code == 0, done.err
    own, dense = sorted(done.json["data"]["fmnist-mini"], key=lambda row: row["method"])[::-1]
    assert own["own_models"] and not dense["own_models"] and dense["seconds"] > 0
    files = sorted(path for path in (tmp_path / "kept").rglob("*.json"))
    folder = tmp_path / "kept" / "benchmark" / "fmnist-mini"
    assert {path.relative_to(folder).parts[0] for path in files} == {"search-1", "rounds-2"}
    assert len(files) == 2 * (2 + 1)
    run = read_kept(folder / "rounds-2" / "fedavg-seed-0.json")
    assert run.command.startswith("gossamer bench sparse-fl --data fmnist-mini")
    assert run.started["environment"] and run.table("experiment")["partition"] == "dirichlet:0.3"
    assert sorted(run.curve("training_seconds")) == [0, 1, 2]
    page = (tmp_path / "page" / "fmnist-mini.html").read_text()
    assert 'data-chart="training_seconds"' in page
    assert "<polyline" in (tmp_path / "page" / "benchmark.svg").read_text()

    lost, before = files[0], {path: path.stat().st_mtime_ns for path in files}
    lost.unlink()
    again = gossamer(*SMALL, "--quiet")
    assert again.code == 0
    changed = {path for path in files if path.stat().st_mtime_ns != before[path]}
    assert changed == {lost}


def test_unusable_words_are_refused(gossamer: Callable[..., Outcome]) -> None:
    for words, said in (
        (("bench", "sparse"), "sparse-fl"),
        ((*SMALL, "--rates", "fast"), "0.01,0.1"),
        ((*SMALL, "--rounds", "0"), "--rounds must be at least 1"),
        ((*SMALL, "--methods", "fedavgg"), "fedavg"),
        ((*SMALL, "--data", "fmnist-minni"), "fmnist-mini"),
    ):
        refused = gossamer(*words)
        assert refused.code == 2 and said in refused.err
