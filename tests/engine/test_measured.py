"""After every round the log tells how dense the server's masks are and how far they moved."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from gossamer import Ctx, Exchange, FedAvg, Options, Training, option, run
from gossamer.core import Masks, Measures, Params
from gossamer.engine import Run, Stop, start
from gossamer.engine.events import Clock, Event, Measured, RoundFinished, kind
from gossamer.engine.measure import measured
from gossamer.methods.parts.dense_model import Down, Local, Up
from helpers import Toy, fedavg, linear, lines, mlp

LAYERS = ("0.weight", "3.weight")


def mask(*flags: int) -> torch.Tensor:
    return torch.tensor(flags, dtype=torch.bool)


# the figures ------------------------------------------------------------------------------------


def test_figures_are_those_made_by_hand() -> None:
    """In `a` two entries of four stay and one moves; in `b` the only one moves."""
    before = Measures({"a": mask(1, 1, 1, 0), "b": mask(1, 0)})
    after = Measures({"a": mask(1, 1, 0, 1), "b": mask(0, 1)}, {"norm": 2})
    assert measured(3, before, after) == Measured(
        round=3,
        density=4 / 6,
        mismatch=1 - 2 / 6,
        layers={
            "a": {"density": 0.75, "mismatch": 0.5},
            "b": {"density": 0.5, "mismatch": 1.0},
        },
        metrics={"norm": 2.0},
    )


@pytest.mark.parametrize(
    "before",
    [{}, {"b": mask(1, 1, 0, 0)}, {"a": mask(1, 0), "b": mask(1, 0)}, {"a": mask(1, 0, 1)}],
    ids=["none", "another name", "one more name", "another shape"],
)
def test_masks_that_cannot_be_compared_have_no_mismatch(before: Masks) -> None:
    found = measured(1, Measures(before), Measures({"a": mask(1, 0)}))
    assert found is not None
    assert (found.density, found.mismatch) == (0.5, None)
    assert found.layers == {"a": {"density": 0.5, "mismatch": None}}


def test_masks_that_stay_are_at_a_distance_of_zero() -> None:
    same = Measures({"a": mask(0, 0), "b": mask(1, 0)})
    found = measured(1, same, same)
    assert found is not None and found.mismatch == 0.0
    assert [each["mismatch"] for each in found.layers.values()] == [0.0, 0.0]


def test_metrics_alone_are_told_without_densities() -> None:
    assert measured(1, Measures(), Measures(metrics={"norm": 1.5})) == Measured(
        1, None, None, {}, {"norm": 1.5}
    )


def test_nothing_to_show_is_no_event() -> None:
    assert measured(1, Measures({"a": mask(1)}), Measures()) is None


# in a run ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shown:
    params: Params
    masks: Masks


@dataclass(frozen=True)
class Moving(FedAvg):
    """Shows the larger half of each layer, which moves as the layer learns."""

    share: float = option(0.5, "part of each layer that is shown")

    def init(self, ctx: Ctx) -> Shown:  # type: ignore[override]
        return self.cut(ctx, super().init(ctx).params)

    def merge(self, ctx: Ctx, state: Any, exchanges: Iterable[Exchange[Down, Up]]) -> Shown:  # type: ignore[override]
        return self.cut(ctx, super().merge(ctx, state, exchanges).params)

    def cut(self, ctx: Ctx, params: Params) -> Shown:
        masks = {}
        for name in ctx.task.layout.prunable:
            size = params[name].abs()
            least = size.flatten().kthvalue(int(size.numel() * (1 - self.share)) + 1).values
            masks[name] = size >= least
        return Shown(params, masks)

    def model(self, ctx: Ctx, state: Any, local: Local | None) -> Params:
        params: Params = state.params
        return params

    def measures(self, ctx: Ctx, state: Shown) -> Measures:
        # The round is told too, so that a test sees of which one a context is.
        return Measures(state.masks, {"round": float(ctx.round)})


MOVING = Moving(clients=3, training=Training(batch=8, lr=0.5))


class Listener:
    """Hears events, and stops the run after a round."""

    def __init__(self, last: int = -1) -> None:
        self.found: list[Event] = []
        self.last = last
        self.stop = Stop()

    def emit(self, event: Event, clock: Clock) -> None:
        self.found.append(event)
        if isinstance(event, RoundFinished) and event.round == self.last:
            self.stop.request()

    def close(self) -> None:
        pass


def heard(method: Any, rounds: int = 3, **more: Any) -> list[Event]:
    listener = Listener()
    run(method, mlp(), Toy(), rounds=rounds, sinks=[listener], **more)
    return listener.found


def test_masks_are_measured_at_the_start_and_after_every_round() -> None:
    found = heard(MOVING)
    kinds = [kind(event) for event in found if kind(event) != "client-finished"]
    per_round = ["round-finished", "measured", "evaluated"]
    first = ["started", "arithmetic-chosen", "measured", "evaluated"]
    assert [each for each in kinds[4:] if each != "arithmetic-chosen"] == [
        *per_round * 3,
        "finished",
    ]
    assert kinds[:4] == first
    told = [event for event in found if isinstance(event, Measured)]
    assert [event.round for event in told] == [0, 1, 2, 3]
    assert [event.metrics["round"] for event in told] == [0, 1, 2, 3]
    assert told[0].mismatch is None
    assert {layer: each["mismatch"] for layer, each in told[0].layers.items()} == dict.fromkeys(
        LAYERS
    )
    for event in told:
        assert event.density == pytest.approx(0.5) and tuple(event.layers) == LAYERS
    for event in told[1:]:
        assert event.mismatch is not None and 0 < event.mismatch < 1


def test_a_mismatch_is_that_of_the_states_of_its_round() -> None:
    """Runs of one round less and one more have the two states."""
    one, two = (run(MOVING, mlp(), Toy(), rounds=rounds).state.masks for rounds in (1, 2))
    told = [event for event in heard(MOVING, rounds=2) if isinstance(event, Measured)][-1]
    both = sum(int((one[name] & two[name]).sum()) for name in one)
    either = sum(int((one[name] | two[name]).sum()) for name in one)
    assert told.mismatch == pytest.approx(1 - both / either)


def test_a_method_that_shows_nothing_has_no_such_event() -> None:
    assert not any(isinstance(event, Measured) for event in heard(fedavg()))


@dataclass(frozen=True)
class Silent(FedAvg):
    def measures(self, ctx: Ctx, state: Any) -> Measures:
        return Measures()


@dataclass(frozen=True)
class Figure(FedAvg):
    """Shows one number and no masks."""

    def measures(self, ctx: Ctx, state: Any) -> Measures:
        return Measures(metrics={"size": float(state.params["0.weight"].abs().sum())})


def test_empty_measures_are_not_told() -> None:
    assert not any(isinstance(event, Measured) for event in heard(Silent(3)))


def test_metrics_without_masks_are_told_from_the_first_round_on() -> None:
    told = [event for event in heard(Figure(3)) if isinstance(event, Measured)]
    assert [event.round for event in told] == [1, 2, 3]
    assert all(event.density is None and not event.layers for event in told)
    assert len({event.metrics["size"] for event in told}) == 3


@pytest.mark.parametrize("workers", [1, 2])
def test_a_resumed_run_measures_the_same(tmp_path: Path, workers: int) -> None:
    options = Options(workers=workers, checkpoint_every=2)
    start(Run(MOVING, mlp(), Toy(), rounds=4, out=tmp_path / "whole"))
    for last in (1, 3):
        out = tmp_path / str(last)
        listener = Listener(last)
        given: dict[str, Any] = {"rounds": 4, "out": out, "options": options}
        stopped = start(Run(MOVING, mlp(), Toy(), **given), sinks=[listener], stop=listener.stop)
        assert stopped.interrupted and stopped.rounds == last
        start(Run(MOVING, mlp(), Toy(), **given), resume=True)
        assert lines(out / "events.jsonl") == lines(tmp_path / "whole" / "events.jsonl")


def test_the_log_has_the_figures_as_plain_numbers(tmp_path: Path) -> None:
    run(Moving(3), linear(), Toy(), rounds=1, out=tmp_path)
    told = [json.loads(line) for line in lines(tmp_path / "events.jsonl")]
    start, end = (event for event in told if event["event"] == "measured")
    assert start == {
        "event": "measured",
        "round": 0,
        "density": 8 / 15,
        "mismatch": None,
        "layers": {"weight": {"density": 8 / 15, "mismatch": None}},
        "metrics": {"round": 0.0},
    }
    assert list(end) == list(start) and isinstance(end["mismatch"], float)
