"""Reading the pickles of CIFAR without running what a pickle can run."""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np


class _Arrays(pickle.Unpickler):
    """Knows NumPy arrays, bytes and strings, and refuses every other name."""

    def find_class(self, module: str, name: str) -> Callable[..., object]:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name}")
        return _ALLOWED[module, name]


def _encode(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes in old pickles: always as latin1."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes in {encoding}")
    return text.encode("latin1")


def _dtype(code: str, *_: object) -> np.dtype[np.generic]:
    """Plain number types only: an array of objects could hold anything."""
    dtype = np.dtype(code)
    if dtype.kind not in "biuf":
        raise pickle.UnpicklingError(f"an array of {code}")
    return dtype


_reconstruct = cast(Callable[..., object], np.empty(0).__reduce__()[0])
_ALLOWED: dict[tuple[str, str], Callable[..., object]] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _dtype,
    ("_codecs", "encode"): _encode,
}


def read_pickle(path: Path, md5: str | None = None) -> dict[str, object]:
    """A dictionary of arrays, lists and strings; checks the md5 first if one is given."""
    content = path.read_bytes()
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if md5 is not None and digest != md5:
        raise ValueError(
            f"{path} has md5 {digest}, the official file has {md5}; download it again, or convert "
            f"your own version to npz"
        )
    try:
        value = _Arrays(io.BytesIO(content), encoding="latin1").load()
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{path} asks to load {error}, which no data file needs; do not use this file"
        ) from None
    except Exception as error:
        raise ValueError(f"{path} is not a readable pickle ({error}); download it again") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds a {type(value).__name__}, not a dictionary; download again")
    return value
