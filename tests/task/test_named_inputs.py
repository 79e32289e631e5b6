"""Inputs of several tensors by name: they are cut and chosen as one, and reach the module whole."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gossamer import Examples, Key, Options, Task, data, export, lora, submodels
from gossamer.accounting.dry_run import price
from gossamer.engine import run
from gossamer.methods import METHODS
from gossamer.named import Named, called, named
from helpers import fedavg, refused


class Reader(nn.Module):
    """A mean of embedded tokens where the mask is; its output is that of Hugging Face models."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.dropout = nn.Dropout(0.1)
        self.classifier = nn.Linear(6, 2)

    def forward(self, ids: Tensor, mask: Tensor) -> Any:
        weight = mask.unsqueeze(-1).to(torch.float32)
        mean = (self.embedding(ids) * weight).sum(1) / weight.sum(1)
        return SimpleNamespace(logits=self.classifier(self.dropout(mean)))


def reviews(count: int, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Token 1 is praise and token 2 blame; what the mask hides says the opposite."""
    draw = np.random.default_rng(seed)
    y = draw.integers(0, 2, count)
    ids = draw.integers(3, 11, (count, 5))
    ids[:, 0], ids[:, 4] = 2 - y, 1 + y
    mask = np.ones((count, 5), np.int32)
    mask[:, 4] = 0
    return {"ids": ids, "mask": mask}, y


def federation(pool: int = 4) -> data.Tensors:
    made = data.columns("reviews", reviews(160, 0), reviews(60, 1), classes=2)
    return data.federation(made, "dirichlet:1.0", pool=pool, seed=1)  # type: ignore[return-value]


def task(**how: Any) -> Task:
    return Task.of(Reader(), federation().client(0).train.x[:2], start="seed", **how)


def test_they_are_cut_chosen_and_moved_as_one() -> None:
    x = Named({"a": torch.arange(4), "b": torch.arange(8.0).view(4, 2)})
    assert len(x) == 4 and x.shape == (4,) and x.nbytes == 4 * 8 + 8 * 4
    assert x[1:3].tensors["b"].tolist() == [[2, 3], [4, 5]]
    assert [each.tensors["a"].tolist() for each in x.split_with_sizes([1, 3])] == [[0], [1, 2, 3]]
    assert x.index_select(0, torch.tensor([3, 0])).tensors["a"].tolist() == [3, 0]
    assert len(x.repeat(2)) == 8 and torch.equal(x.to("cpu").clone().tensors["a"], x.tensors["a"])
    again = Examples(named(x.tensors), torch.zeros(4)).take(np.array([2, 1]))
    assert again.x[:1].tensors["a"].tolist() == [2]  # type: ignore[attr-defined]
    with refused("rows of their own for every example"):
        Named({"a": torch.zeros(3), "b": torch.zeros(4)})


def test_a_module_is_called_with_them_as_keywords() -> None:
    x = federation().test.x[:3]
    module = Reader().eval()
    assert torch.equal(called(module, x), module(**x.tensors).logits)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["fedavg", "spdst", "flasc", "fedpm"])
def test_methods_train_on_them_with_any_number_of_workers(name: str, tmp_path: Path) -> None:
    known = METHODS[name]
    from gossamer import fields
    from gossamer.conformance.toys import small

    method = fields.replace(small(known), {"lr": 0.5})
    hashes = {
        run(method, task(), federation(), rounds=3, options=Options(workers=workers)).state_hash
        for workers in (1, 2)
    }
    assert len(hashes) == 1


def test_what_the_mask_hides_is_not_learned() -> None:
    summary = run(
        fedavg(clients=4, lr=2.0, epochs=3),
        task(),
        federation(),
        rounds=12,
        options=Options(workers=1),
    )
    assert summary.accuracy["global"] is not None and summary.accuracy["global"] > 0.9


def test_adapters_and_costs_know_them() -> None:
    adapted = Task.of(lora(Reader(), 2), federation().client(0).train.x[:2])
    assert adapted.layout.count == 2 * (6 + 2)
    assert adapted.layout.input.blank(3)[:1].tensors["ids"].shape == (1, 5)  # type: ignore[attr-defined]
    assert isinstance(adapted.planned, str) and "several tensors by name" in adapted.planned
    assert submodels.trace(adapted).units == {"classifier.lora_A.weight": 2}
    with pytest.raises(ValueError, match=r"cannot be traced .*SimpleNamespace"):
        submodels.trace(task())
    costs = price(fedavg(clients=2), adapted, pool=4, examples=20, classes=2, rounds=1)
    assert costs.rounds == 1


def test_a_module_that_reads_the_rate_of_its_dropout_finds_it() -> None:
    class Asking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dropout, self.head = nn.Dropout(0.0), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x * (1 - self.dropout.p))

    asked = Task.of(Asking(), torch.zeros(2, 3))
    x = torch.ones(2, 3)
    assert torch.equal(asked.logits(asked.init(Key(0)), x, Key(1)), asked.module(x))


def test_columns_of_other_lengths_are_refused() -> None:
    inputs, y = reviews(10, 0)
    with refused("column 'mask' has 9 rows, others 10"):
        data.columns("odd", ({**inputs, "mask": inputs["mask"][:9]}, y), reviews(5, 1), 2)


def test_a_trained_model_is_tested_as_it_is_exported(tmp_path: Path) -> None:
    what = task()
    module, test = Reader().eval(), federation().test
    assert 0 <= export.accuracy(module, test) <= 1
    assert what.share(what.init(Key(0)), test)[1] == 0.5
