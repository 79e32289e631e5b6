"""Models as files: tensors, or a program with its tensors, and facts about the model."""

from __future__ import annotations

import importlib
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from gossamer import deploy
from gossamer.core import Ensemble, Examples, Params
from gossamer.engine.checkpoint import write_atomically
from gossamer.export.model import Model
from gossamer.export.sparse import SUFFIX, sparse
from gossamer.named import called
from gossamer.task import CLASSIFICATION, Goal

FORMATS = (".safetensors", ".pt2", ".onnx", SUFFIX)
FACTS = "gossamer"
"""The entry of a file's metadata that holds facts about the model, as JSON."""
PACKED = "packed"
"""The fact that lists packed tensors and their shapes."""
VALUES, KEPT = ".values", ".kept"
"""Suffixes of a packed tensor: its non-zero values, and a bitmap of where they are."""
MEMBER = "members.{}."
BATCH = 500
"""Examples per prediction."""


def save(model: Model, path: Path | str, packed: bool = False) -> None:
    """Writes a model atomically, in the format of the file's suffix.

    Args:
        model: what to write.
        path: ends in one of FORMATS.
        packed: store non-zero values only; .safetensors can do that, .gsm always does.

    Raises:
        ValueError: the suffix is unknown, or the format has no form for the model.
        ImportError: the library of the format is missing.
    """
    target = Path(path)
    if packed and target.suffix not in (".safetensors", SUFFIX):
        raise ValueError(f"only .safetensors can be packed, not {target.name}")
    match target.suffix:
        case ".safetensors":
            data = _safetensors(model, packed)
        case ".pt2":
            data = _program(model)
        case ".onnx":
            data = _onnx(model)
        case ".gsm":
            data = sparse(model)
        case other:
            raise ValueError(f"no format {other!r}; use one of {', '.join(FORMATS)}")
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, data)


def load(path: Path | str) -> Params | Ensemble:
    """The tensors of a `.safetensors` file, packed or not."""
    tensors, facts = _opened(Path(path))
    for name, shape in facts.get(PACKED, {}).items():
        values, bits = tensors.pop(name + VALUES), tensors.pop(name + KEPT)
        where = np.unpackbits(bits.numpy(), count=int(np.prod(shape)), bitorder="little")
        full = torch.zeros(len(where), dtype=values.dtype)
        full[torch.from_numpy(where).bool()] = values
        tensors[name] = full.reshape(shape)
    if "weights" not in facts:
        return tensors
    members = []
    for place in range(len(facts["weights"])):
        head = MEMBER.format(place)
        own = {n.removeprefix(head): tensor for n, tensor in tensors.items() if n.startswith(head)}
        members.append(own)
    return Ensemble(tuple(members), tuple(facts["weights"]))


def facts(path: Path | str) -> dict[str, Any]:
    """The facts about the model in a `.safetensors` file."""
    return _opened(Path(path))[1]


def predictor(path: Path | str, model: Model) -> Callable[[Tensor], Tensor]:
    """The function in a file, loaded as its users would; `model` gives the architecture only."""
    target = Path(path)
    match target.suffix:
        case ".safetensors":
            return replace(model, params=load(target)).module()
        case ".pt2":
            return torch.export.load(target).module()
        case ".gsm":
            shipped = deploy.load(target)
            return lambda x: torch.from_numpy(shipped(x.numpy()))
        case _:
            runtime = _needs("onnxruntime")
            session = runtime.InferenceSession(str(target), providers=["CPUExecutionProvider"])
            name = session.get_inputs()[0].name
            return lambda x: torch.from_numpy(session.run(None, {name: x.numpy()})[0])


def accuracy(predict: Callable[[Tensor], Tensor], test: Examples) -> float:
    """The share of examples that are classified correctly."""
    found = score(predict, test, CLASSIFICATION)
    assert found is not None
    return found


def score(predict: Callable[[Tensor], Tensor], test: Examples, goal: Goal) -> float | None:
    """The headline metric of a goal on test data, which may not be empty.

    Args:
        predict: from a batch of inputs, the outputs of the module.
        test: the test data.
        goal: as `model.task.goal` has it.
    """
    numbers = []
    with torch.inference_mode():
        for start in range(0, len(test), BATCH):
            rows = slice(start, start + BATCH)
            predicted = goal.predictions(goal.outputs(called(predict, test.x[rows])))
            numbers.append(goal.headline.per_example(predicted, test.y[rows]))
    return goal.headline.figure(np.concatenate(numbers))


def _safetensors(model: Model, packed: bool) -> bytes:
    library = _needs("safetensors.torch")
    known = dict(model.facts)
    whole = model.whole
    tensors = dict(whole) if isinstance(whole, dict) else {}
    if isinstance(whole, Ensemble):
        known["weights"] = list(whole.weights)
        for place, member in enumerate(whole.members):
            tensors |= {MEMBER.format(place) + name: each for name, each in member.items()}
    shapes: dict[str, list[int]] = {}
    written: Params = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        kept = tensor.flatten() != 0
        saved = int((~kept).sum()) * tensor.element_size()
        if not packed or saved <= (len(kept) + 7) // 8:
            written[name] = tensor.clone()
            continue
        shapes[name] = list(tensor.shape)
        written[name + VALUES] = tensor.flatten()[kept]
        bits = np.packbits(kept.numpy(), bitorder="little")
        written[name + KEPT] = torch.from_numpy(bits)
    if shapes:
        known[PACKED] = shapes
    return cast(bytes, library.save(written, {FACTS: json.dumps(known)}))


def _opened(path: Path) -> tuple[Params, dict[str, Any]]:
    library = _needs("safetensors")
    with library.safe_open(str(path), "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        facts = (file.metadata() or {}).get(FACTS, "{}")
    return tensors, json.loads(facts)


def _program(model: Model) -> bytes:
    data = io.BytesIO()
    extra = {f"{FACTS}.json": json.dumps(model.facts)}
    torch.export.save(_exported(model), data, extra_files=extra)
    return data.getvalue()


def _onnx(model: Model) -> bytes:
    _needs("onnxscript")
    with _aside():
        program = torch.onnx.export(_exported(model), dynamo=True, verbose=False)
    assert program is not None
    program.model.metadata_props[FACTS] = json.dumps(model.facts)
    return cast(bytes, program.model_proto.SerializeToString())


@contextmanager
def _aside() -> Iterator[None]:
    """Logs the warnings of torch's exporter: its own deprecated calls, and optional packages."""
    registration = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = registration.level
    registration.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
    finally:
        registration.setLevel(level)
    for each in caught:
        logging.getLogger(__name__).info("torch: %s", each.message)


def _exported(model: Model) -> torch.export.ExportedProgram:
    """The forward pass for any number of examples."""
    if model.task.layout.input.named:
        raise ValueError(
            "programs take one tensor of inputs, and this model several; write .safetensors"
        )
    example = model.test.x[:2].clone()  # a view would be saved with all of the data
    if len(example) < 2:
        raise ValueError("exporting a program needs two test examples, and there are fewer")
    shapes = ({0: torch.export.Dim("examples")},)
    return torch.export.export(model.module(), (example,), dynamic_shapes=shapes)


def _needs(module: str) -> Any:
    """A library of the extra `export`, or an error that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        name = module.partition(".")[0]
        raise ImportError(f"{name} is missing: pip install 'gossamer[export]'") from None
