"""FedDST and RandomMask: when masks move, how they are counted, and who holds which."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gossamer import Client, Ctx, Exchange, Job, Key, Options, Task, models, run, sparsity
from gossamer.accounting import paper_bits
from gossamer.conformance.toys import Tiny, normed_task, plain_task
from gossamer.engine.client import batches
from gossamer.engine.events import read
from gossamer.methods.as_published import feddst as published
from gossamer.methods.as_published.feddst import FedDSTVariants
from gossamer.methods.as_published.repeated_draws import Sampling
from gossamer.methods.feddst import FedDST, Server, random_mask
from gossamer.methods.parts.client_readjustment import Readjustment, Up, quotas
from gossamer.methods.parts.sparse_model import total
from gossamer.optim import Training
from gossamer.wire import Revision, pack

CLIENT = Client(0, 17)
QUICK = Training(epochs=1, batch=8, lr=0.05, momentum=0.9, weight_decay=0.1)
OFTEN = Readjustment(readjust_ratio=0.5, readjust_every=2, readjust_until=1.0)
VARIED = published.Readjustment(OFTEN)


def ctx(task: Task, number: int, rounds: int = 8) -> Ctx:
    return Ctx(task, number, rounds, Key(1).fold("round", number), Key(2))


def visit(
    method: FedDST | FedDSTVariants, task: Task, state: Server, number: int, rounds: int = 8
) -> Any:
    """One client's round from the message to the reply, with nothing kept before it."""
    here = replace(ctx(task, number, rounds), data=Tiny().client(0))
    down = method.resend(here, state, CLIENT)
    work = method.begin(here, down, None).work
    for batch in batches(here, Job(work, method.training.epochs, method.training.batch)):
        work = method.step(here, work, batch)
    return down, work, method.finish(here, work)


# when ---------------------------------------------------------------------------------------------


def test_readjustment_begins_in_the_second_round_and_fades_like_a_cosine() -> None:
    rates = [Readjustment().rate(number, 400) for number in range(400)]
    due = [number for number, rate in enumerate(rates) if rate]
    assert due == list(range(1, 200, 15))
    assert rates[1] == pytest.approx(0.00999938, abs=5e-9)
    assert rates[16] == pytest.approx(0.00984292, abs=5e-9)


def test_a_mask_goes_up_in_readjustment_rounds_only_and_never_from_random_masks(
    tmp_path: Path,
) -> None:
    for name, base in (("feddst", FedDST(readjustment=OFTEN)), ("random", random_mask())):
        method = replace(base, clients=6, training=QUICK, density=0.5)
        run(method, plain_task(), Tiny(), rounds=6, out=tmp_path / name, options=Options(workers=1))
        rounds_with_masks = set()
        for event in read(tmp_path / name / "events.jsonl"):
            if event["event"] == "client-finished":
                up = {row["leaf"] for row in event["traffic"] if row["direction"] == "up"}
                rounds_with_masks |= {event["round"]} if "mask" in up else set()
        assert rounds_with_masks == ({2, 4, 6} if name == "feddst" else set())


def test_clients_declare_the_batch_that_they_readjust_by() -> None:
    method = FedDST(clients=6, training=QUICK, density=0.5, readjustment=OFTEN)
    task = plain_task()
    state = method.init(ctx(task, 0))
    searched = {number: visit(method, task, state, number)[2].searched for number in (1, 2, 3)}
    last = len(Tiny().client(0).train) % QUICK.batch or QUICK.batch
    assert searched == {1: 0, 2: last, 3: 0} and last > 0


# how many -----------------------------------------------------------------------------------------


def test_lenet_keeps_the_published_quotas_and_sends_as_much() -> None:
    task = Task.of(
        models.build("lenet_cifar", (3, 32, 32), 10), torch.zeros(2, 3, 32, 32), start="seed"
    )
    state = FedDST().init(ctx(task, 0))
    assert list(sparsity.count(state.masks).values()) == [103, 492, 153_438, 2_126, 240]
    down = FedDST().down(ctx(task, 1), state, CLIENT)
    one_way = paper_bits(replace(down, mask=None)) / 8
    assert one_way == 4 * (156_399 + 236)
    assert one_way == pytest.approx(626_360, rel=3e-4)  # of a fifth of the weights


