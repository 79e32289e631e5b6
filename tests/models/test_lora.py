"""Adapters: they begin as nothing, only they are trained, and they can be merged into layers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer import Key, Task
from gossamer.engine import Options, run
from gossamer.models.lora import LoRALinear, lora, merged
from helpers import CLASSES, INPUTS, Toy, fedavg, refused

X = torch.randn(5, INPUTS, generator=Key(0).generator())


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(INPUTS, 8), nn.ReLU(), nn.Linear(8, 6), nn.Linear(6, CLASSES))


def trained(module: nn.Module) -> list[str]:
    return [name for name, each in module.named_parameters() if each.requires_grad]


def test_a_module_with_adapters_begins_as_it_was() -> None:
    plain = net()
    assert torch.equal(lora(plain, 2)(X), plain(X))
    assert trained(plain) == [name for name, _ in plain.named_parameters()]  # left as it is


def test_only_adapters_and_what_is_named_are_trained() -> None:
    assert trained(lora(net(), 2, ["0", "2"], train="3")) == [
        *("0.lora_A.weight", "0.lora_B.weight"),
        *("2.lora_A.weight", "2.lora_B.weight", "3.weight", "3.bias"),
    ]
    assert trained(lora(net(), 2, "2", train="*.bias"))[:1] == ["0.bias"]
    assert isinstance(lora(nn.Linear(3, 2), 1), LoRALinear)


def test_an_adapter_adds_its_product_worked_by_hand() -> None:
    layer = nn.Linear(2, 1)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 2.0]]))
        nn.init.constant_(layer.bias, 0.5)
    adapted = lora(layer, rank=1, alpha=3.0)
    assert isinstance(adapted, LoRALinear)
    with torch.no_grad():
        adapted.lora_A.weight.copy_(torch.tensor([[2.0, -1.0]]))
        adapted.lora_B.weight.fill_(0.5)
    x = torch.tensor([[1.0, 1.0]])
    # 1 + 2 + 0.5, and 3 / 1 times 0.5 times 2 - 1
    assert adapted(x).item() == pytest.approx(3.5 + 3 * 0.5 * 1)
    assert adapted.merged().weight.tolist() == [[1 + 3 * 0.5 * 2, 2 - 3 * 0.5]]


def test_merged_layers_compute_the_same_without_adapters() -> None:
    adapted = lora(net(), 3)
    for part in adapted.modules():
        if isinstance(part, LoRALinear):
            nn.init.normal_(part.lora_B.weight)
    whole = merged(adapted)
    assert torch.allclose(whole(X), adapted(X), atol=1e-5)
    assert not any(isinstance(part, LoRALinear) for part in whole.modules())
    assert [type(part) for part in whole] == [type(part) for part in net()]


def test_a_layer_with_two_names_has_one_adapter() -> None:
    shared = nn.Linear(INPUTS, INPUTS)
    adapted = lora(nn.Sequential(shared, nn.ReLU(), shared), 1)
    assert adapted[0] is adapted[2]


def test_patterns_that_match_nothing_are_refused() -> None:
    with refused(r"nothing of this model matches 'head'; it has 0, 2, 3"):
        lora(net(), 2, "head")
    with refused(r"nothing of this model matches 'classifier'"):
        lora(net(), 2, "0", train="classifier")
    with refused("a rank of at least 1, not 0"):
        lora(net(), 0)


@pytest.mark.parametrize("start", ["seed", "module"])
def test_adapters_are_drawn_with_b_at_zero_and_alone_travel(start: str) -> None:
    adapted = gs.lora(net(), 2, "0")
    task = Task.of(adapted, X[:2], start=start)
    first = task.init(Key(3))
    assert set(first) == {"0.lora_A.weight", "0.lora_B.weight"}
    assert not first["0.lora_B.weight"].any() and first["0.lora_A.weight"].all()
    assert torch.allclose(task.logits(first, X), adapted(X), atol=1e-6)
    summary = run(fedavg(), task, Toy(), rounds=2, options=Options(workers=1, eval_every=0))
    assert summary.cost.paper_up == 2 * 3 * 32 * 2 * (INPUTS + 8)
    assert summary.state.params["0.lora_B.weight"].any()


def test_modules_of_peft_are_trained_as_they_come() -> None:
    peft = pytest.importorskip("peft", reason="needs peft, which wraps modules itself")
    wrapped = peft.get_peft_model(net(), peft.LoraConfig(r=2, target_modules=["0", "2"]))
    task = Task.of(wrapped, X[:2])
    assert all("lora_" in name for name in task.layout.parameters)
    assert task.layout.count == 2 * (INPUTS + 8) + 2 * (8 + 6)
    method = gs.fields.replace(gs.METHODS["ffa_lora"], {"clients": 3})
    summary = run(method, task, Toy(), rounds=1, options=Options(workers=1))
    assert list(summary.state.params) and all("lora_B" in name for name in summary.state.params)
