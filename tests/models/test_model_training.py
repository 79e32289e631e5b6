"""Every model computes, learns, and can be initialised anew from a seed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from gossamer.core import Batch, Key
from gossamer.models import MODELS, build
from gossamer.models.blocks import Pad
from gossamer.task import Task
from gossamer.task.layout import Layout

SMALL = {
    "lenet5_caffe": ("lenet5_caffe", (1, 20, 24)),
    "lenet5": ("lenet5:dropout=true", (3, 32, 32)),
    "lenet_cifar": ("lenet_cifar:double_softmax=true", (3, 20, 20)),
    "mnistnet": ("mnistnet", (1, 28, 28)),
    "femnist_cnn": ("femnist_cnn", (1, 12, 12)),
    "cnn7": ("cnn7", (1, 28, 28)),
    "conv6": ("conv6", (1, 28, 28)),
    "vgg16": ("vgg16", (3, 32, 32)),
    "resnet8": ("resnet8", (3, 17, 15)),
    "resnet18": ("resnet18:width=8", (3, 32, 32)),
    "resnet20": ("resnet20", (1, 28, 28)),
    "mlp": ("mlp:hidden=30x20", (7,)),
    "lstm": ("lstm", (3, 9, 5)),
    "char_lstm": ("char_lstm:hidden=16", (20,)),
    "text": ("text:vocabulary=50", (12,)),
}
EXTRA = [
    ("resnet18:width=8,preact=true", (3, 16, 16)),
    ("resnet18:width=8,norm=group,init=flash", (3, 16, 16)),
    ("resnet18:width=8,norm=static", (3, 16, 16)),
    ("lstm", (9, 5)),
    ("mlp:hidden=4", (2, 3)),
]
CASES = [*SMALL.values(), *EXTRA]


@pytest.fixture(autouse=True)
def one_thread() -> object:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def inputs(name: str, shape: tuple[int, ...], count: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    if name.startswith(("text", "char_lstm")):
        return torch.randint(1, 50, (count, *shape), generator=generator)
    return torch.randn(count, *shape, generator=generator)


def test_every_model_is_tried() -> None:
    assert SMALL.keys() == MODELS.keys()


@pytest.mark.parametrize(("name", "shape"), CASES, ids=[name for name, _ in CASES])
def test_a_task_takes_gradient_steps_that_lower_the_loss(name: str, shape: tuple[int, ...]) -> None:
    x, y = inputs(name, shape), torch.tensor([0, 1, 2, 1])
    task = Task.of(build(name, shape, 3), x, start="seed")
    params = task.own(task.init(Key(1)))
    lr = 0.01 if name in ("vgg16", "cnn7") else 0.1
    losses = []
    steps = 3 if name == "vgg16" else 8
    for step in range(steps):
        batch = Batch(x, y, Key(2), step, steps, 0, 1.0, steps)
        loss, grads = task.gradients(params, batch)
        losses.append(float(loss))
        assert grads.keys() == set(task.layout.parameters)
        assert all(grad.isfinite().all() for grad in grads.values())
        for key, grad in grads.items():
            params[key] = params[key] - lr * grad
    assert min(losses[1:]) < losses[0]
    logits = task.logits(params, x)
    assert logits.shape == (4, 3)
    assert logits.isfinite().all()


def reset(module: nn.Module) -> None:
    for child in module.children():
        reset(child)
    for name in ("reset_parameters", "_reset_parameters"):
        if hasattr(module, name):
            getattr(module, name)()


@pytest.mark.parametrize(("name", "shape"), CASES, ids=[name for name, _ in CASES])
def test_every_parameter_is_drawn_anew_from_a_seed(name: str, shape: tuple[int, ...]) -> None:
    states = []
    with torch.random.fork_rng(devices=[]):
        module = build(name, shape, 3)
        for seed in (1, 1, 2):
            with torch.no_grad():
                for tensor in module.parameters():
                    tensor.fill_(float("nan"))
            torch.manual_seed(seed)
            reset(module)
            states.append({key: value.clone() for key, value in module.state_dict().items()})
    assert not any(tensor.isnan().any() for tensor in states[0].values())
    assert all(torch.equal(tensor, states[1][key]) for key, tensor in states[0].items())
    assert any(not torch.equal(tensor, states[2][key]) for key, tensor in states[0].items())


def test_flash_starts_with_small_heads_and_narrow_convolutions() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        state = build("resnet18:width=16,init=flash", (3, 32, 32), 100).state_dict()
        vgg = build("vgg16:init=flash", (3, 32, 32), 10).state_dict()
    bound = 0.5 * (6 / (9 * (16 + 16))) ** 0.5
    weight = state["stages.0.0.conv1.weight"]
    assert 0.98 * bound < float(weight.abs().max()) <= bound
    assert float(state["fc.weight"].std()) == pytest.approx(0.01, rel=0.05)
    assert not state["fc.bias"].any()
    assert (state["norm.weight"] == 1).all()
    assert (vgg["norm1.weight"] == 0.5).all()


def test_double_softmax_returns_probabilities() -> None:
    x = inputs("mnistnet", (1, 28, 28))
    out = build("mnistnet", (1, 28, 28), 10, double_softmax=True)(x)
    assert torch.allclose(out.sum(1), torch.ones(4))


def test_the_free_shortcut_skips_pixels_and_adds_empty_channels() -> None:
    x = torch.arange(18.0).view(1, 2, 3, 3)
    out = Pad(2, 4)(x)
    assert out.shape == (1, 4, 2, 2)
    assert out[0, 0].tolist() == [[0, 2], [6, 8]]
    assert not out[0, 2:].any()


def test_a_preactivated_block_passes_its_sum_on_untouched() -> None:
    block = build("resnet18:width=8,preact=true", (3, 8, 8), 2).stages[0][1].eval()
    with torch.no_grad():
        block.conv2.weight.zero_()
    x = torch.randn(2, 8, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(block(x), x)


class TestText:
    """Padding must not change what a sentence means."""

    module = build("text", (10,), 2, vocabulary=30).eval()
    sentence = torch.tensor([[5, 7, 9, 11]])

    def test_padding_changes_nothing(self) -> None:
        padded = functional.pad(self.sentence, (0, 6))
        assert torch.allclose(self.module(self.sentence), self.module(padded), atol=1e-6)

    def test_order_and_tokens_matter(self) -> None:
        out = self.module(self.sentence)
        assert not torch.allclose(out, self.module(self.sentence.flip(1)), atol=1e-4)

    def test_an_empty_sentence_is_finite_forward_and_backward(self) -> None:
        self.module(torch.zeros(2, 10, dtype=torch.long)).sum().backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in self.module.parameters())

    def test_attention_is_prunable(self) -> None:
        found = Layout.trace(self.module, self.sentence).prunable
        assert "blocks.0.attention.query.weight" in found


def test_the_character_model_reads_the_whole_line() -> None:
    module = build("char_lstm:hidden=16", (6,), 80)
    line = torch.tensor([[1, 2, 3, 4, 5, 6]])
    first = line.clone()
    first[0, 0] = 9
    assert not torch.equal(module(line), module(first))


def test_the_row_lstm_gives_each_step_one_row_of_all_channels() -> None:
    module = build("lstm", (2, 3, 4), 5)
    x = torch.randn(1, 2, 3, 4, generator=torch.Generator().manual_seed(0))
    rows = torch.cat([x[:, 0], x[:, 1]], dim=2)
    assert torch.equal(module(x), module(rows))
