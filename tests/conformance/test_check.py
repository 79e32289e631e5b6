"""The checks find what they are made to find: a bad method for each of them."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

from gossamer import (
    Batch,
    Client,
    Ctx,
    Ensemble,
    Exchange,
    FedAvg,
    Job,
    Params,
    Result,
    Training,
    merge,
    option,
    sample,
)
from gossamer.arithmetic.model import Model
from gossamer.conformance.promises import PROMISES, Finding, check
from gossamer.core import Masks, Measures
from gossamer.methods.fedavg import Server
from gossamer.methods.parts import dense_model
from gossamer.methods.parts.dense_model import Down, Local, Up, Work
from gossamer.wire import Packed, Revision, pack

KEPT: dict[Any, Any] = {}
"""Where bad methods hide their state."""


@pytest.fixture(autouse=True)
def nothing_kept() -> None:
    KEPT.clear()


def moved(params: Params, by: float) -> Params:
    return {name: tensor + by for name, tensor in params.items()}


# settings ---------------------------------------------------------------------------------------


@dataclass
class Thawed:
    clients: int = 3


@dataclass(frozen=True)
class Doubled(FedAvg):
    batch: int = option(3, "also in training")


# records ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SendsAnObject(FedAvg):
    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        return replace(super().finish(ctx, work), up=Up({"w": {1, 2}}))  # type: ignore[dict-item]


@dataclass(frozen=True)
class KeepsAnArray(FedAvg):
    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        return replace(super().finish(ctx, work), local=Local({"w": np.ones(2)}))  # type: ignore[dict-item]


@dataclass(frozen=True)
class SendsAll(FedAvg):
    """Sends what every client has already."""

    def init(self, ctx: Ctx) -> Server:
        return Server({**super().init(ctx).params, **ctx.task.constants})


@dataclass(frozen=True)
class Thaws(FedAvg):
    """Trains what is frozen, where nobody looks."""

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        for tensor in ctx.task.constants.values():
            tensor.data += 0.01
        return super().finish(ctx, work)


@dataclass(frozen=True)
class Mystery:
    params: Params


@dataclass(frozen=True)
class Unannounced(FedAvg):
    """Sends a record that its signature does not name."""

    def down(self, ctx: Ctx, state: Server, client: Client) -> Down:
        return Mystery(super().down(ctx, state, client).params)  # type: ignore[return-value]


@dataclass(frozen=True)
class WrongMask(FedAvg):
    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        return replace(super().finish(ctx, work), masks={"0.weight": torch.ones(2)})


@dataclass(frozen=True)
class TensorMetric(FedAvg):
    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        return replace(super().finish(ctx, work), metrics={"loss": torch.ones(1)})  # type: ignore[dict-item]


@dataclass(frozen=True)
class SendsMoreAfterSteps(FedAvg):
    """A form that shows only once a client has trained."""

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        found = super().finish(ctx, work)
        more = {"loss": torch.tensor(float(work.loss))} if work.examples else {}
        return replace(found, up=Up({**found.up.params, **more}))

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        mean = merge.mean((each.up.params, float(each.client.examples)) for each in exchanges)
        return Server({name: mean.get(name, tensor) for name, tensor in state.params.items()})


@dataclass(frozen=True)
class SaysSo(SendsMoreAfterSteps):
    """The same, but the server is told."""

    def replies(self, ctx: Ctx, down: Down) -> Sequence[Up]:
        return [Up({**down.params, "loss": torch.zeros(())}), Up(down.params)]


@dataclass(frozen=True)
class NeedsItsOwnData(FedAvg):
    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        assert ctx.own.train.x.any(), "there are no data"
        return super().begin(ctx, down, local)


# hidden state and randomness --------------------------------------------------------------------


@dataclass(frozen=True)
class CountsGlobally(FedAvg):
    """Starts somewhere else each time it is asked."""

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        KEPT["calls"] = KEPT.get("calls", 0) + 1
        return super().begin(ctx, Down(moved(down.params, 0.01 * KEPT["calls"])), local)


@dataclass(frozen=True)
class RemembersClients(FedAvg):
    """Keeps a client's last weights in a global instead of in Local."""

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        return super().begin(ctx, KEPT.get(ctx.key.path[-1], down), local)

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        found = super().finish(ctx, work)
        KEPT[ctx.key.path[-1]] = Down(moved(found.up.params, 0))
        return found


