"""Images in one folder per class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np

from gossamer.core import Key
from gossamer.data.arrays import Arrays, Labels
from gossamer.data.inputs import Inputs, Ints
from gossamer.data.sources.files import arrays_of, held_out, must_exist

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")


def read_folder(path: Path, key: Key, inputs: Inputs = Inputs()) -> Arrays:
    """`train/CLASS/*.png` and `test/CLASS/*.png`, or `CLASS/*.png`, of which a part is held out.

    All pictures must be of one size, or are resized to `inputs.size`; they are in colour unless
    every picture is grey.
    """
    must_exist(path)
    if (path / "train").is_dir():
        tested = next((part for part in ("test", "val", "valid") if (path / part).is_dir()), None)
        names = _classes(path / "train")
        train, y = _pictures(path / "train", names)
        test, test_y = _pictures(path / (tested or "test"), names)
        if tested is not None:
            _no_other_class(path, tested, names)
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
    every_path = [*train, *test]
    images = open_pictures(every_path, inputs.width_and_height or _one_size(path, every_path))
    labels = Labels(y, test_y, len(names))
    known = replace(inputs, layout="nhwc")
    return arrays_of(f"folder:{path}", images[: len(y)], images[len(y) :], labels, known)


def _one_size(folder: Path, paths: Sequence[Path]) -> tuple[int, int]:
    """The size that all pictures have."""
    sizes = Counter(_sizes(paths)).most_common()
    if len(sizes) > 1:
        usual = "x".join(map(str, sizes[0][0]))
        shown = ", ".join(f"{w}x{h} ({count:,})" for (w, h), count in sizes[:3])
        more = f" and {len(sizes) - 3} more" if len(sizes) > 3 else ""
        raise ValueError(
            f"pictures in {folder} have {len(sizes)} sizes: {shown}{more}; resize them all with "
            f"`size={usual!r}` or another WIDTHxHEIGHT"
        )
    return sizes[0][0]


def _sizes(paths: Sequence[Path]) -> Iterator[tuple[int, int]]:
    """Width and height of every picture, from its first bytes."""
    image = pillow()
    for path in paths:
        with image.open(path) as picture:
            yield picture.size


def open_pictures(paths: Sequence[Path], size: tuple[int, int] | None = None) -> np.ndarray:
    """Bytes of (pictures, height, width, 1 or 3), all of one size: by default that of the first."""
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


def _no_other_class(path: Path, tested: str, names: Sequence[str]) -> None:
    """Raises ValueError if there are test pictures of a class that has no folder in train."""
    others = sorted({child.name for child in (path / tested).iterdir() if child.is_dir()})
    others = [name for name in others if name not in names]
    found, _ = _pictures(path / tested, others)
    if found:
        raise ValueError(
            f"{path / tested} has classes that {path / 'train'} lacks: {', '.join(others)}; "
            f"remove their folders, or add training pictures"
        )


def _pictures(folder: Path, names: Sequence[str]) -> tuple[list[Path], Ints]:
    paths, labels = [], []
    for label, name in enumerate(names):
        inside = sorted((folder / name).rglob("*")) if (folder / name).is_dir() else []
        chosen = [path for path in inside if path.suffix.lower() in PICTURES]
        paths += chosen
        labels += [label] * len(chosen)
    return paths, np.asarray(labels, np.int64)
