"""Tiny-ImageNet: 200 classes of 64 x 64 JPEG pictures in the folders of its archive."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from gossamer.data.arrays import Arrays, Labels
from gossamer.data.inputs import Bytes, Images
from gossamer.data.sources.pictures import pillow
from gossamer.data.sources.source import Remote, Source


def _decode(paths: list[Path]) -> Bytes:
    """All pictures as (rows, 64, 64, 3); decoding leaves Python free, so threads help."""
    image = pillow()
    rows = np.empty((len(paths), 64, 64, 3), np.uint8)

    def one(row: int) -> None:
        with image.open(paths[row]) as picture:
            rows[row] = np.asarray(picture.convert("RGB"))

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for _ in threads.map(one, range(len(paths))):
            pass
    return rows


def read_tiny_imagenet(folder: Path) -> Arrays:
    """Classes in the order of wnids.txt; the test set is the official validation set."""
    names = (folder / "wnids.txt").read_text(encoding="utf-8").split()
    train = [sorted((folder / "train" / name / "images").glob("*.JPEG")) for name in names]
    empty = next((name for name, paths in zip(names, train, strict=True) if not paths), None)
    if empty is not None:
        raise ValueError(f"{folder}/train/{empty} has no pictures; unpack the archive again")
    annotations = (folder / "val" / "val_annotations.txt").read_text(encoding="utf-8")
    number = {name: place for place, name in enumerate(names)}
    held = [line.split("\t")[:2] for line in annotations.splitlines() if line.strip()]
    y = np.repeat(np.arange(len(names)), [len(paths) for paths in train])
    test_y = np.asarray([number[name] for _, name in held], np.int64)
    kind = Images((64, 64, 3), (0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821), flips=True)
    return Arrays(
        "tiny-imagenet",
        kind,
        _decode([path for paths in train for path in paths]),
        _decode([folder / "val" / "images" / file for file, _ in held]),
        Labels(y, test_y, len(names)),
    )


TINY_IMAGENET = Source(
    name="tiny-imagenet",
    title="Tiny-ImageNet",
    classes=200,
    train=100_000,
    test=10_000,
    shape=(3, 64, 64),
    licence="ImageNet terms: non-commercial research",
    read=read_tiny_imagenet,
    files=("wnids.txt", "train", "val/val_annotations.txt"),
    folders=("tiny-imagenet/tiny-imagenet-200", "tiny-imagenet-200"),
    remotes=(
        Remote(
            "tiny-imagenet-200.zip",
            "90528d7ca1a48142e341f4ef8d21d0de",
            ("http://cs231n.stanford.edu/tiny-imagenet-200.zip",),
            unpack=True,
        ),
    ),
)
