"""Models as sparse files: what is left of them in inference, without zeros."""

from __future__ import annotations

import numpy as np
import torch

from gossamer.arithmetic.chain import Chain, Step
from gossamer.arithmetic.plan import in_memory_order, supported
from gossamer.arithmetic.steps import Unsupported
from gossamer.arithmetic.structs import Kind
from gossamer.core import Ensemble, Params
from gossamer.deploy import Predictor, Unreadable
from gossamer.deploy.format import decode, encode
from gossamer.deploy.stored import Floats, Packed, Stored
from gossamer.export.model import Model

SUFFIX = ".gsm"
CHECKED = 64
"""Examples on which a file is compared with its model."""
TOLERANCE = 1e-4
"""Largest difference of scores, relative to the largest score."""
INSTEAD = "use .safetensors, .pt2 or .onnx"


def sparse(model: Model) -> bytes:
    """The bytes of a `.gsm` file, after a comparison of its predictions with the model's.

    Raises:
        ValueError: the format has no room for such a model, or its predictions differ.
    """
    data = encode(stored(model))
    _compare(model, Predictor(decode(data)))
    return data


def stored(model: Model) -> Stored:
    """A model as its file holds it: batch norms are folded into layers, dropouts are gone."""
    whole = model.whole
    if isinstance(whole, Ensemble):
        raise ValueError(f"a {SUFFIX} file holds one model and no ensemble; {INSTEAD}")
    layout = model.task.layout
    try:
        chain = supported(model.task.module, layout)
    except Unsupported as reason:
        raise ValueError(f"the kernels cannot run this model: {reason}; {INSTEAD}") from None
    for step in chain.steps:
        if step.kind is Kind.BATCH_NORM and (step.mean is None or step.variance is None):
            raise ValueError(
                f"a batch norm without running statistics depends on the whole batch; {INSTEAD}"
            )
    tensors = {
        name: _in_memory_order(whole, name)
        for step in chain.steps
        for name in (step.weight, step.bias, step.mean, step.variance)
        if name is not None
    }
    _remove_dropouts(chain)
    _fold_norms(chain, tensors)
    chain = _renumbered(chain)
    used = [n for s in chain.steps for n in (s.weight, s.bias, s.mean, s.variance) if n is not None]
    packed = {name: Packed.of(tensors[name]) for name in used}
    return Stored(chain, packed, len(layout.input.shape) == 1, model.facts)


def _in_memory_order(params: Params, name: str) -> Floats:
    tensor = in_memory_order(params[name].detach().cpu().float())
    if tensor.dim() == 4:
        tensor = tensor.permute(0, 2, 3, 1)
    found: Floats = tensor.numpy()
    return found


def _remove_dropouts(chain: Chain) -> None:
    """Whoever reads the output of a dropout reads its input."""
    for step in [each for each in chain.steps if each.kind is Kind.DROPOUT]:
        chain.steps.remove(step)
        for reader in chain.consumers(step.output):
            reader.input = step.input if reader.input == step.output else reader.input
            reader.other = step.input if reader.other == step.output else reader.other
        if chain.output == step.output:
            chain.output = step.input


def _fold_norms(chain: Chain, tensors: dict[str, Floats]) -> None:
    """Batch norms that only scale and shift what one layer computes become a part of it."""
    makers = {step.output: step for step in chain.steps}
    for norm in [each for each in chain.steps if each.kind is Kind.BATCH_NORM]:
        maker = makers.get(norm.input)
        alone = len(chain.consumers(norm.input)) == 1 and norm.input != chain.output
        if maker is None or not maker.layer or maker.relu or not alone:
            continue
        _fold(maker, norm, tensors)
        maker.output, maker.relu = norm.output, norm.relu
        makers[norm.output] = maker
        chain.steps.remove(norm)


def _fold(layer: Step, norm: Step, tensors: dict[str, Floats]) -> None:
    def exact(name: str | None, otherwise: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        if name is None:
            return np.full(outputs, otherwise)
        return tensors[name].astype(np.float64)

    assert layer.weight is not None
    weights = tensors[layer.weight]
    outputs = len(weights)
    scale = exact(norm.weight, 1) / np.sqrt(exact(norm.variance, 1) + norm.epsilon)
    shift = exact(norm.bias, 0) + (exact(layer.bias, 0) - exact(norm.mean, 0)) * scale
    rows = scale.reshape(-1, *[1] * (weights.ndim - 1))
    tensors[layer.weight] = (weights * rows).astype(np.float32)
    layer.bias = layer.bias or f"{layer.weight} folded bias"
    tensors[layer.bias] = shift.astype(np.float32)


def _renumbered(chain: Chain) -> Chain:
    """The same chain without values that no step writes."""
    written = [chain.input, *(step.output for step in chain.steps)]
    numbers = {value: number for number, value in enumerate(written)}
    for step in chain.steps:
        step.input, step.output = numbers[step.input], numbers[step.output]
        step.other = None if step.other is None else numbers[step.other]
    shapes = [chain.shapes[value] for value in written]
    return Chain(numbers[chain.input], numbers[chain.output], shapes, chain.steps)


def _compare(model: Model, predict: Predictor) -> None:
    x = model.test.x[:CHECKED]
    if not len(x):
        return
    with torch.inference_mode():
        wanted = model.module()(x).numpy()
    bound = TOLERANCE * max(1.0, float(np.abs(wanted).max()))
    for found in (predict(x.numpy()), predict(x[:1].numpy())):
        error = float(np.abs(found - wanted[: len(found)]).max())
        if not error <= bound:
            raise Unreadable(f"scores of the {SUFFIX} file differ by {error:.2g} from the model's")
