from __future__ import annotations

import runpy
import time
from pathlib import Path

import numpy as np

from gossamer.data import load
from gossamer.data.sources.mini import FILE, encode

ROOT = Path(__file__).resolve().parents[3]


def test_it_is_balanced_small_and_quick() -> None:
    start = time.perf_counter()
    clothes = load("fmnist-mini")
    assert time.perf_counter() - start < 5  # about 0.4 s on a quiet machine
    assert np.bincount(clothes.labels.train).tolist() == [1000] * 10
    assert np.bincount(clothes.labels.test).tolist() == [200] * 10
    assert FILE.stat().st_size < 4_600_000


def test_its_licence_is_beside_it() -> None:
    text = (FILE.parent / "LICENSE-fashion-mnist").read_text()
    assert "MIT" in text
    assert "Copyright (c) 2017 Zalando SE, https://tech.zalando.com" in text


def test_its_images_are_those_of_fashion_mnist(fashion: Path) -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "make_fmnist_mini.py"))
    content = np.frombuffer(tool["build"](fashion), np.uint8)
    clothes = load("fmnist-mini")
    stored = [clothes.train[np.arange(10_000)], clothes.test[np.arange(2_000)]]
    assert np.array_equal(content, np.concatenate(stored).ravel())


def test_encoding_is_lossless_and_deterministic() -> None:
    import lzma

    some = load("fmnist-mini").train[np.arange(50)]
    assert lzma.decompress(encode(some)) == some.tobytes()
    assert encode(some) == encode(some)
