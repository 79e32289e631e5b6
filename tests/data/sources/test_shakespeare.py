from __future__ import annotations

import json
import random
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from gossamer.data import Tensors, federation, load
from gossamer.data.sources.shakespeare import (
    LENGTH,
    LETTERS,
    SHAKESPEARE,
    encode,
    joined,
    read_shakespeare,
)

TEXT = "To be, or not to be: that is the question: Whether 'tis nobler in the mind to suffer " * 3


def windows(text: str) -> tuple[list[str], list[str]]:
    """LEAF's definition."""
    return (
        [text[i : i + LENGTH] for i in range(len(text) - LENGTH)],
        [text[i + LENGTH] for i in range(len(text) - LENGTH)],
    )


def decode(row: np.ndarray) -> str:
    return "".join(LETTERS[number] for number in row)


def test_the_alphabet_is_leafs() -> None:
    assert len(LETTERS) == 80
    assert encode("\n a}").tolist() == [0, 1, 53, 79]


@pytest.mark.parametrize("shuffled", [False, True])
def test_windows_put_together_are_the_same_windows(shuffled: bool) -> None:
    pairs = list(zip(*windows(TEXT), strict=True))
    if shuffled:
        random.Random(1).shuffle(pairs)
        pairs = pairs[::2]
    x, y = (list(part) for part in zip(*pairs, strict=True))
    speech = joined({"x": x, "y": y})
    for start, window, following in zip(speech.starts, x, y, strict=True):
        assert decode(speech.text[start : start + LENGTH]) == window
        assert decode(speech.text[start + LENGTH : start + LENGTH + 1]) == following
    if not shuffled:
        assert len(speech.text) == len(TEXT)


def test_leafs_train_and_test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = windows(TEXT)
    for part, rows in (("train", slice(0, 100)), ("test", slice(100, 120))):
        folder = tmp_path / "shakespeare" / "data" / part
        folder.mkdir(parents=True)
        data = {"HAMLET": {"x": x[rows], "y": y[rows]}, "GHOST": {"x": x[:5], "y": y[:5]}}
        (folder / "all.json").write_text(
            json.dumps({"users": list(data), "num_samples": [], "user_data": data})
        )
    monkeypatch.setenv("GOSSAMER_DATA", str(tmp_path))
    made = federation("shakespeare")
    assert [client.examples for client in made.pool] == [5, 100]
    hamlet = made.client(1)
    assert hamlet.train.x.shape == (100, 80)
    assert str(hamlet.train.x.dtype) == "torch.int64"
    assert [decode(row) for row in hamlet.train.x.numpy()] == x[:100]
    assert decode(hamlet.test.y.numpy()) == "".join(y[100:120])
    assert made.describe()["vocabulary"] == 80


@pytest.mark.parametrize("layout", ["text", "raw", "windows"])
def test_undivided_speech_keeps_its_last_tenth_for_testing(tmp_path: Path, layout: str) -> None:
    if layout == "text":
        folder = tmp_path / "raw_data" / "by_play_and_character"
        folder.mkdir(parents=True)
        (folder / "HAMLET.txt").write_text(TEXT.replace("be, or", "be,\n  or"))
        (folder / "MUTE.txt").write_text("Nothing.")
    else:
        (tmp_path / "all_data").mkdir()
        x, y = windows(TEXT)
        data = {"raw": TEXT} if layout == "raw" else {"x": x, "y": y}
        (tmp_path / "all_data" / "all_data.json").write_text(
            json.dumps({"users": ["HAMLET"], "user_data": {"HAMLET": data}})
        )
    read = read_shakespeare(tmp_path)
    x, y = windows(TEXT)
    kept = int(0.9 * len(x))
    assert [decode(row) for row in read.train[np.arange(kept)]] == x[:kept]
    assert [decode(row) for row in read.test[np.arange(len(x) - kept)]] == x[kept:]
    assert decode(read.labels.test) == "".join(y[kept:])


def test_other_windows_are_refused(tmp_path: Path) -> None:
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
        content = {"users": ["A"], "user_data": {"A": {"x": ["short"], "y": ["s"]}}}
        (tmp_path / part / "all.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="windows are not all 80 characters"):
        read_shakespeare(tmp_path)


@pytest.mark.slow
def test_all_of_shakespeare_has_leafs_published_numbers(
    packed: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = packed.load("shakespeare")
    folder = tmp_path / "shakespeare" / "raw_data" / "by_play_and_character"
    folder.mkdir(parents=True)
    for user, text in zip(content["users"], content["text"], strict=True):
        (folder / f"{user}.txt").write_text(text)
    monkeypatch.setenv("GOSSAMER_DATA", str(tmp_path))
    plays = load("shakespeare")
    assert len(plays.train) + len(plays.test) == 4_226_158
    assert (len(plays.train), len(plays.test)) == (SHAKESPEARE.train, SHAKESPEARE.test)
    made = federation(plays)
    assert isinstance(made, Tensors)
    assert len(made.pool) == 1129
    small = federation(plays, pool=100)
    assert len(small.pool) == 100
    rows = made.train[5]
    assert np.array_equal(made.client(5).train.x.numpy(), plays.train[rows])
