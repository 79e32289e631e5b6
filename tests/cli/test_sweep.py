"""Sweeps: which settings are tried, that they resume, and that validation data decide."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import gossamer as gs
from gossamer.cli import main
from gossamer.engine.options import Options
from gossamer.fields import settings
from gossamer.reproduce import sweep_results, sweeps
from gossamer.reproduce.sweep_results import Trial

KNOWN = {item.name: item for item in (*settings(gs.FedAvg()), *settings(Options()))}


def test_numbers_and_choices_have_lists_and_texts_do_not() -> None:
    assert sweeps.listed(KNOWN["lr"], "0.01,0.1") == ["0.01", "0.1"]
    assert sweeps.listed(KNOWN["select"], "valid,test") == ["valid", "test"]
    assert sweeps.listed(KNOWN["network"], "up=1,down=2") == ["up=1,down=2"]
    assert sweeps.listed(KNOWN["lr"], "0.001..0.1") == ["0.001..0.1"]
    with pytest.raises(ValueError, match="a number, not 'x'"):
        sweeps.listed(KNOWN["lr"], "0.1,x")
    with pytest.raises(ValueError, match="a value twice"):
        sweeps.listed(KNOWN["lr"], "0.1,0.1")


def test_a_grid_has_every_combination_and_refuses_ranges() -> None:
    tried = sweeps.grid({"lr": ["1", "2"], "batch": ["8", "16", "32"]})
    assert len(tried) == 6 and tried[1] == {"lr": "1", "batch": "16"}
    with pytest.raises(ValueError, match=r"`lr=1\.\.2` is a range.*`random=20`"):
        sweeps.grid({"lr": ["1..2"]})


def test_draws_are_within_ranges_different_and_repeatable() -> None:
    values = {"lr": ["0.001..1"], "batch": ["8..64"], "momentum": ["0", "0.9"]}
    tried = sweeps.drawn(values, 50, seed=1, whole=["batch"])
    assert tried == sweeps.drawn(values, 50, seed=1, whole=["batch"])
    assert len({json.dumps(each) for each in tried}) == 50
    rates = [float(each["lr"]) for each in tried]
    assert 0.001 <= min(rates) < 0.01 and 0.1 < max(rates) <= 1  # of every decade
    assert all(8 <= int(each["batch"]) <= 64 for each in tried)
    assert {each["momentum"] for each in tried} == {"0", "0.9"}
    assert len(sweeps.drawn({"momentum": ["0", "0.9"]}, 50, seed=1)) == 2


def trial(name: str, valid: list[float], test: list[float], missing: int = 0) -> Trial:
    figures = [
        {
            "seed": seed,
            "scores": {"valid_best": v, "best": t},
            "density": 1.0,
            "bits": {"up": 1, "down": 1},
            "seconds": 1.0,
        }
        for seed, (v, t) in enumerate(zip(valid, test, strict=True))
    ]
    return Trial({"lr": name}, figures, missing)


def test_validation_data_decide_and_not_test_data() -> None:
    trials = [trial("a", [0.5, 0.6], [0.9, 0.9]), trial("b", [0.7, 0.8], [0.4, 0.4])]
    winner = sweep_results.best(trials, "valid")
    assert winner is not None and winner.settings == {"lr": "b"}
    assert sweep_results.text(trials, "valid").splitlines()[2].lstrip().startswith("* b")
    other = sweep_results.best(trials, "test")
    assert other is not None and other.settings == {"lr": "a"}
    assert "chosen: expect worse" in sweep_results.verdict(trials, "test")


def test_a_combination_with_failed_runs_does_not_win() -> None:
    trials = [trial("a", [0.9], [0.9], missing=1), trial("b", [0.7, 0.8], [0.4, 0.4])]
    winner = sweep_results.best(trials, "valid")
    assert winner is not None and winner.settings == {"lr": "b"}
    assert sweep_results.best([trials[0]], "valid") is None
    assert "(1 missing)" in sweep_results.text(trials, "valid")


def test_a_difference_within_the_noise_is_not_shown() -> None:
    near = [trial("a", [0.70, 0.80], [0.5, 0.5]), trial("b", [0.71, 0.81], [0.5, 0.5])]
    assert "no difference shown to lr=a" in sweep_results.verdict(near, "valid")
    far = [trial("a", [0.10, 0.11], [0.5, 0.5]), trial("b", [0.71, 0.725], [0.5, 0.5])]
    assert "no difference" not in sweep_results.verdict(far, "valid")
    one = [trial("a", [0.10], [0.5]), trial("b", [0.71], [0.5])]
    assert "one seed shows no difference to the others" in sweep_results.verdict(one, "valid")
    assert "no difference" not in sweep_results.verdict(one[:1], "valid")


@pytest.fixture
def points(tmp_path: Path) -> str:
    x = np.random.default_rng(0).normal(size=(160, 4)).astype(np.float32)
    np.savez(tmp_path / "points.npz", x=x, y=(x[:, 0] > 0).astype(np.int64))
    return f"npz:{tmp_path / 'points.npz'}"


def test_a_sweep_runs_side_by_side_resumes_and_writes_a_page(
    tmp_path: Path, points: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "sweep"
    common = ["--data", points, "--pool", "4", "--clients", "2", "--model", "mlp:hidden=4"]
    command = ["sweep", "fedavg", "--lr", "0.0001,0.5", "--seeds", "2", "--select", "valid"]
    words = [*command, *common, "--rounds", "3", "--processes", "2", "--out", str(out)]
    assert main([*words, "--json"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out.splitlines()[-1])
    assert "--valid 0.1 holds out" in said.err and "4 runs, 2 at a time" in said.out
    assert found["best"] == {"lr": "0.5"} and found["select"] == "valid"
    assert [len(each["runs"]) for each in found["trials"]] == [2, 2]
    assert "--lr 0.5" in said.out and (out / "report.html").stat().st_size > 10_000
    assert (out / "sweep.csv").read_text().startswith("lr,seeds,missing,valid_best")
    hashes = {run["run"]: run["state_hash"] for each in found["trials"] for run in each["runs"]}
    # A run that is missing is done again, to the same bits; the others are not touched.
    lost = out / "fedavg,lr=0.5" / "seed-1"
    shutil.rmtree(lost / "rounds")
    (lost / "events.jsonl").unlink()
    kept = (out / "fedavg,lr=0.5" / "seed-0" / "events.jsonl").stat().st_mtime_ns
    assert main(["sweep", "--resume", str(out), "--json", "--processes", "1"]) == 0
    said = capsys.readouterr()
    again = json.loads(said.out.splitlines()[-1])
    assert "3 of them finished already" in said.out
    assert {r["run"]: r["state_hash"] for e in again["trials"] for r in e["runs"]} == hashes
    assert (out / "fedavg,lr=0.5" / "seed-0" / "events.jsonl").stat().st_mtime_ns == kept
    # A log alone cannot be made again: the run is named, and the others are shown.
    (lost / "events.jsonl").unlink()
    assert main(["sweep", "--resume", str(out)]) == 1
    said = capsys.readouterr()
    assert f"{lost / 'events.jsonl'} is missing; nothing was changed" in said.err
    assert "lr=0.0001" in said.out


def test_what_cannot_be_swept_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["sweep"], "name a method first"),
        (["sweep", "fedavg", "--lr", "0.1..1"], "--lr 0.1..1 is a range"),
        (["sweep", "fedavg", "--seed", "1,2"], "use --seeds 3"),
        (["sweep", "fedavg", "--pool", "4,8"], "pool is the same for all"),
        (["sweep", "--resume", "/nowhere"], "holds no comparison"),
    ):
        assert main(words) == 2
        assert said in capsys.readouterr().err


def test_python_sweeps_return_the_best_settings(capsys: pytest.CaptureFixture[str]) -> None:
    x = np.random.default_rng(0).normal(size=(160, 4)).astype(np.float32)
    made = gs.Federation.from_arrays(x, (x[:, 0] > 0).astype(np.int64), pool=4, valid=0.2)
    found = gs.sweep(
        gs.FedAvg(clients=2), "mlp:hidden=4", made, {"lr": [0.0001, 0.5]}, rounds=3, seeds=(1, 2)
    )
    assert found.best == {"lr": 0.5} and len(found.runs) == 4
    assert "best: lr=0.5" in repr(found)
    with pytest.raises(ValueError, match="no setting 'rate'"):
        gs.sweep("fedavg", "mlp", made, {"rate": [1]}, rounds=1)
    assert "lr=0.5 seed 2" in capsys.readouterr().err
