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


def lenet5_caffe(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """LeNet-5-Caffe of SpaFL: 430 500 weights and no biases on 1x28x28, 10 classes.

    Pooling comes before ReLU: the largest of four is the same either way, at a quarter of the work.
    """
    channels, _, _ = image("lenet5_caffe", shape)
    features: dict[str, nn.Module] = {
        "conv1": nn.Conv2d(channels, 20, 5, bias=False),
        "pool1": nn.MaxPool2d(2),
        "relu1": nn.ReLU(),
        "conv2": nn.Conv2d(20, 50, 5, bias=False),
        "pool2": nn.MaxPool2d(2),
        "relu2": nn.ReLU(),
    }
    width = flat("lenet5_caffe", shape, features.values())
    return _chain(
        features,
        flatten=nn.Flatten(),
        fc1=nn.Linear(width, 500, bias=False),
        relu3=nn.ReLU(),
        fc2=nn.Linear(500, classes, bias=False),
    )


def lenet5(shape: tuple[int, ...], classes: int, dropout: bool = False) -> nn.Sequential:
    """LeNet-5 of FedSparse: 878 538 parameters on 3x32x32, 10 classes; 608 702 on FEMNIST.

    `dropout` adds the rates the paper uses on CIFAR-10, 0.1 and 0.3.
    """
    channels, _, _ = image("lenet5", shape)
    features: dict[str, nn.Module] = {
        "conv1": nn.Conv2d(channels, 32, 5),
        "relu1": nn.ReLU(),
        "pool1": nn.MaxPool2d(2),
        "conv2": nn.Conv2d(32, 64, 5),
        "relu2": nn.ReLU(),
        **({"dropout1": nn.Dropout(0.1)} if dropout else {}),
        "pool2": nn.MaxPool2d(2),
    }
    width = flat("lenet5", shape, features.values())
    hidden = {"fc1": nn.Linear(width, 512), "relu3": nn.ReLU()}
    between = {"dropout2": nn.Dropout(0.3)} if dropout else {}
    return _chain(features, flatten=nn.Flatten(), **hidden, **between, fc2=nn.Linear(512, classes))


def lenet_cifar(
    shape: tuple[int, ...],
    classes: int,
    hidden: tuple[int, ...] = (120, 84),
    double_softmax: bool = False,
) -> nn.Sequential:
    """LeNet of PFFDST and FedDST: 782 006 parameters on 3x32x32, 10 classes.

    FedDST's net for CIFAR-100 has hidden=120. `double_softmax` ends in a softmax before the
    criterion's own, as those codes do; it slows learning markedly.
    """
    return _wide_lenet("lenet_cifar", shape, classes, (6, 16), hidden, double_softmax)


def mnistnet(shape: tuple[int, ...], classes: int, double_softmax: bool = False) -> nn.Sequential:
    """MNISTNet of FLASH and FedDST: 261 840 parameters on 1x28x28, 10 classes.

    `double_softmax` ends in a softmax before the criterion's own, as those codes do.
    """
    return _wide_lenet("mnistnet", shape, classes, (10, 20), (50,), double_softmax)


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
    return _chain(
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
    return _chain(
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
    return _chain(
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
    return _chain(layers)


class Numbers(nn.Flatten):
    """Flattens an example, whatever its type, into a vector of real numbers."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input if input.is_floating_point() else input.float())


def _wide_lenet(
    model: str,
    shape: tuple[int, ...],
    classes: int,
    filters: tuple[int, int],
    hidden: tuple[int, ...],
    double_softmax: bool,
) -> nn.Sequential:
    """Two convolutions with pools of stride one, followed by a large linear layer."""
    channels, _, _ = image(model, shape)
    layers: dict[str, nn.Module] = {}
    for index, (before, after) in enumerate(pairwise((channels, *filters)), 1):
        layers[f"conv{index}"] = nn.Conv2d(before, after, 5)
        layers[f"pool{index}"] = nn.MaxPool2d(3, stride=1)
        layers[f"relu{index}"] = nn.ReLU()
    width = flat(model, shape, layers.values())
    layers["flatten"] = nn.Flatten()
    for index, (before, after) in enumerate(pairwise((width, *hidden)), 1):
        layers[f"fc{index}"] = nn.Linear(before, after)
        layers[f"relu{index + 2}"] = nn.ReLU()
    layers[f"fc{len(hidden) + 1}"] = nn.Linear(hidden[-1] if hidden else width, classes)
    if double_softmax:
        layers["softmax"] = nn.Softmax(dim=1)
    return _chain(layers)


def _chain(layers: dict[str, nn.Module], **more: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(**layers, **more))
