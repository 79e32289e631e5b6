"""PFFDST: counts of its phases, what freezes, what is sent once, and what a lost cache costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import floor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gossamer import Client, Ctx, Examples, Exchange, Job, Key, Options, Task, models, run
from gossamer.accounting import Accounting, paper_bits
from gossamer.conformance.toys import Tiny, normed_task, plain_task
from gossamer.engine.client import batches
from gossamer.engine.events import read
from gossamer.methods import METHODS
from gossamer.methods.as_published import pffdst as published
from gossamer.methods.as_published.pffdst import PFFDSTVariants
from gossamer.methods.as_published.pffdst_phases import Phases
from gossamer.methods.parts.frozen_weights import Local, Server
from gossamer.methods.parts.masked_training import Work
from gossamer.methods.parts.sparse_model import total
from gossamer.methods.pffdst import PFFDST, Down
from gossamer.optim import Training
from gossamer.wire import HEADER

CLIENT = Client(0, 10)
QUICK = Training(epochs=1, batch=8, lr=0.05, momentum=0.9, weight_decay=0.1)


class Twenty(nn.Module):
    """Twenty weights, all of them prunable, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(10, 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x)
        return out


def toy() -> Task:
    return Task.of(Twenty(), torch.zeros(2, 10), start="seed")


def lenet() -> Task:
    return Task.of(
        models.build("lenet_cifar", (3, 32, 32), 10), torch.zeros(2, 3, 32, 32), start="seed"
    )


def ctx(task: Task, number: int, rounds: int) -> Ctx:
    return Ctx(task, number, rounds, Key(1).fold("round", number), Key(2))


def echoes(
    method: Any, task: Task, rounds: int, client: Client = CLIENT
) -> Iterator[tuple[int, Down, Any]]:
    """Every round with a client that sends back what it received."""
    state = method.init(ctx(task, 0, rounds))
    for number in range(1, rounds + 1):
        here = ctx(task, number, rounds)
        down = method.down(here, state, client)
        (up,) = method.replies(here, down)
        state = method.merge(here, state, [Exchange(client, down, up)])
        yield number, down, state


def finished(out: Path) -> list[dict[str, Any]]:
    """What clients of a run have to tell."""
    return [event for event in read(out / "events.jsonl") if event["event"] == "client-finished"]


# counts -------------------------------------------------------------------------------------------


def test_the_toy_of_twenty_weights_prunes_grows_and_freezes_as_on_paper() -> None:
    phases = Phases(density=0.4, every=2, allocation="uniform", rounding="exact")
    method = PFFDSTVariants(phases=phases)
    active = [total(method.init(ctx(toy(), 0, 40)).masks)]
    frozen, bits = [], []
    for _, down, state in echoes(method, toy(), 40):
        active.append(total(state.masks))
        frozen.append(total(state.frozen))
        bits.append(32 * sum(values.numel() for values in down.model.values.values.values()))
    assert active[0] == 6 and active[1:5] == [6] * 4 and active[5:20] == [4] * 15
    assert active[20:25] == [10] * 5 and active[25:] == [8] * 16
    assert frozen == [0] * 19 + [4] * 21
    assert bits == [192] * 5 + [128] * 15 + [192] * 5 + [128] * 15


def test_counts_of_lenet_are_those_of_the_released_code_without_its_rounding_error() -> None:
    wanted = {
        1: [81, 371, 115_020, 1_624, 202],
        5: [59, 251, 76_620, 1_120, 160],
        19: [59, 251, 76_620, 1_120, 160],
        20: [126, 611, 191_820, 2_632, 286],
        24: [126, 611, 191_820, 2_632, 286],
        25: [104, 491, 153_420, 2_128, 244],
        40: [104, 491, 153_420, 2_128, 244],
    }
    sent = []
    for number, down, state in echoes(PFFDST(), lenet(), 40):
        if number in wanted:
            assert [int(mask.sum()) for mask in state.masks.values()] == wanted[number]
        sent.append(sum(values.numel() for values in down.model.values.values.values()) / 781_770)
    assert sum(sent) / len(sent) == pytest.approx(0.1125, rel=2e-3)


@pytest.mark.parametrize("scope", ["layer-fraction", "layer-quota", "global"])
def test_every_scope_ends_with_the_density_asked_for(scope: Any) -> None:
    phases = Phases(density=0.4, every=1, scope=scope, allocation="uniform", rounding="exact")
    *_, (_, _, state) = echoes(PFFDSTVariants(phases=phases), plain_task(), 16)
    prunable = plain_task().layout.total("count", plain_task().layout.prunable)
    assert total(state.masks) == pytest.approx(0.4 * prunable, abs=2)


def test_readjusting_moves_the_mask_and_new_weights_start_from_zero() -> None:
    method = PFFDST(density=0.4, every=2, trim_at=0.5)
    before: Server | None = None
    moved = 0
    for number, _, state in echoes(method, plain_task(), 16):
        if before is not None and number in (2, 10):
            for name, mask in state.masks.items():
                grown = mask & ~before.masks[name]
                assert not state.params[name][grown].any()
                moved += int(grown.sum())
            assert state.version == before.version + 1
        before = state
    assert moved > 0


