"""The models of the papers as plain modules, by name: `build("resnet18:width=32", ...)`."""

from gossamer.models.registry import MODELS, build, default, load, options

__all__ = ["MODELS", "build", "default", "load", "options"]
