"""What a run sends is what was encoded, received, charged, and what clients computed with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sparse_toy import Down, Pruned, Server, Up

from gossamer import Ctx, Exchange, FedAvg, Key, Options, Summary, option, run
from gossamer.accounting import Accounting
from gossamer.devices import presets
from gossamer.engine import Run, conversation, events, start
from gossamer.engine.conversation import Conversations, Reply
from gossamer.methods.parts import dense_model
from gossamer.wire import HEADER, Mode, Schema, WireError, decode, encode
from helpers import Toy, fedavg, mlp, same

Log = list[dict[str, Any]]


def wired(
    mode: str, out: Path, method: Any = None, rounds: int = 4, pool: int = 6, **options: Any
) -> tuple[Summary, Log]:
    summary = start(
        Run(
            method or Pruned(),
            mlp(),
            Toy(pool),
            rounds=rounds,
            out=out,
            options=Options(workers=1, **options),
            wire=Mode.parse(mode),
        )
    )
    return summary, events.read(out / "events.jsonl")


def of(log: Log, kind: str) -> Log:
    return [event for event in log if event["event"] == kind]


# the ledger --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["f32", "f16", "f32+zstd", "f16+zstd+ans"])
def test_rows_of_the_ledger_add_up_to_what_clients_and_rounds_report(
    mode: str, tmp_path: Path
) -> None:
    summary, log = wired(mode, tmp_path)
    columns = {"sent": "", "information": "information_", "paper": "paper_"}
    totals = dict.fromkeys([f"{c}{d}" for c in columns.values() for d in ("up", "down")], 0.0)
    for event in of(log, "client-finished"):
        for column, name in columns.items():
            for direction in ("up", "down"):
                rows = [row for row in event["traffic"] if row["direction"] == direction]
                total = sum(row[column] for row in rows)
                assert event[f"{name}{direction}"] == pytest.approx(total, abs=1e-6)
                totals[f"{name}{direction}"] += total
        assert {row["message"] for row in event["traffic"]} <= {"Down", "Up", "Missing"}
        leaves = {row["leaf"] for row in event["traffic"] if row["direction"] == "up"}
        assert leaves == {"header", "values", "mask", "received"}
    last = of(log, "round-finished")[-1]
    for name, total in totals.items():
        assert last[name] == pytest.approx(total) == getattr(summary.cost, name)


def test_sent_bits_are_those_of_the_encoded_records(tmp_path: Path) -> None:
    _, log = wired("f32", tmp_path, fedavg(), rounds=1)
    layout = mlp().layout
    record = dense_model.Down({n: torch.zeros(layout[n].shape) for n in layout.names})
    for event in of(log, "client-finished"):
        assert event["down"] == event["up"] == 8 * len(encode(record))
        assert event["paper_down"] == event["information_down"] == 32 * layout.count
        assert event["down"] == 32 * layout.count + 8 * HEADER


def test_a_client_without_the_base_is_sent_the_whole_mask_after_the_changes(
    tmp_path: Path,
) -> None:
    _, log = wired("f32", tmp_path, Pruned(clients=2), rounds=6, pool=4)
    took: dict[int, set[int]] = {}
    found = set()
    for event in of(log, "client-finished"):
        took.setdefault(event["round"], set()).add(event["client"])
        down = [row for row in event["traffic"] if row["direction"] == "down"]
        headers = sum(row["leaf"] == "header" for row in down)
        has_base = event["round"] == 1 or event["client"] in took.get(event["round"] - 1, ())
        assert headers == (1 if has_base else 2)
        asked = [row["sent"] for row in event["traffic"] if row["message"] == "Missing"]
        assert asked == ([] if has_base else [8 * HEADER])
        assert event["down"] == sum(row["sent"] for row in down)
        found.add((headers, event["round"] > 1))
    assert found == {(1, False), (1, True), (2, True)}


def test_the_column_of_the_paper_charges_all_clients_where_the_paper_does(tmp_path: Path) -> None:
    method = Pruned(accounting=Accounting(recipients="all", mask_code="none"))
    (_, sampled), (_, everyone) = (
        wired("f32", tmp_path / name, each, rounds=1, pool=9)
        for name, each in (("a", replace(method, accounting=Accounting())), ("b", method))
    )
    prunable = 5 * 8 + 8 * 3
    values = 32 * (prunable // 2 + 8 + 3)
    for one, all_ in zip(
        of(sampled, "client-finished"), of(everyone, "client-finished"), strict=True
    ):
        assert one["paper_down"] == values + prunable
        assert all_["paper_down"] == 9 / 3 * values
        assert all_["paper_up"] == 2 * values  # what was received is sent back
        assert (one["up"], one["down"]) == (all_["up"], all_["down"])
    last = of(everyone, "round-finished")[-1]
    assert last["paper_down"] == 9 * values and last["paper_up"] == 3 * 2 * values


def test_seconds_on_devices_follow_from_bits_and_operations(tmp_path: Path) -> None:
    text = "up=1e4,down=2e4,latency=0.25,flops=1e5"
    summary, log = wired("f32", tmp_path, rounds=3, network=text)
    network = presets.parse(text)
    slowest: dict[int, float] = {}
    for event in of(log, "client-finished"):
        wanted = 0.5 + event["down"] / 2e4 + event["flops"] / 1e5 + event["up"] / 1e4
        assert event["device_seconds"] == pytest.approx(wanted)
        assert network.seconds(event["up"], event["down"], event["flops"]) == pytest.approx(wanted)
        slowest[event["round"]] = max(slowest.get(event["round"], 0), wanted)
    so_far = 0.0
    for event in of(log, "round-finished"):
        so_far += slowest[event["round"]]
        assert event["device_seconds"] == pytest.approx(so_far)
    assert summary.device_seconds == pytest.approx(so_far)


def test_without_a_network_there_are_no_seconds(tmp_path: Path) -> None:
    summary, log = wired("f32", tmp_path, rounds=1)
    assert summary.device_seconds is None
    assert {event["device_seconds"] for event in of(log, "client-finished")} == {None}


# what clients compute with -----------------------------------------------------------------------


def test_compression_changes_bits_and_nothing_else(tmp_path: Path) -> None:
    found = {mode: wired(mode, tmp_path / mode) for mode in ("f32", "f32+zstd", "f32+ans", "f16")}
    hashes = {mode: summary.state_hash for mode, (summary, _) in found.items()}
    assert hashes["f32"] == hashes["f32+zstd"] == hashes["f32+ans"] != hashes["f16"]
    ups = {mode: summary.cost.up for mode, (summary, _) in found.items()}
    assert ups["f16"] < ups["f32"]
    for name, value in found["f16"][0].state.params.items():
        assert torch.allclose(value, found["f32"][0].state.params[name], atol=2e-2)


@pytest.mark.parametrize("mode", ["f32", "f16", "f16+zstd"])
def test_the_server_merges_with_what_its_clients_received(mode: str, tmp_path: Path) -> None:
    seen: list[bool] = []

    @dataclass(frozen=True)
    class Watching(Pruned):
        def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
            def watched() -> Iterator[Exchange[Down, Up]]:
                meant = self.down(ctx, state, exchanges).values.values  # type: ignore[arg-type]
                for exchange in exchanges:
                    assert same(exchange.down.values.values, exchange.up.received)
                    seen.append(same(meant, exchange.up.received))
                    yield exchange

            return super().merge(ctx, state, watched())

    wired(mode, tmp_path, Watching())
    assert len(seen) == 12 and all(seen) == (mode == "f32")


# bad clients -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["f32", "f16", "f32+zstd"])
def test_a_client_that_sends_what_is_not_a_number_costs_its_own_reply(
    mode: str, tmp_path: Path
) -> None:
    summary, log = wired(mode, tmp_path, Pruned(clients=6, poison=3), rounds=3)
    (failed,) = of(log, "client-failed")
    assert (failed["round"], failed["client"], failed["stage"]) == (2, 3, "wire")
    assert failed["reason"] == "WireError: values[0.weight] holds values that are not finite"
    rounds = of(log, "round-finished")
    assert [event["failed"] for event in rounds] == [[], [3], []]
    assert rounds[1]["clients"] == [0, 1, 2, 4, 5] and rounds[2]["clients"] == [*range(6)]
    assert summary.rounds == 3
    assert all(torch.isfinite(value).all() for value in summary.state.params.values())
    # It was sent to and it did send: its bits are in the ledger, once.
    assert len(of(log, "client-finished")) == 18
    assert summary.cost.up == sum(event["up"] for event in of(log, "client-finished"))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data: data[:-1], r"WireError: received\[\S+\] needs \d+ bytes, but only \d+ are"),
        (lambda data: data + b"!", "WireError: 1 bytes follow the last leaf"),
        (lambda data: b"", "WireError: a message of 0 bytes is shorter than its header"),
        (lambda data: b"\x01" + data[1:], "WireError: the message has version 1"),
        (lambda data: data[:1] + bytes(8) + data[9:], "WireError: the message has schema 0000"),
        (lambda data: data[:9] + b"\xff" * 40 + data[49:], r"WireError: values\[0\.weight\] has"),
        (lambda data: bytes(10**6), "WireError: the message has version 0"),
    ],
)
def test_a_malformed_reply_is_left_out_and_told(
    damage: Any, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = Conversations.hold

    def tampered(self: Conversations, *arguments: Any) -> Reply:
        reply = hold(self, *arguments)
        return replace(reply, data=damage(reply.data)) if reply.client.id == 1 else reply

    monkeypatch.setattr(conversation.Conversations, "hold", tampered)
    summary, log = wired("f32", tmp_path, Pruned(clients=6), rounds=2)
    failed = of(log, "client-failed")
    assert [(event["round"], event["client"]) for event in failed] == [(1, 1), (2, 1)]
    assert all(event["stage"] == "wire" for event in failed)
    with pytest.raises(WireError, match=reason):
        raise WireError(failed[0]["reason"])
    assert summary.rounds == 2


def test_a_round_of_nothing_but_bad_replies_leaves_the_model_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = Conversations.hold
    monkeypatch.setattr(
        conversation.Conversations,
        "hold",
        lambda self, *arguments: replace(hold(self, *arguments), data=b""),
    )
    _, log = wired("f32", tmp_path, fedavg(), rounds=2)
    assert len(of(log, "client-failed")) == 6
    first, last = of(log, "evaluated")[0], of(log, "evaluated")[-1]
    assert first["global_loss"] == last["global_loss"]


def test_the_toy_keeps_its_density_and_records_survive_the_wire() -> None:
    """The toy itself is sound: otherwise the tests above would test little."""
    summary = run(Pruned(), mlp(), Toy(), rounds=3)
    kept = [int(mask.sum()) for mask in summary.state.masks.values()]
    assert kept == [20, 12] and summary.density == 0.5
    state = summary.state
    assert Schema.of(decode(encode(state), Schema.of(state))) == Schema.of(state)


@dataclass(frozen=True)
class Misfit(Pruned):
    """One client's values do not fit the mask it sends, which shows only when they are merged."""

    def finish(self, ctx: Ctx, work: Any) -> Any:
        found = super().finish(ctx, work)
        if ctx.key.path[-1] != 2:
            return found
        short = {name: value[1:] for name, value in found.up.values.values.items()}
        return replace(found, up=replace(found.up, values=replace(found.up.values, values=short)))


