from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from gossamer.data import load
from gossamer.data.sources.tiny_imagenet import read_tiny_imagenet

EACH = 3


@pytest.fixture(scope="module")
def tiny(packed: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three training and three validation JPEG files of each of twenty classes."""
    root = tmp_path_factory.mktemp("tiny")
    folder = root / "tiny-imagenet-200"
    with np.load(f"{packed.ROOT}/tiny_imagenet20/tiny_imagenet20.npz", allow_pickle=False) as file:
        content = {name: file[name] for name in file.files}
    names = content["wnids"].tolist()
    lines = []
    for label, name in enumerate(names):
        images = folder / "train" / name / "images"
        images.mkdir(parents=True)
        mine = np.flatnonzero((content["y"] == label) & content["is_train"].astype(bool))[:EACH]
        for number, data in enumerate(packed._jpegs(content, mine)):
            (images / f"{name}_{number}.JPEG").write_bytes(data)
        held = np.flatnonzero((content["y"] == label) & ~content["is_train"].astype(bool))[:EACH]
        (folder / "val" / "images").mkdir(parents=True, exist_ok=True)
        for data in packed._jpegs(content, held):
            file_name = f"val_{len(lines)}.JPEG"
            (folder / "val" / "images" / file_name).write_bytes(data)
            lines.append(f"{file_name}\t{name}\t0\t0\t62\t62")
    (folder / "wnids.txt").write_text("\n".join(names) + "\n")
    (folder / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    return root


def test_pictures_are_read_from_the_official_folders(
    tiny: Path, packed: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOSSAMER_DATA", str(tiny))
    pictures = load("tiny-imagenet")
    assert len(pictures.train) == len(pictures.test) == 20 * EACH
    assert np.bincount(pictures.labels.train).tolist() == [EACH] * 20
    assert np.bincount(pictures.labels.test).tolist() == [EACH] * 20
    expected = packed.load("tiny_imagenet20", "test")
    first = np.flatnonzero(expected["y"] == 4)[:EACH]
    assert np.array_equal(
        pictures.test[np.flatnonzero(pictures.labels.test == 4)], expected["x"][first]
    )


def test_a_class_without_pictures_is_refused(tmp_path: Path) -> None:
    (tmp_path / "wnids.txt").write_text("n01\n")
    with pytest.raises(ValueError, match="n01 has no pictures; unpack the archive again"):
        read_tiny_imagenet(tmp_path)
