"""Heads, embeddings and streams of transformers: the compacted model equals the masked one."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from gossamer import Key, Params, Task, submodels
from gossamer.models import build
from gossamer.named import named, tensors_of
from gossamer.task.layout import Layout

Keep = dict[str, Tensor]
WORDS, LENGTH, WIDTH, HEADS = 11, 5, 12, 3


class Packed(nn.Module):
    """`nn.MultiheadAttention` on a residual stream, with padding, before or after a norm."""

    def __init__(self, batch_first: bool = True, weights: bool = False) -> None:
        super().__init__()
        self.batch_first, self.weights = batch_first, weights
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=batch_first)
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        out = self.embedding(x)
        inner = self.norm(out)
        inner = inner if self.batch_first else inner.transpose(0, 1)
        mixed, weights = self.attention(inner, inner, inner, key_padding_mask=x == 1)
        mixed = mixed if self.batch_first else mixed.transpose(0, 1)
        logits: Tensor = self.head((out + mixed)[:, 0])
        return logits + weights.mean() if self.weights else logits


class Encoder(nn.Module):
    """torch's own encoder."""

    def __init__(self, norm_first: bool, layers: int = 2, activation: str = "gelu") -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        block = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 7, 0.0, activation, batch_first=True, norm_first=norm_first
        )
        self.encoder: nn.Module = block
        if layers > 1:
            norm = nn.LayerNorm(WIDTH)
            self.encoder = nn.TransformerEncoder(block, layers, norm, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.encoder(self.embedding(x)).mean(1))
        return logits


