"""What FLASH costs, from messages that its methods really make, in its tables and otherwise."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from flash_cases import bench, heard, rows, toy
from torch import nn

import gossamer
from gossamer import Client, Examples, Exchange, Key, Options, Task, config
from gossamer.accounting import (
    FLOPS,
    Accounting,
    Effort,
    MaskCode,
    densities,
    paper_bits,
    stale_share,
)
from gossamer.accounting.dry_run import price
from gossamer.engine.client import train
from gossamer.methods.flash import Flash, Server, Train
from gossamer.methods.parts.mask_learning import Update
from gossamer.methods.parts.sensitivity_probe import Probe, Sensitivity
from gossamer.models import build
from gossamer.wire import Revision
from helpers import client_ctx, server_ctx
from paper_models import COLOUR, CONVOLUTIONS, GREY

PAPERS = Path(gossamer.__file__).parent / "papers" / "flash"
MIDDLE = ("conv2.weight", "fc1.weight")
MODELS = {
    "resnet18": (COLOUR, 10, CONVOLUTIONS),
    "femnist_cnn": (GREY, 62, MIDDLE),
    "mnistnet": (GREY, 10, MIDDLE),
}
DRY = Options(workers=1, eval_every=0, checkpoint_every=100)
VALUES = Accounting(mask_code="none", uncharged="model.buffers")
"""As the tables count: 32 bits for a value, nothing for masks and running statistics."""


@dataclass(frozen=True)
class Messages:
    """A client's messages in the second round, the first one that trains, and its model."""

    task: Task
    down: Any
    up: Any
    probe: Any
    found: Any

    def saving(self, record: Any, accounting: Accounting, buffers: bool = False) -> float:
        """How many times cheaper than the whole model."""
        layout = self.task.layout
        names = layout.names if buffers else layout.parameters
        return 32 * layout.total("count", names) / paper_bits(record, accounting)


@cache
def task_of(model: str) -> Task:
    shape, classes, prunable = MODELS[model]
    return Task.of(
        build(model, shape, classes), torch.zeros(2, *shape), prunable=prunable, start="seed"
    )


@cache
def messages(model: str, density: float, mask_every: int = 0) -> Messages:
    """By hand, without a step: layers that differ in the first round, then the first training."""
    task = task_of(model)
    method, client = toy(density=density, mask_every=mask_every), Client(0, 500)
    first, second = (server_ctx(task, round=number, rounds=601) for number in (1, 2))
    state = method.init(first)
    probe = method.down(first, state, client)
    assert isinstance(probe, Probe)
    layers = len(task.layout.prunable)
    found = Sensitivity(torch.linspace(0.8, 1.2, layers) * density)
    state = method.merge(first, state, [Exchange(client, probe, found)])
    down = method.down(second, state, client)
    assert isinstance(down, Train)
    up = method.finish(second, method.begin(second, down, None).work).up
    return Messages(task, down, up, probe, found)


# bits of one client -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("density", "bytes", "saving"),
    [(0.1, 4_522_612.8, 9.8827), (0.05, 2_290_766.4, 19.5113), (0.01, None, 88.456)],
)
def test_one_way_of_spdst(density: float, bytes: float | None, saving: float) -> None:
    """C1: the specification has fractions of a weight, at most half of one, which is 16 bits."""
    found = messages("resnet18", density)
    for record in (found.down, found.up):
        bits = paper_bits(record, VALUES)
        assert bits == 32 * (round(density * 11_159_232) + 14_730)
        assert bytes is None or bits == pytest.approx(8 * bytes, abs=16)
        # Half a unit of the last digit, and what half a weight of all that is sent comes to.
        assert found.saving(record, VALUES) == pytest.approx(saving, abs=5e-5 + 16 / bits * saving)
    printed = {0.1: 9.8, 0.05: 19.5}.get(density, saving)
    assert found.saving(found.up, VALUES) == pytest.approx(printed, abs=0.1)


@pytest.mark.parametrize(("density", "saving"), [(0.1, 9.8080), (0.05, 19.2061)])
def test_one_way_of_spdst_with_running_statistics(density: float, saving: float) -> None:
    """C1: they travel both ways, and its own accounting charges them."""
    found, accounting = messages("resnet18", density), Flash().accounting
    for record in (found.down, found.up):
        assert found.saving(record, accounting, buffers=True) == pytest.approx(saving, abs=6e-5)
        assert paper_bits(record, accounting) - paper_bits(record, VALUES) == 32 * 9_600


@pytest.mark.parametrize(
    ("code", "savings"),
    [
        ("csr-flat", {0.1: 4.9738, 0.05: 9.8827}),
        ("bitmap", {0.1: 7.5531, 0.05: 12.1269}),
    ],
)
def test_masks_in_other_codes(code: MaskCode, savings: dict[float, float]) -> None:
    """C1: what moved masks cost with their values; the figures lack the row pointers of CSR."""
    for density, saving in savings.items():
        found = messages("resnet18", density, mask_every=1)
        accounting = replace(VALUES, mask_code=code)
        slack = 64 * 20 if code == "csr-flat" else 16
        bits = paper_bits(found.up, accounting)
        wanted = pytest.approx(saving, abs=6e-5 + slack / bits * saving)
        assert found.saving(found.up, accounting) == wanted


