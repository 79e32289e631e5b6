"""Federations of arrays, torch data sets, clients and tables of Hugging Face."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, TensorDataset

import gossamer as gs
from gossamer.data import DataWarning, Inputs

X = np.arange(120, dtype=np.float32).reshape(40, 3)
Y = np.arange(40) % 2


def test_arrays_are_divided_as_asked() -> None:
    made = gs.Federation.from_arrays(X, Y, partition="dirichlet:1", pool=4, valid=0.2, seed=2)
    assert len(made.pool) == 4 and made.partition == "dirichlet:1"
    assert sum(len(made.client(id).valid) for id in range(4)) > 0
    assert len(made.test) == 8
    whole = gs.Federation.from_arrays(torch.from_numpy(X), Y.tolist(), pool=1, test=(X[:5], Y[:5]))
    assert len(whole.client(0).train) == 40 and len(whole.test) == 5
    natural = gs.Federation.from_arrays(X, Y, groups=np.arange(40) % 5, partition="natural")
    assert len(natural.pool) == 5


def test_bytes_are_images_and_labels_are_checked() -> None:
    images = np.zeros((40, 3, 8, 8), np.uint8)
    assert gs.Federation.from_arrays(images, Y, pool=2).shape == (3, 8, 8)
    with pytest.warns(DataWarning, match="numbered 0 to 1"):
        assert gs.Federation.from_arrays(X, Y * 500, pool=2).classes == 2
    with pytest.raises(ValueError, match="float64 of shape"):
        gs.Federation.from_arrays(X, Y / 2, pool=2)
    with pytest.raises(ValueError, match="40 rows of inputs and 39"):
        gs.Federation.from_arrays(X, Y[:-1], pool=2)
    with pytest.raises(ValueError, match="two if there are test data"):
        gs.Federation.from_arrays(X, Y, test=(X, Y), groups=Y)


class Pictures(Dataset[tuple[Image.Image, int]]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return Image.new("RGB", (6, 4), (index, 0, 0)), index % 2


def test_torch_data_sets_are_read_once_and_as_they_are() -> None:
    tokens = torch.arange(60).reshape(20, 3)
    made = gs.Federation.from_torch(TensorDataset(tokens, torch.arange(20) % 2), pool=2)
    assert made.client(0).train.x.dtype == torch.int64 and made.scale == "raw"
    pictures = gs.Federation.from_torch(Pictures(), pool=2)
    assert pictures.shape == (3, 4, 6) and pictures.scale == "normalised"
    values = torch.rand(20, 1, 5, 5)
    pairs = TensorDataset(values, torch.arange(20) % 2)
    given = gs.Federation.from_torch(pairs, pool=1, test=pairs)
    assert torch.equal(given.test.x, values)
    with pytest.raises(ValueError, match="reach the model as they are"):
        gs.Federation.from_torch(pairs, pool=1, inputs=Inputs("unit"))


def test_clients_keep_their_own_data() -> None:
    clients = [
        (X[:10], Y[:10]),
        (X[10:16], Y[10:16]),
        TensorDataset(torch.tensor(X[16:]), torch.tensor(Y[16:])),
    ]
    made = gs.Federation.from_clients(clients)
    assert [each.examples for each in made.pool] == [8, 5, 20]
    assert [len(made.client(id).test) for id in range(3)] == [2, 1, 4]
    rows = {tuple(row) for row in made.client(1).train.x.tolist()}
    assert rows <= {tuple(row) for row in X[10:16].tolist()}
    shared = gs.Federation.from_clients(clients, test=(X, Y), valid=0.5)
    assert [each.examples for each in shared.pool] == [5, 3, 12] and len(shared.test) == 40
    assert all(not len(shared.client(id).test) for id in range(3))


def test_clients_may_have_parts() -> None:
    def client(first: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        cuts = {"train": slice(0, 6), "valid": slice(6, 8), "test": slice(8, 10)}
        return {part: (X[first:][cut], Y[first:][cut]) for part, cut in cuts.items()}

    made = gs.Federation.from_clients([client(0), client(10), client(20)])
    for id, first in enumerate((0, 10, 20)):
        own = made.client(id)
        assert own.train.x.tolist() == X[first : first + 6].tolist()
        assert own.valid.x.tolist() == X[first + 6 : first + 8].tolist()
        assert own.test.y.tolist() == Y[first + 8 : first + 10].tolist()
    assert len(made.test) == 6
    with pytest.raises(ValueError, match="1 of 2 clients have test data"):
        gs.Federation.from_clients([client(0), (X, Y)])
    with pytest.raises(ValueError, match="server or of the clients, not both"):
        gs.Federation.from_clients([client(0)], test=(X, Y))
    with pytest.raises(ValueError, match="there are no clients"):
        gs.Federation.from_clients([])


class Columns:
    def __init__(self, **columns: list[object]) -> None:
        self.columns = columns

    @property
    def column_names(self) -> list[str]:
        return list(self.columns)

    def __getitem__(self, column: str) -> list[object]:
        return self.columns[column]


def test_tables_of_hugging_face_are_divided() -> None:
    table = Columns(values=X.tolist(), label=Y.tolist(), who=["a", "b"] * 20)
    made = gs.Federation.from_hugging_face(table, "values", group="who", partition="natural")
    assert len(made.pool) == 2 and made.classes == 2


def test_a_federation_needs_no_maker_of_its_own() -> None:
    made = gs.Federation.from_arrays(X, Y, pool=2)
    assert not hasattr(made, "from_arrays")
    with pytest.raises(AttributeError, match="no 'from_nothing'"):
        _ = gs.Federation.from_nothing  # type: ignore[attr-defined]
    assert "from_torch" in dir(gs.Federation)
