"""Runs from Python: progress, history, a folder that others go on from, and what cannot be."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import gossamer as gs
from gossamer import data, export
from gossamer.cli import main
from gossamer.core import Key
from gossamer.engine import Stop, start
from gossamer.engine.run_record import Run
from gossamer.references import reference
from gossamer.task.first_weights import seeded_globally

FAST = gs.Options(workers=1, checkpoint_every=1)
QUICK = gs.FedAvg(clients=2, training=gs.Training(epochs=1, batch=8, lr=0.1))


def arrays(count: int = 80) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(count, 4)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.int64)


def federation() -> data.Tensors:
    return gs.Federation.from_arrays(*arrays(), pool=4)


def build(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], 5), nn.ReLU(), nn.Linear(5, classes))


def test_progress_goes_to_standard_error_unless_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    gs.run(QUICK, build, federation, rounds=2, options=FAST)
    said = capsys.readouterr()
    assert "round 2/2" in said.err and not said.out
    gs.run(QUICK, build, federation, rounds=2, options=FAST, quiet=True)
    assert capsys.readouterr() == ("", "")


def test_history_has_a_record_per_round() -> None:
    summary = gs.run(QUICK, build, federation, rounds=3, options=FAST, quiet=True)
    history = summary.history
    assert history["round"] == [0, 1, 2, 3] and len(history) == 4
    assert history[-1]["global_accuracy"] == summary.accuracy["global"]
    assert history[-1]["up"] == summary.cost.up and history[0]["up"] == 0
    assert history["down"] == sorted(history["down"])


def test_history_is_a_table_where_pandas_is_installed() -> None:
    pytest.importorskip("pandas")
    summary = gs.run(QUICK, build, federation, rounds=2, options=FAST, quiet=True)
    table = summary.history.to_pandas()
    assert list(table.index) == [0, 1, 2] and table["up"].iloc[-1] == summary.cost.up


def test_a_table_without_pandas_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        gs.History([]).to_pandas()


def test_history_of_a_resumed_run_is_that_of_an_uninterrupted_one(tmp_path: Path) -> None:
    whole = gs.run(QUICK, build, federation, rounds=3, options=FAST, quiet=True)
    out = tmp_path / "run"
    gs.run(QUICK, build, federation, rounds=3, options=FAST, quiet=True, out=out)
    shutil.rmtree(out / "rounds" / "000003")
    again = gs.resume(out, quiet=True)
    assert again.state_hash == whole.state_hash
    without = [{**record, "seconds": 0} for record in again.history]
    assert without == [{**record, "seconds": 0} for record in whole.history]


def test_a_summary_draws_and_reports(tmp_path: Path) -> None:
    out = tmp_path / "run"
    summary = gs.run(QUICK, build, federation, rounds=2, options=FAST, quiet=True, out=out)
    figure = summary.plot(tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 1000
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert summary.report() == out / "report.html"
    assert "<html" in (out / "report.html").read_text()
    kept_nothing = gs.run(QUICK, build, federation, rounds=1, options=FAST, quiet=True)
    with pytest.raises(FileNotFoundError, match=r"kept no folder.*`out=`"):
        kept_nothing.report()


def test_what_functions_of_a_file_build_can_be_resumed_and_exported(tmp_path: Path) -> None:
    out = tmp_path / "run"
    summary = gs.run("fedavg", build, many, rounds=2, options=FAST, quiet=True, out=out)
    assert main(["resume", str(out), "--quiet"]) == 0
    assert main(["export", str(out)]) == 0 and (out / "model.safetensors").exists()
    assert main(["report", str(out), "-o", str(tmp_path / "page.html")]) == 0
    assert gs.resume(out, quiet=True).state_hash == summary.state_hash
    first = (out / "config.toml").read_text().splitlines()[0]
    assert first == f"# gossamer run {out / 'config.toml'}"


def many() -> data.Tensors:
    return gs.Federation.from_arrays(*arrays(200), pool=10)


def test_names_and_federations_by_name_are_written_as_settings(tmp_path: Path) -> None:
    divided = data.federation("fmnist-mini", "dirichlet:0.5", pool=6, seed=3, valid=0.1)
    method = gs.FedProx(clients=2, mu=0.3, training=gs.Training(epochs=0.1))
    summary = gs.run(
        method, "mlp:hidden=8", divided, rounds=1, options=FAST, quiet=True, out=tmp_path / "run"
    )
    text = (tmp_path / "run" / "config.toml").read_text()
    for line in ('method = "fedprox"', 'partition = "dirichlet:0.5"', "pool = 6", "data_seed = 3"):
        assert line in text
    assert 'model = "mlp:hidden=8"' in text and "mu = 0.3" in text and "valid = 0.1" in text
    assert gs.resume(tmp_path / "run", quiet=True).state_hash == summary.state_hash


def test_what_cannot_be_built_again_is_said_and_can_be_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, divided = tmp_path / "run", federation()
    net = nn.Linear(4, 2)
    summary = gs.run(QUICK, net, divided, rounds=2, options=FAST, quiet=True, out=out)
    head = (out / "config.toml").read_text().splitlines()[1]
    assert "cannot build the model (Linear) and the data (arrays) again" in head
    for command in ("resume", "export"):
        assert main([command, str(out)]) == 2
        said = capsys.readouterr().err
        assert "the data of this run, arrays, was an object" in said and "gs.resume(" in said
    assert main(["report", str(out), "-o", str(tmp_path / "page.html")]) == 0
    with pytest.raises(ValueError, match=r"the model of this run, Linear.*task=\.\.\."):
        gs.resume(out, federation=divided)
    again = gs.resume(out, task=net, federation=divided, quiet=True)
    assert again.state_hash == summary.state_hash
    parts = (
        QUICK,
        gs.Task.of(nn.Linear(4, 2), divided.client(0).train.x[:2], start="seed"),
        divided,
    )
    assert export.take(out, parts=parts).weights == 10
    for other in (nn.Linear(4, 2, bias=False), nn.Linear(4, 2)):  # of another form; other weights
        with pytest.raises(Exception, match="other settings, rounds, seed or first weights"):
            gs.resume(out, task=other, federation=divided, quiet=True)


def test_a_folder_that_holds_a_run_is_refused(tmp_path: Path) -> None:
    gs.run(QUICK, build, federation, rounds=1, options=FAST, quiet=True, out=tmp_path)
    with pytest.raises(ValueError, match=r"already holds a run; gs\.resume\(.*`out=`"):
        gs.run(QUICK, build, federation, rounds=1, options=FAST, quiet=True, out=tmp_path)


def test_errors_name_arguments_and_the_command_line_names_options(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(ValueError, match="use `clients=4` or fewer, or a larger `pool=`"):
        gs.run(gs.FedAvg(clients=9), build, federation, rounds=1, quiet=True)
    with pytest.raises(ValueError, match="`lr=` must be above 0, not -1"):
        gs.run(gs.FedAvg(2, training=gs.Training(lr=-1)), build, federation, rounds=1, quiet=True)
    assert main(["run", "fedavg", "--pool", "4", "--clients", "9"]) == 2
    assert "use --clients 4 or fewer, or a larger --pool" in capsys.readouterr().err
    assert main(["run", "fedavg", "--select", "valid", "--pool", "10"]) == 2
    said = capsys.readouterr().err
    assert "--select valid chooses" in said and "add e.g. --valid 0.1" in said and "`" not in said


def test_no_error_of_the_library_names_an_option() -> None:
    home = Path(gs.__file__).parent
    errors = [
        (path.name, error)
        for path in home.rglob("*.py")
        if path.relative_to(home).parts[0] not in ("cli", "flower", "standalone")
        for error in _errors(path.read_text(encoding="utf-8"))
    ]
    assert len(errors) > 200
    offenders = [
        (name, error)
        for name, error in errors
        if " --" in f" {error}" and "gossamer " not in error and "--track" not in error
    ]
    assert not offenders


def _errors(source: str) -> list[str]:
    """The texts of all errors that a module raises."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            parts = [part.value for part in ast.walk(node.exc) if isinstance(part, ast.Constant)]
            found.append(" ".join(part for part in parts if isinstance(part, str)))
    return found


