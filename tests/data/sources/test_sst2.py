from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from gossamer.data import Tokens, federation, load
from gossamer.data.sources.sst2 import encode, read_sst2, read_tsv, vocabulary


def test_words_are_numbered_by_how_often_they_occur() -> None:
    known = vocabulary(["a Good film", "a bad film", "A b"])
    assert known == ["<padding>", "<unknown>", "a", "film", "b", "bad", "good"]
    rows = encode(["GOOD unseen", "a " * 9], known, length=4)
    assert rows.tolist() == [[6, 1, 0, 0], [2, 2, 2, 2]]


@pytest.mark.parametrize("turned", [False, True])
def test_columns_may_come_in_either_order(tmp_path: Path, turned: bool) -> None:
    rows = [("sentence", "label"), ('it \'s "fine" ', "1"), ("no", "0")]
    lines = ["\t".join(row[::-1] if turned else row) for row in rows]
    (tmp_path / "train.tsv").write_text("\r\n".join(lines) + "\r\n")
    texts, y = read_tsv(tmp_path / "train.tsv")
    assert texts == ['it \'s "fine" ', "no"]
    assert y.tolist() == [1, 0]


def test_glues_unlabelled_test_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "test.tsv").write_text("index\tsentence\n0\tfine\n")
    with pytest.raises(ValueError, match=r"has columns \['index', 'sentence'\]"):
        read_tsv(tmp_path / "test.tsv")
    (tmp_path / "test.tsv").write_text("sentence\tlabel\nfine\n")
    with pytest.raises(ValueError, match="a line without a label"):
        read_tsv(tmp_path / "test.tsv")


def test_sst2_has_its_known_sizes(
    packed: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "SST-2"
    folder.mkdir()
    for split in ("train", "dev"):
        text = packed._text(f"{packed.ROOT}/sst2/{split}.tsv.xz")
        (folder / f"{split}.tsv").write_text(text, encoding="utf-8")
    monkeypatch.setenv("GOSSAMER_DATA", str(tmp_path))
    phrases = load("sst2")
    assert len(phrases.train) == 67_349
    assert len(phrases.test) == 872
    assert int(phrases.labels.train.sum()) == 37_569
    assert int(phrases.labels.test.sum()) == 444
    assert isinstance(phrases.kind, Tokens)
    every = phrases.train[np.arange(67_349)]
    assert every.max() == len(phrases.kind.vocabulary) - 1
    made = federation(phrases, "dirichlet:1", pool=50)
    assert made.client(0).train.x.shape[1:] == (64,)
    assert read_sst2(folder).name == "sst2"
