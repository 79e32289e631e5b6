"""Short curves on real images, within bands."""

import pytest

import gossamer as gs
from gossamer import data, fields, models
from gossamer.core import Method

SKEWED = "dirichlet:0.3"


def curve(method: Method, federation: data.Tensors, rounds: int) -> gs.Summary:
    example = federation.client(0).train.x[:2]
    module = models.build("lenet5_caffe", federation.shape, federation.classes)
    task = gs.Task.of(module, example, start="seed")
    return gs.run(method, task, federation, rounds=rounds, seed=1)


@pytest.mark.parametrize(
    ("name", "changes", "least"),
    [
        ("fedavg", {}, 0.55),
        ("fedprox", {"mu": 0.1}, 0.55),
        ("fedavgm", {"server_momentum": 0.5}, 0.55),
        ("fedadam-reddi", {}, 0.45),
    ],
)
def test_dense_methods_learn_embedded_images(
    name: str, changes: dict[str, float], least: float
) -> None:
    federation = data.federation("fmnist-mini", SKEWED, pool=20, seed=1)
    common = {"clients": 5, "epochs": 2.0, "batch": 32, "lr": 0.05}
    found = curve(fields.replace(gs.METHODS[name], {**common, **changes}), federation, 6)
    assert least < found.accuracy["best"] < 0.90
    assert found.accuracy["personal_worst_decile"] < found.accuracy["personal_mean"]


@pytest.mark.slow
def test_fedavg_on_all_of_fashion_mnist() -> None:
    """30 rounds of LeNet under dirichlet:0.2 reach four fifths."""
    try:
        federation = data.federation("fmnist", "dirichlet:0.2", pool=100, seed=1)
    except FileNotFoundError as missing:
        pytest.skip(f"Fashion-MNIST is not here: {missing}")
    training = gs.Training(epochs=3, batch=64, lr=0.05)
    found = curve(gs.FedAvg(clients=10, training=training), federation, 30)
    assert 0.76 < found.accuracy["best"] < 0.88
