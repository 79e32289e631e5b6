"""The ways of FedDST's and PFFDST's released codes: each one is an option, and each one tells."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gossamer import Client, Ctx, Examples, Exchange, Key, Options, Task, fields, run, sparsity
from gossamer.accounting import Accounting, paper_bits
from gossamer.conformance.bench import Bench
from gossamer.conformance.toys import Tiny, plain_task
from gossamer.engine.client import train
from gossamer.engine.events import ClientFinished, Clock, Event
from gossamer.methods.as_published import feddst, pffdst
from gossamer.methods.as_published.feddst import FedDSTVariants, Readjustment
from gossamer.methods.as_published.pffdst import PFFDSTVariants
from gossamer.methods.as_published.pffdst_phases import Phases
from gossamer.methods.as_published.repeated_draws import Sampling, draws
from gossamer.methods.flash import Flash
from gossamer.methods.parts import client_readjustment
from gossamer.methods.parts.sparse_model import total
from gossamer.methods.pffdst import Down
from gossamer.optim import Training
from gossamer.wire import WireError

QUICK = Training(epochs=1, batch=8, lr=0.05, momentum=0.9, weight_decay=0.1)
OFTEN = Readjustment(
    client_readjustment.Readjustment(readjust_ratio=0.5, readjust_every=1, readjust_until=1.0)
)
NEVER = Readjustment(client_readjustment.Readjustment(readjust_ratio=0.0))
REPEATED = Sampling(replacement=True)
POOL = Tiny().pool
SHAPES = {name: plain_task().layout[name].shape for name in plain_task().layout.prunable}
DRY = Options(workers=1, eval_every=0, checkpoint_every=100)


def ctx(task: Task, number: int, rounds: int = 8) -> Ctx:
    return Ctx(task, number, rounds, Key(1).fold("round", number), Key(2))


def trained(method: Any, state: Any, number: int, client: Client, rounds: int = 8) -> Any:
    """A client's part in a round, from the message to the result; it held nothing before."""
    task = plain_task()
    down = method.resend(ctx(task, number, rounds), state, client)
    own = replace(ctx(task, number, rounds), data=Tiny().client(client.id))
    return down, train(method, own, down, None).result


@dataclass
class Ledger:
    """What clients of a run cost, by round."""

    finished: list[ClientFinished] = field(default_factory=list)

    def emit(self, event: Event, clock: Clock) -> None:
        if isinstance(event, ClientFinished):
            self.finished.append(event)

    def close(self) -> None:
        pass

    def bits(self, way: str, number: int) -> int:
        return sum(getattr(each, way) for each in self.finished if each.round == number)


def ran(method: Any, rounds: int) -> tuple[Ledger, Any]:
    ledger = Ledger()
    done = run(method, plain_task(), Tiny(), rounds=rounds, sinks=[ledger], options=DRY)
    assert done.failed == 0
    return ledger, done


# drawing with replacement -----------------------------------------------------------------------


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.integers(1, 30), st.sets(st.integers(0, 40), min_size=1))
def test_who_was_drawn_tells_how_often_without_the_others(
    seed: int, count: int, ids: set[int]
) -> None:
    among_all = draws(Key(seed), sorted(ids), count)
    assert len(among_all) == count and set(among_all) <= ids
    assert draws(Key(seed), sorted(set(among_all), reverse=True), count) == among_all


def test_every_client_is_drawn_as_often_as_any_other() -> None:
    found = Counter(draws(Key(3), range(4), 2_000))
    assert max(abs(number - 500) for number in found.values()) < 5 * 19.4  # deviations


def test_who_is_drawn_twice_counts_twice() -> None:
    """The mean over draws, by hand, of clients that send their own number."""
    task = plain_task()
    methods: tuple[Any, ...] = (
        FedDSTVariants(clients=10, sampling=REPEATED),
        PFFDSTVariants(clients=10, sampling=REPEATED, phases=Phases(freezing=False)),
    )
    for method in methods:
        here = ctx(task, 1)
        state = method.init(ctx(task, 0))
        cohort = method.cohort(here, state, POOL)
        hits = draws(here.key, [client.id for client in POOL], 10)
        assert [client.id for client in cohort] == sorted(set(hits)) and len(cohort) < 10
        exchanges = []
        for client in cohort:
            down = method.down(here, state, client)
            (up,) = method.replies(here, down)
            packed = down.model.values
            values = {n: torch.full_like(v, client.id) for n, v in packed.values.items()}
            model = replace(down.model, values=replace(packed, values=values))
            exchanges.append(Exchange(client, down, replace(up, model=model)))
        merged = method.merge(here, state, exchanges)
        sizes = {client.id: client.examples for client in POOL}
        wanted = sum(sizes[id] * id for id in hits) / sum(sizes[id] for id in hits)
        once = sum(sizes[id] * id for id in set(hits)) / sum(sizes[id] for id in set(hits))
        assert abs(wanted - once) > 0.05
        for name, mask in state.masks.items():
            torch.testing.assert_close(
                merged.params[name][mask], torch.full_like(merged.params[name][mask], wanted)
            )


