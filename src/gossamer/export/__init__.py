"""Trained models as modules, and as files that can be read without Gossamer.

| file | contents | read by |
|---|---|---|
| `.safetensors` | tensors by name; packed: non-zero values only | `load`, safetensors |
| `.pt2` | the program and its tensors | `torch.export.load` |
| `.onnx` | the program and its tensors | any ONNX runtime |
| `.gsm` | steps and non-zero values | `gossamer.load`, with NumPy alone |
"""

from gossamer.export.files import FORMATS, accuracy, facts, load, predictor, save, score
from gossamer.export.model import Model, take

__all__ = ["FORMATS", "Model", "accuracy", "facts", "load", "predictor", "save", "score", "take"]
