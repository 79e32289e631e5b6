"""The models of `small_clients`, for both sides: this file needs torch alone."""

from torch import nn


def cnn(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """The architecture of pfl-research's CIFAR-10 benchmark: two convolutions, one hidden layer."""
    channels, side = shape[0], (shape[1] - 4) // 2
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(side * side * 64, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, classes),
    )


def mlp(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """One hidden layer of 64."""
    inputs = shape[0] * shape[1] * shape[2]
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, classes))


MODELS = {"cnn": cnn, "mlp": mlp}
