"""Sparse, communication-efficient federated learning on PyTorch, with every bit counted."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from gossamer.deploy import load as load
    from gossamer.public import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        """Loads names on first use, so that `gossamer --help` does not wait for PyTorch."""
        plain = name.isidentifier() and not name.startswith("_")
        if plain and find_spec(f"{__name__}.{name}"):
            return import_module(f"{__name__}.{name}")
        if name == "load":  # for devices, which have no PyTorch
            globals()[name] = value = import_module(f"{__name__}.deploy").load
            return value
        if plain or name == "__all__":
            public = import_module(f"{__name__}.public")
            if name in ("__all__", *public.__all__):
                globals()[name] = value = getattr(public, name)
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        public = __getattr__("__all__")
        return sorted({*globals(), *public})
