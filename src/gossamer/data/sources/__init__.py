"""Data sets by name and by format, read from the files their authors publish."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gossamer.core import Key
from gossamer.data.arrays import Arrays
from gossamer.data.inputs import Inputs
from gossamer.data.sources.cifar import CIFAR10, CIFAR100
from gossamer.data.sources.files import read_npz
from gossamer.data.sources.hub import read_hub
from gossamer.data.sources.hugging_face import hugging_face
from gossamer.data.sources.idx import FMNIST, MNIST
from gossamer.data.sources.leaf import FEMNIST
from gossamer.data.sources.mini import FMNIST_MINI
from gossamer.data.sources.pictures import read_folder
from gossamer.data.sources.shakespeare import SHAKESPEARE
from gossamer.data.sources.source import Remote, Source
from gossamer.data.sources.sst2 import SST2
from gossamer.data.sources.tables import read_csv
from gossamer.data.sources.tiny_imagenet import TINY_IMAGENET

SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        FMNIST_MINI,
        FMNIST,
        MNIST,
        CIFAR10,
        CIFAR100,
        FEMNIST,
        TINY_IMAGENET,
        SHAKESPEARE,
        SST2,
    )
}

FORMATS: dict[str, Callable[[Path, Key, Inputs], Arrays]] = {
    "npz": read_npz,
    "folder": read_folder,
    "csv": read_csv,
    "hf": read_hub,
}

__all__ = ["FORMATS", "SOURCES", "Remote", "Source", "hugging_face"]
