"""Compressed methods: error feedback by hand, both directions, and promises to the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from gossamer import METHODS, FedAvg, Key, Run, Training, fields
from gossamer.compression import Compressed, compress
from gossamer.compression.method import CompressedDown, CompressedLocal, CompressedServer
from gossamer.conformance.promises import check
from gossamer.core import Client, Ctx, Exchange, Missing, Params
from gossamer.engine import Options, Summary, start
from gossamer.engine.checks import check_run, ctx_of
from gossamer.wire import Levels
from helpers import Toy, linear, mlp, refused, same

TRAINING = Training(epochs=1, batch=8, lr=0.1)
METHOD = FedAvg(clients=3, training=TRAINING)


def run_of(method: Any, rounds: int = 3, task: Any = None, **options: Any) -> Run:
    chosen = Options(workers=1, **options)
    return Run(method, task or linear(), Toy(6), rounds=rounds, options=chosen)


def trained(method: Any, rounds: int = 3, **options: Any) -> Summary:
    return start(run_of(method, rounds, **options))


class Moving:
    """Replaces a client's training: weights change by what is given."""

    def __init__(self, method: Compressed, ctx: Ctx) -> None:
        self.method, self.ctx = method, ctx

    def reply(self, down: Any, local: Any, change: Params) -> Any:
        work = self.method.begin(self.ctx, down, local).work
        for name, tensor in work.inner.params.items():
            tensor += change[name]
        return self.method.finish(self.ctx, work)


def a_round(method: Compressed) -> tuple[Ctx, CompressedServer, Moving]:
    run = run_of(method)
    ctx = ctx_of(run, 1)
    return ctx, method.init(ctx), Moving(method, ctx)


def changes(weights: list[float]) -> Params:
    """A change of the linear model: its first weights, and nothing else."""
    weight = torch.zeros(3, 5)
    weight.view(-1)[: len(weights)] = torch.tensor(weights)
    return {"weight": weight, "bias": torch.zeros(3)}


def merged_change(method: Compressed, ctx: Ctx, state: CompressedServer, up: Any) -> list[float]:
    down = method.down(ctx, state, Client(0, 1))
    after = method.merge(ctx, state, [Exchange(Client(0, 1), down, up)])
    difference = after.inner.params["weight"] - state.inner.params["weight"]
    return [round(float(each), 4) for each in difference.view(-1)[:3]]


def test_error_feedback_adds_what_was_lost_to_the_next_change() -> None:
    # One of 18 weights is kept. Round 1: 3 of (3, 2, 1). Round 2: (1, 2, 1) + (0, 2, 1): 4.
    method = compress(METHOD, up="topk:0.05+ef")
    ctx, state, client = a_round(method)
    down = method.down(ctx, state, Client(0, 1))
    first = client.reply(down, None, changes([3.0, 2.0, 1.0]))
    assert merged_change(method, ctx, state, first.up) == [3.0, 0.0, 0.0]
    memory = first.local.memory["params[weight]"].view(-1)[:3]
    assert torch.allclose(memory, torch.tensor([0.0, 2.0, 1.0]), atol=1e-5)
    second = client.reply(down, first.local, changes([1.0, 2.0, 1.0]))
    assert merged_change(method, ctx, state, second.up) == [0.0, 4.0, 0.0]
    memory = second.local.memory["params[weight]"].view(-1)[:3]
    assert torch.allclose(memory, torch.tensor([1.0, 0.0, 2.0]), atol=1e-5)


def test_without_feedback_what_was_lost_is_lost() -> None:
    method = compress(METHOD, up="topk:0.05")
    ctx, state, client = a_round(method)
    down = method.down(ctx, state, Client(0, 1))
    assert client.reply(down, None, changes([3.0, 2.0])).local is None


