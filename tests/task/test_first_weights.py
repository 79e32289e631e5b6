"""Where a run begins: a module keeps its weights, a named model draws them, a file is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer import Key, Task, export, models
from gossamer.cli import main
from gossamer.engine import Options, events, run
from gossamer.engine.checks import ctx_of
from gossamer.engine.run_record import Run
from gossamer.flower.node import agreement
from gossamer.methods import METHODS
from gossamer.task import first_weights
from helpers import INPUTS, Toy, fedavg, refused, same

FACTORY = """
import torch
from torch import nn


def build(shape, classes):
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 6), nn.ReLU(), nn.Linear(6, classes))
    {line}
    return net
"""
QUICK = ["--data", "fmnist-mini", "--pool", "20", "--clients", "2", "--rounds", "1", "--quiet"]


def filled(value: float = 0.123) -> nn.Module:
    net = nn.Sequential(nn.Linear(INPUTS, 8), nn.ReLU(), nn.Linear(8, 3))
    nn.init.constant_(net[0].weight, value)
    return net


def started(out: Path) -> dict[str, object]:
    found: dict[str, object] = events.read(out / "events.jsonl")[0]
    return found


def test_a_module_keeps_the_weights_it_came_with() -> None:
    task = Task.of(filled(), torch.zeros(2, INPUTS))
    assert task.init(Key(0))["0.weight"].unique().tolist() == [pytest.approx(0.123)]
    assert same(task.init(Key(0)), task.init(Key(1)))


def test_first_weights_are_those_of_the_moment_the_task_was_made() -> None:
    net = filled()
    task = Task.of(net, torch.zeros(2, INPUTS))
    nn.init.zeros_(net[0].weight)
    assert task.init(Key(0))["0.weight"].min() > 0.1 and task.copy().init(Key(0))["0.weight"].all()


def test_what_a_caller_does_to_first_weights_does_not_reach_the_next() -> None:
    task = Task.of(filled(), torch.zeros(2, INPUTS))
    task.init(Key(0))["0.weight"].zero_()
    assert task.init(Key(0))["0.weight"].min() > 0.1


def test_a_seed_draws_other_weights_than_the_module_has() -> None:
    task = Task.of(filled(), torch.zeros(2, INPUTS), start="seed")
    assert len(task.init(Key(0))["0.weight"].unique()) > 10
    assert not same(task.init(Key(0)), task.init(Key(1)))


@pytest.mark.parametrize("name", ["fedavg", "spafl", "fedpm", "lotteryfl", "nst"])
def test_a_run_begins_with_the_weights_of_the_module(name: str) -> None:
    """Also where clients have weights in common: what they share is the module."""
    torch.manual_seed(3)
    task = Task.of(filled(), torch.zeros(2, INPUTS))
    method = gs.fields.replace(METHODS[name], {"clients": 3, "lr": 1e-9})
    summary = run(method, task, Toy(), rounds=1, options=Options(workers=1))
    ctx = ctx_of(Run(method, task, Toy(), rounds=1), 1)
    model = method.model(ctx, summary.state, None)
    assert isinstance(model, dict)
    weights = model["0.weight"][model["0.weight"] != 0]
    assert len(weights) and torch.allclose(weights, torch.tensor(0.123))


def test_a_module_given_to_a_run_is_not_drawn_anew() -> None:
    quiet = {"options": Options(workers=1, eval_every=0), "quiet": True}
    summary = gs.run(fedavg(lr=1e-9), filled(), Toy(), rounds=1, **quiet)
    assert torch.allclose(summary.state.params["0.weight"], torch.tensor(0.123))


def test_models_of_a_mixture_differ_though_they_begin_alike() -> None:
    task = Task.of(filled(), torch.zeros(2, INPUTS))
    one, two, three = first_weights.several(task, [Key(0), Key(1), Key(2)])
    assert same(one, task.init(Key(0)))
    for other in (two, three):
        away = (other["0.weight"] - one["0.weight"]).square().mean().sqrt()
        assert float(away) == pytest.approx(0.00123, rel=0.5)
    assert not same(two, three)


def test_first_weights_that_are_not_finite_are_refused_at_once() -> None:
    net = filled(float("nan"))
    with refused(r"0\.weight of the module holds values that are not finite; load other weights"):
        Task.of(net, torch.zeros(2, INPUTS))
    Task.of(net, torch.zeros(2, INPUTS), start="seed")
    for persistent in (True, False):
        net = filled()
        net.register_buffer("mask", torch.full((3,), -torch.inf), persistent=persistent)
        if persistent:
            with refused("mask of the module holds .* constant with persistent=False"):
                Task.of(net, torch.zeros(2, INPUTS))
        else:
            assert "mask" not in Task.of(net, torch.zeros(2, INPUTS)).init(Key(0))


# identity ----------------------------------------------------------------------------------------


def of(task: Task) -> Run:
    return Run(fedavg(), task, Toy(), rounds=2)


def test_runs_with_other_first_weights_are_other_runs() -> None:
    one, two, same_again = (
        of(Task.of(filled(value), torch.zeros(2, INPUTS))) for value in (0.1, 0.2, 0.1)
    )
    one.task.module.load_state_dict(same_again.task.module.state_dict())
    with torch.no_grad():
        for run_ in (one, two, same_again):
            for place in (0, 2):
                run_.task.module[place].bias.zero_()
            run_.task.module[2].weight.fill_(1.0)
    again = [of(Task.of(each.task.module, torch.zeros(2, INPUTS))) for each in (one, same_again)]
    other = of(Task.of(two.task.module, torch.zeros(2, INPUTS)))
    assert again[0].identity == again[1].identity != other.identity
    assert agreement(again[0]) == agreement(again[1]) != agreement(other)


def test_runs_that_draw_their_weights_have_the_identity_they_always_had() -> None:
    tasks = [Task.of(filled(value), torch.zeros(2, INPUTS), start="seed") for value in (0.1, 0.2)]
    assert not tasks[0].fingerprints
    assert of(tasks[0]).identity == of(tasks[1]).identity


def test_a_fingerprint_depends_on_names_types_shapes_and_values() -> None:
    x = torch.arange(6.0)
    prints = {
        first_weights.fingerprint(each)
        for each in (
            {"a": x},
            {"b": x},
            {"a": x.double()},
            {"a": x.view(2, 3)},
            {"a": x + 1},
            {"a": x.to(torch.bfloat16)},
            {"a": x, "b": torch.tensor(1.0)},
        )
    }
    assert len(prints) == 7
    turned = x.view(2, 3).t()
    assert first_weights.fingerprint({"a": turned}) == first_weights.fingerprint(
        {"a": turned.contiguous()}
    )


# files and runs ----------------------------------------------------------------------------------


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """A run, and its model in a file."""
    out = tmp_path / "first"
    assert main(["run", "fedavg", *QUICK, "--model", "mlp:hidden=6", "--out", str(out)]) == 0
    export.save(export.take(out), tmp_path / "model.safetensors")
    return out


@pytest.mark.parametrize("form", ["run", "file"])
def test_a_run_starts_from_a_file_or_from_another_run(
    form: str, first: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = first if form == "run" else tmp_path / "model.safetensors"
    out = tmp_path / "second"
    model = ["--model", "mlp:hidden=6", "--start", str(place)]
    words = [word for word in QUICK if word != "--quiet"]
    assert main(["run", "fedavg", *words, *model, "--lr", "1e-9", "--out", str(out)]) == 0
    wanted, found = export.take(first).params, export.take(out).params
    assert all(torch.allclose(wanted[name], found[name], atol=1e-6) for name in wanted)
    about = started(out)["start"]
    assert isinstance(about, dict) and about["from"] == str(place.resolve())
    assert about["weights"] == first_weights.fingerprint(wanted)
    assert f"first weights from {place.resolve()}" in capsys.readouterr().out


def test_weights_of_another_model_are_refused(first: Path, tmp_path: Path) -> None:
    module = models.build("mlp:hidden=7", (1, 28, 28), 10)
    with refused(
        r"fc1\.weight of .*first has the shape \(6, 784\), and that of the model \(7, 784"
    ):
        Task.of(module, torch.zeros(2, 1, 28, 28), start=str(first))
    with refused(r"has no tensor '1\.weight'.*the same model"):
        net = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
        Task.of(net, torch.zeros(2, 1, 28, 28), start=str(tmp_path / "model.safetensors"))
    with pytest.raises(FileNotFoundError, match="no run 'nowhere' to start from"):
        Task.of(module, torch.zeros(2, 1, 28, 28), start="nowhere")
    with pytest.raises(FileNotFoundError, match=r"no file .*gone\.safetensors"):
        Task.of(module, torch.zeros(2, 1, 28, 28), start="gone.safetensors")


def test_a_function_keeps_what_it_loads_and_draws_by_the_seed_of_the_run(tmp_path: Path) -> None:
    def weights(line: str, *more: str) -> tuple[dict[str, torch.Tensor], dict[str, object]]:
        (tmp_path / "my.py").write_text(FACTORY.format(line=line))
        out = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        words = ["--model", f"{tmp_path / 'my.py'}:build", "--lr", "1e-9", "--out", str(out)]
        assert main(["run", "fedavg", *QUICK, *words, *more]) == 0
        params = export.take(out).params
        assert isinstance(params, dict)
        return params, started(out)

    loaded, log = weights("nn.init.constant_(net[1].weight, 0.123)")
    assert torch.allclose(loaded["1.weight"], torch.tensor(0.123))
    assert json.loads(json.dumps(log["start"]))["from"] == "module"
    one, _ = weights("pass")
    again, _ = weights("pass")
    other, _ = weights("pass", "--seed", "1")
    assert same(one, again) and not torch.allclose(one["1.weight"], other["1.weight"], atol=1e-3)
    drawn, log = weights("nn.init.constant_(net[1].weight, 0.123)", "--start", "seed")
    assert len(drawn["1.weight"].unique()) > 10 and log["start"] == {"from": "seed"}


def test_progress_says_that_weights_are_drawn_beside_frozen_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my.py").write_text(FACTORY.format(line="net[1].requires_grad_(False)"))
    words = [word for word in QUICK if word != "--quiet"]
    model = ["--model", f"{tmp_path / 'my.py'}:build", "--start", "seed", "--seed", "7"]
    assert main(["run", "fedavg", *words, *model, "--out", str(tmp_path / "run")]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "first weights drawn from seed 7, 4,710 parameters are frozen" in text
