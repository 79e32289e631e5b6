"""The devices of all clients, as `--devices` describes them: drawn one by one, when asked for."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from gossamer.core import Key
from gossamer.data.budgets import apportion
from gossamer.devices import presets
from gossamer.devices.availability import Hours
from gossamer.devices.device import Device
from gossamer.devices.listed import Listed
from gossamer.devices.permutation import Order

REMEMBERED = 2**16
"""Devices that are kept in memory once they were drawn."""
LEAST_BUDGET = 0.001
"""The density that the smallest device is given at least."""
USABLE = 0.25
"""The part of a device's memory that training may take."""
BYTES = 12.0
"""Of a dense weight in training: its value, gradient and momentum."""
SPARSE_BYTES = 16.0
"""Of a weight on a mask: its position, too."""


@dataclass(frozen=True)
class Fleet:
    """Who has which device.

    Classes are dealt in exact shares, in a random order that needs no list of it.
    """

    key: Key
    size: int
    classes: tuple[Device, ...]
    counts: tuple[int, ...] = ()
    """How many clients have each class; empty if a file says who does."""
    spread: float = 0.0
    failures: float = 0.0
    hours: Hours = field(default_factory=Hours)
    listed: Listed | None = None
    _order: Order = field(init=False, repr=False, compare=False)
    _known: Callable[[int], Device] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_order", Order(self.key, self.size))
        object.__setattr__(self, "_known", lru_cache(REMEMBERED)(self._drawn))

    def of(self, client: int) -> Device:
        """The device of a client."""
        return self._known(client)

    @classmethod
    def parse(
        cls,
        text: str,
        key: Key,
        size: int,
        *,
        spread: float = 0.0,
        failures: float = 0.0,
        availability: str = "",
        option: str = "devices",
    ) -> Fleet:
        """Reads a class, a mixture such as `phone-2024:50%,mcu:50%`, or the name of a CSV file.

        Args:
            text: What `--devices` says.
            key: Of the run.
            size: The number of clients.
            spread: The standard deviation of the logarithm of speeds around those of the class.
            failures: The probability that a client fails in a round.
            availability: What `--availability` says.
            option: The name of the option, for errors.

        Raises:
            ValueError: Text or file describe no devices.
            FileNotFoundError: There is no such file.
        """
        own = key.fold("devices")
        rest = (spread, failures, Hours.parse(availability))
        if text.endswith(".csv"):
            listed = Listed.read(Path(text).expanduser(), size)
            return cls(own, size, listed.classes, (), *rest, listed)
        shares = mixture(text, option)
        counts = apportion(size, list(shares.values()))
        return cls(own, size, tuple(shares), tuple(counts), *rest)

    @property
    def always(self) -> bool:
        """Whether all devices are there at all times."""
        return self.hours.always

    @property
    def slowest(self) -> Device:
        """A device that is as slow as the slowest class in every respect, for an upper bound."""
        classes = self.classes
        return replace(
            classes[0],
            kind="slowest",
            **{name: min(getattr(c, name) for c in classes) for name in ("flops", "up", "down")},
            latency=max(each.latency for each in classes),
        )

    @property
    def fastest(self) -> float:
        """Operations a second of the fastest class."""
        return max(each.flops for each in self.classes)

    def _drawn(self, client: int) -> Device:
        device = self._class(client)
        changed: dict[str, Any] = {}
        if self.spread or self.hours.duty:
            *draws, phase = self.key.fold("client", client).numpy().random(4).tolist()
            changed["availability"] = self.hours.of(client, phase)
            for name, draw in zip(("flops", "up", "down"), draws, strict=True):
                changed[name] = getattr(device, name) * math.exp(self.spread * _normal(draw))
        elif not self.always:
            changed["availability"] = self.hours.of(client, 0.0)
        if self.failures:
            changed["failure"] = 1 - (1 - device.failure) * (1 - self.failures)
        return replace(device, **changed) if changed else device

    def _class(self, client: int) -> Device:
        if self.listed is not None:
            return self.listed.of(client)
        place = self._order.place(client % self.size)
        return self.classes[bisect_right(list(accumulate(self.counts)), place)]

    def budgets(self, prunable: int, dense: int) -> npt.NDArray[np.float32]:
        """The density that each client can train: as much as a quarter of its memory holds.

        Args:
            prunable: Weights that masks may remove.
            dense: All other parameters.
        """
        if self.listed is not None:
            memory = self.listed.column("memory")
        else:
            places = self._order.places(np.arange(self.size))
            memory = np.repeat([each.memory for each in self.classes], self.counts)[places]
        sizes, which = np.unique(memory, return_inverse=True)
        room = USABLE * sizes - BYTES * dense
        whole = room >= BYTES * prunable
        share = np.where(whole, 1.0, room / (SPARSE_BYTES * max(prunable, 1)))
        rounded = [float(f"{max(LEAST_BUDGET, min(1.0, each)):.2g}") for each in share.tolist()]
        return np.array(rounded, np.float32)[which]


def _normal(uniform: float) -> float:
    """A normal draw from a uniform one, by the inverse of the distribution."""
    return NormalDist().inv_cdf(min(max(uniform, 1e-12), 1 - 1e-12))


def mixture(text: str, option: str) -> dict[Device, Fraction]:
    """Classes with their shares of the clients; a single class has all of them."""
    if "%" not in text:
        return {presets.parse(text, option): Fraction(1)}
    shares: dict[Device, Fraction] = {}
    for name, share in _entries(text, option):
        device = presets.parse(name, option)
        if device in shares:
            raise ValueError(f"`{option}=` has {name} twice; give its whole share in one entry")
        shares[device] = share
    if (total := sum(shares.values())) != 1:
        raise ValueError(
            f"the shares in `{option}=` add up to {float(100 * total):.12g} %, not 100 %; write "
            "e.g. phone-2024:50%,raspberry-pi-4:50%"
        )
    return shares


def _entries(text: str, option: str) -> Iterator[tuple[str, Fraction]]:
    for entry in text.split(","):
        name, _, share = entry.strip().rpartition(":")
        try:
            part = Fraction(share.removesuffix("%")) / 100
            if not share.endswith("%") or not 0 < part <= 1 or not math.isfinite(part):
                raise ValueError
        except ValueError:
            raise ValueError(
                f"{entry.strip()!r} in `{option}=` is no class with its share of the clients; "
                "write e.g. phone-2024:50%,raspberry-pi-4:50%"
            ) from None
        yield name, part