def test_a_reply_that_cannot_be_merged_costs_its_own_client(tmp_path: Path) -> None:
    summary, log = wired("f32", tmp_path, Misfit(clients=6), rounds=2)
    failed = of(log, "client-failed")
    assert [(event["round"], event["client"], event["stage"]) for event in failed] == [
        (1, 2, "wire"),
        (2, 2, "wire"),
    ]
    assert "different masks" in failed[0]["reason"]
    assert [event["clients"] for event in of(log, "round-finished")] == [[0, 1, 3, 4, 5]] * 2
    assert summary.failed == 2


def test_a_client_whose_reply_is_refused_keeps_what_it_had(tmp_path: Path) -> None:
    wired("f32", tmp_path, Misfit(clients=6), rounds=2)
    kept = {path.stem for path in (tmp_path / "rounds").glob("*/local/*.bin")}
    assert kept == {"0", "1", "3", "4", "5"}


@dataclass(frozen=True)
class NeverMerges(Pruned):
    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        list(exchanges)
        raise WireError("the server itself is wrong")


def test_an_error_that_is_nobodys_is_raised(tmp_path: Path) -> None:
    with pytest.raises(WireError, match="the server itself is wrong"):
        wired("f32", tmp_path, NeverMerges(), rounds=1)


@dataclass(frozen=True)
class Misshapen(FedAvg):
    """One client sends something else than it was sent; torch would stretch it and go on."""

    how: str = option("short", "what it sends")

    def finish(self, ctx: Ctx, work: Any) -> Any:
        found = super().finish(ctx, work)
        if ctx.key.path[-1] != 0:  # the first in the order of merging, so nothing came before it
            return found
        params = found.up.params
        match self.how:
            case "short":
                params = {name: tensor.flatten()[:1] for name, tensor in params.items()}
            case "fewer":
                params = dict(list(params.items())[1:])
            case "double":
                params = {name: tensor.double() for name, tensor in params.items()}
        return replace(found, up=replace(found.up, params=params))


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("short", "params[0.weight] is float32 of shape (1,), float32 of shape (8, 5) is expected"),
        ("fewer", "params[0.weight] is missing"),
        ("double", "params[0.weight] is float64 of shape (8, 5), float32 of shape (8, 5) is"),
    ],
)
def test_a_reply_of_other_shapes_costs_its_own_client(
    how: str, reason: str, tmp_path: Path
) -> None:
    summary, log = wired("f32", tmp_path, Misshapen(clients=6, how=how), rounds=2)
    failed = of(log, "client-failed")
    assert [(event["round"], event["client"]) for event in failed] == [(1, 0), (2, 0)]
    assert all(event["stage"] == "wire" and reason in event["reason"] for event in failed)
    assert [event["clients"] for event in of(log, "round-finished")] == [[1, 2, 3, 4, 5]] * 2
    fresh = mlp().init(Key(0))
    assert {n: t.shape for n, t in summary.state.params.items()} == {
        n: t.shape for n, t in fresh.items()
    }
