"""Compressed messages: compressors as values, error feedback, and methods made of methods."""

from gossamer.compression.compressors import (
    QSGD,
    Compressor,
    LowRank,
    Natural,
    Payload,
    RandK,
    Sign,
    Ternary,
    TopK,
)
from gossamer.compression.method import Compressed, compress
from gossamer.compression.spec import Spec, directions

__all__ = [
    "QSGD",
    "Compressed",
    "Compressor",
    "LowRank",
    "Natural",
    "Payload",
    "RandK",
    "Sign",
    "Spec",
    "Ternary",
    "TopK",
    "compress",
    "directions",
]