def test_nobody_who_was_drawn_is_nobody() -> None:
    assert list(REPEATED.repeated(ctx(plain_task(), 1), [], [], 5)) == []
    assert len(Sampling().cohort(ctx(plain_task(), 1), POOL, 3)) == 3


# a first model that is not sent -----------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [
        FedDSTVariants(clients=4, training=QUICK, density=0.5, readjustment=NEVER),
        FedDSTVariants(clients=4, training=QUICK, density=0.5, readjustment=OFTEN),
        PFFDSTVariants(clients=4, training=QUICK, phases=Phases(density=0.4)),
    ],
    ids=["random_mask", "feddst", "pffdst"],
)
def test_the_first_model_need_not_be_sent_and_is_the_same(method: Any) -> None:
    values = Accounting(mask_code="none", uncharged="model.dense,keeps,score")
    sent, charged = ran(replace(method, accounting=values), 3)
    free, drawn = ran(replace(method, accounting=values, free_first_download=True), 3)
    assert free.bits("paper_down", 1) == 0 < sent.bits("paper_down", 1)
    assert free.bits("down", 1) == 4 * 8 * 9  # headers
    for number in (1, 2, 3):
        assert free.bits("paper_up", number) == sent.bits("paper_up", number)
        assert number == 1 or free.bits("paper_down", number) == sent.bits("paper_down", number)
    assert drawn.state_hash == charged.state_hash


def test_a_run_of_values_alone_has_one_way_less() -> None:
    """Oracle C7 in small: R rounds of K clients are 2 R - 1 ways of K messages."""
    values = Accounting(mask_code="none", uncharged="model.dense")
    wish: dict[str, Any] = {"clients": 3, "training": QUICK, "accounting": values}
    method = FedDSTVariants(**wish, readjustment=NEVER, free_first_download=True)
    ledger, done = ran(method, 4)
    bits = sum(ledger.bits(way, n) for way in ("paper_up", "paper_down") for n in range(1, 5))
    assert bits == 32 * total(done.state.masks) * 3 * (2 * 4 - 1)


# FedDST -----------------------------------------------------------------------------------------


def test_the_released_pull_has_no_effect() -> None:
    plain = FedDSTVariants(training=QUICK, density=0.5)
    state = plain.init(ctx(plain_task(), 0))
    none, pulled, released = (
        trained(replace(plain, mu=mu, prox_noop=noop), state, 1, POOL[0])[1].up
        for mu, noop in ((0.0, False), (5.0, False), (5.0, True))
    )
    for name, values in none.model.values.values.items():
        assert torch.equal(values, released.model.values.values[name])
        assert not torch.allclose(values, pulled.model.values.values[name])


def test_what_is_readjusted_may_stay_as_much_until_the_end() -> None:
    falls, stays = (Readjustment(readjust_decay=decay) for decay in ("cosine", "constant"))
    rates = [(falls.rate(number, 400), stays.rate(number, 400)) for number in range(400)]
    assert {stay for fall, stay in rates if fall} == {0.01}
    assert all((fall > 0) == (stay > 0) for fall, stay in rates)
    assert rates[181][0] < 0.001


@pytest.mark.parametrize(("density", "head", "kept"), [(0.5, 0.5, 96), (0.3, 0.25, 48)])
def test_the_head_of_erk_plus_has_a_density_of_its_own(
    density: float, head: float, kept: int
) -> None:
    """Of 192 weights in the head; by default it is dense, for which there are too few."""
    wish: dict[str, Any] = {"density": density, "allocation": "erk-plus", "rounding": "exact"}
    phases = Phases(**wish, freezing=False, readjust="none")
    for dense in (
        FedDSTVariants(**wish),
        PFFDSTVariants(phases=phases),
        Flash(density=density, allocation="erk-plus"),
    ):
        method = fields.replace(dense, {"fc_density": head})
        masks = method.init(ctx(plain_task(), 0)).masks
        found = sparsity.count(masks[-1] if isinstance(method, Flash) else masks)
        assert found["3.weight"] == kept and sum(found.values()) == round(density * 228)
        with pytest.raises(ValueError, match="use another `density=` or `fc_density=`"):
            dense.init(ctx(plain_task(), 0))


