"""Adam and AdamW at clients: sparse weights stay sparse, fixed ones fixed, moments may be kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import gossamer as gs
from gossamer import METHODS, FedAvg, Key, Options, Run, Training, fields
from gossamer.arithmetic.model import Model
from gossamer.core import Params
from gossamer.engine import check_run
from gossamer.engine.arithmetic import arithmetic_chosen
from gossamer.methods.parts import masked_training
from gossamer.sparsity import Change
from helpers import Toy, batch_of, client_ctx, mlp, refused, same


def trained(**training: Any) -> gs.Summary:
    method = FedAvg(clients=6, training=Training(batch=8, lr=0.01, **training))
    return gs.run(method, mlp(), Toy(), rounds=3, quiet=True)


def some(count: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    few = Toy().make(Key(3), count)
    return few.x, few.y


def test_optimisers_differ_and_repeat() -> None:
    hashes = {name: trained(optimiser=name).state_hash for name in ("sgd", "adam")}
    hashes["adamw"] = trained(optimiser="adamw", weight_decay=0.1).state_hash
    hashes["adam, decayed"] = trained(optimiser="adam", weight_decay=0.1).state_hash
    assert len(set(hashes.values())) == 4
    assert trained(optimiser="adam").state_hash == hashes["adam"]


@pytest.mark.parametrize("settings", [{"optimiser": "adam"}, {"momentum": 0.9}])
def test_kept_moments_change_later_rounds_with_any_number_of_workers(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    method = FedAvg(clients=6, training=Training(batch=8, lr=0.01, moments="kept", **settings))
    task, toy = mlp(), Toy()
    whole = gs.run(method, task, toy, rounds=3, out=tmp_path / "whole", quiet=True)
    assert not same(whole.state.params, trained(**settings).state.params)
    two = gs.run(
        method, task, toy, rounds=3, options=Options(workers=2), out=tmp_path / "two", quiet=True
    )
    assert two.state_hash == whole.state_hash


def test_moments_are_taken_up_where_the_client_left_them() -> None:
    """Two rounds of one step with kept moments are one of two steps, if the server changes none."""
    task = mlp()
    x, y = some()
    method = FedAvg(training=Training(optimiser="adam", moments="kept", lr=0.01))
    ctx = client_ctx(task, Toy().make(Key(3), 16))
    state = method.init(ctx)
    down, local = method.down(ctx, state, gs.Client(0, 16)), None
    for _ in range(2):
        job = method.begin(ctx, down, local)
        work = method.step(ctx, job.work, batch_of(x, y))
        result = method.finish(ctx, work)
        local, down = result.local, type(down)(result.up.params)
    once = FedAvg(training=Training(optimiser="adam", lr=0.01))
    job = once.begin(ctx, once.down(ctx, state, gs.Client(0, 16)), None)
    work = job.work
    for _ in range(2):
        work = once.step(ctx, work, batch_of(x, y))
    assert same(once.finish(ctx, work).up.params, result.up.params)


def test_methods_that_keep_nothing_refuse_to_keep_moments() -> None:
    method = fields.replace(METHODS["spdst"], {"moments": "kept", "clients": 3})
    with refused("clients of flash keep no moments of their optimiser; leave out --moments kept"):
        check_run(Run(method, mlp(), Toy(), rounds=1))


@pytest.mark.parametrize("name", ["fedpm", "fedpm-variants", "spafl-variants"])
def test_methods_with_an_optimiser_of_their_own_refuse_another(name: str) -> None:
    method = fields.replace(METHODS[name], {"optimiser": "adam", "clients": 3})
    with refused("leave out --optimiser"):
        check_run(Run(method, mlp(), Toy(), rounds=1))


# sparse models ----------------------------------------------------------------------------------


def half(params: Params) -> tuple[str, dict[str, torch.Tensor]]:
    name = "0.weight"
    mask = torch.zeros_like(params[name], dtype=torch.bool)
    mask[::2] = True
    return name, {name: mask}


@pytest.mark.parametrize("optimiser", ["adam", "adamw"])
def test_masked_weights_stay_zero_also_when_masks_move(optimiser: str) -> None:
    task = mlp()
    params = task.init(Key(0))
    name, masks = half(params)
    params[name] = params[name] * masks[name]
    training = Training(optimiser=optimiser, lr=0.1, weight_decay=0.1)  # type: ignore[arg-type]
    ctx = client_ctx(task, Toy().make(Key(3), 16))
    work = masked_training.begin(ctx, params, masks, 0.1)
    for _ in range(3):
        masked_training.step(ctx, training, work, batch_of(*some()))
    other = {name: ~masks[name]}
    nothing = {name: torch.zeros_like(masks[name])}
    masked_training.change_masks(ctx, work, Change.of(masks, nothing, other))
    assert not work.params[name].any()
    place = task.layout.parameters.index(name)
    assert not work.model.moments.second[place].any()
    for _ in range(3):
        masked_training.step(ctx, training, work, batch_of(*some()))
    assert not work.params[name][masks[name]].any() and work.params[name][other[name]].any()


@pytest.mark.parametrize("optimiser", ["sgd", "adam", "adamw"])
def test_fixed_weights_do_not_decay(optimiser: str) -> None:
    task = mlp()
    params = task.own(task.init(Key(0)))
    name, masks = half(params)
    before = params[name].clone()
    model = Model(task, params)
    model.fixed = masks
    training = Training(optimiser=optimiser, weight_decay=0.5)  # type: ignore[arg-type]
    for _ in range(3):
        model.step(batch_of(*some()), training, 0.1)
    moved = model.params[name] != before
    assert not moved[masks[name]].any() and moved[~masks[name]].any()


# arithmetic -------------------------------------------------------------------------------------


def test_the_log_says_that_torch_steps() -> None:
    plain = Run(FedAvg(clients=3), mlp(), Toy(), rounds=1)
    if isinstance(plain.task.planned, str):
        pytest.skip(plain.task.planned)
    assert arithmetic_chosen(plain, 0, {}).steps == ""
    adamw = Run(FedAvg(clients=3, training=Training(optimiser="adamw")), mlp(), Toy(), rounds=1)
    assert arithmetic_chosen(adamw, 0, {}).steps == (
        "the kernels step by SGD only: they compute gradients, and torch steps by adamw"
    )
