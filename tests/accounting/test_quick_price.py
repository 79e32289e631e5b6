"""A price from one round of each kind, against all rounds and against runs that really train."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from time import process_time

import numpy as np
import pytest
import torch

from gossamer import METHODS, FedAvg, Key, Options, Task, fields
from gossamer.accounting.blank_data import Blank
from gossamer.accounting.dry_run import price, price_run
from gossamer.accounting.prices import Lines, Price, total
from gossamer.core import AnyMethod
from gossamer.data import federation
from gossamer.engine.loop import start
from gossamer.engine.run_record import Run
from gossamer.models import build

POOL, CLIENTS = 8, 2
RARE = ("-low", "-high", "-kingma", "-reddi", "fedyogi", "fedadagrad", "-sign", "-paper")
"""Presets that send what others do."""
BY_ROUND = {"stc"}
"""What a request takes depends on the rounds that a client missed, so all of them are priced."""
NAMES = [name for name in METHODS if not name.endswith(RARE) and name not in BY_ROUND]
OPTIONS = Options(workers=1, eval_every=0, network="4g")
CONTENT = {"pffdst", "pffdst-no-freezing", "pffdst-variants", "pffdst-code", "pffdst-release"}
"""Whose masks move at random now and then; their code is a few bits longer or shorter."""


@cache
def task() -> Task:
    return Task.of(build("mlp:hidden=8", (1, 8, 8), 10), torch.zeros(2, 1, 8, 8), start="seed")


def blank(method: AnyMethod, rounds: int) -> Run:
    where = Blank(task().layout.input, 10, POOL, 40)
    return Run(method, task(), where, rounds=rounds, key=Key(3), options=OPTIONS)


def few(name: str, **settings: object) -> AnyMethod:
    return fields.replace(METHODS[name], {"clients": CLIENTS, **settings})


def assert_equal(quick: Price, full: Price, content: float) -> None:
    for found, wanted in ((quick.least, full.least), (quick.most, full.most)):
        assert found.keys() == wanted.keys()
        for line, bits in wanted.items():
            assert found[line].messages == bits.messages, line
            assert found[line].paper == pytest.approx(bits.paper, rel=1e-12), line
        for way in ("up", "down"):
            mine, theirs = total(found, way), total(wanted, way)
            assert mine.sent == pytest.approx(theirs.sent, rel=content)
            assert mine.information == pytest.approx(theirs.information, rel=content)
    assert quick.flops_bounds == full.flops_bounds
    assert quick.device_seconds == pytest.approx(full.device_seconds, rel=max(content, 1e-9))


@pytest.mark.parametrize("name", NAMES)
def test_one_round_of_each_kind_costs_what_all_rounds_do(name: str) -> None:
    run = blank(few(name), 24)
    quick, full = price_run(run), price_run(run, every_round=True)
    assert_equal(quick, full, 2e-3 if name in CONTENT else 1e-12)
    assert quick.exact < full.exact == 24


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_hundreds_of_rounds_cost_what_one_of_each_kind_does(name: str) -> None:
    run = blank(few(name), 300)
    quick, full = price_run(run), price_run(run, every_round=True)
    assert_equal(quick, full, 2e-3 if name in CONTENT else 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_500_rounds_of_lenet_are_priced_in_seconds(name: str) -> None:
    """A whole command takes 3 s of processor time; about half of it is the import of PyTorch."""
    lenet = Task.of(build("lenet5_caffe", (1, 28, 28), 10), torch.zeros(2, 1, 28, 28), start="seed")
    method = fields.replace(METHODS[name], {"clients": 10})
    where = {"classes": 10, "pool": 100, "examples": 600, "rounds": 500}
    started = process_time()
    found = price(method, lenet, options=Options(eval_every=0), **where)
    assert process_time() - started < 3
    assert found.exact <= 101  # one for every adjustment of the mask, and for what follows it


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("jmwst", {"mask_every": 4}),
        ("spdst", {"allocation": "erk"}),
        ("prunefl", {"adjust_every": 7}),
        ("prunefl", {"first_rounds": 0, "adjust_every": 5}),
        ("fedspa-variants", {"own_start": True}),
        ("feddst-variants", {"final_density": 0.1}),
        ("flash-variants", {"churn": 0.2}),
        ("spafl-variants", {"weight_start": "sent"}),
        ("fedmef-variants", {"adjust_at_once": True, "upload": "all", "prune_first": True}),
        ("pffdst-variants", {"readjust": "learned", "mask_every": 3}),
        ("fedavg", {"clients": POOL}),
        ("subfedavg", {"recipients": "all"}),
    ],
)
def test_settings_that_change_which_rounds_are_alike(
    name: str, settings: dict[str, object]
) -> None:
    run = blank(few(name, **settings), 20)
    drawn = name in CONTENT or "churn" in settings  # masks of equal size, and other content
    assert_equal(price_run(run), price_run(run, every_round=True), 2e-3 if drawn else 1e-12)


def test_clients_of_several_budgets_are_kinds_of_their_own() -> None:
    budgets = np.array([0.05] * 4 + [0.03] * 4, np.float32)
    for name in ("spdst", "spdst-code"):
        where = Blank(task().layout.input, 10, POOL, 40, budgets=budgets)
        run = replace(blank(few(name), 12), federation=where)
        assert_equal(price_run(run), price_run(run, every_round=True), 1e-12)


@dataclass(frozen=True)
class Plain(FedAvg):
    """A method that does not say which rounds are alike: FedAvg without its forecast."""

    alike = None  # type: ignore[assignment]


def test_a_method_without_forecast_is_gone_through_and_tells_how_far() -> None:
    told: list[tuple[int, int]] = []
    run = blank(Plain(clients=CLIENTS), 40)
    found = price_run(run, progress=lambda done, rounds: told.append((done, rounds)))
    assert found.exact == 13 and told[-1] == (13, 40)  # all rounds but the first cost the same
    assert found.total("up") == price_run(blank(FedAvg(clients=CLIENTS), 40)).total("up")


LEARNED = [
    *("laplace", "fedsparse", "fedpm", "subfedavg", "lotteryfl", "fedspa", "nst", "prunefl"),
    *("feddst", "jmwst", "pffdst-no-server", "spafl", "spdst", "fedtiny-clean", "jmwst-code"),
]


@cache
def data() -> tuple[object, Task]:
    found = federation("synthetic", None, POOL, seed=0)
    example = found.client(0).train.x[:2]
    return found, Task.of(
        build("mlp:hidden=16", tuple(example.shape[1:]), found.classes), example, start="seed"
    )


@pytest.mark.parametrize("name", LEARNED)
def test_a_run_that_trains_costs_what_the_price_allows(name: str) -> None:
    """Some codes of authors meet counts on average only: two in a hundred are let through."""
    where, model = data()
    size = round(float(np.mean([client.examples for client in where.pool])))  # type: ignore[attr-defined]
    method, rounds = few(name), 12
    options = Options(workers=1, eval_every=0)
    cost = start(Run(method, model, where, rounds=rounds, options=options)).cost  # type: ignore[arg-type]
    kwargs = {"classes": 10, "pool": POOL, "examples": size, "rounds": rounds}
    found = price(method, model, options=options, **kwargs)
    assert found.learned is not None
    for way in ("up", "down"):
        low, high = total(found.least, way), total(found.most, way)
        sent = (
            getattr(cost, way),
            getattr(cost, f"information_{way}"),
            getattr(cost, f"paper_{way}"),
        )
        for bits, least, most in zip(sent, columns(low), columns(high), strict=True):
            assert 0.98 * least <= bits <= 1.02 * most, (way, least, bits, most)
    if name != "prunefl":  # whose first phase has more rounds than a price assumes
        assert found.flops_bounds[0] * 0.9 <= cost.flops <= found.flops_bounds[1] * 1.1


def columns(bits: object) -> tuple[float, float, float]:
    return bits.sent, bits.information, bits.paper  # type: ignore[attr-defined]


def test_what_is_certain_has_one_price() -> None:
    for name in ("fedavg", "zerofl", "random_mask", "pdst", "mixture"):
        found = price_run(blank(few(name), 5))
        assert found.learned is None and found.least == found.most == found.lines


def test_bounds_of_laplace_by_hand() -> None:
    """Every weight may move or none: values and a bit for each, or nothing but the header."""
    found = price_run(blank(few("laplace"), 4))
    weights, messages = 64 * 8 + 8 + 8 * 10 + 10, 4 * CLIENTS

    def paper(lines: Lines) -> float:
        return total(lines, "up").paper

    assert paper(found.least) == messages * weights
    assert paper(found.most) == messages * 33 * weights
    assert total(found.least, "up").sent == messages * 72
