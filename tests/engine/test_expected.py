"""The server reads replies by what it sent: what has another form costs its own client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gossamer import (
    Ctx,
    Exchange,
    FedAvg,
    Job,
    Key,
    Options,
    Params,
    Result,
    Summary,
    merge,
    option,
)
from gossamer.core import Masks
from gossamer.engine import Run, events, start
from gossamer.engine import expected as forms
from gossamer.engine.expected import Expected
from gossamer.methods.fedavg import Server
from gossamer.methods.parts.dense_model import Down, Local, Up, Work
from gossamer.wire import Drawn, Mode, Packed, Revision, Schema, pack
from helpers import Toy, linear, mlp, normed, server_ctx

Log = list[dict[str, Any]]
Change = Callable[[Any], Any]


@dataclass(frozen=True)
class Trusting(FedAvg):
    """Merges whatever it is given: torch would stretch a tensor of one number over a layer."""

    bad: int = option(-1, "which of the bad replies client 0 sends")

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        mean = merge.mean((exchange.up.params, 1.0) for exchange in exchanges)
        return Server({**state.params, **mean})

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        found = super().finish(ctx, work)
        if self.bad < 0 or ctx.key.path[-1] != 0:  # the first one that is merged
            return found
        return replace(found, up=BAD[self.bad][0](found.up))


@dataclass(frozen=True)
class Other:
    params: Params


def on_all(change: Callable[[Tensor], Tensor]) -> Change:
    return lambda up: Up({name: change(tensor) for name, tensor in up.params.items()})


BAD: list[tuple[Change, str]] = [
    (on_all(lambda t: t.flatten()[:1]), r"params\[0.weight\] is float32 of shape \(1,\), float32"),
    (on_all(lambda t: t[None]), r"is float32 of shape \(1, 8, 5\), float32 of shape \(8, 5\) is"),
    (on_all(Tensor.double), r"params\[0.weight\] is float64 of shape \(8, 5\), float32 of shape"),
    (on_all(Tensor.bool), r"params is masks, a dictionary is expected"),
    (lambda up: Up({n: up.params[n] for n in [*up.params][1:]}), r"params\[0.weight\] is missing"),
    (lambda up: Up({**up.params, "x": torch.ones(3)}), r"params\[x\] is not expected"),
    (lambda up: Up({f"a{n}": t for n, t in up.params.items()}), r"params\[0.weight\] is missing"),
    (lambda up: Up(dict(reversed(up.params.items()))), "params has its parts in another order"),
    (lambda up: Up({}), r"params\[0.weight\] is missing"),
    (lambda up: Up(None), "params is nothing, a dictionary is expected"),  # type: ignore[arg-type]
    (lambda up: Up(pack(up.params, {})), "params is packed values, a dictionary"),  # type: ignore[arg-type]
    (lambda up: Other(up.params), r"the message is a Other, a Up is"),
    (lambda up: Down(up.params), r"the message is a Down, a Up is"),
    (lambda up: up.params, r"the message is a dictionary, a Up is expected"),
    (lambda up: 7, "the message is a number or text of type int, a Up"),
]


def ran(method: Any, out: Path, mode: str = "f32", rounds: int = 2) -> tuple[Summary, Log]:
    options = Options(workers=1, eval_every=0)
    summary = start(
        Run(method, mlp(), Toy(), rounds=rounds, out=out, options=options, wire=Mode.parse(mode))
    )
    return summary, events.read(out / "events.jsonl")


def of(log: Log, kind: str) -> Log:
    return [event for event in log if event["event"] == kind]


@pytest.mark.parametrize("bad", range(len(BAD)))
def test_a_reply_of_another_form_costs_its_own_client(bad: int, tmp_path: Path) -> None:
    summary, log = ran(Trusting(clients=6, bad=bad), tmp_path / "bad")
    failed = of(log, "client-failed")
    assert [(event["round"], event["client"], event["stage"]) for event in failed] == [
        (1, 0, "wire"),
        (2, 0, "wire"),
    ]
    with pytest.raises(ValueError, match=f"^WireError: .*{BAD[bad][1]}"):
        raise ValueError(failed[0]["reason"])
    assert [event["clients"] for event in of(log, "round-finished")] == [[1, 2, 3, 4, 5]] * 2
    assert len(of(log, "client-finished")) == 12  # it did work, and its bits are charged
    assert Schema.of(summary.state) == Schema.of(Server(mlp().init(Key(0))))


@pytest.mark.parametrize("mode", ["f16", "f32+zstd", "f16+zstd+ans"])
def test_that_holds_however_values_travel(mode: str, tmp_path: Path) -> None:
    _, log = ran(Trusting(clients=6, bad=0), tmp_path, mode)
    assert [event["client"] for event in of(log, "client-failed")] == [0, 0]


# what is expected --------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [linear, mlp, normed])
@pytest.mark.parametrize("buffers", ["average", "local"])
def test_replies_of_fedavg_have_the_form_of_what_it_sends(task: Any, buffers: Any) -> None:
    method, ctx = FedAvg(buffers=buffers), server_ctx(task())
    down = method.down(ctx, method.init(ctx), Toy().pool[0])
    assert Expected(method)(ctx, down) == (Schema.of(Up(down.params)),)


@dataclass(frozen=True)
class Short:
    """What a client sends that lost what it should have kept."""

    lost: bool


@dataclass(frozen=True)
class Forgetful(FedAvg):
    """Client 1 has lost something, and says so instead of training."""

    def replies(self, ctx: Ctx, down: Down) -> Sequence[Up | Short]:
        return [Up(down.params), Short(True)]

    def finish(self, ctx: Ctx, work: Work) -> Result[Any, Local]:
        found = super().finish(ctx, work)
        return replace(found, up=Short(True)) if ctx.key.path[-1] == 1 else found

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Any]]) -> Server:
        whole = (each for each in exchanges if isinstance(each.up, Up))
        return super().merge(ctx, state, whole)


def test_a_method_may_name_several_forms(tmp_path: Path) -> None:
    summary, log = ran(Forgetful(clients=6), tmp_path)
    assert summary.failed == 0 and not of(log, "client-failed")
    sent = {event["client"]: event["up"] for event in of(log, "client-finished")}
    assert sent.pop(1) == 8 * (9 + 1) and set(sent.values()) == {max(sent.values())}


def test_of_several_forms_a_reply_is_told_from_its_own(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Bad(Forgetful):
        def finish(self, ctx: Ctx, work: Work) -> Result[Any, Local]:
            found = FedAvg.finish(self, ctx, work)
            return replace(found, up=Short(1)) if ctx.key.path[-1] == 1 else found  # type: ignore[arg-type]

    _, log = ran(Bad(clients=6), tmp_path)
    (reason,) = {event["reason"] for event in of(log, "client-failed")}
    assert "lost is a number or text of type int, a number or text of type bool" in reason


@dataclass(frozen=True)
class Asks:
    params: Params
    more: bool


@dataclass(frozen=True)
class Answers:
    params: Params
    more: Tensor | None


@dataclass(frozen=True)
class Moody(FedAvg):
    """Asks some clients for more than others, and every client in odd rounds."""

    def down(self, ctx: Ctx, state: Server, client: Any) -> Any:
        return Asks(state.params, bool(client.id % 2 or ctx.round % 2))

    def begin(self, ctx: Ctx, down: Any, local: Local | None) -> Job[Any]:
        job = super().begin(ctx, down, local)
        return replace(job, work=(job.work, down.more))

    def step(self, ctx: Ctx, work: Any, batch: Any) -> Any:
        return super().step(ctx, work[0], batch), work[1]

    def finish(self, ctx: Ctx, work: Any) -> Result[Any, Local]:
        found, more = super().finish(ctx, work[0]), work[1]
        if ctx.key.path[-1] == 4:  # one that never understands
            more = not more
        return replace(found, up=Answers(found.up.params, torch.ones(2) if more else None))


def test_forms_follow_the_round_and_the_numbers_of_a_message(tmp_path: Path) -> None:
    _, log = ran(Moody(clients=6), tmp_path, rounds=4)
    failed = of(log, "client-failed")
    assert [event["client"] for event in failed] == [4] * 4
    assert ["more is nothing" in event["reason"] for event in failed] == [True, False] * 2


@dataclass(frozen=True)
class Counting(FedAvg):
    calls: list[int] = field(default_factory=list, init=False, compare=False, repr=False)

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        if ctx.key.path[-1] == forms.NOBODY:
            self.calls.append(ctx.round)
            assert local is None and len(ctx.own.train) == 2
            assert ctx.own.train.x.shape == (2, 5) and not ctx.own.train.x.any()
        return super().begin(ctx, down, local)


def test_a_form_is_derived_once_a_round(tmp_path: Path) -> None:
    method = Counting(clients=6)
    ran(method, tmp_path, rounds=3)
    assert method.calls == [1, 2, 3]


def test_only_so_many_kinds_of_messages_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "KEPT", 2)
    method = Counting()
    expected, ctx = Expected(method), server_ctx(mlp())
    params = mlp().init(Key(0))
    for extra in (1, 2, 3, 3, 2, 1):
        expected(ctx, Down({**params, "extra": torch.ones(extra)}))
    assert len(expected._known) == 2 and len(method.calls) == 4


MASK: Masks = {"w": torch.tensor([True, False, True])}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 2),
        ("a", "b"),
        ({"w": torch.ones(2)}, {"w": torch.ones(3)}),
        (Packed({"w": torch.ones(1)}, {"w": (3,)}), Packed({"w": torch.ones(2)}, {"w": (3,)})),
        (MASK, {"w": torch.ones(3, dtype=torch.bool)}),
        (Revision(MASK), Revision({"w": ~MASK["w"]})),
        (MASK["w"], ~MASK["w"]),
        (Drawn(1, {"w": 2}, {"w": (3,)}), Drawn(1, {"w": 1}, {"w": (3,)})),
    ],
)
def test_what_may_decide_a_form_is_told_apart(one: Any, other: Any) -> None:
    assert tuple(forms._traits(one)) != tuple(forms._traits(other))
    assert tuple(forms._traits(one)) == tuple(forms._traits(one))


def test_values_do_not_decide_a_form() -> None:
    for one, other in [
        ({"w": torch.ones(2)}, {"w": torch.zeros(2)}),
        (Revision(MASK), Revision(MASK, {"w": ~MASK["w"]})),
        (Drawn(1, {"w": 2}, {"w": (3,)}), Drawn(2, {"w": 2}, {"w": (3,)})),
    ]:
        assert tuple(forms._traits(one)) == tuple(forms._traits(other))


# methods of which it cannot be told --------------------------------------------------------------


@dataclass(frozen=True)
class Particular(FedAvg):
    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        if len(ctx.own.train) < 3:
            raise ValueError("three examples are the least")
        return super().begin(ctx, down, local)


def test_a_method_that_needs_more_is_told_what_to_do(tmp_path: Path) -> None:
    said = "cannot derive how Particular replies to a Down: .* ValueError: three.*let replies"
    with pytest.raises(RuntimeError, match=said):
        ran(Particular(clients=6), tmp_path)


def test_a_method_that_names_no_form_is_told_so() -> None:
    @dataclass(frozen=True)
    class Silent(FedAvg):
        def replies(self, ctx: Ctx, down: Down) -> Sequence[Up]:
            return []

    ctx = server_ctx(mlp())
    with pytest.raises(RuntimeError, match="its replies raised ValueError: there is none"):
        Expected(Silent())(ctx, Down({}))


def test_a_bug_in_a_client_is_still_the_clients(tmp_path: Path) -> None:
    """Forms are derived after clients have trained, so that their errors come first."""

    @dataclass(frozen=True)
    class Buggy(FedAvg):
        def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
            raise KeyError("oops")

    with pytest.raises(Exception, match=r"client \d failed in begin of round 1: KeyError"):
        ran(Buggy(clients=6), tmp_path)
