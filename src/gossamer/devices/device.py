"""A device: its speed, its memory, its link, how often it fails, and when it is there."""

from __future__ import annotations

from dataclasses import dataclass

from gossamer.devices.availability import ALWAYS, Availability


@dataclass(frozen=True)
class Device:
    """The device of a client."""

    kind: str
    """The name of its class."""
    flops: float
    """Floating-point operations a second that it sustains in training."""
    up: float
    """Bits a second towards the server."""
    down: float
    """Bits a second from the server."""
    latency: float
    """Seconds one way."""
    memory: float
    """Bytes."""
    failure: float = 0.0
    """The probability that it fails in a round."""
    availability: Availability = ALWAYS

    def downloading(self, bits: float) -> float:
        """Seconds until a message from the server is there."""
        return self.latency + bits / self.down

    def training(self, flops: float) -> float:
        """Seconds that operations take."""
        return flops / self.flops

    def uploading(self, bits: float) -> float:
        """Seconds until a message to the server is there."""
        return self.latency + bits / self.up

    def seconds(self, up: float, down: float, flops: float) -> float:
        """How long a client's part of a round takes."""
        return 2 * self.latency + down / self.down + flops / self.flops + up / self.up