def test_feddst_as_released_has_all_of_its_ways() -> None:
    code = feddst.code_parity(FedDSTVariants())
    ways = replace(Readjustment(), readjust_decay="constant", feddst_growth=True)
    assert code.readjustment == ways and code.sampling == Sampling("batches", replacement=True)
    assert code.prox_noop and code.free_first_download
    assert ran(replace(code, clients=4, training=QUICK, density=0.5), 3)


# PFFDST -----------------------------------------------------------------------------------------


class Twenty(nn.Module):
    """Twenty weights, all of them prunable, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(10, 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x)
        return out


def phases_of_twenty(method: PFFDSTVariants, rounds: int = 40) -> list[tuple[Any, Any, Any, Any]]:
    """Every round of the toy of oracle M4, with a client that trains: state, down, up, merged."""
    task, client = Task.of(Twenty(), torch.zeros(2, 10), start="seed"), Client(0, 12)
    draw = Key(7).generator()
    examples = Examples(torch.randn(12, 10, generator=draw), torch.arange(12) % 2)
    data = replace(Tiny().client(0), train=examples, valid=examples, test=examples)
    state, local, found = method.init(ctx(task, 0, rounds)), None, []
    for number in range(1, rounds + 1):
        here = ctx(task, number, rounds)
        down = method.down(here, state, client)
        result = train(method, replace(here, data=data), down, local).result
        merged = method.merge(here, state, [Exchange(client, down, result.up)])
        found.append((state, down, result.up, merged))
        state, local = merged, result.local
    return found


NOTHING = {name: torch.zeros(shape) > 0 for name, shape in SHAPES.items()}
TOY = PFFDSTVariants(
    training=QUICK, phases=Phases(density=0.4, every=2, allocation="uniform", rounding="exact")
)


def values_of(message: Any) -> int:
    return 32 * sum(values.numel() for values in message.model.values.values.values())


def test_the_toy_of_twenty_weights_sends_and_freezes_as_on_paper() -> None:
    """Oracle M4: 192 and 128 bits up in either phase, 128 + 20 more down once, then frozen."""
    rounds = phases_of_twenty(TOY)
    assert [values_of(up) for _, _, up, _ in rounds] == ([192] * 5 + [128] * 15) * 2
    assert all(up.mask is None for _, _, up, _ in rounds)
    more = [paper_bits(down.frozen) if down.frozen else 0 for _, down, _, _ in rounds]
    assert more == [0] * 20 + [128 + 20] + [0] * 19
    start = rounds[19][3]
    assert total(start.frozen) == 4
    for _, _, _, merged in rounds[19:]:
        mask = start.frozen["layer.weight"]
        weights = merged.params["layer.weight"]
        assert torch.equal(weights[mask], start.params["layer.weight"][mask])
        assert bool(weights[mask].all())
    assert not torch.equal(rounds[-1][3].params["layer.weight"], start.params["layer.weight"])


def test_the_released_run_readjusts_half_of_one_phase_and_keeps_its_last_growth() -> None:
    """The end of readjustment is a quarter of all rounds, and the density ends a quarter above."""
    code = pffdst.code_parity(PFFDSTVariants())
    assert pffdst.released() == replace(
        code, phases=replace(code.phases, trim_at=0.5, readjust_second=False)
    )
    bugs = replace(TOY, phases=replace(TOY.phases, trim_at=0.5, readjust_second=False))
    active = [total(merged.masks) for *_, merged in phases_of_twenty(bugs)]
    assert active == [6] * 9 + [4] * 10 + [10] * 21
    masks = [merged.masks["layer.weight"] for *_, merged in phases_of_twenty(bugs)]
    moved = [not torch.equal(one, two) for one, two in itertools.pairwise(masks)]
    assert moved[19:] == [False] * 20 and any(moved[:8])


def test_what_is_frozen_may_go_uncharged() -> None:
    *_, (_, down, _, _) = phases_of_twenty(TOY, 21)
    assert isinstance(down, Down) and down.frozen is None
    down = next(down for _, down, _, _ in phases_of_twenty(TOY) if down.frozen)
    charged, free = (
        paper_bits(down, method.accounting) for method in (TOY, pffdst.code_parity(TOY))
    )
    assert (charged, free) == (192 + 20 + 128 + 20, 192 + 20)


# the model that did best on test data -----------------------------------------------------------


def test_the_best_model_may_be_chosen_on_test_data_as_in_the_released_code() -> None:
    """With as many rounds as models; scores are those of the model a client received."""
    task, client = plain_task(), POOL[0]
    method = PFFDSTVariants(freeze_from="best-test", phases=Phases(density=0.4, readjust="none"))
    state = method.init(ctx(task, 0))
    data = Tiny().client(0)
    swapped = replace(data, valid=data.test, test=data.valid)
    for number, own in enumerate((data, swapped), 1):
        here = replace(ctx(task, number), data=own)
        down = method.resend(here, state, client)
        found = train(method, here, down, None, dry=True).result.up.score
        logits = task.logits(state.params, own.test.x)
        assert found == pytest.approx(float((logits.argmax(-1) == own.test.y).double().mean()))


def test_clients_without_test_data_have_no_say() -> None:
    task = plain_task()
    method = PFFDSTVariants(freeze_from="best-test", phases=Phases(density=0.4, readjust="none"))
    data = Tiny().client(0)
    nothing = Examples(data.test.x[:0], data.test.y[:0])
    here = ctx(task, 1)
    state = method.init(ctx(task, 0))
    down = method.down(here, state, POOL[0])
    own = replace(here, data=replace(data, test=nothing))
    up = train(method, own, down, None, dry=True).result.up
    assert up.score == -1
    silent = method.merge(here, state, [Exchange(POOL[0], down, up)])
    assert silent.best == {}
    both = [Exchange(POOL[0], down, up), Exchange(POOL[1], down, replace(up, score=0.25))]
    merged = method.merge(here, state, both)
    assert merged.best and merged.best_score == 0.25
    with pytest.raises(WireError, match="an accuracy of 2 came back"):
        method.merge(here, state, [Exchange(POOL[0], down, replace(up, score=2.0))])


def test_pffdst_as_released_has_all_of_its_ways() -> None:
    code = pffdst.code_parity(PFFDSTVariants())
    assert code.sampling == Sampling("batches", replacement=True)
    assert code.freeze_from == "best-test"
    assert code.freeze_norm and code.free_first_download
    assert code.phases == replace(Phases(), readjustment=Readjustment(feddst_growth=True))
    assert code.accounting == Accounting(uncharged="keeps,score,frozen")


# whatever the settings --------------------------------------------------------------------------


@settings(max_examples=8)
@given(
    st.sampled_from([0.1, 0.4, 0.8]),
    st.sampled_from([0.1, 0.5, 1.0]),
    st.sampled_from([0.25, 0.5, 1.0]),
    st.sampled_from(["layer-fraction", "layer-quota", "global"]),
    st.sampled_from(["server", "client", "none"]),
    st.sampled_from(["uniform", "erk", "erk-feddst"]),
)
def test_frozen_weights_rest_and_no_weight_lies_outside_of_its_mask(
    density: float,
    ratio: float,
    until: float,
    scope: Any,
    readjust: Any,
    allocation: Any,
) -> None:
    phases = Phases(
        density=density,
        ratio=ratio,
        trim_at=until,
        scope=scope,
        readjust=readjust,
        allocation=allocation,
        every=1,
        readjustment=OFTEN,
    )
    method = PFFDSTVariants(clients=2, training=QUICK, phases=phases)
    bench = Bench(method, plain_task(), Tiny(), 6)
    prunable = bench.task.layout.total("count", bench.task.layout.prunable)
    first = None
    for round_ in bench.history():
        state = round_.merged
        for name, mask in state.masks.items():
            assert not state.params[name][~mask].any()
        if first is None and state.frozen:
            first = state
        for name, mask in first.frozen.items() if first else ():
            assert torch.equal(state.frozen[name], mask)
            assert bool((state.masks[name] | ~mask).all())
            assert torch.equal(state.params[name][mask], first.params[name][mask])
        trained = sparsity.difference(round_.state.masks, round_.state.frozen or NOTHING)
        for exchange in round_.exchanges:
            assert (exchange.up.mask is None) == (readjust != "client")
            assert exchange.up.mask or values_of(exchange.up) == 32 * total(trained)
    assert first is not None and total(first.frozen)
    most = density * prunable + 3 * len(first.frozen) + 2
    assert total(state.masks) <= most
    # Where the second phase finds less room than it wants, the same fractions are pruned again.
    saturated = readjust == "server" and scope == "layer-fraction"
    least = min(density, 1 - ratio * density / 2) if saturated else density
    assert readjust == "client" or total(state.masks) >= 0.8 * least * prunable - 6
