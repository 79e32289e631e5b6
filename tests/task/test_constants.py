"""Frozen parameters are constants: not drawn, sent, averaged, counted or saved, and never lost."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from gossamer import Key, Task, export, submodels
from gossamer.accounting.flops import FLOPS, Effort
from gossamer.arithmetic.model import Model
from gossamer.cli import main
from gossamer.engine import Options, run
from gossamer.engine.checks import ctx_of
from gossamer.engine.run_record import Run
from gossamer.flower.node import agreement
from gossamer.methods import METHODS
from gossamer.optim import Training
from gossamer.task import first_weights
from helpers import CLASSES, INPUTS, Toy, batch_of, fedavg, refused, same

HIDDEN = 8
X = torch.zeros(2, INPUTS)


def net(seed: int = 0) -> nn.Sequential:
    """A frozen layer between two that are trained."""
    with first_weights.seeded_globally(Key(seed)):
        layers = [nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU()]
        made = nn.Sequential(*layers, nn.Linear(HIDDEN, CLASSES))
    made[2].requires_grad_(False)
    return made


def frozen(module: nn.Module) -> dict[str, torch.Tensor]:
    parameters = module.named_parameters()
    return {name: each.detach().clone() for name, each in parameters if not each.requires_grad}


@pytest.mark.parametrize("start", ["seed", "module"])
@pytest.mark.parametrize("buffers", ["average", "local"])
def test_frozen_parameters_do_not_travel_and_stay_what_they_were(start: str, buffers: str) -> None:
    task = Task.of(net(), X, start=start)
    method = METHODS["fedavg"].__class__(clients=3, buffers=buffers, training=Training(batch=8))
    summary = run(method, task, Toy(), rounds=2, options=Options(workers=2))
    assert set(summary.state.params) == {"0.weight", "0.bias", "4.weight", "4.bias"}
    assert summary.cost.paper_up == 2 * 3 * 32 * task.layout.count
    assert same(dict(task.constants), frozen(net()))


def test_server_and_clients_compute_with_the_same_frozen_values() -> None:
    """Under `buffers="local"` clients once kept the module's values, and the server drew others."""
    method = METHODS["fedavg"].__class__(clients=6, buffers="local", training=Training(lr=1e-9))
    task = Task.of(net(), X, start="seed")
    summary = run(method, task, Toy(), rounds=1, options=Options(workers=1))
    whole = {**summary.state.params, **frozen(net())}
    plain = net()
    plain.load_state_dict(whole)
    test = Toy().test
    right = (plain(test.x).argmax(1) == test.y).float().mean()
    assert summary.accuracy["global"] == pytest.approx(float(right))


def test_an_adapter_costs_what_it_has_and_not_what_its_model_has() -> None:
    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Linear(INPUTS, 500).requires_grad_(False)
            self.a, self.b = nn.Linear(INPUTS, 2, bias=False), nn.Linear(2, 500, bias=False)
            self.head = nn.Linear(500, CLASSES).requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(torch.relu(self.base(x) + self.b(self.a(x))))

    task = Task.of(Adapted(), X)
    summary = run(fedavg(), task, Toy(), rounds=1, options=Options(workers=1, eval_every=0))
    adapters, every = 2 * INPUTS + 1000, 2 * INPUTS + 1000 + 500 * (INPUTS + 1) + 501 * CLASSES
    assert task.layout.count == adapters and task.layout.frozen == every - adapters
    assert 3 * 32 * adapters <= summary.cost.up < 3 * 33 * adapters


# identity ----------------------------------------------------------------------------------------


def of(module: nn.Module, start: str = "seed") -> Run:
    return Run(fedavg(), Task.of(module, X, start=start), Toy(), rounds=2)


def test_other_constants_are_another_run_which_nodes_refuse_to_join() -> None:
    one, again, other = of(net(0)), of(net(0)), of(net(1))
    assert one.identity == again.identity != other.identity
    assert agreement(one) == agreement(again) != agreement(other)
    assert list(one.task.fingerprints) == ["constants"]


def test_constants_are_those_of_the_moment_the_task_was_made() -> None:
    module = net()
    task = Task.of(module, X)
    x = torch.randn(4, INPUTS, generator=Key(0).generator())
    before = task.logits(task.init(Key(0)), x)
    nn.init.zeros_(module[2].weight)
    for each in (task, task.copy()):
        assert torch.equal(each.logits(each.init(Key(0)), x), before)


def test_copies_for_other_threads_share_their_constants() -> None:
    task = Task.of(net(), X)
    twin = task.copy()
    assert all(twin.constants[n].data_ptr() == t.data_ptr() for n, t in task.constants.items())


# costs -------------------------------------------------------------------------------------------


