"""Attention with fewer heads or inputs, and layer norms with fewer channels."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class ThinLayerNorm(nn.LayerNorm):
    """A layer norm without some of its channels, which count as zeros.

    They enter mean and variance as they would in the full model.
    """

    def __init__(self, norm: nn.LayerNorm) -> None:
        nn.Module.__init__(self)
        self.weight, self.bias = norm.weight, norm.bias
        (self.whole,) = norm.normalized_shape
        self.normalized_shape = tuple(norm.weight.shape)
        self.eps, self.elementwise_affine = norm.eps, True

    def forward(self, input: Tensor) -> Tensor:
        with torch.autocast(input.device.type, enabled=False):
            wide = input.to(self.weight.dtype)
            mean = wide.sum(-1, keepdim=True) / self.whole
            centred = wide - mean
            absent = 1 - input.shape[-1] / self.whole
            # A missing channel is zero, so its distance from the mean is the mean.
            variance = (centred * centred).sum(-1, keepdim=True) / self.whole
            out = centred * torch.rsqrt(variance + absent * mean * mean + self.eps) * self.weight
            out = out if self.bias is None else out + self.bias
        return out.to(input.dtype)


class ThinAttention(nn.MultiheadAttention):
    """Attention whose heads and inputs need not fit each other; it returns no weights."""

    def __init__(self, whole: nn.MultiheadAttention) -> None:
        nn.Module.__init__(self)
        self.in_proj_weight, self.in_proj_bias = whole.in_proj_weight, whole.in_proj_bias
        self.out_proj = whole.out_proj
        self.head_dim, self.batch_first = whole.head_dim, whole.batch_first
        self.num_heads = len(whole.in_proj_weight) // (3 * whole.head_dim)
        self.embed_dim = self.kdim = self.vdim = whole.in_proj_weight.shape[1]
        self.dropout, self.bias_k, self.bias_v, self.add_zero_attn = 0.0, None, None, False
        # Keeps encoders from fused kernels, for which embed_dim is heads times their size.
        self._qkv_same_embed_dim = False

    def _reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.in_proj_weight)
        if self.in_proj_bias is not None:
            nn.init.zeros_(self.in_proj_bias)
            nn.init.zeros_(self.out_proj.bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        weights = self.in_proj_weight.chunk(3)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        batched = query.ndim == 3
        parts = []
        for x, weight, bias in zip((query, key, value), weights, biases, strict=True):
            projected = functional.linear(x, weight, bias)
            projected = projected.view(*projected.shape[:-1], -1, self.head_dim)
            if batched and not self.batch_first:
                projected = projected.transpose(0, 1)
            parts.append(projected.transpose(-3, -2))
        mask = _mask(attn_mask, key_padding_mask, parts[0])
        out = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], mask)
        out = out.transpose(-3, -2).flatten(-2)
        if batched and not self.batch_first:
            out = out.transpose(0, 1)
        return self.out_proj(out), None


def _mask(among: Tensor | None, padding: Tensor | None, like: Tensor) -> Tensor | None:
    """Both masks as numbers that are added to scores of (examples, heads, length, length)."""
    total = None if among is None else _numbers(among, like)
    if padding is not None:
        absent = _numbers(padding, like)
        absent = absent[:, None, None, :] if like.ndim == 4 else absent
        total = absent if total is None else total + absent
    return total


def _numbers(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(mask, float("-inf"))