@pytest.mark.parametrize("task", [plain_task, normed_task])
def test_a_client_ends_with_its_quotas_and_zeros_elsewhere(task: Any) -> None:
    method = FedDST(training=QUICK, density=0.5, readjustment=OFTEN)
    state = method.init(ctx(task(), 0))
    _, work, result = visit(method, task(), state, 2)
    assert sparsity.count(work.masks) == quotas(ctx(task(), 2), 0.5)
    assert sparsity.mismatch(state.masks, work.masks) > 0.1
    for name, mask in work.masks.items():
        assert not work.params[name][~mask].any()
    assert result.local is None and result.up.mask is not None


def test_growth_of_the_released_code_ends_below_its_quotas() -> None:
    growth = replace(VARIED, feddst_growth=True)
    method = FedDSTVariants(training=QUICK, density=0.5, readjustment=growth)
    state = method.init(ctx(plain_task(), 0))
    _, work, _ = visit(method, plain_task(), state, 2)
    assert total(work.masks) < sum(method.quotas(ctx(plain_task(), 2), 0.5).values())


def test_the_union_of_masks_is_pruned_to_quotas_and_bumps_the_version() -> None:
    method = FedDST(training=QUICK, density=0.3, readjustment=OFTEN)
    task = plain_task()
    state = method.init(ctx(task, 0))
    down, _, result = visit(method, task, state, 2)
    moved = sparsity.grow_random(Key(5), state.masks, dict.fromkeys(state.masks, 3))
    fewer = sparsity.largest(
        state.params, {n: c - 3 for n, c in sparsity.count(state.masks).items()}, state.masks
    )
    other = sparsity.union(fewer, moved)
    packed = pack({name: state.params[name] for name in other}, other)
    up = Up(replace(result.up.model, values=packed), Revision(other))
    exchanges = [Exchange(CLIENT, down, result.up), Exchange(Client(1, 9), down, up)]
    merged = method.merge(ctx(task, 2), state, exchanges)
    assert sparsity.count(merged.masks) == quotas(ctx(task, 2), 0.3)
    assert merged.version == 1 and merged.held.tolist() == [-1, -1]


def test_density_follows_its_line_to_the_end() -> None:
    method = FedDSTVariants(training=QUICK, density=0.6, final_density=0.2, readjustment=VARIED)
    task = plain_task()
    state = method.init(ctx(task, 0, 5))
    prunable = task.layout.total("count", task.layout.prunable)
    densities = []
    for number in range(1, 6):
        down, _, result = visit(method, task, state, number, 5)
        state = method.merge(ctx(task, number, 5), state, [Exchange(CLIENT, down, result.up)])
        densities.append(total(state.masks) / prunable)
    assert densities == pytest.approx([0.6, 0.5, 0.4, 0.3, 0.2], abs=0.05)


# variants -----------------------------------------------------------------------------------------


def two_replies(method: FedDSTVariants) -> tuple[Server, Server, dict[str, Any]]:
    """A state, what becomes of it, and the mask of which one of two clients has lost a weight."""
    task = plain_task()
    state = method.init(ctx(task, 0))
    down, _, result = visit(replace(method, readjustment=published.Readjustment()), task, state, 1)
    lost = {name: mask.clone() for name, mask in state.masks.items()}
    for mask in lost.values():
        mask[tuple(mask.nonzero()[0])] = False
    ones = {name: torch.ones_like(state.params[name]) for name in lost}
    model = result.up.model
    whole = Up(replace(model, values=pack(ones, state.masks)), Revision(state.masks))
    partial = Up(replace(model, values=pack(ones, lost)), Revision(lost))
    exchanges = [Exchange(Client(0, 10), down, whole), Exchange(Client(1, 30), down, partial)]
    return state, method.merge(ctx(task, 2), state, exchanges), lost


def test_a_weight_that_too_few_clients_have_is_dropped() -> None:
    method = FedDSTVariants(density=0.5, readjustment=VARIED)
    state, merged, lost = two_replies(method)
    assert sparsity.count(merged.masks) == sparsity.count(state.masks)
    _, merged, _ = two_replies(replace(method, min_votes=2))
    assert all(torch.equal(merged.masks[name], mask) for name, mask in lost.items())


