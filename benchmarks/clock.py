"""The time model against reality: predicted and measured time of rounds on this machine.

Three models at two densities. Two short runs, of one and of four epochs, measure what this machine
is as a device: the operations a second that it sustains, and the seconds that a client takes
whatever it computes (`latency`). Another run, with other clients and twice the cohort, of two
epochs, is predicted from them: one worker trains one client after another, so its round takes the
sum of what clients take on that device. Predicted twice: from the device at the same density (`own
speed`), and from that of the dense model (`dense speed`), which is right as far as a sparse model
runs at the speed of a dense one.

What is measured is processor time, so that others on the machine do not count.
"""

import statistics
import time

import gossamer as gs
from gossamer import data, models
from gossamer.engine.events import ClientFinished, RoundFinished

MODELS = ("mlp:hidden=256", "lenet5_caffe", "lenet5")
DENSITIES = (1.0, 0.1)
ROUNDS = 7
WIDE = 0.25
"""The deviation that is allowed."""


class Watch:
    """Operations and processor seconds of every round."""

    def __init__(self) -> None:
        self.flops: list[float] = []
        self.seconds: list[float] = []
        self._flops = 0.0
        self._began = time.process_time()

    def emit(self, event: object, clock: object) -> None:
        if isinstance(event, ClientFinished):
            self._flops += event.flops
        if isinstance(event, RoundFinished):
            now = time.process_time()
            self.flops.append(self._flops)
            self.seconds.append(now - self._began)
            self._flops, self._began = 0.0, now

    def close(self) -> None:
        pass


def per_client(
    model: str, density: float, clients: int, epochs: int, seed: int
) -> tuple[float, float]:
    """Operations and seconds of a client, in the median round without the first two."""
    federation = data.federation("fmnist-mini", "iid", 50, seed=seed)
    module = models.build(model, federation.shape, federation.classes)
    task = gs.Task.of(module, federation.client(0).train.x[:2], start="seed")
    training = gs.Training(epochs=epochs, batch=32, lr=0.05)
    method = gs.Flash(clients=clients, density=density, allocation="uniform", training=training)
    watch, options = Watch(), gs.Options(workers=1, eval_every=0, checkpoint_every=ROUNDS)
    parts = (method, task, federation)
    gs.run(*parts, rounds=ROUNDS, seed=seed, options=options, sinks=[watch], quiet=True)
    return (
        statistics.median(watch.flops[2:]) / clients,
        statistics.median(watch.seconds[2:]) / clients,
    )


def device(model: str, density: float) -> tuple[float, float]:
    """Operations a second and latency, from a short and a longer job."""
    (few, short), (many, long) = (per_client(model, density, 4, n, seed=0) for n in (1, 4))
    speed = (many - few) / (long - short)
    return speed, max(0.0, short - few / speed)


def measure() -> dict[str, object]:
    """Predicted against measured seconds of a round."""
    found: dict[str, object] = {}
    worst = {"own speed": 0.0, "dense speed": 0.0}
    for model in MODELS:
        devices = {density: device(model, density) for density in DENSITIES}
        for density in DENSITIES:
            flops, seconds = per_client(model, density, clients=8, epochs=2, seed=1)
            predicted = {}
            for name, of in (("own speed", density), ("dense speed", 1.0)):
                speed, latency = devices[of]
                predicted[name] = latency + flops / speed
                worst[name] = max(worst[name], abs(predicted[name] / seconds - 1))
            found[f"{model}, density {density:g}"] = {
                "GFLOP_per_second": round(devices[density][0] / 1e9, 3),
                "latency_seconds": round(devices[density][1], 5),
                "measured_seconds": round(8 * seconds, 4),
                **{name: round(8 * value, 4) for name, value in predicted.items()},
            }
    return {
        "job": "rounds of 8 clients with 200 pictures, 2 epochs, one worker, on fmnist-mini",
        "rounds": found,
        "worst_deviation": {name: round(value, 4) for name, value in worst.items()},
        "allowed": WIDE,
    }
