"""The Gaussian mechanism on whole records: clip every change, sum, add noise once, release.

What a method merges are the released numbers and nothing else: every client's reply is replaced by
the same one, whose change is the noisy mean. Whatever a merge computes of it (a mean, a server
optimiser, a new mask of the largest weights) is then covered too, because it no longer sees the
replies, and no method has to be changed. All clients weigh the same, however a merge weights them.

The mean is over the planned number of clients: that some of them failed may depend on their data,
so they count as having changed nothing.

Andrew, Thakkar, McMahan, Ramaswamy: Differentially private learning with adaptive clipping.
NeurIPS 2021. https://arxiv.org/abs/1905.03871
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gossamer import core
from gossamer.core import Client, Exchange, Key
from gossamer.trust.accountant import Accountant, Scheme, noise_for
from gossamer.trust.changes import Change, change, mapped, norm, with_change
from gossamer.trust.declared import Privacy, declared
from gossamer.trust.noise import Source
from gossamer.trust.spec import Spec
from gossamer.wire import Packed, Schema, WireError, flatten

CLIP_RATE = 0.2
"""The step of adaptive clipping (Andrew et al., section 3)."""
COUNT_NOISE = 1 / 20
"""Noise of the count of unclipped changes, as a share of the clients per round (ibid.)."""


@dataclass(frozen=True)
class Mechanism:
    """Clipping and noise of a run."""

    spec: Spec
    declared: Privacy
    accountant: Accountant
    """Of all that is released in a round, or by a client: numbers and count together."""

    @classmethod
    def of(cls, text: str, method: object, clients: object, pool: int, rounds: int) -> Mechanism:
        """The mechanism that `--dp` asks for.

        Args:
            text: What `--dp` says.
            method: The method, which declares what its replies tell.
            clients: Clients per round.
            pool: All clients.
            rounds: Rounds of the run, from which the noise is found if epsilon is given.

        Raises:
            ValueError: the method cannot be covered, or the values do not fit together.
        """
        spec, known = Spec.parse(text), declared(method)
        name = type(method).__name__
        if known.refused:
            raise ValueError(f"`dp=`: {name} {known.refused}")
        if not isinstance(clients, int):
            raise ValueError(f"`dp=`: {name} has no setting `clients`, so its sampling is unknown")
        if not spec.local and spec.delta * pool >= 1:
            raise ValueError(
                f"`dp=`: delta {spec.delta:g} is at least 1 / {pool} clients, which would allow to "
                f"publish one client's data as they are; use delta={0.1 / pool:.0e} or less"
            )
        scheme: Scheme = "local" if spec.local else spec.sampling
        if scheme == "poisson" and rounds * (1 - clients / pool) ** pool > spec.delta / 100:
            raise ValueError(
                f"`dp=`: with poisson sampling of {clients} in {pool} clients, a round without "
                "anybody is too likely, and would show; use more `clients=` or sampling=fixed"
            )
        noise = spec.noise
        if noise is None:
            assert spec.epsilon is not None
            noise = noise_for(spec.epsilon, spec.delta, rounds, scheme, clients, pool)
        return cls(spec, known, Accountant(noise, scheme, clients, pool))

    # who takes part -------------------------------------------------------------------------------

    def cohort(self, key: Key, pool: Sequence[Client]) -> list[Client]:
        """The clients of a round, drawn as the accountant assumes."""
        if self.accountant.scheme != "poisson":
            return core.sample(key, pool, self.accountant.clients)
        coins = key.fold("cohort").numpy().random(len(pool))
        rate = self.accountant.clients / self.accountant.pool
        return [pool[index] for index in (coins < rate).nonzero()[0].tolist()]

    # what is released -----------------------------------------------------------------------------

    @property
    def count_noise(self) -> float:
        """Standard deviation of the noise of the count of unclipped changes."""
        return max(COUNT_NOISE * self.accountant.clients, self.accountant.noise)

    @property
    def sum_noise(self) -> float:
        """Noise of the sum, as a multiple of the clip: more, if the count has its share."""
        noise = self.accountant.noise
        if self.spec.quantile is None or not noise:
            return noise
        rest = noise**-2 - (2 * self.count_noise) ** -2  # Andrew et al., theorem 1
        return 1 / math.sqrt(rest)

    def release(
        self, exchanges: Iterable[Exchange[Any, Any]], clip: float, source: Source
    ) -> tuple[list[Exchange[Any, Any]], float]:
        """What a method may merge of a round's replies, or send of its own.

        Args:
            exchanges: The replies, one at a time; only their sum is kept.
            clip: The largest norm of a change in this round.
            source: Of the noise.

        Returns:
            Exchanges that all have the same reply, and the clip of the next round.

        Raises:
            WireError: a reply has another form than those before it.
            ValueError: a reply has something that noise cannot cover.
        """
        total: Change = {}
        requests: list[Exchange[Any, Any]] = []
        form, unclipped = None, 0
        for exchange in exchanges:
            if form is None:
                form = exchange.up
                self._check(form)
            whole = self.change(exchange)
            if total and not _same_form(whole, total):
                raise WireError("a reply has other numbers than those of other clients")
            size = norm(whole)
            unclipped += size <= clip
            for place, part in whole.items():
                before = total.get(place)
                clipped = part * factor(size, clip) if math.isfinite(size) else part.new_zeros(())
                total[place] = clipped.expand_as(part) if before is None else before + clipped
            requests.append(replace(exchange, up=None))
        if form is None:
            return [], clip
        count = 1 if self.spec.local else self.accountant.clients
        deviation = self.sum_noise * clip
        mean = {
            place: (part + _noise(source, place, part, deviation)) / count
            for place, part in total.items()
        }
        return self._replies(form, requests, mean, source), self._next(clip, unclipped, source)

    def change(self, exchange: Exchange[Any, Any]) -> Change:
        """A reply's change, with that of its bits: what they are less how probable they were."""
        whole = change(exchange)
        for place, bits, chance in self._bits(exchange):
            whole[place] = bits.double() - chance.double()
        return whole

    def _bits(self, exchange: Exchange[Any, Any]) -> list[tuple[str, Tensor, Tensor]]:
        return [
            (f"{field}[{name}]", mask, getattr(exchange.down, wanted)[name])
            for field, wanted in self.declared.bits.items()
            for name, mask in getattr(exchange.up, field).items()
        ]

    def _next(self, clip: float, unclipped: int, source: Source) -> float:
        """Adaptive clipping: a geometric step towards the quantile."""
        if self.spec.quantile is None:
            return clip
        count = float(unclipped)
        if self.accountant.noise:
            count += self.count_noise * float(source.normal("unclipped", 1)[0])
        share = count / self.accountant.clients
        return clip * math.exp(-CLIP_RATE * (share - self.spec.quantile))

    def _replies(
        self,
        form: Any,
        requests: Sequence[Exchange[Any, Any]],
        mean: Mapping[str, Tensor],
        source: Source,
    ) -> list[Exchange[Any, Any]]:
        """The same reply from everybody: what was sent, and the mean change."""
        replies: list[Exchange[Any, Any]] = []
        drawn: dict[str, Tensor] = {}
        for place, request in enumerate(requests):
            if place and request.down is requests[place - 1].down:
                reply = replace(request, up=replies[-1].up)
            else:
                reply = with_change(replace(request, up=form), mean)
                reply = replace(reply, up=mapped(reply.up, self._within))
            if self.declared.bits:
                whole = replace(request, up=form)
                drawn = drawn or self._counts(whole, mean, len(requests), source)
                reply = replace(reply, up=self._with_bits(reply.up, drawn, place))
            replies.append(reply)
        return replies

    def _within(self, place: str, tensor: Tensor) -> Tensor:
        least, most = self.declared.least, self.declared.most
        return tensor if least is None and most is None else tensor.clamp(least, most)

    def _counts(
        self, exchange: Exchange[Any, Any], mean: Mapping[str, Tensor], replies: int, source: Source
    ) -> dict[str, Tensor]:
        """How many of the replies have each bit: the released probability, rounded at random."""
        counts = {}
        for place, _, chance in self._bits(exchange):
            wanted = (chance.double() + mean[place]).clamp(0, 1) * replies
            draw = torch.from_numpy(source.uniform(place, wanted.numel())).view(wanted.shape)
            counts[place] = (wanted + draw).floor()
        return counts

    def _with_bits(self, up: Any, counts: Mapping[str, Tensor], place: int) -> Any:
        fields = {
            field: {name: counts[f"{field}[{name}]"] > place for name in getattr(up, field)}
            for field in self.declared.bits
        }
        return replace(up, **fields)

    def _check(self, reply: Any) -> None:
        """Raises ValueError if a reply has leaves that are neither numbers nor declared bits."""
        paths = (path for path, _ in Schema.of(reply).leaves)
        for path, leaf in zip(paths, flatten(reply), strict=True):
            tensors = [leaf] if isinstance(leaf, Tensor) else []
            if isinstance(leaf, Packed):
                tensors = list(leaf.values.values())
            elif not tensors and path in self.declared.bits:
                continue
            if not tensors or not all(tensor.is_floating_point() for tensor in tensors):
                raise ValueError(
                    f"`dp=`: {path} of a {type(reply).__name__} is neither a floating-point tensor "
                    "nor declared as bits, so noise cannot cover it; see docs/privacy.md"
                )


def factor(size: float, clip: float) -> float:
    """By what a change of some norm is multiplied so that its norm is at most `clip`."""
    return min(1.0, clip / size) if size else 1.0


def _noise(source: Source, place: str, like: Tensor, deviation: float) -> Tensor:
    if not deviation:
        return torch.zeros_like(like)
    return torch.from_numpy(source.normal(place, like.numel())).view(like.shape) * deviation


def _same_form(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(
        part.shape == second[place].shape for place, part in first.items()
    )
