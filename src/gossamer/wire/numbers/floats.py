"""Codecs of floating-point values: raw, scaled half precision, or shuffled and compressed."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from gossamer.wire.errors import WireError

_TOP = 14
"""Halves are scaled so that the largest is just below 2 ** 14, well within float16's range."""
_LEVEL = 1


def raw(tensor: Tensor) -> memoryview:
    """The elements of a tensor as little-endian bytes; without a copy if it is contiguous."""
    flat = tensor.detach().cpu().contiguous()
    if flat.dtype == torch.bfloat16:
        flat = flat.view(torch.int16)
    return flat.numpy().data.cast("B") if flat.numel() else memoryview(b"")


def from_raw(data: memoryview, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    """The inverse of `raw`."""
    if not len(data):
        return torch.empty(tuple(shape), dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)


def halves(tensor: Tensor, reference: Tensor | None) -> tuple[int, memoryview]:
    """An exponent, and the numbers (minus the reference, if any) scaled by it, as float16."""
    values = tensor.detach().cpu().to(torch.float32)
    if reference is not None:
        values = values - reference
    largest = float(values.abs().max()) if values.numel() else 0.0
    if not np.isfinite(largest):
        return 0, raw(torch.full_like(values, float("nan"), dtype=torch.float16))
    exponent = int(np.clip(np.frexp(largest)[1], -100, 127)) if largest else 0
    return exponent, raw(torch.ldexp(values, torch.tensor(_TOP - exponent)).to(torch.float16))


def from_halves(
    data: memoryview, exponent: int, shape: Sequence[int], reference: Tensor | None
) -> Tensor:
    """The inverse of `halves`, up to rounding."""
    values = from_raw(data, torch.float16, shape).to(torch.float32)
    values.ldexp_(torch.tensor(exponent - _TOP))
    return values if reference is None else values.add_(reference)


def squeeze(data: bytes, width: int) -> bytes:
    """Byte-shuffles and compresses numbers of `width` bytes; empty if that is not smaller."""
    places = np.frombuffer(data, np.uint8).reshape(-1, width).T
    packed: bytes = _zstandard().ZstdCompressor(level=_LEVEL).compress(places.tobytes())
    return packed if len(packed) < len(data) else b""


def unsqueeze(data: memoryview, width: int, size: int) -> memoryview:
    """The inverse of `squeeze`; a frame that does not hold `size` bytes is rejected."""
    zstandard = _zstandard()
    try:
        parameters = zstandard.get_frame_parameters(bytes(data[:18]))
        if parameters.content_size != size:
            raise WireError(
                f"compressed values claim {parameters.content_size} bytes, {size} are expected"
            )
        # A frame may request a window; ours never need one larger than their content.
        expander = zstandard.ZstdDecompressor(max_window_size=max(1 << 20, 2 * size))
        plain = expander.decompress(data, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as damage:
        raise WireError(f"compressed values are damaged: {damage}") from damage
    if len(plain) != size:
        raise WireError(f"compressed values hold {len(plain)} bytes, {size} are expected")
    return memoryview(np.frombuffer(plain, np.uint8).reshape(width, -1).T.tobytes())


def _zstandard() -> ModuleType:
    try:
        return importlib.import_module("zstandard")
    except ImportError as missing:
        raise ImportError("`wire=` with +zstd needs zstandard; install gossamer[zstd]") from missing
