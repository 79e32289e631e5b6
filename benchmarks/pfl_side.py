"""FedAvg by pfl-research, for `small_clients`; runs in pfl's own environment.

    python pfl_side.py JOB.json

The job names the model, the settings and a file with the clients' examples. As in pfl's own
benchmarks, all examples are tensors in memory before the first round. Prints the time at the end of
every round as a list.
"""

import json
import sys
import time
import types
from pathlib import Path

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from small_models import MODELS
from torch import nn

NEVER = 10**9
"""Rounds between evaluations; the first round, which is not counted, has one all the same."""


def loss(self: nn.Module, x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> torch.Tensor:
    self.train(not eval)
    return nn.functional.cross_entropy(self(x), y)


def metrics(self: nn.Module, x: torch.Tensor, y: torch.Tensor, eval: bool = True) -> dict:
    self.train(not eval)
    with torch.no_grad():
        value = nn.functional.cross_entropy(self(x), y, reduction="sum").item()
    return {"loss": Weighted(value, len(y))}


class Times(TrainingProcessCallback):
    """Notes when rounds end."""

    def __init__(self) -> None:
        self.found: list[float] = []

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.found.append(time.time())
        return False, type(aggregate_metrics)()


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    torch.manual_seed(job["seed"])
    np.random.seed(job["seed"])  # noqa: NPY002 - pfl draws users from it
    with np.load(job["data"]) as data:
        factor, offset = torch.from_numpy(data["factor"]), torch.from_numpy(data["offset"])
        pixels = torch.from_numpy(data["pixels"]).float().mul_(factor).add_(offset)
        x, y = pixels.permute(0, 3, 1, 2).contiguous(), torch.from_numpy(data["y"])
        users = [(x[rows], y[rows]) for rows in data["rows"]]
    module = MODELS[job["model"]](tuple(x.shape[1:]), job["classes"])
    module.loss = types.MethodType(loss, module)
    module.metrics = types.MethodType(metrics, module)
    model = PyTorchModel(
        model=module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), 1.0),
    )
    sampler = get_user_sampler("random", range(len(users)))
    backend = SimulatedBackend(
        training_data=FederatedDataset.from_slices(users, sampler),
        val_data=None,
        postprocessors=[WeightByDatapoints()],
    )
    times = Times()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=job["rounds"],
            evaluation_frequency=NEVER,
            train_cohort_size=job["clients"],
            val_cohort_size=0,
        ),
        backend=backend,
        model=model,
        model_train_params=NNTrainHyperParams(
            local_learning_rate=job["lr"], local_num_epochs=1, local_batch_size=job["batch"]
        ),
        callbacks=[times],
    )
    print(json.dumps(times.found))


main()