@pytest.mark.parametrize(
    ("model", "density", "saving"),
    [("femnist_cnn", 0.05, 14.5562), ("mnistnet", 0.1, 9.7194), ("mnistnet", 0.05, 18.8510)],
)
def test_one_way_of_spdst_on_smaller_models(model: str, density: float, saving: float) -> None:
    """C2; FLASH prints 14.6 for the first."""
    found = messages(model, density)
    for record in (found.down, found.up):
        slack = 5e-5 + 16 / paper_bits(record, VALUES) * saving
        assert found.saving(record, VALUES) == pytest.approx(saving, abs=slack)


def test_indices_take_much_of_what_femnist_saves() -> None:
    """C2."""
    found = messages("femnist_cnn", 0.05, mask_every=1)
    indexed = replace(VALUES, mask_code="csr-flat")
    assert found.saving(found.up, indexed) == pytest.approx(8.4951, abs=2e-4)


def test_jmwst_sends_a_mask_up_in_mask_rounds() -> None:
    """C3, with a bitmap: one bit for each weight that may be pruned."""
    bitmap = replace(VALUES, mask_code="bitmap")
    moved, frozen = (paper_bits(messages("resnet18", 0.05, n).up, bitmap) for n in (1, 0))
    assert moved == pytest.approx(29_485_363.2, abs=16)
    assert frozen == pytest.approx(18_326_131.2, abs=16)
    assert moved - frozen == 11_159_232


def test_the_first_round_sends_a_number_for_each_layer() -> None:
    """C4: 20 layers of 10 clients; the weights that were trained stay where they are."""
    found = messages("resnet18", 0.05)
    assert 10 * paper_bits(found.found, Flash().accounting) == 6_400
    assert paper_bits(found.probe, VALUES) == paper_bits(found.down, VALUES)


def test_a_first_mask_travels_as_a_seed_and_a_count_for_each_layer() -> None:
    found = messages("resnet18", 0.05)
    counted = replace(VALUES, mask_code="bitmap")
    assert paper_bits(found.down, counted) - paper_bits(found.down, VALUES) == 64 + 32 * 20


def test_clients_of_a_small_budget_receive_and_send_less() -> None:
    """32 (d_i n + u) each way; which budget it is travels with the seed, and no paper counts it."""
    found = heard(toy(clients=12), 3, 0.05, 0.1, 0.2)
    kept = {0.05: 0, 0.1: 1, 0.2: 2}
    for event in found.finished:
        if event.round == 1:
            continue
        budget = (0.05, 0.1, 0.2)[event.client % 3]
        masks = found.state.masks[kept[budget]]
        values = 32 * sum(int(mask.sum()) for mask in masks.values())
        assert rows(event, "up")["model.values"].paper == values
        assert rows(event, "down")["model.values"].paper == values
        assert event.paper_up == values + 32 * 13
        assert event.paper_down == event.paper_up


@pytest.mark.parametrize(("name", "every"), [("spdst", 0), ("jmwst5", 5)])
def test_table_9_ends_when_clients_have_sent_two_gib(name: str, every: int) -> None:
    """Twenty clients a round, after one that only finds densities."""
    rounds = config.read(PAPERS / f"table9-{name}.toml").experiment.rounds
    counted = Accounting(uncharged="model.buffers")
    frozen, moved = (paper_bits(messages("mnistnet", 0.2, n).up, counted) for n in (0, 1))
    sent = [moved if every and n % every == 0 else frozen for n in range(rounds)]
    assert 20 * sum(sent[:-1]) / 8 <= 2**31 < 20 * sum(sent) / 8


# how often masks travel -------------------------------------------------------------------------


WINDOWS = 40
"""In which the server has one version of the masks."""


def masks_sent(method: Any, task: Task, rounds: int) -> list[int]:
    """How many messages of each round carry a mask; clients send back what they got."""
    pool = [Client(id, 2) for id in range(100)]
    state, found = method.init(server_ctx(task, round=0, rounds=rounds)), []
    for number in range(1, rounds + 1):
        ctx = server_ctx(task, round=number, rounds=rounds)
        downs = {c: method.down(ctx, state, c) for c in method.cohort(ctx, state, pool)}
        found.append(sum(down.mask is not None for down in downs.values()))
        ups = {client: method.replies(ctx, down)[0] for client, down in downs.items()}
        kept = {c: up if up.mask is None else known(up, state) for c, up in ups.items()}
        exchanges = [Exchange(client, down, kept[client]) for client, down in downs.items()]
        state = method.merge(ctx, state, exchanges)
    return found