def test_new_weights_of_most_clients_may_stay() -> None:
    """They all arrive as zeros: by index the first stays, by votes the one that two chose."""
    task = plain_task()
    plain = FedDSTVariants(density=0.5, readjustment=VARIED)
    for ties, wanted in (("index", 0), ("votes", 1)):
        method = replace(plain, ties=ties)
        state = method.init(ctx(task, 0))
        name = next(iter(state.masks))
        free = (~state.masks[name]).flatten().nonzero().flatten()[:2]
        last = state.params[name].abs().where(state.masks[name], torch.inf).argmin()
        exchanges = []
        for client, grown in enumerate((free[0], free[1], free[1])):
            masks = {key: mask.clone() for key, mask in state.masks.items()}
            masks[name].view(-1)[last], masks[name].view(-1)[grown] = False, True
            down = method.down(ctx(task, 2), state, Client(client, 10))
            values = pack({key: state.params[key] * masks[key] for key in masks}, masks)
            up = Up(replace(down.model, values=values), Revision(masks))
            exchanges.append(Exchange(Client(client, 10), down, up))
        merged = method.merge(ctx(task, 2), state, exchanges)
        assert sparsity.count(merged.masks) == sparsity.count(state.masks)
        kept = merged.masks[name].flatten()[free]
        assert kept.tolist() == [wanted == 0, wanted == 1]


def test_who_pruned_a_weight_may_count_with_its_old_value() -> None:
    method = FedDSTVariants(density=0.5, readjustment=VARIED)
    state, plain, lost = two_replies(method)
    _, remembered, _ = two_replies(replace(method, remember_old=True))
    for name, mask in lost.items():
        gone = state.masks[name] & ~mask
        assert torch.equal(plain.params[name][gone], torch.ones(1))
        old = state.params[name][gone]
        assert remembered.params[name][gone] == pytest.approx((10 * 1 + 30 * float(old)) / 40)


def test_the_proximal_term_pulls_clients_back() -> None:
    task = plain_task()
    plain, pulled = (FedDST(training=QUICK, density=0.5, mu=mu) for mu in (0.0, 10.0))
    state = plain.init(ctx(task, 0))
    distances = []
    for method in (plain, pulled):
        _, work, _ = visit(method, task, state, 1)
        moved = [work.params[name] - state.params[name] for name in state.masks]
        distances.append(sum(float(each.norm()) for each in moved))
    assert distances[1] < 0.8 * distances[0]


def test_clients_may_count_by_batches() -> None:
    by_batches = Sampling("batches")
    assert [by_batches.weight(Client(0, n), 8) for n in (1, 8, 9)] == [1, 1, 2]
    assert Sampling("samples").weight(Client(0, 9), 8) == 9
    assert Sampling("uniform").weight(Client(0, 9), 8) == 1


def test_drawing_with_replacement_may_give_fewer_clients() -> None:
    method = FedDSTVariants(clients=10, sampling=Sampling(replacement=True))
    state = method.init(ctx(plain_task(), 0))
    pool = Tiny().pool
    sizes = [len(method.cohort(ctx(plain_task(), n), state, pool)) for n in range(20)]
    assert max(sizes) <= 10 and min(sizes) < 10
    assert len(method.cohort(ctx(plain_task(), 1), state, pool)) == len(
        {client.id for client in method.cohort(ctx(plain_task(), 1), state, pool)}
    )


@pytest.mark.parametrize("task", [plain_task, normed_task])
def test_variants_with_their_defaults_give_the_bits_of_the_method(
    task: Any, tmp_path: Path
) -> None:
    common: dict[str, Any] = {"clients": 6, "training": QUICK, "density": 0.5, "mu": 0.1}
    done = [
        run(method, task(), Tiny(), rounds=6, out=tmp_path / kind, options=Options(workers=1))
        for kind, method in {
            "pure": FedDST(**common, readjustment=OFTEN),
            "variants": FedDSTVariants(**common, readjustment=VARIED),
        }.items()
    ]
    assert done[0].state_hash == done[1].state_hash
    assert done[0].cost == done[1].cost
