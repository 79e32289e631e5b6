"""Plain modules of the papers, and the way to name them: `build("resnet18:width=32", ...)`."""

from gossamer.models.registry import MODELS, build, default, load, options

__all__ = ["MODELS", "build", "default", "load", "options"]
