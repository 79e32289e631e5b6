from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from gossamer.core import Key
from gossamer.data import Federation, Synthetic, federation


def test_a_client_is_a_function_of_key_and_number() -> None:
    one, two = Synthetic(Key(1), 50), Synthetic(Key(1), 50)
    assert torch.equal(one.client(7).train.x, two.client(7).train.x)
    assert not torch.equal(one.client(7).train.x[0], one.client(8).train.x[0])
    assert not torch.equal(one.client(7).train.x[0], Synthetic(Key(2), 50).client(7).train.x[0])


def test_a_hundred_thousand_clients_cost_nothing_until_asked() -> None:
    start = time.perf_counter()
    made: Federation = federation("synthetic:0.5,0.5", pool=100_000)
    assert len(made.pool) == 100_000
    client = made.pool[99_999]
    data = made.client(client.id)
    assert time.perf_counter() - start < 2
    assert client.examples == len(data.train)
    assert data.train.x.shape[1] == 60
    assert data.train.x.dtype == torch.float32
    assert data.train.y.dtype == torch.int64


def test_parts_add_up() -> None:
    made = Synthetic(Key(3), 20, valid=0.2)
    for client in made.pool:
        data = made.client(client.id)
        assert len(data.train) == client.examples
        whole = len(data.train) + len(data.valid) + len(data.test)
        assert 50 <= whole <= 1050
        assert len(data.test) == int(0.1 * whole)


def test_alpha_and_beta_say_how_much_clients_differ() -> None:
    def centres(beta: float) -> float:
        made = Synthetic(Key(4), 60, 0.0, beta)
        return float(np.std([made.client(id).train.x.mean() for id in range(60)]))

    assert centres(0.0) < 0.5 * centres(1.0)


def test_labels_are_what_the_clients_own_linear_model_says() -> None:
    """A client's data are linearly separable: logistic regression without noise."""
    data = Synthetic(Key(5), 3, largest=200).client(0)
    x, y = data.train.x.double(), data.train.y
    weight = torch.zeros(61, 10, dtype=torch.double, requires_grad=True)
    inputs = torch.cat([x, torch.ones(len(x), 1, dtype=torch.double)], dim=1)
    optimiser = torch.optim.LBFGS([weight], max_iter=300, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        value = torch.nn.functional.cross_entropy(inputs @ weight, y)
        value.backward()
        return value

    optimiser.step(loss)
    assert ((inputs @ weight).argmax(1) == y).double().mean() > 0.99


def test_the_server_tests_on_clients_that_take_no_part() -> None:
    made = Synthetic(Key(6), 5)
    assert len(made.test) == 2000
    assert made.test_rows(0) is None
    assert int(made.test.y.max()) < made.classes
    assert made.describe()["name"] == "synthetic:1,1"


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"needs two numbers, e\.g\. synthetic:0\.5,0\.5"):
        federation("synthetic:1")
    with pytest.raises(ValueError, match="has a negative number"):
        federation("synthetic:-1,0")
    with pytest.raises(ValueError, match="leave out the partition"):
        federation("synthetic", "iid")
    with pytest.raises(IndexError, match="no client 5"):
        Synthetic(Key(0), 5).client(5)
