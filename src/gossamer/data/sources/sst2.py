"""SST-2, the sentiment of phrases from film reviews, as GLUE publishes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from gossamer.data.arrays import Arrays, Labels
from gossamer.data.inputs import Ints, Tokens
from gossamer.data.sources.source import Remote, Source

LENGTH = 64
PADDING, UNKNOWN = 0, 1


def words(text: str) -> list[str]:
    """Lower case, cut at white space: SST-2 is tokenised already."""
    return text.lower().split()


def vocabulary(texts: Iterable[str]) -> list[str]:
    """Padding, unknown, then the words of the training text, frequent ones first."""
    counts = Counter(word for text in texts for word in words(text))
    return ["<padding>", "<unknown>", *sorted(counts, key=lambda word: (-counts[word], word))]


def encode(texts: Sequence[str], known: Sequence[str], length: int = LENGTH) -> np.ndarray:
    """One row of word numbers per text, cut or padded to `length`."""
    numbers = {word: place for place, word in enumerate(known)}
    rows = np.full((len(texts), length), PADDING, np.int32)
    for row, text in zip(rows, texts, strict=True):
        tokens = [numbers.get(word, UNKNOWN) for word in words(text)[:length]]
        row[: len(tokens)] = tokens
    return rows


def read_tsv(path: Path) -> tuple[list[str], Ints]:
    """Sentences and labels; the header says in which order the columns are."""
    head, *lines = path.read_text(encoding="utf-8").split("\n")
    names = head.strip("\r").split("\t")
    if not {"sentence", "label"} <= set(names):
        raise ValueError(f"{path} has columns {names}, not sentence and label; use GLUE's files")
    rows = [line.strip("\r").split("\t", len(names) - 1) for line in lines if line.strip()]
    text, label = names.index("sentence"), names.index("label")
    try:
        return [row[text] for row in rows], np.asarray([int(row[label]) for row in rows], np.int64)
    except (ValueError, IndexError) as error:
        raise ValueError(f"{path} has a line without a label ({error}); use GLUE's files") from None


def read_sst2(folder: Path) -> Arrays:
    """67,349 phrases; the test set is GLUE's dev set, because its test set has no labels."""
    texts, y = read_tsv(folder / "train.tsv")
    test_texts, test_y = read_tsv(folder / "dev.tsv")
    known = vocabulary(texts)
    return Arrays(
        "sst2",
        Tokens(LENGTH, tuple(known)),
        encode(texts, known),
        encode(test_texts, known),
        Labels(y, test_y, 2),
    )


SST2 = Source(
    name="sst2",
    title="SST-2 (GLUE)",
    classes=2,
    train=67_349,
    test=872,
    shape=(LENGTH,),
    licence="none stated; cite Socher et al. 2013",
    read=read_sst2,
    files=("train.tsv", "dev.tsv"),
    folders=("sst2/SST-2", "SST-2", "glue_data/SST-2"),
    remotes=(
        Remote(
            "SST-2.zip",
            "9f81648d4199384278b86e315dac217c",
            ("https://dl.fbaipublicfiles.com/glue/data/SST-2.zip",),
            unpack=True,
        ),
    ),
)
