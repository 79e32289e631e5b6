"""The LeNets of the papers, and MNISTNet."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from gossamer.models.convolutional import chain
from gossamer.models.parts import flat, image


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
    return chain(
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
    return chain(features, flatten=nn.Flatten(), **hidden, **between, fc2=nn.Linear(512, classes))


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
    return chain(layers)
