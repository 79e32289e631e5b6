"""The records of the C interface, field by field as in `native/*.h`."""

from __future__ import annotations

import ctypes
from enum import IntEnum

NONE = -1
"""No value or parameter."""


class Kind(IntEnum):
    """What a step computes."""

    CONVOLUTION = 0
    LINEAR = 1
    BATCH_NORM = 2
    GROUP_NORM = 3
    RELU = 4
    MAX_POOL = 5
    AVERAGE_POOL = 6
    ADD = 7
    FLATTEN = 8
    SUBSAMPLE = 9
    SOFTMAX = 10
    DROPOUT = 11


def _integers(*names: str) -> list[tuple[str, type]]:
    return [(name, ctypes.c_int64) for name in names]


class CValue(ctypes.Structure):
    """An activation and its gradient: shape, places in memory, zero columns beside rows."""

    _fields_ = _integers(
        "channels", "height", "width", "offset", "halo", "grad_offset", "grad_halo"
    )


class CStep(ctypes.Structure):
    """One step of a plan."""

    _fields_ = [
        *_integers("kind", "relu", "input", "other", "output"),
        *_integers("weight", "bias", "mean", "variance"),
        *_integers("kernel_height", "kernel_width", "stride_y", "stride_x", "pad_y", "pad_x"),
        *_integers("groups", "adds", "other_adds", "whole_channels", "tiled"),
        ("epsilon", ctypes.c_double),
        ("momentum", ctypes.c_double),
        ("rate", ctypes.c_double),
    ]


class CParam(ctypes.Structure):
    """A parameter of a call: its values, gradient, momentum and index lists."""

    _fields_ = [
        ("values", ctypes.c_void_p),
        ("grad", ctypes.c_void_p),
        ("velocity", ctypes.c_void_p),
        ("anchor", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("mask", ctypes.c_void_p),
        ("lists", ctypes.c_void_p),
        ("everywhere", ctypes.c_int64),
        ("input_cut", ctypes.c_void_p),
        *_integers("share_numerator", "share_denominator"),
    ]


class CStored(ctypes.Structure):
    """A tensor as a file holds it; see `native/single.h`."""

    _fields_ = [
        ("values", ctypes.c_void_p),
        ("bits", ctypes.c_void_p),
        ("sparse", ctypes.c_int64),
    ]


class CCall(ctypes.Structure):
    """A batch, and what to compute with it."""

    _fields_ = [
        ("x", ctypes.c_void_p),
        *_integers("stride_n", "stride_c", "stride_y", "stride_x"),
        ("labels", ctypes.c_void_p),
        ("batch", ctypes.c_int64),
        ("params", ctypes.c_void_p),
        ("param_count", ctypes.c_int64),
        ("seeds", ctypes.c_void_p),
        *_integers("training", "backward", "update", "first"),
        *[(name, ctypes.c_double) for name in ("rate", "momentum", "weight_decay", "clip", "prox")],
        ("outputs", ctypes.c_void_p),
        ("loss", ctypes.c_double),
    ]
