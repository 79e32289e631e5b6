"""Bad input is refused before any work, in one sentence, with exit code 2."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import SMALL, Outcome

Command = Callable[..., Outcome]

REFUSALS = {
    "run fedavgg": "did you mean 'fedavg'?",
    "rnu fedavg": "did you mean 'run'?",
    "run": "name a method",
    "run fedavg --round 3": "did you mean '--rounds'?",
    "run fedavg --rounds -1": "--rounds must be at least 1, not -1",
    "run fedavg --rounds 0": "--rounds must be at least 1",
    "run fedavg --rounds many": "--rounds is a whole number, not 'many'",
    "run fedavg --seed -1": "--seed must be at least 0",
    "run fedavg --clients 21 --pool 20": "21 clients per round asked for, but the pool has 20",
    "run fedavg --clients 0": "--clients must be at least 1",
    "run fedavg --pool -5": "--pool must be at least 0",
    "run fedavg --lr 0": "--lr must be above 0",
    "run fedavg --lr nan": "--lr must be above 0",
    "run fedavg --lr fast": "--lr is a number, not 'fast'",
    "run fedavg --epochs -1": "--epochs must be above 0",
    "run fedavg --batch 0": "--batch must be at least 1",
    "run fedavg --momentum 1": "--momentum must be below 1",
    "run fedavg --schedule cosin": "did you mean 'cosine'?",
    "run fedavg --weighting size": "--weighting is one of samples, uniform",
    "run fedavg --mu 0.1": "fedavg has no --mu; methods that have it: fedprox, feddst, random_mask",
    "run fedavg --density 0.1": "fedavg has no --density; methods that have it: lotteryfl, fedspa",
    "cost fedavg --density 0.1": "and 11 more",
    "run ../bad/:x": "'../bad/' is neither a file nor a module",
    "run fedavg --model ../bad/:x": "'../bad/' is neither a file nor a module",
    "run fedprox --mu -1": "--mu must be at least 0",
    "run fedopt --beta2 1": "--beta2 must be below 1",
    "run fedavg --data fmnst": "did you mean 'fmnist'?",
    "run fedavg --data npz:nowhere.npz": "nowhere.npz",
    "run fedavg --model lenet5_cafe": "did you mean 'lenet5_caffe'?",
    "run fedavg --model mlp:hiden=3": "did you mean 'hidden'?",
    "run fedavg --model nowhere.py:build": "nowhere.py",
    "run nowhere.py:Mine": "nowhere.py",
    "run nowhere.toml": "there is no configuration file nowhere.toml",
    "run fedavg --partition dirichle:0.1": "did you mean 'dirichlet'?",
    "run fedavg --partition dirichlet:-1": "dirichlet",
    "run fedavg --partition dirichlet:0.001 --pool 400": "has no training examples",
    "run fedavg --pool 20000 --partition iid": "has no training examples",
    "run fedavg --valid 1.5": "valid",
    "run fedavg --select valid": "no client has any; add e.g. --valid 0.1",
    "run fedavg --select vaild": "did you mean 'valid'?",
    "run fedavg --select valid --valid 0.1 --no-personal": "use one of the two",
    "run lg_fedavg --model mlp --shared fc9.*": "did you mean 'fc",
    "run lg_fedavg --model mlp --shared 0": "--shared 0 leaves nothing to share",
    "run lg_fedavg --recipients everybody": "--recipients is one of sampled, all",
    "run fedavg --device cuda": "--device cuda was asked for",
    "run fedavg --precision f8": "--precision is one of f32, bf16",
    "run fedavg --workers -1": "--workers must be at least 0",
    "run fedavg --track tensorbord": "did you mean 'tensorboard'?",
    "run fedavg --prunable fc9.weight --model mlp": "fc9.weight",
    "resume nowhere": "nowhere holds no run",
    "replay nowhere --round 1 --client 1": "nowhere holds no run",
    "data fetch mnist": "gossamer data get NAME",
    "data get mnst": "did you mean 'mnist'?",
    "partition --partition iidd": "did you mean 'iid'?",
    "check nowhere.py:Mine": "nowhere.py",
    "cp fedavgg mine.py": "did you mean 'fedavg'?",
}


@pytest.mark.parametrize("command", REFUSALS)
def test_refused_in_one_sentence(gossamer: Command, command: str) -> None:
    found = gossamer(*command.split())
    assert found.code == 2
    assert REFUSALS[command] in found.err
    assert len(found.err.splitlines()) == 1 and found.out == ""
    assert not list(Path().iterdir())


def test_a_folder_that_cannot_be_written_is_refused_before_training(gossamer: Command) -> None:
    Path("file").write_text("")
    found = gossamer("run", "fedavg", *SMALL, "--out", "file/run")
    assert found.code == 2 and "cannot write to file/run" in found.err and found.out == ""


def test_a_full_disk_is_refused_before_training(
    gossamer: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        free = 100

    monkeypatch.setattr("shutil.disk_usage", lambda path: Full)
    found = gossamer("run", "fedavg", *SMALL, "--out", "a")
    assert found.code == 2 and "0 MiB free" in found.err and "round" not in found.out


def test_a_folder_with_a_run_is_not_overwritten(gossamer: Command) -> None:
    gossamer("run", "fedavg", *SMALL, "--out", "a", "--quiet")
    found = gossamer("run", "fedavg", *SMALL, "--out", "a")
    assert found.code == 2 and "`gossamer resume a` continues it" in found.err


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("method = ", "not valid TOML"),
        ("[experiment]\nrounds = 3", "names no method"),
        ('method = "fedavg"\n[experiment]\nround = 3', "did you mean 'rounds'?"),
        ('method = "fedavg"\n[settings]\nlearning = 3', "no setting of fedavg"),
        ('method = "fedavg"\n[setting]\nlr = 3', "did you mean 'settings'?"),
        ('method = "fedavg"\n[settings]\nlr = "fast"', "--lr is a number"),
        ('method = "fedavg"\n[experiment]\nrounds = -3', "--rounds must be at least 1"),
    ],
)
def test_a_bad_configuration_file_is_refused(gossamer: Command, text: str, answer: str) -> None:
    Path("run.toml").write_text(text)
    found = gossamer("run", "run.toml", "--out", "a")
    assert found.code == 2 and answer in found.err and not Path("a").exists()


@pytest.mark.parametrize("density", ["0", "-0.1", "1.01", "nan"])
def test_a_density_outside_its_bounds_is_refused(gossamer: Command, density: str) -> None:
    """No method here has one yet; a field with bounds is refused like any other."""
    gossamer("cp", "fedavg", "mine.py")
    path = Path("mine.py")
    field = '    clients: int = option(10, "clients per round", least=1)\n'
    source = path.read_text()
    assert field in source
    sparse = '    density: float = option(0.5, "part of the weights kept", above=0, most=1)\n'
    path.write_text(source.replace(field, field + sparse))
    found = gossamer("run", "mine.py:FedAvg", *SMALL, f"--density={density}", "--out", "a")
    assert found.code == 2 and "--density must be" in found.err and not Path("a").exists()
    assert len(found.err.splitlines()) == 1
    assert gossamer("run", "mine.py:FedAvg", *SMALL, "--density", "1", "--out", "a").code == 0


@pytest.mark.parametrize(
    ("wire", "package"), [("f32+zstd", "zstandard"), ("f16+ans", "constriction")]
)
def test_a_wire_whose_package_is_missing_is_refused_before_the_first_round(
    gossamer: Command, monkeypatch: pytest.MonkeyPatch, wire: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    for command in ("run", "cost"):
        found = gossamer(command, "fedavg", *SMALL, "--wire", wire)
        assert found.code == 2 and f"needs {package}; pip install" in found.err
        assert len(found.err.splitlines()) == 1
    assert not Path("runs").exists()
