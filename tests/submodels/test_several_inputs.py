"""Units of models that take several tensors, and of parts that torch.fx cannot trace into."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gossamer import METHODS, Key, Options, Task, data, fields, submodels
from gossamer.engine import run
from gossamer.named import named

WORDS, LENGTH, WIDTH, HIDDEN = 11, 5, 12, 8
EXAMPLES = 24


class Pooled(nn.Module):
    """The mean of words that are no padding; `scale` is no input."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, 2)

    def forward(self, mask: Tensor, ids: Tensor, scale: float = 2.0) -> Tensor:
        hidden = torch.relu(self.up(self.embedding(ids))) * mask.unsqueeze(-1)
        logits: Tensor = self.down(scale * hidden.mean(1))
        return logits


def inputs(count: int = EXAMPLES) -> dict[str, Tensor]:
    draw = Key(3).generator()
    mask = (torch.rand(count, LENGTH, generator=draw) < 0.8).float()
    return {"ids": torch.randint(WORDS, (count, LENGTH), generator=draw), "mask": mask}


def compacted_equals_masked(task: Task, keep: dict[str, Tensor], x: Tensor) -> Task:
    params = {name: tensor + 0.1 for name, tensor in task.init(Key(1)).items()}
    small, values = submodels.compact(task, params, keep)
    full = submodels.masked(task, params, keep)
    torch.testing.assert_close(small.logits(values, x), task.logits(full, x), atol=1e-5, rtol=1e-4)
    return small


def test_units_are_followed_through_inputs_by_name() -> None:
    x = named(inputs())
    task = Task.of(Pooled(), x, start="seed")
    assert submodels.trace(task).units["up.weight"] == HIDDEN
    small = compacted_equals_masked(task, {"up.weight": torch.arange(HIDDEN) < 3}, x)
    assert small.layout["down.weight"].shape == (2, 3)


@pytest.mark.parametrize("name", ["heterofl", "fedrolex", "feddrop"])
def test_sub_models_are_trained_on_inputs_by_name(name: str) -> None:
    arrays = {key: tensor.numpy() for key, tensor in inputs().items()}
    labels = (inputs()["ids"][:, 0] > 5).long().numpy()
    pool = data.federation(data.columns("toy", (arrays, labels), (arrays, labels), 2), pool=4)
    known = {item.name for item in fields.settings(METHODS[name])}
    wanted = {"clients": 3, "batch": 4, "budget": 0.5}
    method = fields.replace(METHODS[name], {n: v for n, v in wanted.items() if n in known})
    task = Task.of(Pooled(), pool.client(0).train.x[:2], start="seed")
    summary = run(method, task, pool, rounds=2, options=Options(workers=1))
    assert summary.scores["global"] is not None and not summary.diverged


# parts that cannot be traced into -----------------------------------------------------------------


class Looking(nn.Module):
    """Branches on numbers, and has layers of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(HIDDEN, 6), nn.ReLU(), nn.Linear(6, HIDDEN))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x) if bool(x.isfinite().all()) else x
        return out


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 20), nn.Linear(20, HIDDEN)
        self.part, self.head = Looking(), nn.Linear(HIDDEN, 2)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.part(self.second(torch.relu(self.first(x)))))
        return logits


def test_layers_around_a_part_are_followed_if_they_have_more_units_than_it_has() -> None:
    task = Task.of(Around(), torch.zeros(2, WIDTH), start="seed")
    structure = submodels.trace(task)
    assert structure.units == {"first.weight": 20}
    assert "cannot be cut" in structure.fixed["second.weight"]
    x = torch.randn(4, WIDTH, generator=Key(0).generator())
    compacted_equals_masked(task, {"first.weight": torch.arange(20) < 9}, x)


@pytest.mark.parametrize("several", [False, True])
def test_heads_of_a_hugging_face_model_are_units_inside_of_any_module(several: bool) -> None:
    transformers = pytest.importorskip("transformers", reason="needs gossamer[finetune]")
    heads = 3
    config = transformers.BertConfig(
        vocab_size=WORDS,
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=heads,
        intermediate_size=7,
        max_position_embeddings=LENGTH,
        attention_probs_dropout_prob=0.0,
        hidden_dropout_prob=0.0,
        num_labels=2,
    )

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = transformers.BertForSequenceClassification(config)

        def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
            out: Tensor = self.bert(input_ids=ids, attention_mask=mask).logits
            return out

    x = named({"ids": inputs()["ids"], "mask": inputs()["mask"].long()})
    x = x if several else inputs()["ids"]
    task = Task.of(Wrapped(), x, start="module")
    value = "bert.bert.encoder.layer.0.attention.self.value.weight"
    assert submodels.trace(task).units[value] == heads
    small = compacted_equals_masked(task, {value: torch.tensor([True, False, True])}, x)
    assert small.layout[value].shape == (8, WIDTH)
