"""A client's round of SpaFL at several densities, over dense training for as many epochs.

One client with 600 examples of Fashion-MNIST's size trains LeNet-5-Caffe for three epochs, by
FedAvg and by SpaFL in turns: all of the client's work from the message it receives to the one it
sends. Thresholds are set so that they prune more and more weights.
"""

import statistics
import time

import torch

import gossamer as gs
from gossamer import accounting, models
from gossamer.engine.client import AnyMethod, train
from gossamer.methods.spafl import Down

TURNS = 7
EXAMPLES = 600
LEVELS = (0.0, 0.01, 0.015, 0.02, 0.025, 0.03, 0.033, 0.0345)


def measure() -> dict[str, object]:
    """Seconds of a participation, and SpaFL's as multiples of FedAvg's."""
    torch.set_num_threads(1)
    draw = gs.Key(3).generator()
    x = torch.rand(EXAMPLES, 1, 28, 28, generator=draw)
    y = torch.randint(10, (EXAMPLES,), generator=draw)
    examples = gs.Examples(x, y)
    own = gs.Data(examples, gs.Examples(x[:0], y[:0]), gs.Examples(x[:0], y[:0]))
    task = gs.Task.of(models.build("lenet5_caffe", (1, 28, 28), 10), x[:2], start="seed")
    server = gs.Ctx(task, 1, 500, gs.Key(1), gs.Key(2))
    client = gs.Ctx(task, 2, 500, gs.Key(1).fold("client"), gs.Key(2), own)
    dense = gs.FedAvg(training=gs.Training(epochs=3, batch=64, lr=0.001, momentum=0.9))
    sparse = gs.SpaFL(importance=False)
    fresh = sparse.down(server, sparse.init(server), gs.Client(0, EXAMPLES))
    jobs: dict[str, tuple[AnyMethod, object]] = {
        "fedavg": (dense, dense.down(server, dense.init(server), gs.Client(0, EXAMPLES)))
    }
    for level in LEVELS:
        down = Down(torch.full_like(fresh.thresholds, level), fresh.missed)
        jobs[f"spafl {level}"] = (sparse, down)
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    densities: dict[str, float] = {}
    for turn in range(TURNS + 1):
        for name, (method, down) in jobs.items():
            start = time.process_time()
            done = train(method, client, down, None)
            if turn:
                seconds[name].append(time.process_time() - start)
            densities[name] = round(accounting.density(task.layout, done.result.masks), 3)
    base = seconds.pop("fedavg")
    return {
        "job": f"{EXAMPLES} examples, 3 epochs, batch 64, one core, median of {TURNS} turns",
        "fedavg_seconds": round(statistics.median(base), 4),
        "spafl": [
            {
                "density": densities[name],
                "seconds": round(statistics.median(times), 4),
                "to_fedavg": round(
                    statistics.median(a / b for a, b in zip(times, base, strict=True)), 3
                ),
            }
            for name, times in seconds.items()
        ],
    }
