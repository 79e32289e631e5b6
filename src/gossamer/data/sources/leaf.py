"""The JSON files of LEAF, and FEMNIST in them: characters by their writers.

Caldas et al.: LEAF, A Benchmark for Federated Settings, 2018, https://arxiv.org/abs/1812.01097.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np

from gossamer.data.arrays import Arrays, Labels
from gossamer.data.inputs import Bytes, Images, Ints
from gossamer.data.sources.source import Source

T = TypeVar("T")


def users(folder: Path, convert: Callable[[dict[str, list[object]]], T]) -> Iterator[tuple[str, T]]:
    """Every user of every JSON file of a folder, converted at once: the text form is large."""
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise ValueError(
            f"{folder} has no JSON files; put the output of LEAF's preprocess.sh there"
        )
    for path in paths:
        try:
            content = json.loads(path.read_bytes())
            names, data = content["users"], content["user_data"]
            yield from ((name, convert(data[name])) for name in names)
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(
                f"{path} is not a LEAF file with users and user_data x and y ({error!r}); "
                f"make it again with LEAF's preprocess.sh"
            ) from None


def number(names: list[str]) -> dict[str, int]:
    """Group numbers in alphabetical order, whatever files the names came from."""
    return {name: place for place, name in enumerate(sorted(set(names)))}


def _pictures(data: dict[str, list[object]]) -> tuple[Bytes, Ints]:
    x, y = np.asarray(data["x"], np.float32), np.asarray(data["y"], np.int64)
    return np.rint(x * 255).astype(np.uint8).reshape(-1, 28, 28, 1), y


def read_femnist(folder: Path) -> Arrays:
    """62 characters, 28 x 28, dark ink on white as LEAF stores them; groups are writers."""
    parts = {part: list(users(folder / part, _pictures)) for part in ("train", "test")}
    groups = number([name for part in parts.values() for name, _ in part])
    images, labels, owners = {}, {}, {}
    for part, content in parts.items():
        images[part] = np.concatenate([x for _, (x, _) in content])
        labels[part] = np.concatenate([y for _, (_, y) in content])
        owners[part] = np.concatenate([np.full(len(y), groups[name]) for name, (_, y) in content])
    facts = Labels(labels["train"], labels["test"], 62, (owners["train"], owners["test"]))
    kind = Images((28, 28, 1), (0.9640,), (0.1590,))
    return Arrays("femnist", kind, images["train"], images["test"], facts)


def recipe(name: str, options: str) -> str:
    """LEAF's own commands, for a set that has no prepared download."""
    return (
        f"make it with `git clone https://github.com/TalwalkarLab/leaf && cd leaf/data/{name} && "
        f"./preprocess.sh {options}`"
    )


FEMNIST = Source(
    name="femnist",
    title="FEMNIST (LEAF)",
    classes=62,
    train=0,
    test=0,
    shape=(1, 28, 28),
    licence="public domain (NIST SD 19); LEAF is BSD-2-Clause",
    read=read_femnist,
    files=("train", "test"),
    folders=("femnist/data", "leaf/data/femnist/data"),
    recipe=recipe("femnist", "-s niid --sf 1.0 -k 0 -t sample --tf 0.9"),
    partition="natural",
)
