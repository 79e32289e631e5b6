"""Devices of clients: how fast they compute and connect, and when they are there.

A device is drawn from the key by the client's number when somebody asks for it, so a million of
them cost nothing. Nothing of it is ever sent.
"""

from gossamer.devices.availability import ALWAYS, Availability, Duty, Trace
from gossamer.devices.device import Device
from gossamer.devices.fleet import Fleet
from gossamer.devices.presets import PRESETS

__all__ = ["ALWAYS", "PRESETS", "Availability", "Device", "Duty", "Fleet", "Trace"]
