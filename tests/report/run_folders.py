"""Folders of runs, written without running anything: the log has what the engine would write."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from gossamer.accounting import Entry
from gossamer.engine.events import (
    SCHEMA,
    ClientFinished,
    Clock,
    Evaluated,
    Event,
    Finished,
    Measured,
    RoundFinished,
    Started,
    line,
)

LAYERS = ("conv1.weight", "conv2.weight", "fc1.weight", "fc2.weight")
CONFIG = """# gossamer run {method} --seed {seed}
method = "{method}"

[experiment]
data = "{data}"
partition = "{partition}"
pool = 20
least = -1
valid = 0.0
data_seed = -1
model = "lenet5_caffe"
rounds = {rounds}
seed = {seed}

[settings]
lr = 0.1
density = {density}

[options]
workers = {seed}
network = "{network}"
"""


def write_run(
    folder: Path,
    method: str = "spdst",
    *,
    seed: int = 1,
    rounds: int = 6,
    density: float = 0.1,
    sent: int = 10_000,
    top: float = 0.8,
    clients: int = 3,
    network: str = "4g",
    masks: bool = True,
    personal: bool = False,
    histogram: bool = True,
    ended: bool = True,
    config: bool = True,
    data: str = "synthetic",
    partition: str = "",
) -> Path:
    """A run whose accuracy rises to `top` and that sends `sent` bits a client and direction."""
    folder.mkdir(parents=True)
    if config:
        text = CONFIG.format(**locals())
        (folder / "config.toml").write_text(text)
    log: list[Event] = [
        _started(method, seed, rounds, density, data),
        _evaluated(0, 0.1, histogram),
    ]
    if masks:
        log.append(_measured(0, density, None))
    seconds = None
    for number in range(1, rounds + 1):
        log += [_client(number, client, sent, bool(network)) for client in range(clients)]
        seconds = 0.5 * number if network else None
        total = clients * sent * number
        log.append(_round(number, clients, density, total, seconds, masks))
        if masks:
            log.append(_measured(number, density, 0.9 if number == 1 else 0.1 / number))
        rise = 1 - math.exp(-5 * number / rounds) + 0.02 * math.sin(seed + number)
        log.append(_evaluated(number, top * rise, histogram, density if personal else None))
    if ended:
        log.append(Finished(rounds, {}, density, f"hash-{seed}"))
    text = "".join(line(event, Clock(0.0, 0.0)) for event in log)
    (folder / "events.jsonl").write_text(text)
    return folder


def _started(method: str, seed: int, rounds: int, density: float, name: str) -> Started:
    settings: dict[str, Any] = {"lr": 0.1, "density": density}
    data = {"name": name, "pool": 20}
    environment = {"gossamer": "0.1.0", "torch": "2.13.0", "machine": "Linux x86_64"}
    return Started(SCHEMA, method, settings, rounds, seed, 20, data, 430_500, 430_500, environment)


def _client(number: int, client: int, sent: int, timed: bool) -> ClientFinished:
    traffic = [
        Entry("down", "Train", "header", 72.0, 0.0, 0.0),
        Entry("down", "Train", "values", sent - 72.0, sent - 72.0, sent - 72.0),
        Entry("up", "Update", "header", 72.0, 0.0, 0.0),
        Entry("up", "Update", "values", sent - 72.0, sent - 72.0, sent - 72.0),
    ]
    return ClientFinished(
        round=number,
        client=client,
        examples=100,
        steps=4,
        density=0.1,
        up=sent,
        down=sent,
        information_up=sent - 72.0,
        information_down=sent - 72.0,
        paper_up=sent - 72,
        paper_down=sent - 72,
        flops=10**9,
        device_seconds=0.5 if timed else None,
        metrics={"loss": 1.0},
        traffic=traffic,
    )


def _round(
    number: int, clients: int, density: float, total: int, seconds: float | None, masks: bool
) -> RoundFinished:
    found = {"sensitivity.conv2.weight": 0.5 / number} if masks else {}
    return RoundFinished(
        round=number,
        clients=list(range(clients)),
        failed=[],
        density=density,
        metrics={"loss": 1.0 / number, **found},
        up=total,
        down=total,
        information_up=float(total),
        information_down=float(total),
        paper_up=total - 72 * clients * number,
        paper_down=total - 72 * clients * number,
        flops=clients * number * 10**9,
        device_seconds=seconds,
    )


def _measured(number: int, density: float, mismatch: float | None) -> Measured:
    layers = {
        name: {"density": min(1.0, density * (place + 1)), "mismatch": mismatch}
        for place, name in enumerate(LAYERS)
    }
    return Measured(number, density, mismatch, layers, {"client_mismatch": 0.2 / (number + 1)})


def _evaluated(
    number: int, accuracy: float, histogram: bool, own: float | None = None
) -> Evaluated:
    counts = [0] * 20
    counts[max(0, min(19, int(20 * accuracy)))] = 15
    counts[max(0, min(19, int(20 * accuracy) - 3))] += 5
    return Evaluated(
        round=number,
        global_accuracy=accuracy,
        global_loss=1.0,
        personal_mean=0.9 * accuracy,
        personal_std=0.1,
        personal_worst_decile=0.5 * accuracy,
        clients=20,
        personal_density=own,
        personal_histogram=counts if histogram else None,
    )
