"""What benchmarks share: a description of the machine, and a watch on rounds."""

import os
import platform
from pathlib import Path

import torch

import gossamer
from gossamer.engine.events import Clock, Event, RoundFinished


def machine() -> dict[str, object]:
    """The processor and the software; timings without them mean nothing."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "gossamer": gossamer.__version__,
    }


class Seconds:
    """Collects the duration of every round."""

    def __init__(self) -> None:
        self.rounds: list[float] = []

    def emit(self, event: Event, clock: Clock) -> None:
        if isinstance(event, RoundFinished):
            self.rounds.append(clock.seconds)

    def close(self) -> None:
        pass
