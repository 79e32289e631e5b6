"""Differential privacy in a run: who takes part, what is merged, and what that has cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gossamer.core import Client, Ctx, Exchange
from gossamer.engine.events import PrivacySpent
from gossamer.engine.run_record import Run
from gossamer.trust.mechanism import Mechanism
from gossamer.trust.noise import Seeded, Source, System


@dataclass(frozen=True)
class Spent:
    """What a checkpoint keeps of the mechanism."""

    clip: float
    """Of the next round."""
    releases: int = 0
    """Rounds that were merged; with local noise, the replies of the client with the most."""
    epsilon: float = 0.0
    by_client: Mapping[str, int] = field(default_factory=dict)
    """With local noise: how many replies each client has sent."""


class Guard:
    """Stands between clients' replies and the method's merge, and counts what is released."""

    def __init__(self, run: Run, spent: Spent | None) -> None:
        assert run.mechanism is not None
        self._run = run
        self._mechanism: Mechanism = run.mechanism
        self.spent = spent or Spent(run.mechanism.spec.clip)
        self._next_clip = self.spent.clip

    def cohort(self, ctx: Ctx, pool: Sequence[Client]) -> Sequence[Client]:
        """The clients of a round; in a deployment, nobody can tell who was drawn."""
        key = System().key("cohort") if self._run.secret_noise else ctx.key
        return self._mechanism.cohort(key, pool)

    def merged(
        self, ctx: Ctx, exchanges: Iterable[Exchange[Any, Any]]
    ) -> Iterator[Exchange[Any, Any]]:
        """What the method merges; it may be asked for again if a reply was refused."""
        if self._mechanism.spec.local:
            return iter(exchanges)
        source = source_of(self._run, ctx)
        released, self._next_clip = self._mechanism.release(exchanges, self.spent.clip, source)
        return iter(released)

    def account(self, number: int, senders: Sequence[int]) -> PrivacySpent:
        """Counts a merged round.

        Args:
            number: The round.
            senders: The clients whose replies came.
        """
        spec, accountant, spent = self._mechanism.spec, self._mechanism.accountant, self.spent
        if spec.local:
            counts = dict(spent.by_client)
            for client in senders:
                counts[str(client)] = counts.get(str(client), 0) + 1
            spent = replace(spent, releases=max(counts.values(), default=0), by_client=counts)
        else:
            spent = replace(spent, releases=spent.releases + 1)
        epsilon = accountant.epsilon(spent.releases, spec.delta)
        clip, self.spent = spent.clip, replace(spent, clip=self._next_clip, epsilon=epsilon)
        return PrivacySpent(
            round=number,
            epsilon=epsilon if math.isfinite(epsilon) else None,
            delta=spec.delta,
            clip=clip,
            noise=accountant.noise,
            sampling=accountant.scheme,
            neighbours=accountant.neighbours,
            releases=spent.releases,
        )


def own_noise(run: Run, ctx: Ctx, client: int, down: Any, up: Any) -> Any:
    """A client's reply as it leaves the client: with noise."""
    mechanism = run.mechanism
    assert mechanism is not None
    exchange: Exchange[Any, Any] = Exchange(Client(client, 0), down, up)
    (released,), _ = mechanism.release([exchange], mechanism.spec.clip, source_of(run, ctx))
    return released.up


def source_of(run: Run, ctx: Ctx) -> Source:
    """The noise of a round or of a client: from the key of its context, or of nobody's making."""
    return System() if run.secret_noise else Seeded(ctx.key.fold("privacy"))
