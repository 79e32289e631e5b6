"""Trained models, taken out of their runs: as modules, and as files that are read without Gossamer.

| file | what is in it | read by |
|---|---|---|
| `.safetensors` | tensors by name; packed, without their zeros | `load`, safetensors |
| `.pt2` | the program and its tensors | `torch.export.load` |
| `.onnx` | the program and its tensors | any runtime of ONNX |
"""

from gossamer.export.files import FORMATS, accuracy, facts, load, predictor, save
from gossamer.export.model import Model, take

__all__ = ["FORMATS", "Model", "accuracy", "facts", "load", "predictor", "save", "take"]
