"""Models taken out of their runs: what is written computes what was tested, and nothing is lost."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from gossamer import export
from gossamer.cli import main
from gossamer.core import Ensemble
from gossamer.engine.events import read as events

SMALL = ["--data", "fmnist-mini", "--pool", "100", "--rounds", "1", "--quiet"]

NORMALISED = """
from torch import nn


def build(shape, classes):
    layers = [nn.Flatten(), nn.Linear(784, 16), nn.BatchNorm1d(16), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(16, classes))
"""


def made(folder: Path, method: str, *more: str, model: str = "mlp:hidden=16") -> Path:
    assert main(["run", method, *SMALL, "--model", model, "--out", str(folder), *more]) == 0
    return folder


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "pdst"
    return made(folder, "pdst", "--clients", "2", "--density", "0.1", "--lr", "0.1")


def accuracy_of(run: Path) -> float:
    """Accuracy of the global model, as the run measured it last."""
    log = events(run / "events.jsonl")
    found = [event["global_accuracy"] for event in log if event["event"] == "evaluated"][-1]
    assert isinstance(found, float)
    return found


def files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["fedavg", "fedsparse", "zerofl", "fedpm", "mixture"])
def test_a_model_that_is_taken_has_the_accuracy_that_the_run_measured(
    name: str, tmp_path: Path
) -> None:
    model = export.take(made(tmp_path / "run", name, "--clients", "2"))
    assert export.accuracy(model.module(), model.test) == accuracy_of(tmp_path / "run")


def test_batch_normalisation_without_statistics_is_calibrated_as_for_a_test(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NORMALISED)
    more = ["--clients", "2", "--bn", "static", "--density", "0.5"]
    run = made(tmp_path / "run", "pdst", *more, model=f"{tmp_path / 'net.py'}:build")
    model = export.take(run)
    assert model.task.running_statistics
    assert export.accuracy(model.module(), model.test) == accuracy_of(run)


def test_tensors_come_back_bit_for_bit_packed_or_not_and_the_run_stays_as_it_was(
    sparse: Path, tmp_path: Path
) -> None:
    before = files(sparse)
    model = export.take(sparse)
    assert isinstance(model.params, dict)
    for packed in (False, True):
        path = tmp_path / f"{packed}.safetensors"
        export.save(model, path, packed)
        found = export.load(path)
        assert isinstance(found, dict) and found.keys() == model.params.keys()
        assert all(torch.equal(found[name], model.params[name]) for name in found)
    sizes = [(tmp_path / f"{packed}.safetensors").stat().st_size for packed in (False, True)]
    assert sizes[1] < 0.2 * sizes[0], sizes
    told = export.facts(tmp_path / "True.safetensors")
    assert (told["method"], told["round"]) == ("pdst", 1)
    assert told["density"] == pytest.approx(0.1, abs=0.001)
    assert told["data"]["scale"] == "normalised" and told["data"]["mean"] == [0.286]
    assert files(sparse) == before


def test_zeros_of_a_packed_tensor_can_be_put_back_with_numpy_alone(
    sparse: Path, tmp_path: Path
) -> None:
    import numpy as np
    from safetensors.numpy import load_file

    model = export.take(sparse)
    export.save(model, tmp_path / "packed.safetensors", packed=True)
    tensors = load_file(tmp_path / "packed.safetensors")
    name, shape = next(iter(export.facts(tmp_path / "packed.safetensors")["packed"].items()))
    kept = np.unpackbits(tensors[f"{name}.kept"], bitorder="little", count=np.prod(shape))
    full = np.zeros(len(kept), np.float32)
    full[kept == 1] = tensors[f"{name}.values"]
    assert isinstance(model.params, dict)
    assert np.array_equal(full.reshape(shape), model.params[name].numpy())


@pytest.mark.parametrize("suffix", [".pt2", ".onnx", ".gsm"])
def test_a_program_computes_what_the_model_does_for_any_number_of_examples(
    suffix: str, sparse: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"model{suffix}"
    assert main(["export", str(sparse), "-o", str(path), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out.splitlines()[-1])["accuracy"] == accuracy_of(sparse)
    assert not err
    model = export.take(sparse)
    predict = export.predictor(path, model)
    for count in (1, 7):
        x = model.test.x[:count]
        torch.testing.assert_close(predict(x), model.module()(x), rtol=1e-4, atol=1e-5)


def test_a_compact_model_computes_the_same_with_fewer_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = made(tmp_path / "run", "pdst", "--clients", "2", "--density", "0.01")
    model = export.take(run)
    small = model.compact()
    for name in ("small.safetensors", "small.gsm"):
        path = tmp_path / name
        assert main(["export", str(run), "-o", str(path), "--compact", "--json"]) == 0
        told = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert told["numbers"] == small.weights < model.weights
        assert told["accuracy"] == accuracy_of(run)
    x = model.test.x[:64]
    torch.testing.assert_close(small.module()(x), model.module()(x), rtol=1e-5, atol=1e-5)


def test_an_ensemble_is_written_with_all_its_members(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = made(tmp_path / "run", "mixture", "--clients", "2")
    model = export.take(run)
    export.save(model, tmp_path / "model.safetensors", packed=True)
    found = export.load(tmp_path / "model.safetensors")
    assert isinstance(found, Ensemble) and isinstance(model.params, Ensemble)
    assert found.weights == model.params.weights
    for one, other in zip(found.members, model.members, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in other)
    assert export.accuracy(model.module(), model.test) == accuracy_of(run)
    with pytest.raises(ValueError, match="an ensemble has no compact form"):
        model.compact()
    assert main(["export", str(run), "-o", str(tmp_path / "model.gsm")]) == 2
    assert "holds one model and no ensemble" in capsys.readouterr().err


def test_a_client_has_its_own_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made(tmp_path / "run", "spafl", "--pool", "4", "--clients", "4")
    assert main(["export", str(run)]) == 0
    assert "clients have personal models; --client N exports one" in capsys.readouterr().out
    own = [export.take(run, client) for client in range(4)]
    accuracies = [export.accuracy(model.module(), model.test) for model in own]
    log = events(run / "events.jsonl")
    found = [event["local_mean"] for event in log if event["event"] == "evaluated"][-1]
    assert sum(accuracies) / 4 == pytest.approx(found)
    path = tmp_path / "own.gsm"
    assert main(["export", str(run), "--client", "2", "-o", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["accuracy"] == accuracies[2]


def test_what_cannot_be_exported_is_refused_in_a_sentence(
    sparse: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = str(sparse)
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "config.toml").write_bytes((sparse / "config.toml").read_bytes())
    for words, reason in (
        (["nowhere"], "nowhere holds no run"),
        ([str(tmp_path / "new")], "has no model yet"),
        ([here, "-o", "model.txt"], "has no known format; use one of .safetensors, .pt2, .onnx"),
        ([here, "-o", str(tmp_path / "a.onnx"), "--packed"], "only .safetensors can be packed"),
        ([here, "--client", "900"], "there is no client 900; the run has 100, from 0 up"),
        ([here, "--client", "0"], "use the run's"),
    ):
        assert main(["export", *words]) == 2
        assert reason in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    assert main(["export", here, "-o", str(tmp_path / "a.safetensors")]) == 2
    told = capsys.readouterr().err
    assert "safetensors is missing: pip install 'gossamer[export]'" in told
    assert not (tmp_path / "a.safetensors").exists()
