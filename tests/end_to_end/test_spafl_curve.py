"""A short run of SpaFL on real images: it prunes as it learns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import gossamer as gs
from gossamer import Client, data, fields, models
from gossamer.engine.events import Clock, Evaluated, Event, RoundFinished
from gossamer.methods.spafl import SpaFL


class Few:
    """The first clients of a federation."""

    def __init__(self, whole: Any, count: int) -> None:
        self._whole = whole
        self.pool: Sequence[Client] = [whole.pool[id] for id in range(count)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)


@dataclass
class Curve:
    """Densities of all rounds and accuracies of all tests."""

    densities: list[float] = field(default_factory=list)
    resets: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)

    def emit(self, event: Event, clock: Clock) -> None:
        match event:
            case RoundFinished():
                self.densities.append(event.density)
                self.resets.append(event.metrics["resets"])
            case Evaluated():
                self.accuracies.append(event.personal_mean or 0.0)
            case _:
                pass

    def close(self) -> None:
        pass


def test_spafl_prunes_and_keeps_learning() -> None:
    """Six clients with about a hundred images each, three of them in each of twenty rounds."""
    federation = data.federation("fmnist-mini", "dirichlet:0.3", pool=80, seed=1)
    task = gs.Task.of(
        models.build("lenet5_caffe", federation.shape, 10), federation.test.x[:2], start="seed"
    )
    settings = {"clients": 3, "epochs": 2.0, "batch": 32, "lr": 0.02, "alpha": 0.008}
    curve = Curve()
    found = gs.run(
        fields.replace(SpaFL(), settings),
        task,
        Few(federation, 6),
        rounds=20,
        seed=1,
        sinks=[curve],
        options=gs.Options(workers=1, eval_every=4),
    )
    history = found.state.history
    assert history.shape == (21, 580) and history.min() >= 0 and history.max() < 0.2
    assert (history[1:] != history[:-1]).any(1).all()  # thresholds move in every round
    assert (history[-1] > 0).float().mean() > 0.9
    means = history.mean(1)
    assert means[-1] > 1.5 * means[10] > 0

    assert curve.densities[0] == 1  # no thresholds yet
    assert all(after < before for before, after in pairwise(curve.densities))
    assert 0.2 < found.density < 0.7 and sum(curve.resets) == 0

    first, *later = curve.accuracies
    assert first < 0.3 < 0.55 < max(later)
    assert later[-1] > max(later) - 0.1  # as it is pruned, it does not fall back
