from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gossamer.data import federation, picture


@pytest.mark.parametrize("pool", [10, 100])
def test_a_png_is_drawn_with_the_colours_of_the_classes(pool: int, tmp_path: Path) -> None:
    made = federation("fmnist-mini", "shards:2", pool=pool)
    path = picture(made, tmp_path / "split.png")
    with Image.open(path) as image:
        assert image.size == (1600, 896)
        pixels = np.asarray(image.convert("RGB")).reshape(-1, 3)
    for colour in ((0x3B, 0x6F, 0xB6), (0x3F, 0xB0, 0xBD)):  # the first and the last class
        assert (pixels == colour).all(axis=1).sum() > 1000


def test_an_svg_is_drawn_from_a_table_and_says_the_sizes(tmp_path: Path) -> None:
    path = picture(np.eye(5, 30, dtype=np.int64) * 12, tmp_path / "split.svg", title="twelve each")
    text = path.read_text()
    assert text.lstrip().startswith("<?xml")
    assert "twelve each" in text


def test_many_lazy_clients_are_drawn_by_some_of_them(tmp_path: Path) -> None:
    path = picture(federation("synthetic", pool=20_000), tmp_path / "split.png")
    assert path.stat().st_size > 10_000


def test_no_global_state_of_pyplot_is_touched(tmp_path: Path) -> None:
    loaded = "matplotlib.pyplot" in sys.modules
    picture(np.ones((3, 3), np.int64), tmp_path / "split.png")
    assert ("matplotlib.pyplot" in sys.modules) == loaded


def test_what_cannot_be_drawn_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"end it with \.png, \.svg or \.pdf"):
        picture(np.ones((3, 3), np.int64), tmp_path / "split.jpeg2")
    with pytest.raises(ValueError, match="give clients by classes"):
        picture(np.ones(3, np.int64), tmp_path / "split.png")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"needs matplotlib; install gossamer\[plot\]"):
        picture(np.ones((3, 3), np.int64), tmp_path / "split.png")