def test_ef21_approaches_a_change_that_stays_the_same() -> None:
    # g1 = C(x) = (3, 0, 0), g2 = g1 + C(x - g1) = (3, 2, 0), g3 = x: the recursion of the paper.
    method = compress(METHOD, up="topk:0.05+ef21")
    ctx, state, client = a_round(method)
    down, local = method.down(ctx, state, Client(0, 1)), None
    start_of = state.inner
    for wanted in ([3.0, 0.0, 0.0], [3.0, 2.0, 0.0], [3.0, 2.0, 1.0]):
        result = client.reply(down, local, changes([3.0, 2.0, 1.0]))
        local = result.local
        exchange = Exchange(Client(0, 1), down, result.up)
        state = method.merge(ctx, state, [exchange])
        moved = (state.inner.params["weight"] - start_of.params["weight"]).view(-1)[:3]
        assert torch.allclose(moved, torch.tensor(wanted), atol=1e-5)
        assert same(state.estimates[0], local.memory)
        state = CompressedServer(start_of, state.estimates)


def test_a_client_that_lost_its_estimate_says_so() -> None:
    method = compress(METHOD, up="topk:0.05+ef21")
    ctx, state, client = a_round(method)
    down = method.down(ctx, state, Client(0, 1))
    first = client.reply(down, None, changes([3.0, 2.0]))
    state = method.merge(ctx, state, [Exchange(Client(0, 1), down, first.up)])
    down = method.down(ctx, state, Client(0, 1))
    again = client.reply(down, None, changes([0.0, 0.0, 7.0]))
    assert again.up.fresh and merged_change(method, ctx, state, again.up) == [0.0, 0.0, 7.0]


def test_requests_are_differences_to_the_copy_that_clients_hold() -> None:
    method = compress(METHOD, down="topk:0.05")
    ctx, state, client = a_round(method)
    down = method.down(ctx, state, Client(0, 1))
    assert isinstance(down, CompressedDown) and down.copy is not None and not down.news
    first = client.reply(down, None, changes([3.0, 2.0, 1.0]))
    start_of = state.inner.params["weight"]
    state = method.merge(ctx, state, [Exchange(Client(0, 1), down, first.up)])
    assert torch.allclose(state.inner.params["weight"] - start_of, changes([3.0, 2, 1])["weight"])
    # The server's model moved by (3, 2, 1); its clients hear of 3 now, and of 2 in the next round.
    for wanted in ([3.0, 0.0, 0.0], [3.0, 2.0, 0.0], [3.0, 2.0, 1.0]):
        down = method.down(ctx, state, Client(0, 1))
        assert down.copy is None and len(down.news) == 1
        reply = client.reply(down, first.local, changes([]))
        held = (reply.local.copy["params[weight]"] - start_of).view(-1)[:3]
        assert torch.allclose(held, torch.tensor(wanted), atol=1e-5)
        # The client changes nothing: the server's model stays, with what the request has lost.
        exact = state.inner.params["weight"]
        state = method.merge(ctx, state, [Exchange(Client(0, 1), down, reply.up)])
        assert torch.allclose(state.inner.params["weight"], exact, atol=1e-6)
        first = reply


@pytest.mark.parametrize("up", ["", "sign+ef"])
@pytest.mark.parametrize("settings", [{}, {"server_momentum": 0.0, "server_lr": 0.5}])
def test_what_requests_lose_is_not_taken_for_a_change(up: str, settings: dict[str, float]) -> None:
    """Clients that change nothing leave the server's model alone, though they hold another."""
    chosen = METHODS["fedavgm" if settings else "fedavg"]
    method = compress(fields.replace(chosen, {"clients": 2, **settings}), up=up, down="topk:0.05")
    ctx, state, client = a_round(method)
    down = method.down(ctx, state, Client(0, 1))
    first = client.reply(down, None, changes([3.0, 2.0, 1.0]))
    state = method.merge(ctx, state, [Exchange(Client(0, 1), down, first.up)])
    down = method.down(ctx, state, Client(1, 1))
    silent = client.reply(down, None, changes([]))
    weight = state.inner.params["weight"]
    assert (weight - silent.local.copy["params[weight]"]).abs().max() > 0.1
    after = method.merge(ctx, state, [Exchange(Client(1, 1), down, silent.up)])
    assert torch.allclose(after.inner.params["weight"], weight, atol=1e-6)


