"""Builds models by name: built-in ones with options, and users' own factories."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal, get_args, get_origin, get_type_hints
from weakref import WeakKeyDictionary

import torch
from torch import nn

from gossamer.models.convolutional import cnn7, conv6, femnist_cnn, mlp, vgg16
from gossamer.models.lenets import lenet5, lenet5_caffe, lenet_cifar, mnistnet
from gossamer.models.residual import resnet8, resnet18, resnet20
from gossamer.models.sequences import char_lstm, lstm, text
from gossamer.task.layout import did_you_mean

MODELS: dict[str, Callable[..., nn.Module]] = {
    "lenet5_caffe": lenet5_caffe,
    "lenet5": lenet5,
    "lenet_cifar": lenet_cifar,
    "mnistnet": mnistnet,
    "femnist_cnn": femnist_cnn,
    "cnn7": cnn7,
    "conv6": conv6,
    "vgg16": vgg16,
    "resnet8": resnet8,
    "resnet18": resnet18,
    "resnet20": resnet20,
    "mlp": mlp,
    "lstm": lstm,
    "char_lstm": char_lstm,
    "text": text,
}

KNOWN = ("vocabulary", "every")
"""Options that follow from the data, and are no part of a model's name."""
Value = int | float | bool | str | tuple[int, ...]


def build(name: str, shape: tuple[int, ...], classes: int, **options: object) -> nn.Module:
    """A module for examples of `shape`, with one output per class.

    Args:
        name: a built-in model, optionally with options (`resnet18:width=32,norm=group`), or your
            own factory, `my.py:build` or `package.module:factory`, with options after another
            colon. A factory is called with shape and classes if it takes them.
        shape: of an example, without the batch dimension.
        classes: the number of outputs.
        options: further options, such as the size of the vocabulary.

    Raises:
        KeyError: there is no such model; the message suggests the nearest name.
        ValueError: an option is unknown or unusable.

    >>> build("mlp:hidden=100x50", (4,), 3).fc3
    Linear(in_features=50, out_features=3, bias=True)
    """
    if classes < 1:
        raise ValueError(f"a model needs at least one class, not {classes}")
    module = _built(name, shape, classes, options)
    given = ",".join(f"{key}={value}" for key, value in options.items() if key not in KNOWN)
    if given:
        separator = "," if "=" in name.rpartition(":")[2] else ":"
        name = f"{name}{separator}{given}"
    _NAMES[module] = name
    return module


_NAMES: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


def name_of(module: nn.Module) -> str | None:
    """The name by which `build` made a module; None if it did not."""
    return _NAMES.get(module)


def _built(
    name: str, shape: tuple[int, ...], classes: int, options: dict[str, object]
) -> nn.Module:
    head, _, tail = name.partition(":")
    if head in MODELS:
        given = {**_split(name, tail), **options}
        return MODELS[head](shape, classes, **_values(head, given))
    target, _, rest = tail.partition(":")
    if not target or "=" in target:
        raise KeyError(
            f"no model {head!r}{did_you_mean(head, MODELS)} `gossamer ls` lists them all"
        )
    factory = load(f"{head}:{target}")
    return call(factory, shape, classes, name, {**_split(name, rest), **options})


def default(
    shape: tuple[int, ...], dtype: torch.dtype = torch.float32, language: bool = False
) -> str:
    """The name of the default model for examples of this shape and type."""
    if language:
        return "char_lstm"
    match shape:
        case (_,) if not (dtype.is_floating_point or dtype.is_complex):
            return "text"
        case (1, height, width) if min(height, width) >= 16:
            return "lenet5_caffe"
        case (3, height, width) if min(height, width) >= 16:
            return "resnet8"
        case (_, _):
            return "lstm"
    return "mlp"


def options(name: str) -> dict[str, Value]:
    """The options of a built-in model with their defaults."""
    parameters = inspect.signature(MODELS[name]).parameters.values()
    return {entry.name: entry.default for entry in parameters if entry.default is not entry.empty}


def load(reference: str) -> Callable[..., object]:
    """The callable that `my.py:name` or `package.module:name` refers to."""
    place, _, name = reference.partition(":")
    module = _from_file(Path(place)) if place.endswith(".py") else _from_package(place)
    member = getattr(module, name, None)
    if member is None:
        raise KeyError(f"{place} has no {name!r}{did_you_mean(name, vars(module))} define it there")
    if not callable(member):
        raise ValueError(f"{reference} is a {type(member).__name__}; name a function or a class")
    return member  # type: ignore[no-any-return]


