"""Rebuilds the embedded slice of Fashion-MNIST from the official files, the same bytes every time.

python tools/make_fmnist_mini.py FOLDER        # the folder with the four official IDX files
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np

from gossamer.data.sources.idx import read_fmnist
from gossamer.data.sources.mini import FILE, SHA256, TEST, TRAIN, choose, encode


def build(folder: Path) -> bytes:
    """The decoded content of the embedded file: training images, then test images."""
    whole = read_fmnist(folder)
    every = np.arange
    train, test = whole.train[every(60_000)], whole.test[every(10_000)]
    chosen = (choose(train, whole.labels.train, TRAIN), choose(test, whole.labels.test, TEST))
    return np.concatenate(chosen).tobytes()


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "/usr/share/datasets/fashion-mnist")
    content = build(folder)
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_bytes(encode(np.frombuffer(content, np.uint8)))
    found = hashlib.sha256(content).hexdigest()
    print(f"{FILE}: {FILE.stat().st_size:,} bytes, content sha256 {found}")
    if found != SHA256:
        sys.exit(f"mini.SHA256 is {SHA256}; set it to {found}")


if __name__ == "__main__":
    main()
