from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from PIL import Image

from gossamer.data import Features, Images, Inputs, Tokens, federation, hugging_face


class Table:
    """Behaves as `datasets.Dataset` does where it is used: columns by name."""

    def __init__(self, **columns: Sequence[object]) -> None:
        self.columns = columns

    @property
    def column_names(self) -> list[str]:
        return list(self.columns)

    def __getitem__(self, column: str) -> Sequence[object]:
        return self.columns[column]


def pictures(count: int) -> Table:
    images = [Image.new("RGB", (4, 3), (number, 0, 0)) for number in range(count)]
    return Table(image=images, label=[number % 2 for number in range(count)])


def test_pictures_of_two_splits() -> None:
    arrays = hugging_face({"train": pictures(10), "test": pictures(4)})
    assert isinstance(arrays.kind, Images)
    made = federation(arrays, pool=2, inputs=Inputs("raw"))
    assert made.test.x.shape == (4, 3, 3, 4)
    assert made.test.x[:, 0, 0, 0].tolist() == [0, 1, 2, 3]


def test_a_lone_table_is_split_and_groups_become_clients() -> None:
    table = Table(
        features=[[float(number), 1.0] for number in range(60)],
        label=["b" if number % 2 else "a" for number in range(60)],
        user=[f"u{number % 4}" for number in range(60)],
    )
    arrays = hugging_face(table, group="user")
    assert isinstance(arrays.kind, Features)
    assert len(arrays.train) == 48
    assert len(federation(arrays).pool) == 4
    x = arrays.train[np.arange(48)][:, 0]
    assert np.array_equal(x % 2, arrays.labels.train)


def test_text_becomes_word_numbers() -> None:
    table = Table(text=["good film", "bad film"] * 5, label=[1, 0] * 5)
    arrays = hugging_face(table)
    assert isinstance(arrays.kind, Tokens)
    assert federation(arrays, pool=2).client(0).train.x.shape == (4, 64)


def test_missing_names_are_named() -> None:
    with pytest.raises(KeyError, match=r"no split 'test'; this DatasetDict has train, name them"):
        hugging_face({"train": pictures(3)})
    with pytest.raises(KeyError, match=r"no column 'target'; there are image, label"):
        hugging_face(pictures(3), y="target")


def test_pictures_of_different_sizes_are_refused() -> None:
    table = Table(image=[np.zeros((2, 2)), np.zeros((3, 2))] * 5, label=[0] * 10)
    with pytest.raises(ValueError, match="map them to one size first"):
        hugging_face(table)
