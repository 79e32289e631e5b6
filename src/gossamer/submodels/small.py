"""Modules with fewer units: a copy of the module around smaller tensors."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.modules.batchnorm import _NormBase

from gossamer.core import Params
from gossamer.models.blocks import Pad
from gossamer.submodels.small_attention import ThinAttention, ThinLayerNorm


def shrink(
    module: nn.Module,
    tensors: Params,
    widths: Mapping[str, int],
    norms: Mapping[str, Sequence[int]],
    inputs: Mapping[str, Tensor],
) -> nn.Module:
    """A copy of `module` around smaller tensors.

    Args:
        tensors: the smaller tensors, by name.
        widths: channels of padding modules, by path.
        norms: channels left in each group of a group norm, or in a layer norm, by path.
        inputs: indices of the features that a linear layer keeps, by path.
    """
    state = dict(module.named_parameters()) | dict(module.named_buffers())
    memo: dict[int, Any] = {}  # replaces each tensor in the copy, so that no large one is copied
    for name, tensor in state.items():
        small = tensors.get(name, tensor).detach().clone()
        held = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(small, tensor.requires_grad) if held else small
    shrunk = copy.deepcopy(module, memo)
    for path, width in widths.items():
        match shrunk.get_submodule(path):
            case Pad() as pad:
                pad.channels = width
            case _NormBase() as plain:
                plain.num_features = width
    instead: dict[nn.Module, nn.Module] = {}
    for path, left in norms.items():
        norm = shrunk.get_submodule(path)
        if isinstance(norm, nn.LayerNorm):
            instead[norm] = ThinLayerNorm(norm)
        else:
            assert isinstance(norm, nn.GroupNorm)
            instead[norm] = ThinGroupNorm(norm, left)
    for path, index in inputs.items():
        layer = shrunk.get_submodule(path)
        assert isinstance(layer, nn.Linear)
        instead[layer] = ChosenLinear(layer, index)
    for name in tensors:
        layer = shrunk.get_submodule(name.rpartition(".")[0])
        if isinstance(layer, nn.MultiheadAttention):
            instead[layer] = ThinAttention(layer)
    _replace(shrunk, instead)
    for path in {name.rpartition(".")[0] for name in tensors}:
        _describe(shrunk.get_submodule(path))
    return shrunk


def _describe(part: nn.Module) -> None:
    """Updates the sizes that a layer declares: they are used by its reset and by batch norms."""
    match part:
        case nn.Conv1d() | nn.Conv2d() | nn.Conv3d():
            part.out_channels, part.in_channels = part.weight.shape[:2]
            if part.groups > 1:  # depthwise; other grouped convolutions are never cut
                part.groups = part.in_channels = part.out_channels
        case nn.Linear():
            part.out_features, part.in_features = part.weight.shape
        case nn.Embedding():
            part.embedding_dim = part.weight.shape[1]
        case _NormBase():
            part.num_features = part.weight.shape[0]
        case nn.PReLU():
            part.num_parameters = part.weight.shape[0]


def _replace(module: nn.Module, instead: Mapping[nn.Module, nn.Module]) -> None:
    for part in list(module.modules()) if instead else ():
        # Not named_children, which omits the second name of a module that has two.
        for name, child in list(part._modules.items()):
            if child is not None and child in instead:
                part._modules[name] = instead[child]


class ChosenLinear(nn.Linear):
    """A linear layer that reads a subset of its input features."""

    chosen: Tensor

    def __init__(self, layer: nn.Linear, chosen: Tensor) -> None:
        nn.Module.__init__(self)
        self.weight, self.bias = layer.weight, layer.bias
        self.register_buffer("chosen", chosen, persistent=False)

    def forward(self, input: Tensor) -> Tensor:
        return functional.linear(input.index_select(-1, self.chosen), self.weight, self.bias)


class ThinGroupNorm(nn.GroupNorm):
    """A group norm without some of its channels, which count as zeros.

    They enter the mean and the variance of their group as they would in the full model.
    """

    members: Tensor
    absent: Tensor

    def __init__(self, norm: nn.GroupNorm, left: Sequence[int]) -> None:
        """`left` is the number of channels left in each group; it may be zero."""
        nn.Module.__init__(self)
        whole = norm.num_channels // norm.num_groups
        counts = torch.tensor(left)
        self.num_groups, self.num_channels = norm.num_groups, int(counts.sum())
        self.eps, self.affine = norm.eps, norm.affine
        self.weight, self.bias = norm.weight, norm.bias
        members = torch.zeros(self.num_channels, self.num_groups, dtype=norm.weight.dtype)
        members[range(self.num_channels), torch.arange(len(counts)).repeat_interleave(counts)] = 1
        # Sums over the channels of a group, divided by the original number of channels.
        self.register_buffer("members", members / whole, persistent=False)
        self.register_buffer("absent", 1 - members.sum(0) / whole, persistent=False)
        self.whole = whole

    def forward(self, input: Tensor) -> Tensor:
        with torch.autocast(input.device.type, enabled=False):
            wide = input.to(self.weight.dtype)
            out = _thin_group_norm(
                wide, self.weight, self.bias, self.members, self.absent, self.whole, self.eps
            )
        return out.to(input.dtype)


class _ThinGroupNorm(torch.autograd.Function):
    """Written by hand, because autograd's backward takes three times as long."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        scale: Tensor,
        shift: Tensor,
        members: Tensor,
        absent: Tensor,
        whole: int,
        eps: float,
    ) -> Tensor:
        places = tuple(range(2, x.dim()))
        spread = members.t() * whole  # from groups back to channels
        mean = x.mean(places) @ members
        centred = x - _over(mean @ spread, x)
        # A missing channel is zero, so its distance from the mean is the mean.
        variance = (centred * centred).mean(places) @ members + absent * mean * mean
        root = torch.rsqrt(variance + eps) @ spread
        ctx.save_for_backward(centred, root, scale, members)
        ctx.whole = whole
        return torch.addcmul(_over(shift[None], x), centred, _over(root * scale, x))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        centred, root, scale, members = ctx.saved_tensors
        places = tuple(range(2, grad.dim()))
        spread = members.t() * ctx.whole
        size = max(grad[0, 0].numel(), 1)
        shift = grad.sum(places)
        along = (grad * centred).sum(places) * root
        # Missing channels have a scale of zero and add nothing to these means.
        level = (shift * scale / size) @ members @ spread
        slope = (along * scale / size) @ members @ spread
        x = torch.addcmul(_over(-root * level, grad), grad, _over(root * scale, grad))
        x.addcmul_(centred, _over(-root * root * slope, grad))
        return x, along.sum(0), shift.sum(0), None, None, None, None


def _over(channels: Tensor, like: Tensor) -> Tensor:
    return channels.reshape(*channels.shape, *[1] * (like.dim() - 2))


def _thin_group_norm(*given: Tensor | int | float) -> Tensor:
    out: Tensor = _ThinGroupNorm.apply(*given)  # type: ignore[no-untyped-call]
    return out