def known(up: Update, state: Server) -> Update:
    """A reply with masks that did not move."""
    return replace(up, mask=Revision(state.masks[-1]))


def test_masks_go_down_to_clients_whose_mask_is_stale() -> None:
    """C3: 100 clients, 10 of them in a round, masks that change in every fifth."""
    assert stale_share(0.1, 5) == pytest.approx(0.81902, abs=5e-6)
    task = Task.of(nn.Linear(4, 3), torch.zeros(2, 4), start="seed")
    method = toy("jmwst", clients=10, mask_every=5, density=0.5, allocation="uniform")
    first, *later = masks_sent(method, task, 5 * WINDOWS + 1)
    assert first == 10
    # Five rounds have 40.95 different clients, with a deviation of 2.2.
    slack = 3 * 2.2 / 50 / WINDOWS**0.5
    assert sum(later) / (10 * len(later)) == pytest.approx(0.81902, abs=slack)
    dry = price(method, task, rounds=16, classes=3, pool=100, examples=2, options=DRY)
    lines = {line[0::2]: bits.messages for line, bits in dry.lines.items()}
    assert lines["down", "mask"] == first + sum(later[:15])
    assert lines["down", "model.values"] == lines["up", "model.values"] == 160
    assert lines["up", "mask"] == 40  # rounds 1, 6, 11 and 16


def test_masks_that_change_in_every_round_go_down_to_everybody() -> None:
    task = Task.of(nn.Linear(4, 3), torch.zeros(2, 4), start="seed")
    assert stale_share(0.1, 1) == pytest.approx(1)
    method = toy("jmwst", clients=10, density=0.5, allocation="uniform")
    assert masks_sent(method, task, 30) == [10] * 30


# operations -------------------------------------------------------------------------------------


def picture_task() -> Task:
    """Oracle L1: one convolution from 3 to 8 channels, 16 x 16 outputs."""
    layer = nn.Conv2d(3, 8, 3, padding=1, bias=False)
    parts = (layer, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Task.of(nn.Sequential(*parts), torch.zeros(2, 3, 16, 16), start="seed")


def worked(method: Any, round: int) -> tuple[float, float]:
    """The density of the layer and the products for one example, as a client reports its work."""
    task = picture_task()
    x = torch.randn(8, 3, 16, 16, generator=Key(1).generator())
    server = server_ctx(task, round=round)
    state = method.init(server_ctx(task, round=0))
    down = method.down(server, state, Client(0, 8))
    ctx = client_ctx(task, Examples(x, torch.arange(8)), round=round)
    done = train(method, ctx, down, None)
    shares = densities(done.result.masks), densities(done.result.trained)
    effort = Effort(task.layout, shares[0], 1, done.steps, done.per_epoch, shares[1])
    return shares[0]["0.weight"], FLOPS["flash"](effort)


@pytest.mark.parametrize(
    ("changes", "round", "gradient"),
    [
        ({}, 2, 0.1),  # SPDST
        ({"mask_every": 1}, 2, 0.1),
        ({"mask_every": 2}, 3, 0.1),
        ({"mask_every": 1, "growth_needs_dense_grad": True}, 2, 1.0),
        ({"mask_every": 1, "growth": "gradient"}, 2, 1.0),
        ({"mask_every": 2, "growth_needs_dense_grad": True}, 3, 0.1),  # a frozen round
        ({"growth_needs_dense_grad": True}, 2, 0.1),
        ({}, 1, 0.1),  # the first round learns masks, too
        ({"growth_needs_dense_grad": True}, 1, 1.0),
    ],
)
def test_operations_of_a_client(changes: dict[str, Any], round: int, gradient: float) -> None:
    """L1: 16,588.8 products at a tenth and 66,355.2 with the gradient of all weights."""
    macs = 55_296
    assert picture_task().layout.macs == macs
    density, found = worked(toy(density=0.1, **changes), round)
    assert density == pytest.approx(22 / 216)  # a tenth of 216, rounded
    share = density if gradient < 1 else 1.0
    assert found == pytest.approx(macs * (2 * density + share), rel=1e-6)
    wanted = 16_588.8 if gradient < 1 else 66_355.2
    assert found == pytest.approx(wanted, abs=3 * macs * 0.5 / 216)


def test_operations_of_the_whole_model() -> None:
    density, found = worked(toy(density=1.0), 2)
    assert (density, found) == (1.0, 165_888)


def test_an_engine_counts_what_clients_report() -> None:
    method = toy("jmwst", mask_every=2, growth_needs_dense_grad=True)
    layout = bench(method).task.layout
    for event in heard(method, 4, flops_model="flash").finished:
        sparse = 3 * event.examples * layout.macs
        dense = event.round in (1, 2, 4)  # the first one, and rounds 0 and 2 of the training
        assert (event.flops > event.examples * layout.macs) == dense
        assert event.flops < sparse