def test_an_empty_round_at_the_end_of_a_phase_only_puts_it_off() -> None:
    method = PFFDST(density=0.4, every=2)
    state = method.init(ctx(toy(), 0, 8))
    for number in range(1, 9):
        here = ctx(toy(), number, 8)
        down = method.down(here, state, CLIENT)
        (up,) = method.replies(here, down)
        silent = number in (1, 4)  # the ends of readjustment and of the first phase
        state = method.merge(here, state, [] if silent else [Exchange(CLIENT, down, up)])
        assert bool(state.frozen) == (number >= 5)
    assert state.trimmed


# what freezes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pffdst", "pffdst-no-server"])
@pytest.mark.parametrize("task", [plain_task, normed_task])
def test_frozen_weights_are_the_same_bits_to_the_end(name: str, task: Any, tmp_path: Path) -> None:
    preset = METHODS[name]
    assert isinstance(preset, PFFDST)
    readjustment = replace(preset.readjustment, readjust_every=1)
    method = replace(preset, clients=4, training=QUICK, density=0.6, every=1)
    method = replace(method, readjustment=readjustment)
    seen: list[Server] = []

    @dataclass(frozen=True)
    class Watched(PFFDST):
        def merge(self, ctx: Ctx, state: Server, exchanges: Any) -> Server:
            seen.append(super().merge(ctx, state, exchanges))
            return seen[-1]

    watched = Watched(**{f: getattr(method, f) for f in PFFDST.__dataclass_fields__})
    run(watched, task(), Tiny(), rounds=8, out=tmp_path, options=Options(eval_every=0))
    frozen = [state for state in seen if state.frozen]
    first = frozen[0]
    assert len(frozen) == 5
    for state in frozen:
        for name, mask in first.frozen.items():
            assert torch.equal(state.frozen[name], mask)
            assert torch.equal(state.params[name][mask], first.params[name][mask])
            assert bool((state.masks[name] | ~mask).all())
            assert not state.params[name][~state.masks[name]].any()
    free = {name: seen[-1].masks[name] & ~mask for name, mask in first.frozen.items()}
    assert any(bool(seen[-1].params[name][mask].any()) for name, mask in free.items())


@pytest.mark.parametrize("freeze", [False, True])
def test_scales_of_normalisation_rest_only_where_asked(freeze: bool) -> None:
    task, own = normed_task(), Tiny().client(0)
    method = PFFDSTVariants(training=QUICK, freeze_norm=freeze)
    *_, (_, _, state) = echoes(method, task, 2)  # two of four rounds, and all is frozen
    here = replace(ctx(task, 3, 4), data=own)
    state = replace(state, frozen=state.frozen or state.masks)
    work = method.begin(here, method.resend(here, state, CLIENT), None).work
    for batch in batches(here, Job(work, 1, 8)):
        work = method.step(here, work, batch)
    leaves = task.layout.leaves
    names = [n for n, leaf in leaves.items() if leaf.kind == "norm" and n.endswith("weight")]
    same = [torch.equal(work.learning.model.params[name], state.params[name]) for name in names]
    assert names and (all(same) if freeze else not any(same))
    assert not torch.equal(
        work.learning.model.params[names[0].replace("weight", "bias")],
        state.params[names[0].replace("weight", "bias")],
    )


# what is sent -------------------------------------------------------------------------------------


def test_the_frozen_part_is_sent_once_to_each_client_and_charged() -> None:
    deliveries = []
    for number, down, _ in echoes(PFFDST(), lenet(), 8):
        if down.frozen is not None:
            deliveries.append(number)
            bits = paper_bits(down.frozen, Accounting())
            assert bits == 32 * 78_210 + 781_770  # and of 0.1 of all weights, not of quotas:
            assert 400 * bits / 8 == pytest.approx(164_171_700, rel=5e-4)
        assert down.keeps == (number > 4)
    assert deliveries == [5]


def test_who_holds_the_frozen_mask_is_told_of_free_places_only(tmp_path: Path) -> None:
    method = PFFDST(clients=12, training=QUICK, density=0.6, every=1, trim_at=1.0)
    run(method, plain_task(), Tiny(), rounds=12, out=tmp_path, options=Options(eval_every=0))
    log = [
        event for event in read(tmp_path / "events.jsonl") if event["event"] == "client-finished"
    ]
    mask = {}
    for event in log:
        rows = {row["leaf"]: row for row in event["traffic"] if row["direction"] == "down"}
        mask[event["round"]] = rows["mask"]["information"] if "mask" in rows else 0.0
        assert not any(
            row["leaf"] == "mask" for row in event["traffic"] if row["direction"] == "up"
        )
    prunable = plain_task().layout.total("count", plain_task().layout.prunable)
    free = prunable - floor(0.3 * prunable)
    assert 0 < mask[8] <= free


@dataclass(frozen=True)
class Wiped(PFFDST):
    """Every client loses what it kept before round 7."""

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        return super().begin(ctx, down, None if ctx.round == 7 else local)


