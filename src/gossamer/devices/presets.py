"""Named classes of devices. Figures are rounded; their sources are beside them.

`flops` is what a device sustains in training, not its peak: measured where somebody has measured
it, else a tenth of the peak of its processor. `memory` is the whole of it.

Sources:
[das] Das, Kwon, Chauhan, Mascolo: Enabling on-device smartphone GPU based training: lessons
    learned. 2022. https://arxiv.org/abs/2202.10100 (training runs at 15 to 30 GFLOP/s on the
    processors of phones with a Snapdragon 8)
[ookla] Ookla, Speedtest Global Index, world averages of mobile networks: 23 Mbit/s down and
    9 Mbit/s up in 2018, 56 and 11 in 2024; round trips of 40 and 28 ms.
    https://www.speedtest.net/global-index
[hpl] Feiereisen: Benchmarking the Raspberry Pi 4. 2022. https://feiereisen.net/?page_id=924
    (8 GFLOP/s in Linpack, all four cores)
[pi] Raspberry Pi 4 Model B, product brief: 4 GB of memory, Wi-Fi of the fifth generation.
    https://datasheets.raspberrypi.com/rpi4/raspberry-pi-4-product-brief.pdf
[jetson] NVIDIA, Jetson Nano module datasheet: 472 GFLOP/s peak in half precision, 4 GB.
    https://developer.nvidia.com/embedded/jetson-nano
[mcu] ST, STM32H743 datasheet: Cortex-M7 at 480 MHz, 1 MB of memory, one multiply-add a cycle.
    https://www.st.com/en/microcontrollers-microprocessors/stm32h743-753.html
[m1] 3GPP release 13, LTE category M1, half duplex: 300 kbit/s down, 375 kbit/s up.
    https://www.3gpp.org/news-events/3gpp-news/iot-r13
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from gossamer.devices.device import Device

PRESETS: Mapping[str, Device] = {
    each.kind: each
    for each in (
        # [das] measured newer processors; a third of that for a phone of the middle class of 2018.
        Device("phone-2018", flops=5e9, up=9e6, down=23e6, latency=0.02, memory=4e9),
        Device("phone-2024", flops=20e9, up=11e6, down=56e6, latency=0.014, memory=8e9),
        # [hpl]; half of what its radio reaches in practice, at home behind a slower line.
        Device("raspberry-pi-4", flops=8e9, up=20e6, down=50e6, latency=0.01, memory=4e9),
        # [jetson], a tenth of the peak in single precision, which is half of the quoted one.
        Device("jetson-nano", flops=24e9, up=20e6, down=50e6, latency=0.01, memory=4e9),
        # [mcu], a tenth of 0.96 GFLOP/s; [m1]
        Device("mcu", flops=0.1e9, up=0.375e6, down=0.3e6, latency=0.05, memory=1e6),
        # The three networks of earlier versions: a phone on a mobile network, the same at home,
        # and a small sensor. Round figures, without a source.
        Device("4g", flops=10e9, up=10e6, down=30e6, latency=0.05, memory=4e9),
        Device("wifi", flops=10e9, up=50e6, down=100e6, latency=0.01, memory=4e9),
        Device("iot", flops=0.1e9, up=0.1e6, down=0.25e6, latency=0.5, memory=1e6),
    )
}

NUMBERS = ("flops", "up", "down", "latency", "memory", "failure")
"""What may be given for a device of one's own, or in a column of a CSV file."""
NEEDED = ("up", "down", "latency", "flops")


def parse(text: str, option: str = "devices") -> Device:
    """A class by its name, or one of its own: `up=5e6,down=20e6,latency=0.05,flops=1e9`.

    Raises:
        ValueError: There is no such class, or a number is missing or out of bounds.
    """
    if text in PRESETS:
        return PRESETS[text]
    try:
        pairs = dict(part.split("=") for part in text.split(","))
        values = {name.strip(): float(value) for name, value in pairs.items()}
        if not set(NEEDED) <= values.keys() <= set(NUMBERS):
            raise ValueError
    except ValueError:
        raise ValueError(
            f"`{option}=` is one of {', '.join(PRESETS)} or e.g. "
            f"up=5e6,down=20e6,latency=0.05,flops=1e9, not {text!r}"
        ) from None
    own: dict[str, Any] = {"memory": 4e9, **values}
    return checked(Device("own", **own), f"`{option}=`", text)


def checked(device: Device, where: str, text: str) -> Device:
    """The device, if its numbers can be those of one.

    Raises:
        ValueError: A speed is not positive, or another number is out of bounds.
    """
    values = {each.name: getattr(device, each.name) for each in fields(device)}
    positive = all(0 < values[name] < math.inf for name in ("up", "down", "flops", "memory"))
    if not positive or not 0 <= device.latency < math.inf or not 0 <= device.failure < 1:
        raise ValueError(
            f"{where} needs positive speeds and memory, a latency of 0 or more and a failure rate "
            f"from 0 up to 1, not {text!r}"
        )
    return device
