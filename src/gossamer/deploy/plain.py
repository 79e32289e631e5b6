"""Stored models run by NumPy alone: where there are no kernels, and to check them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from gossamer.arithmetic.chain import Step
from gossamer.arithmetic.structs import Kind
from gossamer.deploy.stored import Floats, Stored

CHUNK = 64
"""Examples computed at once, which bounds the memory for windows."""


def outputs(stored: Stored, x: Floats) -> Floats:
    """The outputs of a batch."""
    out = np.empty((len(x), stored.classes), np.float32)
    tensors = {name: tensor.full() for name, tensor in stored.tensors.items()}
    for start in range(0, len(x), CHUNK):
        part = x[start : start + CHUNK]
        out[start : start + CHUNK] = _outputs(stored, tensors, part)
    return out


def _outputs(stored: Stored, tensors: dict[str, Floats], x: Floats) -> Floats:
    chain = stored.chain
    values = {chain.input: x.reshape(len(x), *chain.shapes[chain.input])}
    for step in chain.steps:
        read = [values[value] for value in step.reads]
        names = (step.weight, step.bias, step.mean, step.variance)
        own = [None if name is None else tensors[name] for name in names]
        after = STEPS[step.kind](step, read, own)
        if step.kind is Kind.SUBSAMPLE:
            more = chain.shapes[step.output][0] - after.shape[1]
            after = np.pad(after, ((0, 0), (0, more), (0, 0), (0, 0)))
        values[step.output] = np.maximum(after, 0) if step.relu else after
    return values[chain.output][:, :, 0, 0]


Own = list[Floats | None]


def _windows(step: Step, x: Floats, fill: float = 0.0) -> Floats:
    """[example][channel][row][pixel][kernel row][kernel column]."""
    window = step.window
    sides = ((0, 0), (0, 0), (window.pad_y, window.pad_y), (window.pad_x, window.pad_x))
    padded = np.pad(x, sides, constant_values=fill)
    views = sliding_window_view(padded, (window.height, window.width), axis=(2, 3))
    return views[:, :, :: window.stride_y, :: window.stride_x]


def _convolution(step: Step, read: list[Floats], own: Own) -> Floats:
    assert own[0] is not None
    sums = np.tensordot(_windows(step, read[0]), own[0], axes=((4, 5, 1), (1, 2, 3)))
    return _biased(np.moveaxis(sums, 3, 1), own[1])


def _linear(step: Step, read: list[Floats], own: Own) -> Floats:
    assert own[0] is not None
    return _biased((read[0][:, :, 0, 0] @ own[0].T)[:, :, None, None], own[1])


def _biased(x: Floats, bias: Floats | None) -> Floats:
    return x if bias is None else x + _channels(bias)


def _batch_norm(step: Step, read: list[Floats], own: Own) -> Floats:
    weight, bias, mean, variance = own
    assert mean is not None and variance is not None
    scale = 1 / np.sqrt(variance + np.float32(step.epsilon))
    return _affine((read[0] - _channels(mean)) * _channels(scale), weight, bias)


def _group_norm(step: Step, read: list[Floats], own: Own) -> Floats:
    (x,) = read
    groups = x.reshape(len(x), step.groups, -1)
    mean, variance = groups.mean(2, keepdims=True), groups.var(2, keepdims=True)
    unit = (groups - mean) / np.sqrt(variance + np.float32(step.epsilon))
    return _affine(unit.reshape(x.shape), own[0], own[1])


def _affine(x: Floats, weight: Floats | None, bias: Floats | None) -> Floats:
    return _biased(x if weight is None else x * _channels(weight), bias)


def _channels(vector: Floats) -> Floats:
    return vector[:, None, None]


def _softmax(step: Step, read: list[Floats], own: Own) -> Floats:
    powers = np.exp(read[0] - read[0].max(1, keepdims=True))
    shares: Floats = powers / powers.sum(1, keepdims=True)
    return shares


def _subsample(step: Step, read: list[Floats], own: Own) -> Floats:
    return read[0][:, :, :: step.window.stride_y, :: step.window.stride_x]


STEPS: dict[Kind, Callable[[Step, list[Floats], Own], Floats]] = {
    Kind.CONVOLUTION: _convolution,
    Kind.LINEAR: _linear,
    Kind.BATCH_NORM: _batch_norm,
    Kind.GROUP_NORM: _group_norm,
    Kind.RELU: lambda step, read, own: np.maximum(read[0], 0),
    Kind.MAX_POOL: lambda step, read, own: _windows(step, read[0], -np.inf).max((4, 5)),
    Kind.AVERAGE_POOL: lambda step, read, own: _windows(step, read[0]).mean((4, 5)),
    Kind.ADD: lambda step, read, own: read[0] + read[1],
    Kind.FLATTEN: lambda step, read, own: read[0].reshape(len(read[0]), -1, 1, 1),
    Kind.SUBSAMPLE: _subsample,
    Kind.SOFTMAX: _softmax,
}
