"""Chains of convolutions and linear layers: the small models of the papers, and VGG-16.

Each one is an `nn.Sequential` with named layers, so masks and groups can follow it from input to
output. The papers' figures hold for the shapes their docstrings name; other images work too.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise
from math import prod
from typing import Literal

from torch import Tensor, nn

from gossamer.models.parts import flat, image, start_like_flash

Init = Literal["torch", "flash"]


def femnist_cnn(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """The FEMNIST network of LEAF and FLASH: 6 603 710 parameters on 1x28x28, 62 classes."""
    channels, _, _ = image("femnist_cnn", shape)
    features: dict[str, nn.Module] = {
        "conv1": nn.Conv2d(channels, 32, 5, padding=2),
        "relu1": nn.ReLU(),
        "pool1": nn.MaxPool2d(2),
        "conv2": nn.Conv2d(32, 64, 5, padding=2),
        "relu2": nn.ReLU(),
        "pool2": nn.MaxPool2d(2),
    }
    width = flat("femnist_cnn", shape, features.values())
    return chain(
        features,
        flatten=nn.Flatten(),
        fc1=nn.Linear(width, 2048),
        relu3=nn.ReLU(),
        fc2=nn.Linear(2048, classes),
    )


def cnn7(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """CNN-7 of SpaFL with BatchNorm: 804 800 weights, 806 080 trained, on 3x32x32, 10 classes."""
    channels, _, _ = image("cnn7", shape)
    features: dict[str, nn.Module] = {}
    for index, (before, after) in enumerate(pairwise((channels, 64, 64, 128, 128)), 1):
        features[f"conv{index}"] = nn.Conv2d(before, after, 5, bias=False)
        features[f"norm{index}"] = nn.BatchNorm2d(after)
        features[f"relu{index}"] = nn.ReLU()
        if index % 2 == 0:
            features[f"pool{index // 2}"] = nn.MaxPool2d(2)
    width = flat("cnn7", shape, features.values())
    return chain(
        features,
        flatten=nn.Flatten(),
        fc1=nn.Linear(width, 128, bias=False),
        norm5=nn.BatchNorm1d(128),
        relu5=nn.ReLU(),
        fc2=nn.Linear(128, 128, bias=False),
        norm6=nn.BatchNorm1d(128),
        relu6=nn.ReLU(),
        fc3=nn.Linear(128, classes, bias=False),
    )


def conv6(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """Conv-6 of Zhou et al. without biases: 2 261 184 weights in 1 418 rows on 3x32x32."""
    channels, _, _ = image("conv6", shape)
    features: dict[str, nn.Module] = {}
    for index, (before, after) in enumerate(pairwise((channels, 64, 64, 128, 128, 256, 256)), 1):
        features[f"conv{index}"] = nn.Conv2d(before, after, 3, padding=1, bias=False)
        features[f"relu{index}"] = nn.ReLU()
        if index % 2 == 0:
            features[f"pool{index // 2}"] = nn.MaxPool2d(2)
    width = flat("conv6", shape, features.values())
    return chain(
        features,
        flatten=nn.Flatten(),
        fc1=nn.Linear(width, 256, bias=False),
        relu7=nn.ReLU(),
        fc2=nn.Linear(256, 256, bias=False),
        relu8=nn.ReLU(),
        fc3=nn.Linear(256, classes, bias=False),
    )


class Vgg(nn.Sequential):
    """A sequential model that can use FLASH's initialisation."""

    def __init__(self, layers: OrderedDict[str, nn.Module], init: Init) -> None:
        super().__init__(layers)
        self.init = init
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Replaces the layers' initial values if `init` asks for it."""
        if self.init == "flash":
            start_like_flash(self, norm=0.5)


def vgg16(
    shape: tuple[int, ...], classes: int, dropout: float = 0.5, init: Init = "torch"
) -> nn.Sequential:
    """VGG-16 with BatchNorm and a 4096-4096 head, as FLASH's: 33 646 666 parameters on 3x32x32."""
    before, _, _ = image("vgg16", shape)
    features: dict[str, nn.Module] = {}
    index = 0
    for stage, (count, after) in enumerate(((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)), 1):
        for _ in range(count):
            index += 1
            features[f"conv{index}"] = nn.Conv2d(before, after, 3, padding=1)
            features[f"norm{index}"] = nn.BatchNorm2d(after)
            features[f"relu{index}"] = nn.ReLU()
            before = after
        features[f"pool{stage}"] = nn.MaxPool2d(2)
    width = flat("vgg16", shape, features.values())
    head: dict[str, nn.Module] = {"flatten": nn.Flatten()}
    for number, inputs in enumerate((width, 4096), 1):
        head[f"dropout{number}"] = nn.Dropout(dropout)
        head[f"fc{number}"] = nn.Linear(inputs, 4096)
        head[f"relu{index + number}"] = nn.ReLU()
    return Vgg(OrderedDict(**features, **head, fc3=nn.Linear(4096, classes)), init)


def mlp(shape: tuple[int, ...], classes: int, hidden: tuple[int, ...] = (200,)) -> nn.Sequential:
    """Linear layers with ReLU between them, on any shape; 784-200-10 on 1x28x28."""
    layers: dict[str, nn.Module] = {"flatten": Numbers()}
    for index, (before, after) in enumerate(pairwise((prod(shape), *hidden)), 1):
        layers[f"fc{index}"] = nn.Linear(before, after)
        layers[f"relu{index}"] = nn.ReLU()
    layers[f"fc{len(hidden) + 1}"] = nn.Linear(hidden[-1] if hidden else prod(shape), classes)
    return chain(layers)


class Numbers(nn.Flatten):
    """Flattens an example, whatever its type, into a vector of real numbers."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input if input.is_floating_point() else input.float())


def chain(layers: dict[str, nn.Module], **more: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(**layers, **more))
