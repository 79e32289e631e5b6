"""SpaFL's settings: what is refused, which presets there are, and the defects on request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from spafl_cases import (
    TAU,
    data,
    exact,
    feed,
    followed,
    kept,
    layer,
    layout_of,
    merged,
    spafl,
    start,
    state,
    tell,
    told,
    toy,
)
from torch import nn

from gossamer import METHODS, Client, Task, Training, fields
from gossamer.engine.client import train
from gossamer.methods.as_published.spafl import SpaFLVariants
from gossamer.methods.spafl import SpaFL, mask_of
from helpers import CLASSES, INPUTS, client_ctx, conv, mlp, refused, same, server_ctx

# settings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epochs": 1.0}, "--epochs must be at least 2"),
        ({"epochs": 1.9}, "--epochs must be at least 2"),
        ({"ste": "dead"}, "--bug-compat cifar"),
        ({"ste": "dead", "bug_compat": "fmnist"}, "--bug-compat cifar"),
        ({"delta_ref": "last-server-step"}, "add --downlink sampled"),
        ({"downlink": "sampled", "eval_point": "before"}, "--eval-point before has no effect"),
        ({"reg_step": "eq5", "regulariser": "inv"}, "--regulariser inv has no effect"),
        ({"phases": "joint", "mask_refresh": "first-epoch"}, "--mask-refresh first-epoch has no"),
        ({"phases": "joint", "norm_in_tau_epoch": True}, "--norm-in-tau-epoch has no effect"),
        (
            {"importance_rule": "none", "importance_divisor": "kernel"},
            "--importance-divisor kernel has no effect",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    changes: dict[str, Any], words: str
) -> None:
    task = mlp()
    with refused(words):
        spafl(**changes).init(server_ctx(task))
    method = spafl(**changes)
    with refused(words):
        method.begin(client_ctx(task, data(task)), tell(told(task, method)), None)
    fine = {
        "epochs": {"phases": "joint"},
        "ste": {"bug_compat": "cifar"},
        "delta_ref": {"downlink": "sampled"},
        "eval_point": {"downlink": "all"},
        "regulariser": {"reg_step": "loss"},
        "mask_refresh": {"phases": "alternating"},
        "norm_in_tau_epoch": {"phases": "alternating"},
        "importance_divisor": {"importance_rule": "signed"},
    }
    mended = next(fine[name] for name in reversed(changes) if name in fine)
    spafl(**{**changes, **mended}).init(server_ctx(task))


def test_a_model_without_prunable_layers_is_refused() -> None:
    task = Task.of(nn.LayerNorm(4), torch.zeros(2, 4), start="seed")
    with pytest.raises(ValueError, match="no layer that may be pruned"):
        SpaFL().init(server_ctx(task))


def test_the_classifier_may_go_without_thresholds() -> None:
    task = conv()
    ctx = client_ctx(task, data(task))
    with_all, without = toy(), toy(threshold_classifier=False)
    assert with_all.init(server_ctx(task)).history.shape == (1, 4 + 6 + 2)
    assert without.init(server_ctx(task)).history.shape == (1, 4 + 6)
    work = without.begin(ctx, tell(torch.full((10,), 0.1)), None).work
    assert set(work.model.masks) == {"0.weight", "2.weight"}
    local = train(without, ctx, tell(torch.full((10,), 0.1)), None).result.local
    assert not torch.equal(local.params["4.weight"], work.model.params["4.weight"])  # but it trains
    started = without.init(server_ctx(task))
    server = merged(without, task, started, {0: torch.full((10,), 0.1)})
    model = without.model(server_ctx(task), server, None)
    assert (model["4.weight"] != 0).all() and (model["0.weight"] == 0).any()


def test_the_last_linear_layer_is_no_classifier_if_it_is_not_pruned_at_all() -> None:
    module = nn.Sequential(nn.Linear(INPUTS, 8), nn.ReLU(), nn.Linear(8, CLASSES))
    task = Task.of(module, torch.zeros(2, INPUTS), prunable=["0.weight"], start="seed")
    method = SpaFLVariants(threshold_classifier=False)
    assert layout_of(method, task).prunable == ("0.weight",)


def test_a_bias_that_is_to_be_pruned_has_a_threshold_for_each_of_its_numbers() -> None:
    module = nn.Linear(INPUTS, CLASSES)
    task = Task.of(module, torch.zeros(2, INPUTS), prunable=["weight", "bias"], start="seed")
    for structured in (False, True):
        method = toy(structured=structured, mask_grad_to_weight=True)
        ctx = client_ctx(task, data(task))
        down = tell(torch.full((2 * CLASSES,), 0.1), torch.full((2 * CLASSES,), 0.2))
        done = train(method, ctx, down, None).result
        assert done.masks["bias"].shape == (CLASSES,)
        server = method.init(server_ctx(task))
        server = merged(method, task, server, {0: done.up.thresholds})
        model = method.model(server_ctx(task), server, done.local)
        later = followed(method, task, done.local.params, server.history)
        kept_ = mask_of(later["bias"], server.history[-1][CLASSES:], structured)
        torch.testing.assert_close(model["bias"], later["bias"] * kept_)


def test_presets_are_what_the_authors_code_does() -> None:
    """Sections 2.8 and 2.9 of the specification; defects only on request."""
    default, old, new = (
        METHODS[name] for name in ("spafl", "spafl-iclr-bytecode", "spafl-neurips-release")
    )
    assert default == SpaFL() and METHODS["spafl-variants"] == SpaFLVariants()
    assert isinstance(old, SpaFLVariants) and isinstance(new, SpaFLVariants)
    values = {item.name: item.default for item in fields.settings(default)}
    assert (values["lr"], values["momentum"], values["epochs"], values["batch"]) == (
        0.001,
        0.9,
        3,
        64,
    )
    assert values["alpha"] == 0.002 and values["weight_decay"] == values["clip"] == 0
    assert differing(old) == {
        "reg_warmup": "first",
        "reg_off_density": 0.1,
        "mask_refresh": "first-epoch",
        "norm_in_tau_epoch": True,
        "clamp": False,
        "reset_inclusive": True,
        "importance_divisor": "kernel",
        "momentum_state": "persist",
    }
    assert differing(new) == {
        "epochs": 5,
        "reg_warmup": "logistic",
        "structured": True,
        "phases": "joint",
        "mask_refresh": "batch",
        "mask_grad_to_weight": True,
        "clamp": False,
        "reset_inclusive": True,
        "importance_divisor": "kernel",
        "momentum_state": "persist",
        "downlink": "sampled",
        "delta_ref": "last-server-step",
    }


@pytest.mark.parametrize("lr", [0.1, 20.0])
@pytest.mark.parametrize("name", ["mlp", "conv"])
def test_variants_with_their_defaults_give_the_bits_of_the_algorithm(name: str, lr: float) -> None:
    """The larger rate takes weights and thresholds to the ends of their ranges."""
    task = {"mlp": mlp(), "conv": conv()}[name]
    ctx = client_ctx(task, data(task))
    models, sent = [], []
    for method in (toy(lr=lr), toy(lr=lr, momentum_state="reset")):
        server = method.init(server_ctx(task))
        server = merged(method, task, server, {0: told(task, method, 0.5)})
        server = merged(method, task, server, {1: told(task, method)}, round=2)
        down = method.down(server_ctx(task, 3), server, Client(0, 20))
        done = train(method, ctx, down, None).result
        sent.append(done.up.thresholds)
        server = merged(method, task, server, {0: done.up.thresholds}, round=3)
        models.append(method.model(server_ctx(task, 3), server, done.local))
    assert isinstance(toy(), SpaFL) and torch.equal(*sent)
    assert same(*models)
    weights = torch.cat([done.local.params[name].flatten() for name in task.layout.prunable])
    reached = float(weights.abs().max()), float(sent[0].max())
    assert reached == (1, 1) if lr > 1 else max(reached) < 1


@pytest.mark.parametrize("changes", [{}, {"momentum_state": "reset"}])
def test_the_rate_of_thresholds_follows_the_schedule(changes: dict[str, Any]) -> None:
    """A tenth of the rate of weights in the first round is a tenth of it in every other."""
    task, moved = layer(), {}
    for round in (1, 3):
        method = spafl(eta_tau=0.01, schedule="exponential", decay=0.5, **changes)
        ctx, work = start(method, task, exact(TAU), round)
        feed(method, ctx, work, [1])
        moved[round] = work.thresholds - exact(TAU)
    torch.testing.assert_close(moved[3], moved[1] / 4, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("changes", "dense"),
    [
        ({}, 1 / 3),
        ({"momentum_state": "reset"}, 1 / 3),
        ({"phases": "joint"}, 1.0),
        ({"mask_grad_to_weight": True}, 1.0),
    ],
)
def test_the_gradients_of_all_weights_are_declared(changes: dict[str, Any], dense: float) -> None:
    """Those of the last epoch (eq. 6): d + (1 - d) / E of the weights get a gradient."""
    task, method = mlp(), toy(**changes)
    down = method.down(server_ctx(task), method.init(server_ctx(task)), Client(0, 20))
    thresholds = torch.full_like(down.thresholds, 0.1)
    done = train(method, client_ctx(task, data(task)), replace(down, thresholds=thresholds), None)
    for name, mask in done.result.masks.items():
        share = float(mask.float().mean())
        assert done.result.trained[name] == pytest.approx(share + (1 - share) * dense)
        assert 0 < share < 1


def differing(method: SpaFLVariants) -> dict[str, Any]:
    plain = {item.name: item.default for item in fields.settings(SpaFLVariants())}
    found = {item.name: item.default for item in fields.settings(method)}
    return {name: value for name, value in found.items() if value != plain[name]}


def test_rates_of_the_papers_residual_nets() -> None:
    """.1 * .991 ** t, and .01 * .993 ** t down to 1e-4 in the 657th round (t = 656)."""
    eight = Training(lr=0.1, schedule="exponential", decay=0.991)
    eighteen = Training(lr=0.01, schedule="exponential", decay=0.993, lr_least=1e-4)
    task = mlp()
    for passed in (0, 1, 200):
        ctx = server_ctx(task, passed + 1, 1000)
        assert SpaFL(training=eight).training.rate(ctx) == pytest.approx(0.1 * 0.991**passed)
    assert eighteen.rate(server_ctx(task, 656, 1000)) > 1e-4
    assert eighteen.rate(server_ctx(task, 657, 1000)) == 1e-4


# defects of the released code -------------------------------------------------------------------


def test_late_resets_act_on_the_density_of_the_pass_before() -> None:
    weight = [[0.9] + [0.1] * 199]
    method = spafl(bug_compat="fmnist", alpha=0.0, lr=1e-9)
    ctx, work = start(method, layer(weight, (1.0,)), exact([0.5]))
    assert work.thresholds.tolist() == [0.5] and work.densities == {"weight": 0.005}
    x = [0.0] * 200
    feed(method, ctx, work, [2], x=x, per_epoch=2)
    assert work.thresholds.tolist() == [0.0] and work.densities == {"weight": 1.0}
    assert work.resets == 1


def test_late_resets_act_in_tests_too() -> None:
    task = layer([[0.9] + [0.1] * 199], (1.0,))
    for bug_compat, count in (("none", 1), ("fmnist", 200)):
        method = spafl(bug_compat=bug_compat)
        ctx = server_ctx(task)
        server = method.init(ctx)
        server = merged(method, task, server, {0: torch.tensor([0.5])})
        local = kept(method, ctx, state(task), server.history[-1])
        found = method.model(ctx, server, replace(local, densities=torch.tensor([0.005])))
        assert int(found["weight"].count_nonzero()) == count
        found = method.model(ctx, server, local)
        assert int(found["weight"].count_nonzero()) == 1


def test_no_layer_starts_again_in_tests_alone() -> None:
    """Section 4, SP-11: training only; a test with next to nothing left shows what is left."""
    task = layer([[0.9] + [0.1] * 199], (1.0,))
    method = spafl()
    ctx = server_ctx(task)
    server = merged(method, task, method.init(ctx), {0: torch.tensor([0.5])})
    local = kept(method, ctx, state(task), server.history[-1])
    assert int(method.model(ctx, server, local)["weight"].count_nonzero()) == 1


def test_a_dead_gate_leaves_thresholds_to_the_regulariser() -> None:
    task, ctx = mlp(), client_ctx(mlp(), data(mlp()))
    method = toy(bug_compat="cifar", alpha=0.0)
    down = tell(told(task, method))
    assert torch.equal(train(method, ctx, down, None).result.up.thresholds, down.thresholds)
    method = toy(alpha=0.0)
    assert not torch.equal(train(method, ctx, down, None).result.up.thresholds, down.thresholds)


def test_the_reported_loss_is_the_mean_over_examples() -> None:
    task = mlp()
    ctx = client_ctx(task, data(task))
    method = toy(lr=1e-9, alpha=0.0)
    done = train(method, ctx, tell(torch.zeros(11)), None).result
    params, examples = task.init(ctx.common.fold("init")), ctx.own.train
    wanted = nn.functional.cross_entropy(task.logits(params, examples.x), examples.y)
    assert done.metrics["loss"] == pytest.approx(wanted.item(), rel=1e-4)


def test_the_cohort_is_drawn_from_the_pool() -> None:
    pool = [Client(id, 20) for id in range(9)]
    method = spafl(clients=4)
    ctx = server_ctx(mlp())
    found = method.cohort(ctx, method.init(ctx), pool)
    assert len({client.id for client in found}) == 4