def test_every_method_can_be_imported_from_gossamer() -> None:
    from gossamer import methods

    for name in methods.__all__:
        if name != "PUBLISHED":
            assert getattr(gs, name) is getattr(methods, name) and name in dir(gs)


def test_importing_gossamer_does_not_import_torch() -> None:
    program = "import sys, gossamer; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False"]


def test_representations_are_short(tmp_path: Path) -> None:
    divided = federation()
    task = gs.Task.of(build((4,), 2), divided.client(0).train.x[:2], start="seed")
    summary = gs.run(QUICK, task, divided, rounds=1, options=FAST, quiet=True)
    run = Run(QUICK, task, divided, rounds=1)
    for thing in (divided, task, summary, summary.history, run, divided.arrays):
        assert len(repr(thing)) < 260 and "\n" not in repr(thing), repr(thing)
    assert repr(task).startswith("Task(Sequential, cross_entropy: 37 parameters, 30 of them")


def test_references_find_what_files_define() -> None:
    assert reference(build) == f"{Path(__file__).resolve()}:build"
    assert reference(lambda: 1) is None and reference(QUICK) is None
    assert reference(gs.FedAvg) == "gossamer.methods.fedavg:FedAvg"


def test_a_stopped_run_is_continued_from_python(tmp_path: Path) -> None:
    out, divided = tmp_path / "run", federation()
    whole = gs.run(QUICK, build, divided, rounds=3, options=FAST, quiet=True)
    stop = Stop()

    class Stopping:
        def emit(self, event: object, clock: object) -> None:
            if getattr(event, "round", 0) == 1:
                stop.request()

        def close(self) -> None: ...

    gs.run(QUICK, build, divided, rounds=3, options=FAST, quiet=True, out=tmp_path / "other")
    with seeded_globally(Key(0).fold("model")):
        task = gs.Task.of(build((4,), 2), divided.client(0).train.x[:2])
    made = Run(QUICK, task, divided, rounds=3, options=FAST, name="fedavg", out=out)
    assert start(made, sinks=[Stopping()], stop=stop).interrupted
    (out / "config.toml").write_text((tmp_path / "other" / "config.toml").read_text())
    assert gs.resume(out, federation=divided, quiet=True).state_hash == whole.state_hash
