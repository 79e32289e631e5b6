"""Your own data: NumPy archives, folders of pictures, tables of numbers."""

from __future__ import annotations

import zipfile
from math import isnan
from pathlib import Path

import numpy as np

from gossamer.core import Key
from gossamer.data.arrays import Arrays, Labels
from gossamer.data.inputs import Features, Images, Ints, Kind

HELD_OUT = 0.2
"""The fraction of the examples that becomes the test set where files name none."""
LABELS = ("label", "y")
"""How a column of labels may be called."""


def read_npz(path: Path, key: Key) -> Arrays:
    """`x, y`, or `x_train, y_train, x_test, y_test`; `group_train, group_test, coarse` may follow.

    Bytes of three or four dimensions are images (rows, height, width, channels); other numbers are
    features. Groups (one number per example) make `natural` possible, coarse classes (one number
    per class) `pachinko`.
    """
    content = _archive(path)
    parts = ("x_train", "y_train", "x_test", "y_test")
    if {"x", "y"} <= content.keys():
        for field in content.keys() & {"y", "group"}:
            if len(content[field]) != len(content["x"]):
                raise ValueError(
                    f"{path} has {len(content['x'])} rows of x but {len(content[field])} of "
                    f"{field}; give every example one"
                )
        chosen = held_out(len(content["y"]), key)
        content |= {
            f"{field}_{part}": content[field][rows]
            for field in ("x", "y", "group")
            if field in content
            for part, rows in zip(("train", "test"), chosen, strict=True)
        }
    elif not set(parts) <= content.keys():
        raise ValueError(
            f"{path} has {', '.join(content) or 'nothing'}; save x and y, or {', '.join(parts)}"
        )
    train_y, test_y = (_whole(content[f"y_{part}"], path) for part in ("train", "test"))
    coarse = content.get("coarse")
    classes = 1 + int(max(train_y.max(initial=0), test_y.max(initial=0)))
    groups = None
    if {"group_train", "group_test"} <= content.keys():
        groups = (content["group_train"].astype(np.int64), content["group_test"].astype(np.int64))
    labels = Labels(
        train_y, test_y, classes, groups, None if coarse is None else coarse.astype(np.int64)
    )
    return arrays_of(f"npz:{path}", content["x_train"], content["x_test"], labels)


def arrays_of(name: str, train: np.ndarray, test: np.ndarray, labels: Labels) -> Arrays:
    """Images where the rows are bytes in two or three dimensions, features otherwise."""
    kind: Kind
    if train.dtype.kind not in "biuf":
        raise ValueError(f"examples of {name} are {train.dtype}; give numbers")
    if not len(train):
        raise ValueError(f"{name} has no training examples; check its files")
    if train.dtype == np.uint8 and train.ndim in (3, 4):
        if train.ndim == 3:
            train, test = train[..., None], test[..., None]
        kind = images_of(train)
    else:
        kind = Features.of(_finite(name, train))
        _finite(name, test)
    return Arrays(name, kind, train, test, labels)


def images_of(train: np.ndarray) -> Images:
    """Images with the mean and deviation of the training set, per channel."""
    # Integer counts of each byte give exact moments without a float copy of all images.
    counts = np.stack(
        [np.bincount(part.ravel(), minlength=256) for part in np.moveaxis(train, 3, 0)]
    )
    shares, values = counts / counts.sum(axis=1, keepdims=True), np.arange(256) / 255
    mean = shares @ values
    std = np.sqrt(np.maximum(shares @ values**2 - mean**2, 0))
    std = np.where(std > 0, std, 1.0)
    height, width, channels = train.shape[1:]
    return Images(
        (height, width, channels), tuple(mean.tolist()), tuple(std.tolist()), flips=channels == 3
    )


def read_csv(path: Path, key: Key) -> Arrays:
    """Numeric columns, a header or none; the label is the column `label` or `y`, else the last."""
    _must_be_file(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text in UTF-8 ({error}); save it as such") from None
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise ValueError(f"{path} is empty; give rows of numbers and a label")
    names = [cell.strip().lower() for cell in lines[0].split(",")]
    header = names[-1] in LABELS or not all(_is_number(cell) for cell in names[:-1])
    rows = [line.split(",") for line in lines[header:]]
    ragged = next(
        (number for number, row in enumerate(rows, 1 + header) if len(row) != len(names)), None
    )
    if ragged is not None:
        raise ValueError(
            f"line {ragged} of {path} has {len(rows[ragged - 1 - header])} columns where the first "
            f"has {len(names)}; give every line as many"
        )
    column = next((names.index(n) for n in LABELS if header and n in names), len(names) - 1)
    words = [row.pop(column).strip() for row in rows]
    try:
        x = np.asarray(rows, np.float32)
    except ValueError as error:
        raise ValueError(f"{path} has a feature that is no number ({error})") from None
    known = sorted(set(words), key=_rank)
    y = np.asarray([known.index(word) for word in words], np.int64)
    train, test = held_out(len(y), key)
    labels = Labels(y[train], y[test], len(known))
    return arrays_of(f"csv:{path}", x[train], x[test], labels)


def held_out(count: int, key: Key) -> tuple[Ints, Ints]:
    """Rows to train on and rows to test on, where a data set does not say."""
    order = key.fold("held-out").numpy().permutation(count)
    held = int(count * HELD_OUT)
    return np.sort(order[held:]), np.sort(order[:held])


def _whole(y: np.ndarray, path: Path) -> Ints:
    if y.ndim != 1 or y.dtype.kind not in "iub":
        raise ValueError(
            f"labels in {path} are {y.dtype} of shape {y.shape}; give whole numbers, one an example"
        )
    return y.astype(np.int64)


def _rank(label: str) -> tuple[int, float, str]:
    """Labels in one order on every machine: numbers by size, before texts."""
    if _is_number(label) and not isnan(value := float(label)):
        return 0, value, label
    return 1, 0.0, label


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _archive(path: Path) -> dict[str, np.ndarray]:
    """All arrays of an .npz file; nothing in it is unpickled."""
    _must_be_file(path)
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
        reason = str(error).partition(". ")[0]
        raise ValueError(
            f"{path} cannot be read ({reason}); save plain arrays with np.savez"
        ) from None


def _finite(name: str, values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32)
    if not np.isfinite(narrow).all():
        raise ValueError(f"{name} has values that are not finite in float32; remove or scale them")
    return values


def _must_be_file(path: Path) -> None:
    _must_exist(path)
    if path.is_dir():
        raise FileNotFoundError(f"{path} is a folder; give the path of a file after the colon")


def _must_exist(path: Path) -> None:
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist; give the path of your data after the colon"
        )
