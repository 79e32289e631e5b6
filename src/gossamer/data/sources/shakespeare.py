"""Shakespeare's plays by speaker: the next character after 80 others, as in LEAF."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gossamer.data.arrays import Arrays, Labels
from gossamer.data.inputs import Bytes, Ints, Tokens, Windows
from gossamer.data.sources.leaf import number, recipe, users
from gossamer.data.sources.source import Source

LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
LENGTH = 80
# LEAF's text has no other characters; one that has is read as a space.
_NUMBERS = np.full(256, LETTERS.index(" "), np.uint8)
_NUMBERS[[ord(letter) for letter in LETTERS]] = np.arange(len(LETTERS))


@dataclass(frozen=True)
class Speech:
    """What one speaker says, as numbers, and where its windows begin."""

    text: Bytes
    starts: Ints


def encode(text: str) -> Bytes:
    """Characters as their places in LEAF's alphabet."""
    return np.take(_NUMBERS, np.frombuffer(text.encode("latin-1", "replace"), np.uint8))


def whole(text: str) -> Speech:
    """Every window of a raw text, after LEAF's own clean-up of white space."""
    tidy = encode(re.sub(r"   *", " ", text.replace("\n", " ")))
    return Speech(tidy, np.arange(max(0, len(tidy) - LENGTH)))


def joined(data: dict[str, list[object]]) -> Speech:
    """LEAF's windows put together again: neighbours share 79 characters, which are kept once."""
    x, y = [str(window) for window in data["x"]], "".join(map(str, data["y"]))
    if any(len(window) != LENGTH for window in x) or len(x) != len(y):
        raise TypeError(f"windows are not all {LENGTH} characters with one to follow")
    if not x:
        return Speech(np.empty(0, np.uint8), np.empty(0, np.int64))
    windows = encode("".join(x)).reshape(-1, LENGTH)
    following = encode(y)
    whole_rows = np.column_stack([windows, following])
    fresh = np.ones(len(x), bool)
    fresh[1:] = (whole_rows[:-1, 1:] != windows[1:]).any(axis=1)
    # A window that continues the one before adds one character, any other adds all of its 81.
    added = np.where(fresh, LENGTH + 1, 1)
    ends = np.cumsum(added)
    pieces = [row if new else row[-1:] for row, new in zip(whole_rows, fresh, strict=True)]
    return Speech(np.concatenate(pieces), ends - LENGTH - 1)


def _gather(speeches: list[tuple[str, Speech]], groups: dict[str, int]) -> tuple[Windows, Ints]:
    """All speakers' windows in one text, and the group of each window."""
    begins = np.cumsum([0, *(len(speech.text) for _, speech in speeches)])
    starts = [
        speech.starts + begin for (_, speech), begin in zip(speeches, begins[:-1], strict=True)
    ]
    owners = [np.full(len(speech.starts), groups[name]) for name, speech in speeches]
    text = np.concatenate([speech.text for _, speech in speeches])
    return Windows(text, np.concatenate(starts), LENGTH), np.concatenate(owners)


def _cut(speech: Speech) -> tuple[Speech, Speech]:
    """The last tenth of the windows is for testing; no character to predict is in both parts."""
    kept = max(1, int(0.9 * len(speech.starts)))
    return Speech(speech.text, speech.starts[:kept]), Speech(speech.text, speech.starts[kept:])


def _speeches(folder: Path) -> list[tuple[str, Speech]]:
    """Undivided speeches from LEAF's all_data JSON or from one text file per speaker."""
    if (folder / "all_data").is_dir():
        speeches: list[tuple[str, Speech]] = []
        for path in sorted((folder / "all_data").glob("*.json")):
            content = json.loads(path.read_bytes())["user_data"]
            speeches += [
                (name, whole(data["raw"]) if "raw" in data else joined(data))
                for name, data in content.items()
            ]
        return speeches
    paths = sorted((folder / "raw_data" / "by_play_and_character").glob("*.txt"))
    return [(path.stem, whole(path.read_text(encoding="utf-8"))) for path in paths]


def read_shakespeare(folder: Path) -> Arrays:
    """Windows of 80 characters, the next one as the label; groups are speakers."""
    if (folder / "train").is_dir():
        train = list(users(folder / "train", joined))
        test = list(users(folder / "test", joined))
    else:
        cut = [(name, _cut(speech)) for name, speech in _speeches(folder) if len(speech.starts)]
        train = [(name, parts[0]) for name, parts in cut]
        test = [(name, parts[1]) for name, parts in cut]
    groups = number([name for name, _ in train + test])
    (x, owners), (test_x, test_owners) = _gather(train, groups), _gather(test, groups)
    y, test_y = (windows.text[windows.starts + LENGTH].astype(np.int64) for windows in (x, test_x))
    labels = Labels(y, test_y, len(LETTERS), (owners, test_owners))
    return Arrays("shakespeare", Tokens(LENGTH, tuple(LETTERS)), x, test_x, labels)


def read_sequences(folder: Path) -> Arrays:
    """Sequences of 80 characters that do not overlap, each labelled with the same one later.

    They are every 80th window of a speaker, so a character is learned once, not in 80 windows.
    Those for testing begin 79 windows later, so that no character to predict is in both parts.
    """
    arrays = read_shakespeare(folder)
    groups = arrays.labels.groups
    assert groups is not None and isinstance(arrays.train, Windows)
    assert isinstance(arrays.test, Windows)
    parts = [
        _sequences(windows, owners, first)
        for windows, owners, first in zip(
            (arrays.train, arrays.test), groups, (0, LENGTH - 1), strict=True
        )
    ]
    (x, y, owners), (test_x, test_y, test_owners) = parts
    labels = Labels(y, test_y, len(LETTERS), (owners, test_owners), task="language")
    return Arrays(arrays.name, arrays.kind, x, test_x, labels)


def _sequences(windows: Windows, owners: Ints, skipped: int) -> tuple[Windows, np.ndarray, Ints]:
    """Every 80th window of each stretch, the characters that follow each of its own, and owners."""
    begins = np.ones(len(windows), bool)
    begins[1:] = (np.diff(windows.starts) != 1) | (np.diff(owners) != 0)
    first = np.maximum.accumulate(np.where(begins, np.arange(len(windows)), 0))
    place = np.arange(len(windows)) - first
    kept = np.flatnonzero((place >= skipped) & (place % LENGTH == skipped % LENGTH))
    chosen = Windows(windows.text, windows.starts[kept], LENGTH)
    following = Windows(windows.text, windows.starts[kept] + 1, LENGTH)
    return chosen, following[np.arange(len(kept))].astype(np.int64), owners[kept]


SHAKESPEARE = Source(
    name="shakespeare",
    title="Shakespeare (LEAF)",
    classes=len(LETTERS),
    train=3_803_027,
    test=423_131,
    shape=(LENGTH,),
    licence="text non-commercial (World Library); LEAF is BSD-2-Clause",
    read=read_shakespeare,
    files=("train", "test"),
    alternatives=(("all_data",), ("raw_data/by_play_and_character",)),
    folders=("shakespeare/data", "leaf/data/shakespeare/data"),
    recipe=recipe("shakespeare", "-s niid --sf 1.0 -k 0 -t sample --tf 0.9"),
    partition="natural",
    read_tokens=read_sequences,
)
