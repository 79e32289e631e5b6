"""What a benchmark ran on."""

import os
import platform
from pathlib import Path

import torch

import gossamer


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
