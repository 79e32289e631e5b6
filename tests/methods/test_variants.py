"""Variants of methods: with their defaults they are the methods, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from gossamer import ALGORITHMS, METHODS, Ensemble, Key, Options, Task, fields, run
from gossamer.conformance.toys import Tiny, normed_task, plain_task, small
from gossamer.core import budgets_of
from gossamer.engine.client import server_ctx
from gossamer.engine.store import Store
from gossamer.methods import PUBLISHED, FedPM
from gossamer.methods.as_published.delegation import variants_of
from gossamer.wire import record_types

ROUNDS = 7
FASTER = {
    "readjust_every": 2,
    "every": 2,
    "select_clients": 3,
    "candidates": 2,
    "lr": 0.05,
    "adjust_every": 2,
    "adjust_until": 6,
    "first_rounds": 2,
    "density": 0.3,
    "alpha": 0.05,
    "readjust_ratio": 0.2,
    "accurate": 0.1,
    "distance": 0.0,
    "first_accuracy": 0.5,
    "lambda0": 0.002,
    "threshold_lr": 0.01,
    "server_threshold_lr": 0.2,
    "prune_below": 0.5,
}
"""Settings with which few rounds pass through every phase and prune something."""
VARIANTS = [name for name in PUBLISHED if name.endswith("-variants")]
PURE = {"flash": "spdst"}
"""Families whose variants are not named after an entry."""


def pure_of(variants: str) -> str:
    family = variants.removesuffix("-variants")
    return PURE.get(family, family)


def results(name: str, task: Task, out: Path) -> tuple[Any, ...]:
    """What a run came to: models of server and clients, bits, operations and accuracies."""
    method = small(METHODS[name])
    known = {setting.name for setting in fields.settings(method)}
    method = fields.replace(method, {key: FASTER[key] for key in FASTER if key in known})
    federation = Tiny()
    options = Options(workers=1, eval_every=3)
    summary = run(method, task, federation, rounds=ROUNDS, seed=1, out=out, options=options)
    store = Store(out / "rounds", record_types(method))
    store.rollback(ROUNDS)
    ctx = server_ctx(task, Key(1), ROUNDS, ROUNDS, budgets_of(federation.pool))
    kept = {id: store.get(id) for id in store.clients()}
    models = {id: tensors(method.model(ctx, summary.state, kept[id])) for id in kept}
    models[-1] = tensors(method.model(ctx, summary.state, None))
    return models, summary.cost, summary.density, summary.accuracy


def tensors(model: Any) -> list[torch.Tensor]:
    members = model.members if isinstance(model, Ensemble) else (model,)
    return [tensor for each in members for _, tensor in sorted(each.items())]


@pytest.mark.parametrize("make", [plain_task, normed_task])
@pytest.mark.parametrize("variants", VARIANTS)
def test_variants_with_their_defaults_give_the_bits_of_the_method(
    variants: str, make: Any, tmp_path: Path
) -> None:
    pure = results(pure_of(variants), make(), tmp_path / "pure")
    other = results(variants, make(), tmp_path / "variants")
    assert pure[1:] == other[1:]
    assert pure[0].keys() == other[0].keys()
    for id, model in pure[0].items():
        assert all(map(torch.equal, model, other[0][id]))


OTHERWISE = {"importance", "recipients", "mask_code", "level_code", "uncharged"}
"""Options that variants have in another form: `importance_rule`, and accounting by its readings."""


@pytest.mark.parametrize("variants", VARIANTS)
def test_variants_have_every_option_of_the_method_and_more(variants: str) -> None:
    own = {setting.name: setting.default for setting in fields.settings(METHODS[variants])}
    pure = {item.name: item.default for item in fields.settings(ALGORITHMS[pure_of(variants)])}
    shared = {name: value for name, value in pure.items() if name not in OTHERWISE}
    assert shared.items() <= own.items()
    assert own.keys() - pure.keys()


def test_a_variants_class_has_the_functions_that_it_leaves_out_with_their_hints() -> None:
    @variants_of(FedPM)
    @dataclass(frozen=True)
    class Shorter:
        pure: FedPM = FedPM(clients=2)

        def cohort(self, ctx: Any, state: Any, pool: Any) -> Any:
            return pool[:1]

    method, ctx = Shorter(), server_ctx(plain_task(), Key(1), 1, 1, (1.0,))
    state, pool = method.init(ctx), Tiny().pool  # type: ignore[attr-defined]
    assert torch.equal(*(each.init(ctx).theta["0.weight"] for each in (method, method.pure)))  # type: ignore[attr-defined]
    assert (
        len(method.cohort(ctx, state, pool)) == 1 and len(method.pure.cohort(ctx, state, pool)) == 2
    )
    assert record_types(method) == record_types(method.pure)
    assert method.accounting == method.pure.accounting  # type: ignore[attr-defined]
    assert not hasattr(method, "resend") and hasattr(method, "measures")