def test_clients_that_missed_rounds_are_sent_what_they_missed() -> None:
    method = compress(FedAvg(clients=2, training=TRAINING), down="topk:0.05")
    found = trained(method, 12, task=mlp())
    state = found.state
    assert state.version == 11 and len(state.news) == len(state.sizes) <= 11
    missed = [client for client, seen in state.seen.items() if seen < state.version]
    assert missed
    ctx = ctx_of(run_of(method, 12, mlp()), 12)
    for client in missed:
        down = method.down(ctx, state, Client(client, 1))
        behind = state.version - state.seen[client]
        if down.copy is None:
            assert len(down.news) == behind + 1 and down.base == state.seen[client]
    stranger = method.down(ctx, state, Client(99, 1))
    assert stranger.copy is not None and stranger.base == state.version + 1


def test_a_client_that_lost_its_copy_asks_for_it() -> None:
    method = compress(METHOD, down="topk:0.05")
    ctx, state, client = a_round(method)
    down = method.down(ctx, state, Client(0, 1))
    reply = client.reply(down, None, changes([1.0]))
    state = method.merge(ctx, state, [Exchange(Client(0, 1), down, reply.up)])
    news = method.down(ctx, state, Client(0, 1))
    with pytest.raises(Missing):
        method.begin(ctx, news, None)
    again = method.resend(ctx, state, Client(0, 1))
    assert again.copy is not None
    method.begin(ctx, again, None)
    old = CompressedLocal(None, copy=reply.local.copy, version=7)
    with pytest.raises(Missing):
        method.begin(ctx, news, old)


PAIRS = [
    ("fedavg", "topk:0.1+ef", ""),
    ("fedavg", "low_rank:1+ef", "low_rank:1"),
    ("fedopt", "natural", "qsgd:16"),
    ("spafl", "qsgd:16+ef", ""),
    ("spdst", "qsgd:16", ""),
]


@pytest.mark.parametrize(
    ("name", "up", "down"),
    [*PAIRS[:4], *(pytest.param(*pair, marks=pytest.mark.slow) for pair in PAIRS[4:])],
)
def test_a_compressed_method_keeps_every_promise(name: str, up: str, down: str) -> None:
    found = [each for each in check(compress(METHODS[name], up=up, down=down)) if not each.ok]
    assert found == []


REST = [name for name in METHODS if name not in {pair[0] for pair in PAIRS}]


@pytest.mark.slow
@pytest.mark.parametrize("name", REST)
def test_every_method_is_compressed_well_or_refused_with_a_reason(name: str) -> None:
    if isinstance(METHODS[name], Compressed):
        return
    try:
        method = compress(METHODS[name], up="qsgd:16")
    except ValueError as refusal:
        assert "`compress=`" in str(refusal)
        return
    assert [each for each in check(method) if not each.ok] == []


@pytest.mark.parametrize("name", ["fedpm", "laplace", "zerofl"])
def test_methods_that_send_no_changes_are_refused(name: str) -> None:
    with refused("send no changes of numbers that they were sent"):
        compress(METHODS[name], up="qsgd:16")


def test_memory_needs_tensors_that_stay_in_their_places() -> None:
    with refused("leave out .ef and .ef21"):
        compress(METHODS["spdst"], up="topk:0.1+ef")


@pytest.mark.parametrize("name", ["feddrop", "feddrop-variants", "fedrolex"])
def test_memory_needs_units_that_stay_the_same(name: str) -> None:
    with refused("train other units in every round"):
        compress(METHODS[name], up="topk:0.1+ef")
    compress(METHODS[name], up="qsgd:16")
    compress(METHODS["heterofl"], up="topk:0.1+ef")


def test_requests_must_be_the_same_for_all_clients() -> None:
    with refused("requests of Flash have values on masks"):
        compress(METHODS["spdst"], down="sign")
    method = fields.replace(compress(METHODS["spafl"], down="sign"), {"clients": 2})
    with refused("hold no parameters that all clients are sent alike"):
        start(run_of(method, 2, mlp()))


