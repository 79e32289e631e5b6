"""Tables: the rule for every known layer, and for every known function on tensors."""

from __future__ import annotations

import operator
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional

from gossamer.models.blocks import Pad
from gossamer.models.convolutional import Numbers
from gossamer.submodels.attention_rules import fill, product, scaled_dot_product, softmax
from gossamer.submodels.encoder_rules import attention, encoder, encoder_layer
from gossamer.submodels.follow import Rule
from gossamer.submodels.function_rules import (
    add,
    item,
    join,
    not_silent,
    nothing,
    pool,
    reduce,
    scale,
)
from gossamer.submodels.layer_rules import embedding, layer, pad
from gossamer.submodels.norm_rules import last_norm, norm, prelu, through
from gossamer.submodels.shape_rules import (
    attribute,
    flatten,
    permute,
    size,
    transpose,
    unflatten,
    view,
)
from gossamer.task.dropout import SeededDropout

MODULES: dict[type[nn.Module], Rule] = {
    **dict.fromkeys((nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d), layer),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d), norm),
    **dict.fromkeys((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), norm),
    nn.GroupNorm: norm,
    nn.LayerNorm: last_norm,
    nn.Embedding: embedding,
    nn.MultiheadAttention: attention,
    nn.TransformerEncoderLayer: encoder_layer,
    nn.TransformerEncoder: encoder,
    nn.PReLU: prelu,
    Pad: pad,
    **dict.fromkeys((nn.Flatten, Numbers), flatten),
    **dict.fromkeys((nn.Identity, nn.ReLU, nn.ReLU6, nn.GELU, nn.Tanh, nn.SiLU), through),
    **dict.fromkeys((nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.Hardswish, nn.Mish), through),
    **dict.fromkeys((nn.Softsign, nn.Tanhshrink, nn.Softshrink, nn.Hardshrink), through),
    **dict.fromkeys((nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d), through),
    SeededDropout: through,
    **dict.fromkeys((nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d), pool),
    **dict.fromkeys((nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d), pool),
    **dict.fromkeys((nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d), pool),
    **dict.fromkeys((nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d), pool),
    **dict.fromkeys((nn.Sigmoid, nn.Hardsigmoid, nn.LogSigmoid, nn.Softplus), not_silent),
    **dict.fromkeys((nn.Softmax2d, nn.LogSoftmax, nn.Softmin), not_silent),
    nn.Softmax: softmax,
}

_SAME = (
    *("relu", "relu6", "gelu", "tanh", "silu", "leaky_relu", "elu", "celu", "selu", "mish"),
    *("hardswish", "softsign", "tanhshrink", "hardshrink"),
)
_POOLS = ("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool")
_LOUD = ("sigmoid", "hardsigmoid", "softplus", "log_softmax", "exp")


def _named(names: Iterable[str], rule: Rule) -> dict[object, Rule]:
    """The functions of torch with these names, and the methods of tensors."""
    rules: dict[object, Rule] = {}
    for name in names:
        places = (functional, torch, Tensor)
        callables = (getattr(place, name, None) for place in places)
        rules |= {each: rule for each in callables if each is not None}
        rules |= {name: rule, f"{name}_": rule}
    return rules


FUNCTIONS: dict[object, Rule] = {
    **_named(_SAME, through),
    **_named((f"{name}{count}d" for name in _POOLS for count in (1, 2, 3)), pool),
    **_named(("mean", "sum", "amax"), reduce),
    **_named(("add", "sub", "__add__", "__radd__", "__iadd__", "__sub__"), add),
    **_named(("mul", "div", "__mul__", "__rmul__", "__imul__", "__truediv__", "__div__"), scale),
    **_named(_LOUD, not_silent),
    **_named(("flatten",), flatten),
    **_named(("cat", "concat"), join),
    **_named(("view", "reshape"), view),
    **_named(("contiguous", "clone", "float", "to", "type_as", "dropout"), through),
    **_named(("transpose", "swapaxes"), transpose),
    **_named(("permute",), permute),
    **_named(("unflatten",), unflatten),
    **_named(("matmul", "bmm", "__matmul__"), product),
    **_named(("softmax",), softmax),
    **_named(("masked_fill",), fill),
    **_named(("scaled_dot_product_attention",), scaled_dot_product),
    operator.matmul: product,
    **_named(("dim",), nothing),
    **dict.fromkeys((operator.add, operator.iadd, operator.sub, operator.isub), add),
    **dict.fromkeys((operator.mul, operator.imul, operator.truediv), scale),
    "size": size,
    getattr: attribute,
    operator.getitem: item,
    Tensor.__getitem__: item,
}