class ByHand(nn.Module):
    """Products and a softmax, written out; `fixed` heads cannot become fewer."""

    def __init__(self, fixed: bool = False, reads: str = "") -> None:
        super().__init__()
        self.fixed, self.reads = fixed, reads
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 4)
        self.bias = nn.Parameter(torch.randn(HEADS, 1, 1))

    def heads(self, x: Tensor) -> Tensor:
        if self.fixed:
            return x.view(x.shape[0], x.shape[1], HEADS, WIDTH // HEADS).transpose(1, 2)
        return x.view(x.shape[0], x.shape[1], -1, WIDTH // HEADS).permute(0, 2, 1, 3)

    def forward(self, x: Tensor) -> Tensor:
        stream = self.embedding(x)
        asked = self.query(stream)
        query, key, value = map(self.heads, (asked, self.key(stream), self.value(stream)))
        scores = query @ key.transpose(-1, -2) / math.sqrt(WIDTH / HEADS)
        scores = scores.masked_fill((x == 1)[:, None, None, :], -1e9)
        if self.reads == "bias":
            scores = scores + self.bias
        mixed = torch.matmul(functional.softmax(scores, dim=-1), value)
        mixed = mixed.transpose(1, 2).flatten(2)
        stream = stream + self.out(mixed) + (asked if self.reads == "query" else 0.0 * stream)
        logits: Tensor = self.head(stream.sum(1))
        return logits


class Bag(nn.Module):
    """The mean of embedded words, and linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.fc = nn.Linear(WIDTH, 6)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.fc(self.embedding(x).mean(1)).relu())
        return logits


MODELS = {
    "packed": Packed,
    "packed, sequence first": lambda: Packed(batch_first=False),
    "encoder layer": lambda: Encoder(False, 1),
    "encoder, norms first": lambda: Encoder(True),
    "encoder, norms last": lambda: Encoder(False, activation="relu"),
    "by hand": ByHand,
    "bag": Bag,
    "text": lambda: build("text:width=12,heads=3,vocabulary=11,dropout=0", (LENGTH,), 4),
}


@cache
def task_of(name: str) -> Task:
    return task(MODELS[name]())


def task(module: nn.Module) -> Task:
    torch.manual_seed(0)
    return Task.of(module.double(), torch.zeros(2, LENGTH, dtype=torch.int64), start="seed")


def params_of(task: Task, seed: int = 1) -> Params:
    draw = Key(seed).generator()
    return {
        name: tensor + 0.3 * torch.randn(tensor.shape, generator=draw).to(tensor.dtype)
        for name, tensor in task.init(Key(1)).items()
    }


def x_of(count: int = 3) -> Tensor:
    x = torch.randint(2, WORDS, (count, LENGTH), generator=Key(5).generator())
    x[:, -1] = 1
    return x


def run(task: Task, params: Params, x: Tensor, train: bool) -> tuple[Tensor, Params]:
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in params.items()}
    parts = tensors_of(x)
    out = functional_call(task.module.train(train), leaves, (x,) if parts is None else (), parts)
    loss = functional.cross_entropy(out, torch.arange(len(x)) % 2)
    grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    found = {
        name: torch.zeros_like(leaves[name]) if grad is None else grad
        for name, grad in zip(leaves, grads, strict=True)
    }
    return out.detach(), found


def check(task: Task, keep: Keep, x: Tensor | None = None) -> submodels.Cut:
    """Outputs and gradients of the compacted and of the masked model; the layout as traced."""
    x = x_of() if x is None else x
    params, cut = params_of(task), submodels.trace(task).cut(keep)
    small, values = submodels.compact(task, params, keep)
    full = submodels.masked(task, params, keep)
    for train in (True, False):
        expected, gradients = run(task, full, x, train)
        out, own = run(small, values, x, train)
        torch.testing.assert_close(out, expected)
        for name, wanted in cut.take(gradients).items():
            torch.testing.assert_close(own[name], wanted, msg=lambda text, n=name: f"{n}: {text}")
    assert cut.layout == Layout.trace(small.module, x[:2])
    with torch.no_grad():  # where torch has fused kernels for whole encoders
        torch.testing.assert_close(small.logits(values, x), task.logits(full, x))
    return cut


def random_keep(task: Task, seed: int) -> Keep:
    structure, draw = submodels.trace(task), Key(seed).generator()
    keep: Keep = {}
    for space in structure.spaces:
        most = max(structure.units[name] for name in space)
        flags = torch.rand(most, generator=draw) < 0.6
        flags[0] = True
        keep |= {name: flags[: structure.units[name]] for name in space}
    return keep


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 2**20))
def test_a_compacted_transformer_computes_what_the_masked_one_does(name: str, seed: int) -> None:
    check(task_of(name), random_keep(task_of(name), seed))


@pytest.mark.parametrize(
    ("name", "layer", "out"),
    [
        ("packed", "attention.in_proj_weight", "attention.out_proj.weight"),
        ("encoder layer", "encoder.self_attn.in_proj_weight", "encoder.self_attn.out_proj.weight"),
        ("by hand", "value.weight", "out.weight"),
        ("text", "blocks.0.attention.value.weight", "blocks.0.attention.out.weight"),
    ],
)
def test_a_head_is_a_unit_and_is_removed_as_a_whole(name: str, layer: str, out: str) -> None:
    whole = task_of(name)
    assert submodels.trace(whole).units[layer] == HEADS
    cut = check(whole, {layer: torch.tensor([True, False, True])})
    times = 3 if "in_proj" in layer else 1
    assert cut.layout[layer].shape == (times * 8, WIDTH)
    assert cut.layout[out].shape == (WIDTH, 8)
    assert cut.layout[layer].macs < whole.layout[layer].macs


def test_queries_and_keys_go_with_the_values_of_their_head() -> None:
    whole = task_of("by hand")
    structure = submodels.trace(whole)
    assert ("query.weight", "key.weight", "value.weight") in structure.spaces
    flags = torch.tensor([True, False, True])
    assert structure.cut({"query.weight": flags, "key.weight": flags}).layout == whole.layout
    assert structure.cut({"value.weight": flags}).layout["query.weight"].shape == (8, WIDTH)


@pytest.mark.parametrize("name", ["packed", "encoder layer", "by hand", "text"])
def test_a_head_without_values_is_not_needed(name: str) -> None:
    """Whatever its queries and keys are; nor is one that the projection does not read."""
    whole = task_of(name)
    params = params_of(whole)
    packed = [each for each in params if each.endswith(("in_proj_weight", "in_proj_bias"))]
    values = [each for each in params if ".value." in f".{each}" and "blocks.1" not in each]
    for each in packed:
        params[each][2 * WIDTH + 4 : 2 * WIDTH + 8] = 0
    for each in values:
        params[each][4:8] = 0
    layer = (packed or values)[0]
    out = next(each for each in params if each.endswith(("out_proj.weight", "out.weight")))
    params[out][:, 8:] = 0
    keep = submodels.needed(whole, params)
    assert keep[layer].tolist() == [True, False, False]
    small, left = submodels.compact(whole, params, keep)
    torch.testing.assert_close(small.logits(left, x_of()), whole.logits(params, x_of()))


def test_columns_of_an_embedding_are_units_and_its_rows_stay() -> None:
    whole = task_of("bag")
    assert submodels.trace(whole).units == {"embedding.weight": WIDTH, "fc.weight": 6}
    cut = check(whole, {"embedding.weight": torch.arange(WIDTH) % 3 > 0})
    assert cut.layout["embedding.weight"].shape == (WORDS, 8)
    assert cut.layout["fc.weight"].shape == (6, 8)
    params = params_of(whole)
    params["embedding.weight"][:, 2] = 0
    params["embedding.weight"][3] = 0
    keep = submodels.needed(whole, params)
    assert (~keep["embedding.weight"]).nonzero().flatten().tolist() == [2]


def test_a_stream_loses_a_channel_if_all_that_write_to_it_drop_it() -> None:
    whole = task_of("text")
    structure = submodels.trace(whole)
    stream = next(space for space in structure.spaces if "tokens.weight" in space)
    assert {"positions.weight", "blocks.0.fc2.weight", "blocks.1.attention.out.weight"} < set(
        stream
    )
    flags = torch.arange(WIDTH) != 4
    cut = check(whole, dict.fromkeys(stream, flags))
    assert cut.layout["norm.weight"].shape == (WIDTH - 1,)
    assert structure.cut({"tokens.weight": flags}).layout == whole.layout


@pytest.mark.parametrize(
    ("module", "name", "count", "reason"),
    [
        (ByHand(fixed=True), "value.weight", WIDTH, "-1 for heads"),
        (ByHand(reads="bias"), "value.weight", HEADS, "not all of its inputs can be cut"),
        (Packed(weights=True), "attention.in_proj_weight", HEADS, "reads weights of attention"),
    ],
)
def test_heads_that_cannot_be_removed_exactly_stay(
    module: nn.Module, name: str, count: int, reason: str
) -> None:
    whole = task(module)
    assert name not in submodels.trace(whole).units
    with pytest.raises(ValueError, match=reason):
        submodels.compact(whole, params_of(whole), {name: torch.arange(count) != 0})


def test_queries_that_are_read_elsewhere_are_not_taken_for_silent() -> None:
    whole = task(ByHand(reads="query"))
    flags = torch.tensor([True, False, True])
    keep = {"value.weight": flags}
    structure = submodels.trace(whole)
    stays = structure.cut(keep) if "value.weight" in structure.units else None
    assert stays is None or stays.layout == whole.layout


class Branching(nn.Module):
    """Looks at numbers before its blocks, as models of Hugging Face do for their masks."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.block = ByHandBlock()
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        mask = None if bool(attention_mask.all()) else attention_mask[:, None, None, :] > 0
        out = self.block(self.embedding(input_ids), mask=mask)
        logits: Tensor = self.head(out[:, 0])
        return logits


class ByHandBlock(nn.Module):
    """Shapes are read as Python does it."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 7), nn.Linear(7, WIDTH)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        shape = (*x.shape[:-1], -1, WIDTH // HEADS)
        parts = [layer(x).view(shape).transpose(1, 2) for layer in (self.query, self.key)]
        value = self.value(x).view(shape).transpose(1, 2)
        if len(x.shape) == 3 and x.dim() == 3:
            mixed = functional.scaled_dot_product_attention(*parts, value, attn_mask=mask)
        x = x + self.out(mixed.transpose(1, 2).reshape(*x.shape[:-1], -1))
        out: Tensor = x + self.down(functional.gelu(self.up(x)))
        return out


class Sly(ByHandBlock):
    """Computes with what a recording might not see: an attribute, or single elements."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        hidden = self.up(x)
        match self.how:
            case "attribute":
                hidden = (hidden.mT + 1).mT
            case "assignment":
                hidden[..., 0] = 1
            case "number":
                hidden = hidden if float(hidden.sum()) > 0 else -hidden
        out: Tensor = x + self.down(hidden.relu())
        return out


@pytest.mark.parametrize("how", ["attribute", "assignment", "number"])
def test_what_a_recording_cannot_follow_stays(how: str) -> None:
    module = Branching()
    module.block = Sly(how)
    x = named({"input_ids": x_of(), "attention_mask": torch.ones(3, LENGTH).long()})
    whole = Task.of(module.double(), x, start="seed")
    try:
        units = submodels.trace(whole).units
    except ValueError:
        units = {}
    assert "block.up.weight" not in units


def test_parts_of_a_model_that_cannot_be_traced_are_followed() -> None:
    x = named({"input_ids": x_of(), "attention_mask": torch.ones(3, LENGTH).long()})
    whole = Task.of(Branching().double(), x, start="seed")
    structure = submodels.trace(whole)
    assert structure.units["block.value.weight"] == HEADS
    assert structure.units["block.up.weight"] == 7
    assert {"block.down.weight", "head.weight", "embedding.weight"} <= structure.fixed.keys()
    heads = torch.tensor([True, False, True])
    check(whole, {"block.value.weight": heads, "block.up.weight": torch.arange(7) > 2}, x)


def test_heads_of_a_hugging_face_encoder_are_removed() -> None:
    transformers = pytest.importorskip("transformers", reason="needs gossamer[finetune]")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=WORDS,
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        intermediate_size=7,
        max_position_embeddings=LENGTH,
        attention_probs_dropout_prob=0.0,
        hidden_dropout_prob=0.0,
        num_labels=4,
    )
    mask = torch.ones(3, LENGTH).long()
    mask[1, 3:] = 0
    x = named({"input_ids": x_of(), "attention_mask": mask})
    module = transformers.BertForSequenceClassification(config)

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = module

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            out: Tensor = self.bert(input_ids=input_ids, attention_mask=attention_mask).logits
            return out

    whole = Task.of(Logits().double(), x, start="module")
    structure = submodels.trace(whole)
    layer = "bert.bert.encoder.layer.0"
    keep = {
        f"{layer}.attention.self.value.weight": torch.tensor([False, True, True]),
        f"{layer}.intermediate.dense.weight": torch.arange(7) > 2,
    }
    assert {structure.units[name] for name in keep} == {HEADS, 7}
    cut = check(whole, keep, x)
    assert cut.layout[f"{layer}.attention.output.dense.weight"].shape == (WIDTH, 8)
    assert "adds something to them" in structure.fixed[f"{layer}.output.dense.weight"]