def _from_file(path: Path) -> object:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}; give the path from {Path.cwd()}")
    # The full path in the name keeps two files called `model.py` apart.
    name = "gossamer_user_" + path.resolve().as_posix().replace("/", "_").replace(".", "_")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _from_package(place: str) -> object:
    if not all(part.isidentifier() for part in place.split(".")):
        raise KeyError(
            f"{place!r} is neither a file nor a module; write my.py:name for a file, or "
            "package.module:name"
        )
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        # A failed import inside the user's module is shown as it is.
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise
        raise KeyError(
            f"no model {place!r}{did_you_mean(place, MODELS)} it is neither built in nor a module "
            f"that can be imported; write my.py:build for a file"
        ) from None


def call(
    factory: Callable[..., object],
    shape: tuple[int, ...],
    classes: int,
    name: str = "",
    given: Mapping[str, object] = MappingProxyType({}),
) -> nn.Module:
    """The module that a factory of the user's builds, called as `build` does."""
    name = name or getattr(factory, "__name__", "the factory")
    arguments = (shape, classes) if _takes_two(name, factory, given) else ()
    module = factory(*arguments, **{key: _guess(value) for key, value in given.items()})
    if not isinstance(module, nn.Module):
        raise ValueError(
            f"{name} returned a {type(module).__name__}; a model's factory returns an nn.Module"
        )
    return module


def _takes_two(name: str, factory: Callable[..., object], given: Mapping[str, object]) -> bool:
    """Whether a factory takes shape and classes: by these names, or as its two required arguments.

    `Net(hidden=10, depth=2)` accepts two arguments, but means others.
    """
    entries = list(inspect.signature(factory).parameters.values())
    positional = [e for e in entries if e.kind in (e.POSITIONAL_ONLY, e.POSITIONAL_OR_KEYWORD)]
    if [entry.name for entry in positional[:2]] == ["shape", "classes"]:
        return True
    if any(entry.kind is entry.VAR_POSITIONAL for entry in entries) and not positional:
        return True
    needed = [e for e in positional if e.default is e.empty and e.name not in given]
    if len(needed) in (0, 2):
        return len(needed) == 2
    raise ValueError(
        f"{name} needs {', '.join(entry.name for entry in needed)}, but a factory is called with "
        f"(shape, classes) or with nothing; give the others defaults"
    )


def _split(name: str, text: str) -> dict[str, str]:
    """`width=32,norm=group` as a dict."""
    entries = [entry.strip() for entry in text.split(",") if entry.strip()]
    for entry in entries:
        if "=" not in entry:
            raise ValueError(f"{entry!r} in model {name!r} is not an option; write option=value")
    return {key.strip(): value.strip() for key, _, value in (e.partition("=") for e in entries)}


def _values(model: str, given: dict[str, object]) -> dict[str, Value]:
    known = options(model)
    hints = get_type_hints(MODELS[model])
    for key in given:
        if key not in known:
            raise ValueError(
                f"model {model!r} has no option {key!r}{did_you_mean(key, known)} "
                f"it takes {', '.join(known) or 'none'}"
            )
    return {key: _value(f"{model}:{key}", hints[key], value) for key, value in given.items()}


def _value(option: str, hint: object, value: object) -> Value:
    """An option's value in the type that its factory declares, parsed if it is text."""
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        if value in choices:
            return str(value)
        near = did_you_mean(str(value), choices)
        raise ValueError(f"no {option}={value}{near} it is one of {', '.join(choices)}")
    read = _guess(value)
    if get_origin(hint) is tuple:
        sizes = (read,) if isinstance(read, int) and not isinstance(read, bool) else read
        if isinstance(sizes, list | tuple) and all(type(s) is int and s > 0 for s in sizes):
            return tuple(sizes)
        raise ValueError(f"{option} is one or more sizes such as 300x100, not {value!r}")
    if hint is bool and isinstance(read, bool):
        return read
    if hint is int and type(read) is int and read > 0:
        return read
    if hint is float and type(read) in (int, float) and 0 <= read < 1:  # type: ignore[operator]
        return float(read)  # type: ignore[arg-type]
    wanted = {bool: "true or false", int: "a whole number above zero", float: "in [0, 1)"}
    raise ValueError(f"{option} is {wanted[hint]}, not {value!r}")  # type: ignore[index]


def _guess(value: object) -> object:
    """Text as a truth value, a number or sizes, if it is one of these."""
    if not isinstance(value, str):
        return value
    if value.lower() in ("true", "yes", "on", "false", "no", "off"):
        return value.lower() in ("true", "yes", "on")
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    parts = value.split("x")
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else value
