"""A layout counts what the module really computes, and refuses what cannot be reproduced."""

from __future__ import annotations

import copy
import pickle
import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from gossamer import models
from gossamer.task.layout import Input, Layout, Leaf
from helpers import refused


class Tied(nn.Module):
    """A tiny language model whose output layer is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 4)
        self.head = nn.Linear(4, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embedding(x))


class Functional(nn.Module):
    """Uses its weight without a module, owns a loose parameter and one it never uses."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 2)
        self.scale = nn.Parameter(torch.ones(1))
        self.matrix = nn.Parameter(torch.ones(2, 5))
        self.unused = nn.Linear(7, 7)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.inner.weight) @ self.matrix * self.scale


class Sloppy(nn.Module):
    """Draws in `forward` from the generator it is given the name of."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where
        self.fc = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        match self.where:
            case "torch":
                x = functional.dropout(x, 0.5, self.training)
            case "python":
                x = x * (random.random() if self.training else 1)
            case "numpy":
                x = x * (np.random.rand() if self.training else 1)  # noqa: NPY002
        return self.fc(x)


def macs(module: nn.Module, example: Tensor) -> dict[str, int]:
    return {leaf.name: leaf.macs for leaf in Layout.trace(module, example).leaves.values()}


def test_convolution_counts_positions_and_groups() -> None:
    layout = Layout.trace(
        nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), torch.zeros(5, 4, 9, 9)
    )
    assert layout["weight"] == Leaf("weight", "conv", (6, 2, 3, 3), 18, 6, 25 * 108, True, True)
    assert layout["bias"] == Leaf("bias", "bias", (6,), 1, 6, 0, False, True)
    assert layout["weight"].count == 108


def test_the_oracle_convolution_of_the_flash_specification() -> None:
    assert Layout.trace(nn.Conv2d(3, 8, 3, padding=1), torch.zeros(1, 3, 16, 16)).macs == 55_296


def test_one_dimensional_convolution() -> None:
    assert macs(nn.Conv1d(3, 5, 2), torch.zeros(2, 3, 7))["weight"] == 6 * 30


def test_linear_on_sequences_counts_every_position() -> None:
    assert macs(nn.Linear(3, 4), torch.zeros(2, 3))["weight"] == 12
    assert macs(nn.Linear(3, 4, bias=False), torch.zeros(2, 5, 3))["weight"] == 5 * 12


@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_recurrent_matrices_count_every_step(kind: type[nn.RNNBase], gates: int) -> None:
    module = kind(5, 4, 2, batch_first=True, bidirectional=True)
    layout = Layout.trace(module, torch.randn(3, 6, 5))
    for leaf in layout.leaves.values():
        expected = ("bias", 0) if "bias" in leaf.name else ("lstm", 6 * leaf.count)
        assert (leaf.kind, leaf.macs) == expected
    assert layout["weight_ih_l0"].rows == gates * 4
    assert layout["weight_ih_l1"].fan_in == 8
    assert len(layout.prunable) == 8


def test_recurrent_network_without_biases() -> None:
    module = nn.LSTM(5, 4, bias=False, batch_first=True)
    assert Layout.trace(module, torch.randn(3, 6, 5)).macs == 6 * 16 * 9


def test_transformer_layer_is_counted_past_its_fast_path() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    layer.self_attn.dropout = 0.0
    fast = torch.backends.mha.get_fastpath_enabled()
    layout = Layout.trace(layer, torch.randn(1, 3, 8))
    assert torch.backends.mha.get_fastpath_enabled() == fast
    weights = {leaf.name: leaf for leaf in layout.leaves.values() if len(leaf.shape) == 2}
    assert {name: leaf.macs for name, leaf in weights.items()} == {
        name: 3 * leaf.count for name, leaf in weights.items()
    }
    assert layout["self_attn.in_proj_weight"].kind == "attention"
    assert layout["self_attn.out_proj.weight"].kind == "attention"
    assert layout.prunable == ("linear1.weight", "linear2.weight")


def test_attention_with_separate_projections() -> None:
    class Cross(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, kdim=4, vdim=4, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x, x[..., :4], x[..., :4], need_weights=False)[0]

    layout = Layout.trace(Cross(), torch.randn(2, 3, 8))
    assert layout["attention.q_proj_weight"].macs == 3 * 64
    assert layout["attention.k_proj_weight"].macs == 3 * 32


def test_tied_parameters_appear_once_and_cost_what_they_multiply() -> None:
    layout = Layout.trace(Tied(), torch.zeros(2, 6, dtype=torch.long))
    assert layout.names == ("embedding.weight",)
    assert layout["embedding.weight"].kind == "embedding"
    assert layout.macs == 6 * 44
    assert layout.prunable == ()


def test_functional_use_is_counted_and_unused_parameters_stay() -> None:
    layout = Layout.trace(Functional(), torch.randn(4, 3))
    assert layout["inner.weight"].macs == 6
    assert layout["matrix"] == Leaf("matrix", "other", (2, 5), 5, 2, 10, False, True)
    assert layout["scale"].kind == "other"
    assert (layout["unused.weight"].macs, layout["unused.weight"].prunable) == (0, True)


def test_buffers_follow_the_parameters_and_leave_out_counters() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    module.register_buffer("table", torch.zeros(5), persistent=False)
    layout = Layout.trace(module, torch.randn(2, 3))
    assert layout.names == (
        *("0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias"),
        *("1.running_mean", "1.running_var"),
    )
    assert layout.buffers == ("1.running_mean", "1.running_var")
    assert layout["1.weight"].kind == "norm"
    assert layout["1.running_var"].kind == "buffer"
    assert layout.batch_norm
    assert (layout.count, layout.rows, layout.macs) == (34, 6, 20)
    assert layout.dense == ("0.bias", "1.weight", "1.bias", "2.bias")


def test_layer_and_group_norm_accept_a_batch_of_one() -> None:
    module = nn.Sequential(nn.Conv1d(2, 4, 1), nn.GroupNorm(2, 4), nn.LayerNorm(3))
    layout = Layout.trace(module, torch.randn(1, 2, 3))
    assert not layout.batch_norm
    assert [leaf.kind for leaf in layout.leaves.values()][2:] == ["norm"] * 4


def test_frozen_parameters_are_constants_that_nobody_trains_or_prunes() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    module[0].requires_grad_(False)
    layout = Layout.trace(module, torch.randn(2, 3))
    assert layout.names == ("1.weight", "1.bias") and layout.prunable == ("1.weight",)
    assert list(layout.constants) == ["0.weight", "0.bias"]
    assert (layout.count, layout.frozen, layout.macs) == (10, 16, 12 + 8)
    assert layout["0.weight"].shape == (4, 3) and not layout.buffers
    with pytest.raises(ValueError, match=r"'0.weight' is frozen"):
        layout.choose(["0.weight"])


def test_gradients_cross_a_frozen_layer_only_behind_a_trained_one() -> None:
    module = nn.Sequential(*[nn.Linear(3, 3) for _ in range(4)])
    for place in (0, 2):
        module[place].requires_grad_(False)
    layout = Layout.trace(module, torch.randn(2, 3))
    assert not layout["0.weight"].crossed and layout["2.weight"].crossed


def test_a_module_without_anything_to_train_is_refused() -> None:
    with refused("all 2 parameters of Linear are frozen; leave requires_grad on"):
        Layout.trace(nn.Linear(3, 2).requires_grad_(False), torch.randn(2, 3))


def test_tracing_leaves_module_mode_statistics_and_generators_alone() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    module[2].eval()
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    before = torch.get_rng_state(), random.getstate()
    Layout.trace(module, torch.randn(2, 3, generator=torch.Generator().manual_seed(1)))
    assert [part.training for part in module.modules()] == [True, True, True, False]
    assert all(torch.equal(tensor, state[name]) for name, tensor in module.state_dict().items())
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()
    assert not module._forward_hooks
    assert all(parameter.grad is None for parameter in module.parameters())


@pytest.mark.parametrize("where", ["torch", "python", "numpy"])
def test_randomness_of_its_own_is_refused_with_the_modules_name(where: str) -> None:
    module, x = nn.Sequential(Sloppy(where)), torch.randn(2, 3)
    before = torch.get_rng_state(), random.getstate(), repr(np.random.get_state())  # noqa: NPY002
    with pytest.raises(ValueError, match=r"Sloppy '0' draws .* use nn.Dropout modules"):
        Layout.trace(module, x)
    after = torch.get_rng_state(), random.getstate(), repr(np.random.get_state())  # noqa: NPY002
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


def test_dropout_inside_recurrent_and_attention_modules_is_refused() -> None:
    with pytest.raises(ValueError, match="LSTM draws its own random numbers"):
        Layout.trace(nn.LSTM(3, 3, 2, dropout=0.1, batch_first=True), torch.randn(4, 5, 3))
    with pytest.raises(ValueError, match="MultiheadAttention 'self_attn' draws"):
        Layout.trace(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.randn(4, 5, 8))
    with pytest.raises(ValueError, match="AlphaDropout draws"):
        Layout.trace(nn.AlphaDropout(0.5), torch.randn(4, 5))


@pytest.mark.parametrize("dropout", [nn.Dropout, nn.Dropout1d])
def test_dropout_modules_are_welcome(dropout: type[nn.Module]) -> None:
    Layout.trace(nn.Sequential(nn.Linear(3, 3), dropout(0.5)), torch.randn(2, 4, 3))


def test_cumulative_batch_norm_is_refused() -> None:
    module = nn.Sequential(nn.BatchNorm1d(3, momentum=None))
    with pytest.raises(ValueError, match=r"BatchNorm1d '0' has momentum=None.*set a momentum"):
        Layout.trace(module, torch.randn(2, 3))
    static = nn.BatchNorm1d(3, momentum=None, track_running_stats=False)
    assert Layout.trace(static, torch.randn(2, 3)).buffers == ()


def test_lazy_modules_empty_batches_and_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="'weight' has no shape yet"):
        Layout.trace(nn.LazyLinear(3), torch.randn(2, 3))
    with pytest.raises(ValueError, match=r"batch of at least one example, not shape \(0, 3\)"):
        Layout.trace(nn.Linear(3, 1), torch.zeros(0, 3))
    with pytest.raises(ValueError, match=r"Linear does not accept inputs of shape \(4,\)"):
        Layout.trace(nn.Linear(3, 1), torch.zeros(2, 4))


def test_a_layout_remembers_what_an_example_looks_like() -> None:
    layout = Layout.trace(nn.Conv2d(4, 6, 3), torch.zeros(5, 4, 9, 9))
    assert layout.input == Input((4, 9, 9), torch.float32)
    assert layout.choose([]).input == layout.input
    blank = layout.input.blank(1000)
    assert blank.shape == (1000, 4, 9, 9) and not blank.any()
    assert blank.untyped_storage().nbytes() == 4 * 4 * 9 * 9
    tokens = Layout.trace(Tied(), torch.zeros(2, 6, dtype=torch.long)).input.blank(3)
    assert tokens.shape == (3, 6) and tokens.dtype == torch.long


def test_layouts_are_equal_when_all_they_tell_is() -> None:
    one, two, other = (
        Layout.trace(nn.Conv2d(4, 6, 3), torch.zeros(2, 4, size, size)) for size in (9, 9, 8)
    )
    assert one == two == copy.deepcopy(one) == pickle.loads(pickle.dumps(one))
    assert one != other and hash(one.input) == hash(two.input)


class TestPrunable:
    """The user's choice of prunable leaves."""

    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2, 3), nn.Linear(3, 2))
    example = torch.zeros(1, 1, 3, 3)

    def choose(self, prunable: object) -> tuple[str, ...]:
        return Layout.trace(self.module, self.example, prunable).prunable  # type: ignore[arg-type]

    def test_names_and_patterns(self) -> None:
        assert self.choose(None) == ("0.weight", "2.weight", "3.weight")
        assert self.choose(["3.weight", "0.*"]) == ("0.weight", "3.weight")
        assert self.choose("[23].*") == ("2.weight", "3.weight")
        assert self.choose(["2.bias"]) == ("2.bias",)
        assert self.choose([]) == ()

    def test_rules_with_a_name(self) -> None:
        assert self.choose(["conv-only"]) == ("0.weight",)
        assert self.choose("skip-first-last") == ("2.weight",)
        assert self.choose(["conv-only", "3.weight"]) == ("0.weight", "3.weight")
        block = nn.TransformerEncoderLayer(4, 2, 3, 0.0, batch_first=True)
        module, tokens = nn.Sequential(nn.Embedding(5, 4), block), torch.zeros(1, 3).long()
        usual = ("1.linear1.weight", "1.linear2.weight")
        heads = ("1.self_attn.in_proj_weight", "1.self_attn.out_proj.weight")
        for rules, chosen in {
            ("with-attention",): heads + usual,
            ("with-embeddings",): ("0.weight", *usual),
            ("with-attention", "with-embeddings"): ("0.weight", *heads, *usual),
        }.items():
            assert Layout.trace(module, tokens, rules).prunable == chosen
        linear = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
        for rule in ("conv-only", "skip-first-last"):
            with pytest.raises(ValueError, match=f"{rule} leaves nothing of this model to prune"):
                Layout.trace(linear, torch.zeros(1, 2), [rule])

    @pytest.mark.parametrize(
        ("model", "shape", "rule", "weights"),
        [
            ("resnet18", (3, 32, 32), "conv-only", 11_159_232),
            ("mnistnet", (1, 28, 28), "skip-first-last", 261_000),
            ("femnist_cnn", (1, 28, 28), "skip-first-last", 6_473_728),
        ],
    )
    def test_rules_of_papers(
        self, model: str, shape: tuple[int, ...], rule: str, weights: int
    ) -> None:
        module = models.build(model, shape, 62 if model == "femnist_cnn" else 10)
        layout = Layout.trace(module, torch.zeros(1, *shape), [rule])
        assert layout.total("count", layout.prunable) == weights

    def test_a_question_asked_of_every_leaf(self) -> None:
        assert self.choose(lambda leaf: leaf.kind == "conv") == ("0.weight",)

    def test_an_unknown_name_gets_the_nearest_one(self) -> None:
        with pytest.raises(ValueError, match=r"called '2.wieght'; did you mean '2.weight'\?"):
            self.choose(["2.wieght"])
        with pytest.raises(ValueError, match=r"called 'conv\*'; it may prune 0.weight"):
            self.choose(["conv*"])

    def test_an_unknown_leaf_is_a_key_error_with_the_nearest_one(self) -> None:
        with pytest.raises(KeyError, match=r"did you mean '2.bias'"):
            Layout.trace(self.module, self.example)["2.bais"]
