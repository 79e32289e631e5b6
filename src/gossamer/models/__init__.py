"""The models of the papers as plain modules, by name: `build("resnet18:width=32", ...)`."""

from gossamer.models.registry import MODELS, build, call, default, load, name_of, options

__all__ = ["MODELS", "build", "call", "default", "load", "name_of", "options"]