def test_other_refusals() -> None:
    with refused("compressed already"):
        compress(compress(METHOD, up="sign"), up="sign")
    with refused("needs a compressor"):
        compress(METHOD)
    with refused("compressed, which noise cannot cover"):
        private = Run(
            compress(METHOD, up="sign"), linear(), Toy(6), rounds=1, dp="clip=1,noise=1,delta=1e-5"
        )
        check_run(private)


def test_thresholds_stay_in_their_range() -> None:
    method = fields.replace(METHODS["spafl"], {"clients": 3, "alpha": 0.0, "lr": 1.0})
    found = start(run_of(compress(method, up="qsgd:1"), 2, mlp()))
    thresholds = found.state.inner.history
    assert len(thresholds) == 3 and 0 <= float(thresholds.min()) <= float(thresholds.max()) <= 1


def test_fewer_bits_and_still_learning() -> None:
    dense, small = trained(METHOD, 15), trained(compress(METHOD, up="qsgd:8"), 15)
    first = small.history["global_accuracy"][0]
    assert small.accuracy["global"] > first
    assert small.cost.up < 0.5 * dense.cost.up and small.cost.down == dense.cost.down
    assert small.cost.information_up <= small.cost.up


def test_runs_that_diverge_are_told_and_not_merged() -> None:
    wild = fields.replace(compress(METHOD, up="topk:0.1+ef"), {"lr": 1e38})
    found = trained(wild, 2, task=mlp(), on_client_error="skip")
    assert found.diverged


def test_a_compressed_run_is_resumed_from_python(tmp_path: Path) -> None:
    import gossamer as gs

    method = compress(METHOD, up="topk:0.1+ef", down="qsgd:4")
    whole = gs.run(method, linear(), Toy(6), rounds=4, quiet=True)
    cut = gs.run(
        method,
        linear(),
        Toy(6),
        rounds=4,
        out=tmp_path / "a",
        quiet=True,
        options=Options(until="bits=1"),
    )
    assert cut.rounds == 1
    text = (tmp_path / "a" / "config.toml").read_text()
    assert 'compress = "up=topk:0.1+ef,down=qsgd:4"' in text and "compress_up" not in text
    run = Run(method, linear(), Toy(6), rounds=4, out=tmp_path / "a", name=whole.method)
    assert start(run, resume=True).state_hash == whole.state_hash


def test_votes_move_every_weight_by_the_same_amount() -> None:
    # Signs of three clients: (+, +, -), (-, -, -), (+, -, 0 counts as +): the vote is (+, -, -).
    method = fields.replace(METHODS["signsgd"], {"clients": 3, "lr": 0.5})
    ctx = ctx_of(run_of(method), 1)
    state = method.init(ctx)
    down = method.down(ctx, state, Client(0, 1))
    exchanges = []
    for client, bits in enumerate(([1, 1, 0], [0, 0, 0], [1, 0, 1])):
        weight = torch.zeros(3, 5, dtype=torch.int8)
        weight.view(-1)[:3] = torch.tensor(bits)
        signs = Levels({"weight": weight, "bias": torch.ones(3, dtype=torch.int8)}, 0, 1)
        up = type(method.finish(ctx, method.begin(ctx, down, None).work).up)(signs, {})
        exchanges.append(Exchange(Client(client, 1), down, up))
    after = method.merge(ctx, state, exchanges)
    moved = (after.params["weight"] - state.params["weight"]).view(-1)[:4]
    assert moved.tolist() == pytest.approx([-0.5, 0.5, 0.5, 0.5], abs=1e-6)
    assert torch.allclose(after.params["bias"], state.params["bias"] - 0.5)


def test_signs_take_one_bit_a_weight() -> None:
    found = trained(fields.replace(METHODS["signsgd"], {"clients": 3}), 2, task=mlp())
    weights = sum(tensor.numel() for tensor in found.state.params.values())
    assert found.cost.paper_up == 2 * 3 * weights
    assert found.cost.up <= 2 * 3 * (weights + 8 * 20)


def test_keys_of_clients_differ() -> None:
    method = compress(METHOD, up="qsgd:4")
    run = run_of(method)
    assert (
        start(run).state_hash
        != start(
            Run(method, linear(), Toy(6), rounds=3, key=Key(1), options=Options(workers=1))
        ).state_hash
    )
