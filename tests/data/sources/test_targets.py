"""Labels that are no classes: numbers, labels that may be true together, and tokens."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import gossamer as gs
from gossamer.data import Inputs, federation, load
from gossamer.data.arrays import Labels
from gossamer.data.sources.shakespeare import LENGTH, LETTERS, encode
from helpers import refused

X = np.arange(80, dtype=np.float32).reshape(40, 2)


def archive(path: Path, **arrays: np.ndarray) -> str:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return f"npz:{path}"


# tables -----------------------------------------------------------------------------------------


def table(path: Path) -> str:
    rows = [f"{at},{2 * at},{at / 4},{at % 2},{at // 3 % 2}" for at in range(40)]
    path.write_text("\n".join(["a,b,price,hot,new", *rows]))
    return f"csv:{path}"


def test_one_column_is_the_target_and_the_others_are_features(tmp_path: Path) -> None:
    found = load(table(tmp_path / "t.csv"), inputs=Inputs(task="regression", label="price"))
    assert found.labels.classes == 1 and found.kind.shape == (4,)
    rows = np.arange(len(found.labels.train))
    assert found.labels.train.dtype == np.float32
    assert np.array_equal(found.train[rows][:, 0] / 4, found.labels.train)
    assert "1 target" in repr(found)


@pytest.mark.parametrize("label", ["hot,new", "4,5", "[hn]*"])
def test_several_columns_are_labels_by_name_number_or_pattern(tmp_path: Path, label: str) -> None:
    found = load(table(tmp_path / "t.csv"), inputs=Inputs(task="multilabel", label=label))
    assert found.labels.train.shape == (32, 2) and found.kind.shape == (3,)
    first = found.train[np.arange(32)][:, 0]
    assert np.array_equal(found.labels.train[:, 0], first % 2)


def test_targets_with_decimal_commas(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a;y\n" + "\n".join(f"{at};{at},5" for at in range(40)))
    found = load(f"csv:{tmp_path / 't.csv'}", inputs=Inputs(task="regression"))
    assert set(found.labels.train % 1) == {0.5}


@pytest.mark.parametrize(
    ("text", "inputs", "words"),
    [
        ("a,y\n1,2\n2,big\n", Inputs(task="regression"), "'y' of .* has 'big', which is no number"),
        ("a,y\n1,2\n2,0\n", Inputs(task="multilabel", label="y"), "label 2.0; multilabel needs 0"),
        ("a,y\n1,2\n2,0\n", Inputs(task="multilabel"), "name the labels"),
        ("a,y\n1,2\n2,0\n", Inputs(task="regression", label="a,y"), "all columns .* are labels"),
        ("a,y\n1,2\n2,0\n", Inputs(task="language"), "no sequences of tokens"),
    ],
)
def test_tables_that_do_not_fit(tmp_path: Path, text: str, inputs: Inputs, words: str) -> None:
    (tmp_path / "t.csv").write_text(text * 1)
    with refused(words):
        load(f"csv:{tmp_path / 't.csv'}", inputs=inputs)


# archives and arrays ----------------------------------------------------------------------------


def test_archives_of_every_task(tmp_path: Path) -> None:
    numbers = archive(tmp_path / "a.npz", x=X, y=X.sum(1))
    assert load(numbers, inputs=Inputs(task="regression")).labels.classes == 1
    flags = archive(tmp_path / "b.npz", x=X, y=np.stack([X[:, 0] % 4 == 0, X[:, 0] > 9], 1))
    assert load(flags, inputs=Inputs(task="multilabel")).labels.classes == 2
    tokens = np.arange(120).reshape(40, 3) % 7
    words = archive(tmp_path / "c.npz", x=tokens, y=(tokens + 1) % 7)
    found = load(words, inputs=Inputs(task="language"))
    assert found.labels.classes == 7 and found.kind.facts("raw") == {"vocabulary": 7}
    assert found.kind.tensor(found.train, np.arange(2), "raw").dtype == torch.int64


def test_what_is_no_class_is_refused_with_the_tasks_that_there_are(tmp_path: Path) -> None:
    with refused("say --task regression, 'multilabel' or 'language'"):
        load(archive(tmp_path / "a.npz", x=X, y=X.sum(1)))
    with refused("say --task regression"):
        gs.Federation.from_arrays(X, X.sum(1), pool=2)
    with refused("fmnist-mini has one class per example"):
        load("fmnist-mini", inputs=Inputs(task="regression"))
    with refused("synthetic has classes"):
        federation("synthetic", inputs=Inputs(task="regression"))
    with refused("no task 'ranking'"):
        Inputs(task="ranking")


@pytest.mark.parametrize("scale", ["normalised", "raw"])
def test_a_regression_knows_the_scale_of_its_targets(scale: str) -> None:
    y = 100 + 10 * X
    made = gs.Federation.from_arrays(
        X,
        y,
        task="regression",
        pool=2,
        inputs=Inputs(scale=scale),  # type: ignore[arg-type]
        test=(X, y),
    )
    facts = made.describe()
    assert facts["task"] == "regression" and made.classes == 2
    assert made.client(0).train.y.shape[1:] == (2,)
    if scale == "raw":
        assert "target_mean" not in facts
    else:
        assert facts["target_mean"] == pytest.approx(y.mean(0).tolist())
        assert facts["target_std"] == pytest.approx(y.std(0).tolist())


def test_torch_data_sets_and_clients_have_targets() -> None:
    pairs = [(torch.tensor(row), torch.tensor(float(row.sum()))) for row in X]
    made = gs.Federation.from_torch(pairs, task="regression", pool=2)  # type: ignore[arg-type]
    assert made.client(1).train.y.dtype == torch.float32
    own = gs.Federation.from_clients([(X, X.sum(1)), (X, X.sum(1))], task="regression")
    assert own.describe()["task"] == "regression" and len(own.pool) == 2


# partitions -------------------------------------------------------------------------------------


def test_partitions_divide_targets_by_deciles() -> None:
    y = np.arange(100, dtype=np.float32)
    strata = Labels(y, y[:20], 1, task="regression").strata
    assert strata.classes == 10
    assert np.bincount(strata.train).tolist() == [10] * 10
    assert np.array_equal(strata.test, np.arange(20) // 10)


def test_partitions_divide_several_labels_by_the_rarest() -> None:
    y = np.array([[1, 0, 0], [1, 1, 0], [1, 1, 1], [0, 0, 0]], np.float32)
    strata = Labels(y, y[:1], 3, task="multilabel").strata
    assert strata.train.tolist() == [0, 1, 2, 3] and strata.classes == 4


def test_a_skewed_partition_of_targets_is_skewed() -> None:
    y = X.sum(1)
    made = gs.Federation.from_arrays(X, y, task="regression", partition="shards:2", pool=8)
    held = (made.counts() > 0).sum(1)
    assert set(held.tolist()) == {2}


# text -------------------------------------------------------------------------------------------


def test_sequences_do_not_overlap_and_share_nothing_to_predict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "".join(LETTERS[2 + at % 70] for at in range(3000))
    folder = tmp_path / "shakespeare" / "all_data"
    folder.mkdir(parents=True)
    users = {"one": {"raw": text}, "two": {"raw": text[7:1500]}}
    (folder / "all_data.json").write_text(json.dumps({"user_data": users}))
    monkeypatch.setenv("GOSSAMER_DATA", str(tmp_path))
    found = load("shakespeare", inputs=Inputs(task="language"))
    labels, groups = found.labels, found.labels.groups
    assert groups is not None and labels.classes == 80
    x = found.train[np.arange(len(labels.train))]
    assert x.shape == labels.train.shape and x.shape[1] == LENGTH
    assert np.array_equal(x[:, 1:], labels.train[:, :-1])
    mine = labels.train[groups[0] == 0]
    whole = encode(text)
    assert np.array_equal(mine.ravel(), whole[1 : 1 + mine.size])
    tested = labels.test[groups[1] == 0].ravel()
    assert len(tested)
    begins = found.test.starts[groups[1] == 0][0] + 1  # type: ignore[attr-defined]
    assert begins > mine.size, "a character to predict is in both parts"
