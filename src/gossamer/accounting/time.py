"""Simulated time: how long a round would take on a given device and network."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Network:
    """A device and its connection."""

    up: float
    """Bits a second towards the server."""
    down: float
    """Bits a second from the server."""
    latency: float
    """Seconds one way."""
    flops: float
    """Operations a second of a device."""

    def seconds(self, up: int, down: int, flops: int) -> float:
        """How long one client's part of a round takes."""
        return 2 * self.latency + down / self.down + flops / self.flops + up / self.up

    @classmethod
    def parse(cls, text: str) -> Network:
        """A preset, or four numbers: `up=5e6,down=20e6,latency=0.05,flops=1e9`."""
        if text in NETWORKS:
            return NETWORKS[text]
        try:
            pairs = dict(part.split("=") for part in text.split(","))
            values = {name: float(value) for name, value in pairs.items()}
            network = cls(**values)
        except (TypeError, ValueError):
            raise ValueError(
                f"`network=` is one of {', '.join(NETWORKS)} or e.g. "
                f"up=5e6,down=20e6,latency=0.05,flops=1e9, not {text!r}"
            ) from None
        positive = all(speed > 0 for speed in (network.up, network.down, network.flops))
        if not positive or not 0 <= network.latency < math.inf:
            raise ValueError(f"`network=` needs positive speeds, not {text!r}")
        return network


NETWORKS: Mapping[str, Network] = {
    "4g": Network(up=10e6, down=30e6, latency=0.05, flops=10e9),
    "wifi": Network(up=50e6, down=100e6, latency=0.01, flops=10e9),
    "iot": Network(up=0.1e6, down=0.25e6, latency=0.5, flops=0.1e9),
}
"""Rounded figures of a phone on a mobile network, a phone at home, and a small sensor."""