def test_a_frozen_layer_costs_a_forward_pass_and_one_for_its_input() -> None:
    layout = Task.of(net(), X).layout
    effort = Effort(layout, {}, examples=10, steps=1, per_epoch=1)
    first, middle, last = INPUTS * HIDDEN, HIDDEN * HIDDEN, HIDDEN * CLASSES
    assert FLOPS["passes"](effort) == 2 * 10 * (3 * (first + last) + 2 * middle)
    assert FLOPS["forward"](effort) == 10 * (first + middle + last)
    half = Effort(layout, {"0.weight": 0.5}, examples=10, steps=1, per_epoch=1)
    assert FLOPS["passes"](half) == 2 * 10 * (3 * (first / 2 + last) + 2 * middle)
    front = net()
    front[0].requires_grad_(False)  # no gradient has to pass either
    effort = Effort(Task.of(front, X).layout, {}, examples=10, steps=1, per_epoch=1)
    assert FLOPS["passes"](effort) == 2 * 10 * (3 * last + first + middle)


# arithmetic --------------------------------------------------------------------------------------


def frozen_conv() -> nn.Module:
    with first_weights.seeded_globally(Key(1)):
        made = nn.Sequential(
            *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
            *(nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 3)),
        )
    made[1].requires_grad_(False)
    made[3].requires_grad_(False)
    return made


@pytest.mark.parametrize("first", [False, True])
def test_the_kernels_train_around_frozen_layers_as_torch_does(first: bool) -> None:
    module, x = frozen_conv(), torch.randn(16, 3, 6, 6, generator=Key(2).generator())
    if first:
        module[0].requires_grad_(False)
    y = torch.arange(16) % 3
    results = []
    for arithmetic in ("native", "torch"):
        task = Task.of(module, x[:2], arithmetic=arithmetic)  # type: ignore[arg-type]
        assert isinstance(task.planned, str) == (arithmetic == "torch"), task.planned
        model = Model(task, task.own(task.init(Key(0))))
        for _ in range(3):
            model.step(batch_of(x, y), Training(momentum=0.9), 0.1)
        params = model.params
        grads = task.gradients(params, batch_of(x, y)).grads
        results.append((params, grads, task.logits(params, x)))
    (params, grads, out), (wanted, wanted_grads, wanted_out) = results
    assert list(params) == list(wanted) and list(grads) == list(wanted_grads)
    for name in wanted:
        assert torch.allclose(params[name], wanted[name], atol=1e-5), name
    for name in wanted_grads:
        assert torch.allclose(grads[name], wanted_grads[name], atol=1e-4), name
    assert torch.allclose(out, wanted_out, atol=1e-4)


# compaction and export ---------------------------------------------------------------------------


def test_compaction_cuts_the_inputs_of_a_frozen_layer_and_keeps_its_units() -> None:
    task = Task.of(net(), X)
    params = task.init(Key(0))
    params["0.weight"][:3] = 0
    params["0.bias"][:3] = 0
    assert "2.weight" not in submodels.trace(task).units
    assert "is frozen" in submodels.trace(task).fixed["2.weight"]
    keep = submodels.needed(task, params)
    small, cut = submodels.compact(task, params, keep)
    assert small.layout["2.weight"].shape == (HIDDEN, HIDDEN - 3) and "2.weight" not in cut
    x = torch.randn(7, INPUTS, generator=Key(1).generator())
    assert torch.allclose(small.logits(cut, x), task.logits(params, x), atol=1e-6)
    other = {"0.weight": torch.arange(HIDDEN) < HIDDEN - 3}
    silenced = submodels.masked(task, params, other)
    again, cut = submodels.compact(task, params, other)  # of the same shapes, with other values
    assert torch.allclose(again.logits(cut, x), task.logits(silenced, x), atol=1e-6)
    with refused("2.weight is frozen and keeps its inputs"):
        submodels.trace(task).cut({"2.weight:in": torch.arange(HIDDEN) < 3})


def test_a_norm_that_is_frozen_keeps_the_units_before_it() -> None:
    module = nn.Sequential(nn.Linear(INPUTS, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))
    module[1].requires_grad_(False)
    assert not submodels.trace(Task.of(module, X)).units


BUILD = """
import torch
from torch import nn


def build(shape, classes):
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(784, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(),
        nn.Linear(12, classes),
    )
    net[3].requires_grad_(False)
    return net
"""


@pytest.mark.parametrize("suffix", [".safetensors", ".gsm", ".pt2"])
def test_an_exported_model_has_its_frozen_layers(suffix: str, tmp_path: Path) -> None:
    (tmp_path / "my.py").write_text(BUILD)
    out = tmp_path / "run"
    data = ["--data", "fmnist-mini", "--pool", "20", "--clients", "2", "--rounds", "2", "--quiet"]
    words = ["run", "feddst", *data, "--model", f"{tmp_path / 'my.py'}:build", "--out", str(out)]
    assert main([*words, "--density", "0.2"]) == 0
    for model in (export.take(out), export.take(out).compact()):
        export.save(model, tmp_path / f"model{suffix}")
        predict = export.predictor(tmp_path / f"model{suffix}", model)
        found = predict(model.test.x[:9])
        assert torch.allclose(found, model.module()(model.test.x[:9]), atol=1e-4)
    whole = export.take(out)
    assert whole.weights == whole.task.layout.count + 12 * 13
    if suffix == ".safetensors":
        stored = export.load(tmp_path / f"model{suffix}")
        assert isinstance(stored, dict) and "3.weight" in stored


def test_a_method_sees_the_model_without_constants() -> None:
    made = of(net())
    state = made.method.init(ctx_of(made, 0))
    assert "2.weight" not in state.params