@dataclass(frozen=True)
class HidesOnSelf(FedAvg):
    """The server's momentum is an attribute of the method, which no checkpoint holds."""

    hidden: dict[str, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        mean = dense_model.average(exchanges, self.weighting)
        if not mean:
            return state
        old = self.hidden.get("velocity", dict.fromkeys(mean, 0))
        step = {name: 0.5 * old[name] + mean[name] - state.params[name] for name in mean}
        if self.hidden.get("round") != ctx.round:
            self.hidden.update(velocity=step, round=ctx.round)
        return Server({name: state.params[name] + step[name] for name in mean})


@dataclass(frozen=True)
class TorchNoise(FedAvg):
    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        mean = dense_model.average(exchanges, self.weighting)
        return Server({**state.params, **{n: t + torch.rand(t.shape) for n, t in mean.items()}})


@dataclass(frozen=True)
class NumpyCohort(FedAvg):
    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        chosen = np.random.permutation(len(pool))[: self.clients]  # noqa: NPY002
        return [pool[index] for index in chosen.tolist()]


@dataclass(frozen=True)
class PythonNoise(FedAvg):
    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        return super().step(ctx, replace(work, rate=random.random()), batch)


# inputs -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainsInPlace(FedAvg):
    """Begins with the server's own tensors; `step` then updates them."""

    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        work = Work(Model(ctx.task, down.params), self.training.rate(ctx))
        return Job(work, self.training.epochs, self.training.batch)


@dataclass(frozen=True)
class BeginsInPlace(FedAvg):
    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        for tensor in down.params.values():
            tensor.mul_(1.5)
        return super().begin(ctx, down, local)


@dataclass(frozen=True)
class MergesInPlace(FedAvg):
    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        for name, tensor in dense_model.average(exchanges, self.weighting).items():
            state.params[name].copy_(tensor)
        return state


@dataclass(frozen=True)
class ChangesItsData(FedAvg):
    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        ctx.own.train.x.mul_(0.5)
        return super().begin(ctx, down, local)


# the server -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Repeats(FedAvg):
    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return [pool[0], pool[0]]


@dataclass(frozen=True)
class Invents(FedAvg):
    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        return [replace(pool[0], examples=99)]


@dataclass(frozen=True)
class DecaysAnyway(FedAvg):
    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        merged = super().merge(ctx, state, exchanges)
        return Server({name: 0.9 * tensor for name, tensor in merged.params.items()})


@dataclass(frozen=True)
class DividesByNobody(FedAvg):
    """The sum over everyone expected, divided by those who came: NaN when nobody did."""

    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        listed = list(exchanges)
        sums = {
            name: sum((e.up.params[name] for e in listed), torch.zeros_like(tensor)) / len(listed)
            for name, tensor in state.params.items()
        }
        return Server(sums)


@dataclass(frozen=True)
class NeedsEveryone(FedAvg):
    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        listed = list(exchanges)
        if listed:
            assert len(listed) == self.clients, "somebody is missing"
        return super().merge(ctx, state, listed)


@dataclass(frozen=True)
class LastOneWins(FedAvg):
    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        for exchange in exchanges:
            state = Server(exchange.up.params)
        return state


@dataclass(frozen=True)
class ReadsTwice(FedAvg):
    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        total = sum(exchange.client.examples for exchange in exchanges)
        params = dict(state.params)
        for exchange in exchanges:
            for name, tensor in exchange.up.params.items():
                change = tensor - exchange.down.params[name]
                params[name] = params[name] + change * (exchange.client.examples / total)
        return Server(params)


# what it shows ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ShowsWeights(FedAvg):
    def measures(self, ctx: Ctx, state: Server) -> Measures:
        return Measures({"0.weight": state.params["0.weight"]})


@dataclass(frozen=True)
class ShowsAnotherShape(FedAvg):
    def measures(self, ctx: Ctx, state: Server) -> Measures:
        return Measures({"0.weight": state.params["0.weight"].flatten() > 0})


@dataclass(frozen=True)
class ShowsStrangers(FedAvg):
    def measures(self, ctx: Ctx, state: Server) -> Measures:
        return Measures({"head": torch.ones(2, dtype=torch.bool)})


@dataclass(frozen=True)
class ShowsInfinity(FedAvg):
    """All is well until there is a second round."""

    def measures(self, ctx: Ctx, state: Server) -> Measures:
        return Measures(metrics={"ratio": float("inf") if ctx.round == 2 else 1.0})


@dataclass(frozen=True)
class ShowsATensor(FedAvg):
    def measures(self, ctx: Ctx, state: Server) -> Measures:
        return Measures(metrics={"norm": state.params["0.weight"].norm()})  # type: ignore[dict-item]


@dataclass(frozen=True)
class ShowsADictionary(FedAvg):
    def measures(self, ctx: Ctx, state: Server) -> Any:
        return {"density": 1.0}


@dataclass(frozen=True)
class ShowsNoise(FedAvg):
    def measures(self, ctx: Ctx, state: Server) -> Measures:
        return Measures(metrics={"noise": random.random()})


@dataclass(frozen=True)
class CountsWhatItShows(FedAvg):
    def measures(self, ctx: Ctx, state: Server) -> Measures:
        KEPT["shown"] = KEPT.get("shown", 0) + 1
        return Measures(metrics={"shown": float(KEPT["shown"])})


@dataclass(frozen=True)
class MeasuresInPlace(FedAvg):
    def measures(self, ctx: Ctx, state: Server) -> Measures:
        return Measures({"0.weight": state.params["0.weight"].abs_() > 0})


@dataclass(frozen=True)
class ShowsHalf(FedAvg):
    """As it should be."""

    def measures(self, ctx: Ctx, state: Server) -> Measures:
        masks = {name: state.params[name] > 0 for name in ctx.task.layout.prunable}
        return Measures(masks, {"round": ctx.round})


# the model, the job, the runs -------------------------------------------------------------------


@dataclass(frozen=True)
class PartialModel(FedAvg):
    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        return {name: state.params[name] for name in ctx.task.layout.prunable}


@dataclass(frozen=True)
class ForgetsStatistics(FedAvg):
    """Fine without batch normalisation, wrong with it."""

    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Params:
        return {name: state.params[name] for name in ctx.task.layout.parameters}


@dataclass(frozen=True)
class LopsidedEnsemble(FedAvg):
    def model(self, ctx: Ctx, state: Server, local: Local | None) -> Ensemble:  # type: ignore[override]
        return Ensemble((state.params, state.params), (1.0,))


@dataclass(frozen=True)
class WholeEpochsOnly(FedAvg):
    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        assert batch.steps % batch.per_epoch == 0, "whole epochs only"
        return super().step(ctx, work, batch)


@dataclass(frozen=True)
class ThreadsCount(FedAvg):
    """What a client does depends on how many are at it in the same moment."""

    def step(self, ctx: Ctx, work: Work, batch: Batch) -> Work:
        with LOCK:
            KEPT["now"] = KEPT.get("now", 0) + 1
        time.sleep(0.002)
        rate = work.rate if KEPT["now"] == 1 else 0.5 * work.rate
        with LOCK:
            KEPT["now"] -= 1
        return super().step(ctx, replace(work, rate=rate), batch)


LOCK = threading.Lock()


@dataclass(frozen=True)
class NotInTheState(FedAvg):
    """Its number of rounds so far lives on the method, so a resumed run starts to count anew."""

    rounds: list[int] = field(default_factory=list, init=False, compare=False, repr=False)

    def cohort(self, ctx: Ctx, state: Server, pool: Sequence[Client]) -> Sequence[Client]:
        if ctx.round not in self.rounds:
            self.rounds.append(ctx.round)
        return sample(ctx.key.fold(len(self.rounds)), pool, self.clients)


BAD: list[tuple[Any, str, str]] = [
    (Thawed(), "settings are sound", "not frozen"),
    (FedAvg, "settings are sound", "not an instance of a dataclass"),
    (FedAvg(clients=0), "settings are sound", "`clients=` must be at least 1"),
    (Doubled(), "settings are sound", "two settings are called 'batch'"),
    (SendsAnObject(), "records can be encoded", r"Up\.params\.w is a set"),
    (KeepsAnArray(), "records can be encoded", r"Local\.buffers\.w is a ndarray"),
    (WrongMask(), "records can be encoded", "a mask '0.weight'"),
    (TensorMetric(), "records can be encoded", "a metric that is not a number"),
    (Unannounced(), "records are named in signatures", "Down cannot be read back.*Mystery"),
    (
        SendsMoreAfterSteps(),
        "replies are what the server expects",
        r"reply of client \d+ in round 1 would be refused: params\[loss\] is not expected",
    ),
    (
        NeedsItsOwnData(),
        "replies are what the server expects",
        "RuntimeError: the server cannot derive how NeedsItsOwnData replies to a Down: .*no data",
    ),
    (
        SendsAll(),
        "frozen parameters stay where they are",
        "Server holds '0.0.weight'.*partly frozen",
    ),
    (Thaws(), "frozen parameters stay where they are", "a frozen parameter was changed"),
    (CountsGlobally(), "calls can be repeated", "begin of client .* when it is called again"),
    (RemembersClients(), "calls can be repeated", "when (it is called again|all is done again)"),
    (HidesOnSelf(), "calls can be repeated", "when (it is called again|all is done again)"),
    (TorchNoise(), "global seeds do not matter", "merge of round 1 depends on the global seeds"),
    (NumpyCohort(), "global seeds do not matter", "cohort of round 1 depends"),
    (PythonNoise(), "global seeds do not matter", "step 0 of client .* depends"),
    (TrainsInPlace(), "inputs stay unchanged", "step 0 .* what the server sent"),
    (BeginsInPlace(), "inputs stay unchanged", "begin .* changes its argument number 2"),
    (MergesInPlace(), "inputs stay unchanged", "merge of round 1 changes its argument number 2"),
    (ChangesItsData(), "inputs stay unchanged", "begin .* changes its argument number 1"),
    (Repeats(), "cohorts come from the pool", "names a client twice"),
    (Invents(), "cohorts come from the pool", "somebody outside the pool"),
    (DecaysAnyway(), "an empty round changes nothing", "merging no exchanges in round 1"),
    (DividesByNobody(), "an empty round changes nothing", "ZeroDivisionError|merging no exch"),
    (NeedsEveryone(), "a failed client can be left out", "AssertionError: somebody is missing"),
    (LastOneWins(), "order of arrival does not matter", "depends on the order of arrival"),
    (ReadsTwice(), "order of arrival does not matter", "reads its exchanges more than once"),
    (PartialModel(), "models are whole", "lacks the tensor '0.bias'"),
    (ForgetsStatistics(), "models are whole", "running_mean.*with batch normalisation"),
    (LopsidedEnsemble(), "models are whole", "has 2 members and other weights"),
    (ShowsWeights(), "measures fit the model", "shows a mask '0.weight' that is no bool tensor"),
    (ShowsAnotherShape(), "measures fit the model", "shows a mask '0.weight' .* of its shape"),
    (ShowsStrangers(), "measures fit the model", "shows a mask 'head'"),
    (ShowsInfinity(), "measures fit the model", "a metric 'ratio' that is no finite number: inf"),
    (ShowsATensor(), "measures fit the model", "a metric 'norm' that is no finite number"),
    (ShowsADictionary(), "measures fit the model", "returns a dict, not gossamer.core.Measures"),
    (ShowsNoise(), "global seeds do not matter", "measures of round 0 depends"),
    (CountsWhatItShows(), "calls can be repeated", "measures of round 0 .* called again"),
    (MeasuresInPlace(), "inputs stay unchanged", "measures of round 0 changes its argument"),
    (
        WholeEpochsOnly(),
        "epochs may be fractional",
        r"AssertionError: whole epochs only \(in \w+, test_check.py line \d+\)",
    ),
    (ThreadsCount(), "one worker equals two", "the final state of a run is another one"),
    (NotInTheState(), "resumed equals uninterrupted", "another one when it is resumed after"),
    (HidesOnSelf(), "resumed equals uninterrupted", "another one when it is resumed after"),
]


def outcome(method: Any, name: str) -> Finding:
    """The finding of one check, without waiting for the others that come after it."""
    for finding in check(method):
        if finding.name == name:
            return finding
    raise AssertionError(f"no check is called {name!r}")


@pytest.mark.parametrize(
    ("method", "name", "detail"),
    BAD,
    ids=[f"{getattr(bad, '__name__', type(bad).__name__)}: {name}" for bad, name, _ in BAD],
)
def test_a_broken_promise_is_found(
    method: Any, name: str, detail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(name, monkeypatch)
    found = outcome(method, name)
    assert not found.ok
    assert re.search(detail, found.detail), found.detail
    assert "\n" not in found.detail


def only(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves the other promises out, which a bad method may break too."""
    wanted = {label: promise for label, promise in PROMISES.items() if label == name}
    monkeypatch.setattr("gossamer.conformance.promises.PROMISES", wanted)


def test_a_check_touches_neither_global_generators_nor_threads() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state(), random.getstate()
    torch.set_num_threads(2)
    assert all(finding.ok for finding in check(FedAvg(training=Training(lr=0.1)), rounds=2))
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]
    assert torch.get_num_threads() == 2


def test_a_method_that_names_its_forms_keeps_every_promise() -> None:
    assert [finding for finding in check(SaysSo()) if not finding.ok] == []


def test_a_method_that_shows_its_masks_keeps_every_promise() -> None:
    assert [finding for finding in check(ShowsHalf(), rounds=2) if not finding.ok] == []


@dataclass(frozen=True)
class SparseServer:
    params: Params
    masks: Masks
    values: Packed
    change: Revision


@dataclass(frozen=True)
class KeepsMasks(FedAvg):
    """The server's state has parts of every kind, which must be comparable."""

    def init(self, ctx: Ctx) -> Any:
        return self._state(super().init(ctx).params)

    def merge(self, ctx: Ctx, state: Any, exchanges: Iterable[Exchange[Down, Up]]) -> Any:
        return self._state(super().merge(ctx, Server(state.params), exchanges).params)

    def _state(self, params: Params) -> SparseServer:
        masks = {name: tensor.abs() > 0.01 for name, tensor in params.items()}
        return SparseServer(params, masks, pack(params, masks), Revision(masks))


def test_states_with_masks_and_packed_values_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    only("order of arrival does not matter", monkeypatch)
    found = outcome(KeepsMasks(), "order of arrival does not matter")
    assert found.ok, found.detail


def test_findings_come_one_by_one() -> None:
    findings = check(FedAvg())
    assert next(findings) == Finding("settings are sound", True)


def test_nothing_more_is_tried_on_what_is_no_method() -> None:
    assert len(list(check(Thawed()))) == 1  # type: ignore[arg-type]
