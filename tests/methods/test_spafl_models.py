"""SpaFL on the models of its paper and on a module of one's own, and what it charges for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from spafl_cases import Pictures, Told, changed, layout_of, spafl
from torch import Tensor, nn
from torch.nn import functional

import gossamer as gs
from gossamer import Client, Task
from gossamer.accounting import paper_bits
from gossamer.accounting.dry_run import Price, price
from gossamer.engine.events import ClientFinished, Clock, Event
from gossamer.methods.as_published.spafl import SpaFLVariants
from gossamer.methods.spafl import by_layer
from gossamer.models import build
from helpers import server_ctx
from paper_models import COLOUR, GREY
from paper_models import layout_of as paper_layout

# training ---------------------------------------------------------------------------------------


@dataclass
class Watch:
    """Keeps what clients told of their rounds."""

    clients: list[ClientFinished] = field(default_factory=list)

    def emit(self, event: Event, clock: Clock) -> None:
        if isinstance(event, ClientFinished):
            self.clients.append(event)

    def close(self) -> None:
        pass


def two_rounds(task: Task, shape: Sequence[int], classes: int, **changes: Any) -> list[Any]:
    """Trains two clients twice, with all that must hold whatever the model; their states."""
    plain = {"clients": 2, "batch": 2, "lr": 0.05, "alpha": 0.05, "momentum": 0.9}
    method = spafl(**{**plain, **changes})
    states: list[Any] = []

    @dataclass(frozen=True)
    class Seen(type(method)):  # type: ignore[misc]
        def finish(self, ctx: gs.Ctx, work: Any) -> gs.Result[Any, Any]:
            done = super().finish(ctx, work)
            assert done.local is not None
            states.append(done.local)
            return done

    watch = Watch()
    found = gs.run(
        Seen(**vars(method)),
        task,
        Pictures(shape, classes, pool=2, size=4),
        rounds=2,
        sinks=[watch],
        options=gs.Options(workers=1, eval_every=2),
    )
    history = found.state.history
    layout = layout_of(method, task)
    assert history.shape == (3, layout.rows) and found.failed == 0
    assert history.min() >= 0 and history.max() <= 1
    for name, part in by_layer(layout, history[-1]).items():
        assert part.count_nonzero() > 0, name
    for event in watch.clients:
        traffic = {(entry.direction, entry.leaf): entry.sent for entry in event.traffic}
        assert traffic.pop(("up", "header")) == traffic.pop(("down", "header")) == 72
        bits = 32.0 * layout.rows
        assert {line: sent for line, sent in traffic.items() if sent} == {
            ("up", "thresholds"): bits,
            ("down", "thresholds"): bits,
        }
    assert len(states) == 4
    for local in states:
        assert all(local.params[name].abs().max() <= 1 for name in layout.prunable)
        model = method.model(server_ctx(task, 2), found.state, local)
        assert all(tensor.isfinite().all() for tensor in model.values())
        assert any((model[name] == 0).any() for name in layout.prunable)
    apart = [name for name in task.layout.names if name not in layout.prunable]
    for name in apart:  # biases, norms and statistics are everybody's own
        assert not torch.equal(states[-1].params[name], states[-2].params[name]), name
    return states


@pytest.mark.parametrize(
    ("model", "shape", "classes", "thresholds"),
    [
        ("lenet5_caffe", GREY, 10, 580),
        ("cnn7", COLOUR, 10, 650),
        ("resnet8", (3, 8, 8), 10, 346),
        ("resnet18:width=8", (3, 8, 8), 10, 610),
        ("resnet18:width=8,preact=true", (3, 8, 8), 10, 610),
    ],
)
def test_a_model_of_the_paper_trains(
    model: str, shape: tuple[int, ...], classes: int, thresholds: int
) -> None:
    task = Task.of(build(model, shape, classes), torch.zeros(2, *shape), start="seed")
    states = two_rounds(task, shape, classes)
    assert len(states[0].known) == thresholds


def test_an_lstm_trains_with_a_dense_head() -> None:
    module = build("lstm:hidden=8", (1, 6, 5), 3)
    task = Task.of(module, torch.zeros(2, 1, 6, 5), prunable=["lstm.*"], start="seed")
    states = two_rounds(task, (1, 6, 5), 3)
    assert len(states[0].known) == 4 * 32
    assert set(task.layout.prunable) == {
        f"lstm.weight_{which}_l{layer}" for which in ("ih", "hh") for layer in (0, 1)
    }


class Mixed(nn.Module):
    """What users bring: convolutions of both kinds, recurrence, norms, biases, a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.two = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(2)
        self.one = nn.Conv1d(4, 5, 3, groups=1)
        self.gru = nn.GRU(5, 4, batch_first=True)
        self.lstm = nn.LSTM(4, 3, batch_first=True, bidirectional=True)
        self.layer_norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.two(self.norm(x))).mean(3)
        steps, _ = self.gru(self.one(x).transpose(1, 2))
        out: Tensor = self.head(self.layer_norm(self.lstm(steps)[0][:, -1]))
        return out


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"structured": True, "phases": "joint", "mask_grad_to_weight": True, "alpha": 1.0},
        {"threshold_classifier": False, "ste": "longtail", "momentum_state": "persist"},
    ],
    ids=["default", "structured", "no classifier"],
)
def test_a_module_of_ones_own_trains(changes: dict[str, Any]) -> None:
    task = Task.of(Mixed(), torch.zeros(2, 2, 8, 4), start="seed")
    states = two_rounds(task, (2, 8, 4), 3, **changes)
    head = 3 * changes.get("threshold_classifier", True)
    assert len(states[0].known) == 4 + 5 + 2 * 12 + 4 * 12 + head


