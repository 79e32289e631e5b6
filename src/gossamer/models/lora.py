"""Low-rank adapters: a linear layer keeps its weights, and learns a product of two thin matrices.

Hu, Shen, Wallis, Allen-Zhu, Li, Wang, Wang, Chen: LoRA: low-rank adaptation of large language
models. ICLR 2022. https://arxiv.org/abs/2106.09685

Modules that the library peft has wrapped are as good: what it freezes is frozen here too, and its
adapters have the same names.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from gossamer.task.layout import did_you_mean


class LoRALinear(nn.Module):
    """A frozen linear layer and an adapter: `base(x) + alpha / rank * B(A(x))`."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Linear(base.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False)
        self.to(base.weight.device, base.weight.dtype)
        self.scale = alpha / rank
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """A is random and B is zero: the layer begins as it was."""
        nn.init.kaiming_uniform_(self.lora_A.weight, a=math.sqrt(5))
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = self.lora_B(self.lora_A(x))
        out: Tensor = self.base(x)
        return out + self.scale * change

    def merged(self) -> nn.Linear:
        """A plain layer that computes the same."""
        layer = copy.deepcopy(self.base)
        with torch.no_grad():
            layer.weight += self.scale * (self.lora_B.weight @ self.lora_A.weight)
        return layer


def lora(
    module: nn.Module,
    rank: int = 8,
    targets: str | Sequence[str] = "*",
    alpha: float | None = None,
    train: str | Sequence[str] = (),
) -> nn.Module:
    """A copy of a module whose linear layers have adapters; everything else is frozen.

    Args:
        module: it stays as it is.
        rank: of the adapters.
        targets: the linear layers that get one: names, or patterns such as `*.query`.
        alpha: an adapter's change is multiplied by `alpha / rank`; None: by 1.
        train: layers and parameters that are trained themselves, such as a new `classifier`.

    Raises:
        ValueError: a pattern matches nothing, or the rank is not positive.

    >>> net = lora(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), 1, "0", train="2")
    >>> [name for name, each in net.named_parameters() if each.requires_grad]
    ['0.lora_A.weight', '0.lora_B.weight', '2.weight', '2.bias']
    """
    if rank < 1:
        raise ValueError(f"an adapter has a rank of at least 1, not {rank}")
    scale = float(rank if alpha is None else alpha)
    if isinstance(module, nn.Linear) and targets == "*":
        return LoRALinear(copy.deepcopy(module), rank, scale)
    module = copy.deepcopy(module).requires_grad_(False)
    parameters = dict(module.named_parameters())
    for pattern in _several(train):
        found = [n for n in parameters if n.startswith(f"{pattern}.") or fnmatchcase(n, pattern)]
        for name in _matched(pattern, found, parameters):
            parameters[name].requires_grad_()
    layers = {path: each for path, each in module.named_modules() if type(each) is nn.Linear}
    frozen = {p: each for p, each in layers.items() if not each.weight.requires_grad}
    chosen: dict[str, nn.Linear] = {}
    for pattern in _several(targets):
        found = [path for path in frozen if fnmatchcase(path, pattern)]
        chosen |= {path: frozen[path] for path in _matched(pattern, found, layers)}
    adapted = {id(layer): LoRALinear(layer, rank, scale) for layer in chosen.values()}
    for part in list(module.modules()):
        # Not named_children, which omits the second name of a layer that has two.
        for name, child in list(part._modules.items()):
            if id(child) in adapted and not isinstance(part, LoRALinear):
                part._modules[name] = adapted[id(child)]
    return module


def merged(module: nn.Module) -> nn.Module:
    """A copy of a module in which adapters are part of the weights of their layers."""
    if isinstance(module, LoRALinear):
        return module.merged()
    module = copy.deepcopy(module)
    for part in list(module.modules()):
        for name, child in list(part._modules.items()):
            if isinstance(child, LoRALinear):
                part._modules[name] = child.merged()
    return module


def _several(patterns: str | Sequence[str]) -> Sequence[str]:
    return [patterns] if isinstance(patterns, str) else patterns


def _matched(pattern: str, found: Sequence[str], known: Iterable[str]) -> Sequence[str]:
    if not found:
        few = ", ".join(list(known)[:8])
        raise ValueError(
            f"nothing of this model matches {pattern!r}{did_you_mean(pattern, known)} it has {few}"
        )
    return found
