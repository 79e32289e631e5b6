"""Your own data: NumPy archives, and what they share with pictures and tables."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from gossamer.core import Key
from gossamer.data.arrays import Arrays, Labels
from gossamer.data.inputs import Features, Images, Inputs, Ints, Kind, Tokens
from gossamer.data.sources.classes import note_unseen, numbered
from gossamer.data.sources.targets import OTHER, targets

HELD_OUT = 0.2
"""The fraction of the examples that becomes the test set where files name none."""
CHANNELS = (1, 2, 3, 4)
"""How many channels an image may have for its layout to be recognised."""


def read_npz(path: Path, key: Key, inputs: Inputs = Inputs()) -> Arrays:
    """`x, y`, or `x_train, y_train, x_test, y_test`; `group_train, group_test, coarse` may follow.

    Bytes of three or four dimensions are images; other numbers are features. Groups (one number per
    example) make `natural` possible, coarse classes (one number per class) `pachinko`.
    """
    name, content = f"npz:{path}", _archive(path)
    parts = ("x_train", "y_train", "x_test", "y_test")
    scalar = next((field for field, value in content.items() if not value.ndim), None)
    if scalar is not None:
        raise ValueError(
            f"{scalar} in {path} is the single value {content[scalar]}; save arrays with one row "
            f"per example"
        )
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
    coarse = content.get("coarse")
    labels = [content[f"y_{part}"] for part in ("train", "test")]
    if inputs.task in OTHER:
        (train_y, test_y), classes = targets(name, inputs.task, labels)
    else:
        whole = [_whole(part, path) for part in labels]
        (train_y, test_y), classes = numbered(name, *whole, keep=coarse is not None)
    if coarse is not None and len(coarse) < classes:
        raise ValueError(f"{path} has {len(coarse)} coarse classes for {classes} classes")
    groups = None
    if {"group_train", "group_test"} <= content.keys():
        groups = (content["group_train"].astype(np.int64), content["group_test"].astype(np.int64))
    facts = Labels(
        train_y,
        test_y,
        classes,
        groups,
        None if coarse is None else coarse.astype(np.int64),
        inputs.task or "classification",
    )
    return arrays_of(name, content["x_train"], content["x_test"], facts, inputs)


def arrays_of(
    name: str, train: np.ndarray, test: np.ndarray, labels: Labels, inputs: Inputs = Inputs()
) -> Arrays:
    """Images where the rows are bytes in two or three dimensions, features otherwise."""
    kind: Kind
    if train.dtype.kind not in "biuf":
        raise ValueError(f"examples of {name} are {train.dtype}; give numbers")
    if not len(train):
        raise ValueError(f"{name} has no training examples; check its files")
    if train.shape[1:] != test.shape[1:]:
        raise ValueError(
            f"{name} has training examples of shape {train.shape[1:]} and test examples of shape "
            f"{test.shape[1:]}; give both the same"
        )
    if labels.task == "language":
        return _tokens(name, train, test, labels)
    if train.ndim == 1:
        train, test = train[:, None], test[:, None]
    if train.dtype == np.uint8 and train.ndim in (3, 4):
        train, test = (_channels_last(name, x, inputs.layout) for x in (train, test))
        kind = images_of(train)
    else:
        train, test = (_channels_first(x, inputs.layout) for x in (train, test))
        kind = Features.of(_finite(name, train))
        _finite(name, test)
    if labels.task == "classification":
        note_unseen(name, labels.train, labels.test)
    return Arrays(name, kind, train, test, labels)


def _tokens(name: str, train: np.ndarray, test: np.ndarray, labels: Labels) -> Arrays:
    """Rows of token numbers."""
    if train.dtype.kind not in "iu" or train.shape != labels.train.shape or train.min() < 0:
        raise ValueError(
            f"{name} has examples of {train.dtype} and shape {train.shape} for labels of shape "
            f"{labels.train.shape}; language needs as many tokens, numbered from 0, in both"
        )
    size = 1 + max(int(train.max()), int(test.max(initial=0)), labels.classes - 1)
    kind = Tokens(train.shape[1], tuple(map(str, range(size))))
    return Arrays(name, kind, train, test, replace(labels, classes=size))


def layout_of(shape: tuple[int, ...]) -> str:
    """`nhwc` or `nchw` if a shape of four dimensions can only be that, else an empty text.

    Channels are one to four. Where both the first and the last dimension may be, the other two are
    the sides of a square.
    """
    first, middle, last = shape[1:]
    fits = {
        "nchw": first in CHANNELS and (last not in CHANNELS or middle == last != first),
        "nhwc": last in CHANNELS and (first not in CHANNELS or first == middle != last),
    }
    able = [name for name, fit in fits.items() if fit]
    return able[0] if len(able) == 1 else ""


def _channels_last(name: str, images: np.ndarray, asked: str) -> np.ndarray:
    """Bytes of images as (rows, height, width, channels)."""
    if images.ndim == 3:
        return images[..., None]
    layout = layout_of(images.shape) if asked == "auto" else asked
    if not layout:
        raise ValueError(
            f"{name} has images of shape {images.shape[1:]}, and the channels may be the first or "
            f"the last dimension; say `layout='nhwc'` if they are the last, `layout='nchw'` if not"
        )
    return np.ascontiguousarray(images.transpose(0, 2, 3, 1)) if layout == "nchw" else images


def _channels_first(values: np.ndarray, asked: str) -> np.ndarray:
    """Features as they are, but images with channels last are turned to channels first."""
    if values.ndim == 4 and (layout_of(values.shape) if asked == "auto" else asked) == "nhwc":
        return np.ascontiguousarray(values.transpose(0, 3, 1, 2))
    return values


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


def held_out(count: int, key: Key) -> tuple[Ints, Ints]:
    """Rows to train on and rows to test on, where a data set does not say."""
    order = key.fold("held-out").numpy().permutation(count)
    held = int(count * HELD_OUT)
    return np.sort(order[held:]), np.sort(order[:held])


def _whole(y: np.ndarray, path: Path) -> Ints:
    if y.ndim != 1 or y.dtype.kind not in "iub":
        raise ValueError(
            f"labels in {path} are {y.dtype} of shape {y.shape}; give whole numbers, one an "
            f"example, or say `task='regression'`, 'multilabel' or 'language'"
        )
    if y.dtype == np.uint64 and len(y) and y.max() >= 2**63:
        raise ValueError(f"labels in {path} go up to {y.max()}; give numbers of classes")
    return y.astype(np.int64)


def _archive(path: Path) -> dict[str, np.ndarray]:
    """All arrays of an .npz file; nothing in it is unpickled."""
    must_be_file(path)
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


def must_be_file(path: Path) -> None:
    must_exist(path)
    if path.is_dir():
        raise FileNotFoundError(f"{path} is a folder; give the path of a file after the colon")


def must_exist(path: Path) -> None:
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist; give the path of your data after the colon"
        )