# what it costs ----------------------------------------------------------------------------------

GIGABIT = 1e9


def costs(task: Task, classes: int, rounds: int, **changes: Any) -> Price:
    """A dry run of ten clients out of a hundred with real messages, without tests."""
    return price(
        changed(changes),
        task,
        classes=classes,
        pool=100,
        examples=600,
        rounds=rounds,
        options=gs.Options(eval_every=0, workers=1, flops_model="spafl"),
    )


def paper(found: Price) -> float:
    return found.total("up").paper + found.total("down").paper


@pytest.mark.parametrize(
    ("model", "shape", "classes", "prunable", "all_of_500", "sampled_of_500"),
    [
        ("lenet5_caffe", GREY, 10, None, 1.0208, 0.1856),
        ("cnn7", COLOUR, 10, None, 1.144, 0.208),
        ("resnet8", COLOUR, 100, None, 0.76736, 0.13952),
        ("lstm", GREY, 10, ["lstm.*"], 3.60448, 0.65536),
    ],
)
def test_bits_of_the_paper(
    model: str,
    shape: tuple[int, ...],
    classes: int,
    prunable: list[str] | None,
    all_of_500: float,
    sampled_of_500: float,
) -> None:
    """The tables have 500 rounds, of 100 clients told or of the ten that train."""
    task = Task.of(
        build(model, shape, classes), torch.zeros(2, *shape), prunable=prunable, start="seed"
    )
    one = costs(task, classes, 1)
    assert 500 * paper(one) / GIGABIT == pytest.approx(all_of_500, rel=1e-12)
    if model == "lstm":
        assert 299 * paper(one) / GIGABIT == pytest.approx(2.155479, abs=5e-7)
    count = task.layout.rows
    assert one.total("up").sent == one.total("down").sent == 10 * (72 + 32 * count)
    run = Told(SpaFLVariants(downlink="sampled"), task)
    assert run.method.accounting.recipients == "sampled"
    up = run.method.replies(run.ctx, run.down(0))[0]
    both = sum(paper_bits(record, run.method.accounting) for record in (run.down(0), up))
    assert 500 * 10 * both / GIGABIT == pytest.approx(sampled_of_500, rel=1e-12)


@pytest.mark.parametrize("downlink", ["all", "sampled"])
def test_every_round_costs_the_same_in_the_paper_however_much_travels_besides(
    downlink: str,
) -> None:
    task = Task.of(build("lenet5_caffe", GREY, 10), torch.zeros(2, *GREY), start="seed")
    found = costs(task, 10, 4, downlink=downlink)
    gigabits = {"all": 1.0208, "sampled": 0.1856}[downlink]
    assert found.rounds == 4
    assert 500 / 4 * paper(found) / GIGABIT == pytest.approx(gigabits, rel=1e-12)
    assert {leaf for (_, _, leaf), bits in found.lines.items() if bits.paper} == {"thresholds"}
    sent = found.total("up").sent + found.total("down").sent
    missed = found.lines["down", "Down", "missed"].sent if downlink == "all" else 0
    assert sent == 4 * 10 * 2 * (72 + 32 * 580) + missed
    # Who takes part first in rounds 1, 2, 3, 4 has missed 0, 0, 1, 2 broadcasts, at most.
    assert missed % (32 * 580) == 0 and missed <= 30 * 32 * 580
    assert (missed > 0) == (downlink == "all")


def test_bits_and_operations_of_first_weights_that_are_sent() -> None:
    task = Task.of(build("lenet5_caffe", GREY, 10), torch.zeros(2, *GREY), start="seed")
    sent, plain = costs(task, 10, 2, weight_start="sent"), costs(task, 10, 2)
    assert paper(sent) == paper(plain)
    start = sent.lines["down", "Down", "start"]
    assert start.paper == 0 and start.sent % (32 * 430_500) == 0
    assert 10 <= start.sent / (32 * 430_500) <= 20  # once for each client that took part
    # Section 5.3: 12 387 587 050 operations of a client with 600 examples, nothing pruned.
    assert plain.flops == 2 * 10 * 12_387_587_050


def test_an_lstm_has_the_thresholds_of_the_paper_without_those_of_its_classifier() -> None:
    layout = paper_layout("lstm", GREY, 10)
    task = Task(build("lstm", GREY, 10), functional.cross_entropy, layout)
    assert layout_of(SpaFLVariants(threshold_classifier=False), task).rows == 2048
    assert paper_layout("lstm", GREY, 10, ("lstm.*",)).rows == 2048


@pytest.mark.parametrize(
    ("width", "thresholds", "gigabits"), [(64, 4800, 8.448), (32, 2400, 4.224)]
)
def test_bits_of_resnet18_without_thresholds_on_its_classifier(
    width: int, thresholds: int, gigabits: float
) -> None:
    name = f"resnet18:width={width}"
    layout = paper_layout(name if width != 64 else "resnet18", COLOUR, 100)
    task = Task(build(name, COLOUR, 100), functional.cross_entropy, layout)
    method = SpaFLVariants(threshold_classifier=False)
    assert layout_of(method, task).rows == thresholds
    server = method.init(server_ctx(task))
    down = method.down(server_ctx(task), server, Client(0, 500))
    up = method.replies(server_ctx(task), down)[0]
    one = 100 * paper_bits(down, method.accounting) + 10 * paper_bits(up, method.accounting)
    assert 500 * one / GIGABIT == pytest.approx(gigabits, rel=1e-12)
    assert 1000 * one / GIGABIT == pytest.approx(2 * gigabits, rel=1e-12)
