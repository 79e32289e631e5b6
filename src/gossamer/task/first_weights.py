"""First weights: drawn from a key, those of the module, or read from a file or another run."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor, nn

from gossamer.core import Ensemble, Key, Params
from gossamer.task.layout import Layout, did_you_mean
from gossamer.wire.archive import fingerprint as digest

if TYPE_CHECKING:
    from gossamer.task.task import Task

Start: TypeAlias = str
"""`seed`, `module`, or the path of a `.safetensors` file or of a run's folder."""
KINDS = ("seed", "module")

_global_generator = threading.Lock()


@contextmanager
def seeded_globally(key: Key) -> Iterator[None]:
    """Seeds torch's global generator for code that cannot take a key."""
    with _global_generator, torch.random.fork_rng(devices=[]):
        torch.manual_seed(key.digest() & 0xFFFFFFFF)
        yield


def drawn(module: nn.Module, key: Key) -> nn.Module:
    """A copy of a module with new weights, by the initialisers of its layers."""
    module = copy.deepcopy(module)
    with seeded_globally(key):
        _reset(module)
    return module


def several(task: Task, keys: Sequence[Key]) -> tuple[Params, ...]:
    """First weights of several models, which must differ to become different.

    They are drawn from the keys. Where they are not to be drawn, the first model has the module's
    own, and the others these with noise of 1 % of each trained tensor's root mean square.
    """
    if task.start == "seed":
        return tuple(task.init(key) for key in keys)
    models = [task.init(key) for key in keys]
    for key, model in zip(keys[1:], models[1:], strict=True):
        for name in task.layout.parameters:
            noise = torch.randn(model[name].shape, generator=key.fold(name).generator())
            size = 0.01 * model[name].square().mean().sqrt()
            model[name] += size * noise.to(model[name])
    return tuple(models)


def _reset(module: nn.Module) -> None:
    """Re-initialises a module, children before parents."""
    for child in module.children():
        _reset(child)
    for name in ("reset_parameters", "_reset_parameters"):
        if callable(reset := getattr(module, name, None)):
            reset()
            return


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """A hash of tensors with their names, types and shapes."""
    parts: list[bytes] = []
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        parts.append(f"{name} {plain.dtype} {tuple(plain.shape)}".encode())
        parts.append(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest(*parts)


def check_finite(tensors: Mapping[str, Tensor], layout: Layout) -> None:
    """Refuses first weights that no message may hold.

    Raises:
        ValueError: a tensor has values that are not finite.
    """
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            cure = "load other weights, or draw them with `start=seed`"
            if name in layout.buffers:
                cure = "buffers are sent like weights; register a constant with persistent=False"
            raise ValueError(f"{name} of the module holds values that are not finite; {cure}")


def loaded(module: nn.Module, place: str | Path, layout: Layout) -> nn.Module:
    """A copy of a module with the tensors of a file or of a run: all of them, frozen ones too.

    Raises:
        FileNotFoundError: there is no such file or run.
        ValueError: the tensors are not those of the module.
    """
    tensors = read(Path(place))
    module = copy.deepcopy(module)
    held = dict(module.named_parameters()) | dict(module.named_buffers())
    names = [*layout.leaves, *layout.constants]
    for name in names:
        if name not in tensors:
            raise ValueError(
                f"{place} has no tensor {name!r}{did_you_mean(name, tensors)} first weights are "
                f"those of the same model; load other ones in a function, `model=my.py:build`"
            )
        if tensors[name].shape != held[name].shape:
            raise ValueError(
                f"{name} of {place} has the shape {tuple(tensors[name].shape)}, and that of the "
                f"model {tuple(held[name].shape)}; first weights are those of the same model"
            )
    if odd := sorted(tensors.keys() - held.keys()):
        raise ValueError(f"{place} has a tensor {odd[0]!r}, and the model has none of that name")
    with torch.no_grad():
        for name, tensor in tensors.items():
            held[name].copy_(tensor)
    return module


def read(place: Path) -> Params:
    """The tensors of a `.safetensors` file, or of the newest checkpoint of a run."""
    from gossamer import export  # which builds tasks itself

    if place.suffix == ".safetensors":
        if not place.is_file():
            raise FileNotFoundError(f"there is no file {place} to start from")
        found = export.load(place)
    elif place.is_dir():
        found = export.take(place).whole
    else:
        raise FileNotFoundError(
            f"there is no run {str(place)!r} to start from; `start=` is seed, module, a "
            f".safetensors file or the folder of a run"
        )
    if isinstance(found, Ensemble):
        raise ValueError(f"{place} holds an ensemble of models; start from one model")
    return found
