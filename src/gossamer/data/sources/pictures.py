"""Images in one folder per class."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np

from gossamer.core import Key
from gossamer.data.arrays import Arrays, Labels
from gossamer.data.inputs import Ints
from gossamer.data.sources.files import _must_exist, arrays_of, held_out

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")


def read_folder(path: Path, key: Key) -> Arrays:
    """`train/CLASS/*.png` and `test/CLASS/*.png`, or `CLASS/*.png`, of which a part is held out.

    All pictures become the size of the first one; colour unless every picture is grey.
    """
    _must_exist(path)
    if (path / "train").is_dir():
        tested = next((part for part in ("test", "val", "valid") if (path / part).is_dir()), None)
        names = _classes(path / "train")
        train, y = _pictures(path / "train", names)
        test, test_y = _pictures(path / (tested or "test"), names)
        if tested is None:
            rows, held = held_out(len(y), key)
            train, test = [train[i] for i in rows], [train[i] for i in held]
            y, test_y = y[rows], y[held]
    else:
        names = _classes(path)
        every, all_y = _pictures(path, names)
        rows, held = held_out(len(all_y), key)
        train, test = [every[i] for i in rows], [every[i] for i in held]
        y, test_y = all_y[rows], all_y[held]
    if not train:
        raise ValueError(
            f"{path} has no pictures ({', '.join(PICTURES)}); put some into its folders"
        )
    images = open_pictures([*train, *test])
    labels = Labels(y, test_y, len(names))
    return arrays_of(f"folder:{path}", images[: len(y)], images[len(y) :], labels)


def open_pictures(paths: list[Path], size: tuple[int, int] | None = None) -> np.ndarray:
    """Bytes of (pictures, height, width, 1 or 3), all of the size of the first."""
    image = pillow()
    images, grey = [], True
    for path in paths:
        with image.open(path) as picture:
            size = size or picture.size
            grey = grey and picture.mode in ("1", "L", "I;16", "LA")
            fitted = picture.convert("RGB")
            images.append(np.asarray(fitted if fitted.size == size else fitted.resize(size)))
    stacked = np.stack(images)
    return stacked[..., :1] if grey else stacked


def pillow() -> ModuleType:
    """Pillow's `Image`, which only pictures need."""
    try:
        from PIL import Image
    except ImportError:
        raise ImportError("reading pictures needs Pillow; install gossamer[data]") from None
    return Image


def _classes(folder: Path) -> list[str]:
    names = sorted(child.name for child in folder.iterdir() if child.is_dir())
    if not names:
        raise ValueError(f"{folder} has no folders; put the pictures of each class into one folder")
    return names


def _pictures(folder: Path, names: list[str]) -> tuple[list[Path], Ints]:
    paths, labels = [], []
    for label, name in enumerate(names):
        inside = sorted((folder / name).rglob("*")) if (folder / name).is_dir() else []
        chosen = [path for path in inside if path.suffix.lower() in PICTURES]
        paths += chosen
        labels += [label] * len(chosen)
    return paths, np.asarray(labels, np.int64)