def test_a_wiped_client_asks_for_the_frozen_part_and_ends_with_the_same_bits(
    tmp_path: Path,
) -> None:
    settings: dict[str, Any] = {"clients": 12, "training": QUICK, "density": 0.6}
    hashes, logs = [], []
    for kind in (PFFDST, Wiped):
        out = tmp_path / kind.__name__
        summary = run(kind(**settings), plain_task(), Tiny(), rounds=8, out=out)
        hashes.append(summary.state_hash)
        logs.append(finished(out))
    assert hashes[0] == hashes[1]
    for plain, wiped in zip(*logs, strict=True):
        asked = [row for row in wiped["traffic"] if row["message"] == "Missing"]
        assert len(asked) == (wiped["round"] == 7)
        if asked:
            assert wiped["up"] == plain["up"] + 8 * HEADER
            leaves = {row["leaf"] for row in wiped["traffic"] if row["direction"] == "down"}
            assert "frozen.values" in leaves and wiped["down"] > 2 * plain["down"]


def test_work_is_counted_where_weights_are_trained() -> None:
    task, own = plain_task(), Tiny().client(0)
    method = PFFDST(training=QUICK, density=0.6, ratio=0.0)
    state = method.init(ctx(task, 0, 4))
    for number in range(1, 4):
        here = ctx(task, number, 4)
        down = method.down(here, state, CLIENT)
        result = method.finish(here, method.begin(replace(here, data=own), down, None).work)
        state = method.merge(here, state, [Exchange(CLIENT, down, result.up)])
        state = replace(state, held=state.held[:0], holders=state.holders[:0])
    assert total(result.masks) == pytest.approx(2 * total(result.trained), abs=4)


# which model freezes ------------------------------------------------------------------------------


def test_the_best_model_on_validation_data_is_frozen_where_asked() -> None:
    phases = Phases(density=0.4, readjust="none")
    method = PFFDSTVariants(freeze_from="best-valid", phases=phases)
    task = plain_task()
    state = method.init(ctx(task, 0, 8))
    models_seen = []
    for number, score in enumerate((0.2, 0.9, 0.3, 0.5), 1):
        here = ctx(task, number, 8)
        down = method.down(here, state, CLIENT)
        models_seen.append(state.params)
        assert isinstance(down, Down)
        values = {n: v + number for n, v in down.model.values.values.items()}
        louder = replace(down.model, values=replace(down.model.values, values=values))
        up = published.Up(louder, None, score)
        state = method.merge(here, state, [Exchange(CLIENT, down, up)])
    for name, mask in state.frozen.items():
        assert torch.equal(state.params[name][mask], models_seen[1][name][mask])


def test_the_best_model_needs_validation_data() -> None:
    method = PFFDSTVariants(freeze_from="best-valid")
    here = ctx(plain_task(), 1, 8)
    down = method.down(here, method.init(here), CLIENT)
    data = Tiny().client(0)
    nothing = Examples(data.valid.x[:0], data.valid.y[:0])
    with pytest.raises(ValueError, match=r"use e\.g\. `valid=0\.1`"):
        method.begin(replace(here, data=replace(data, valid=nothing)), down, None)


def test_one_round_is_too_short_for_two_phases() -> None:
    with pytest.raises(ValueError, match="`freezing=False`"):
        PFFDST().init(ctx(toy(), 0, 1))
    PFFDST(freezing=False).init(ctx(toy(), 0, 1))


def test_a_papers_bits_of_the_toy_are_values_mask_and_one_delivery() -> None:
    method = PFFDSTVariants(phases=Phases(density=0.4, allocation="uniform", rounding="exact"))
    bits = {n: paper_bits(down, method.accounting) for n, down, _ in echoes(method, toy(), 40)}
    assert bits[1] == 192 + 20 and bits[2] == 192  # the mask once, then values alone
    assert bits[6] == 128 + 20 and bits[7] == 128
    assert bits[21] == 192 + 20 + (128 + 20) and bits[22] == 192
    assert bits[26] == 128 + 20 and bits[40] == 128


@pytest.mark.parametrize("readjust", ["server", "client"])
@pytest.mark.parametrize("freezing", [True, False])
@pytest.mark.parametrize("task", [plain_task, normed_task])
def test_variants_with_their_defaults_give_the_bits_of_the_method(
    readjust: Any, freezing: bool, task: Any
) -> None:
    common: dict[str, Any] = {"clients": 4, "training": QUICK}
    schedule: dict[str, Any] = {"density": 0.4, "every": 1, "trim_at": 0.5}
    schedule |= {"readjust": readjust, "freezing": freezing}
    pure, varied = (
        run(method, task(), Tiny(), rounds=8, options=Options(eval_every=0))
        for method in (
            PFFDST(**common, **schedule),
            PFFDSTVariants(**common, phases=Phases(**schedule)),
        )
    )
    assert pure.cost == varied.cost
    assert all(torch.equal(pure.state.params[n], p) for n, p in varied.state.params.items())
    assert all(torch.equal(pure.state.masks[n], m) for n, m in varied.state.masks.items())
