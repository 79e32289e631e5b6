from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from gossamer.data import Inputs, Tensors, federation
from gossamer.data.sources.leaf import read_femnist


def write(folder: Path, file: str, users: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """One JSON file as LEAF writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {
            name: {"x": (x.reshape(len(y), -1) / 255).tolist(), "y": y.tolist()}
            for name, (x, y) in users.items()
        },
    }
    (folder / file).write_text(json.dumps(content))


def person(count: int, ink: int, label: int) -> tuple[np.ndarray, np.ndarray]:
    return np.full((count, 28, 28), ink, np.uint8), np.full(count, label)


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "data" / "femnist"
    write(folder / "train", "one.json", {"f02": person(4, 255, 2), "f01": person(3, 7, 1)})
    write(folder / "train", "two.json", {"f03": person(5, 13, 3)})
    write(folder / "test", "one.json", {"f01": person(1, 8, 1), "f09": person(2, 9, 61)})
    monkeypatch.setenv("GOSSAMER_DATA", str(tmp_path / "data"))
    return folder


def test_writers_are_clients(tiny: Path) -> None:
    made = federation("femnist", inputs=Inputs("raw"))
    assert isinstance(made, Tensors)
    assert made.partition == "natural"
    assert [client.examples for client in made.pool] == [3, 4, 5]
    assert made.client(1).train.x.unique().tolist() == [255]
    assert made.client(0).test.x.unique().tolist() == [8]
    assert len(made.client(1).test) == 0
    assert made.client(1).test.x.shape == (0, 1, 28, 28)


def test_writers_without_training_data_stay_in_the_servers_test_set(tiny: Path) -> None:
    made = federation("femnist")
    assert len(made.test) == 3
    assert made.classes == 62


def test_a_writers_set_can_also_be_divided_otherwise(tiny: Path) -> None:
    assert [client.examples for client in federation("femnist", "iid", pool=4).pool] == [3] * 4


def test_every_byte_survives_the_floats_of_json(tmp_path: Path) -> None:
    x = np.arange(784, dtype=np.int64).astype(np.uint8).reshape(1, 28, 28)
    for part in ("train", "test"):
        write(tmp_path / part, "all.json", {"f01": (x, np.asarray([5]))})
    read = read_femnist(tmp_path)
    assert np.array_equal(read.train[np.arange(1)][..., 0], x)


def test_other_json_is_refused(tiny: Path) -> None:
    (tiny / "train" / "one.json").write_text('{"users": ["a"], "user_data": {"a": {}}}')
    with pytest.raises(ValueError, match=r"one\.json is not a LEAF file"):
        read_femnist(tiny)
    for path in (tiny / "train").iterdir():
        path.unlink()
    with pytest.raises(ValueError, match="train has no JSON files"):
        read_femnist(tiny)


def test_real_femnist_in_leafs_layout(
    packed: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = range(12)
    sizes = []
    for part in ("train", "test"):
        content = packed.load("femnist", part)
        users = {}
        for number in chosen:
            mine = content["writer"] == number
            users[content["writers"][number]] = (content["x"][mine], content["y"][mine])
        sizes.append({name: len(y) for name, (_, y) in users.items()})
        write(tmp_path / "femnist" / "data" / part, "all.json", users)
    monkeypatch.setenv("GOSSAMER_DATA", str(tmp_path))
    made = federation("femnist")
    assert [client.examples for client in made.pool] == [sizes[0][n] for n in sorted(sizes[0])]
    assert len(made.test) == sum(sizes[1].values())
    assert abs(float(made.test.x.mean())) < 0.1
    assert abs(float(made.test.x.std()) - 1) < 0.15
