"""`hf:`: data sets saved on disk by `datasets`, and what is said where one cannot be loaded."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from gossamer import data
from gossamer.cli import main
from gossamer.config import Experiment
from gossamer.config_paths import absolute_paths
from gossamer.data import DataWarning, Features, Inputs, Tokens, federation


@pytest.fixture
def datasets(monkeypatch: pytest.MonkeyPatch) -> object:
    """The library, kept off the network."""
    library = pytest.importorskip("datasets", reason="needs gossamer[hf]")
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return library


def rows(count: int, labelled: bool = True) -> dict[str, list[object]]:
    return {
        "idx": list(range(count)),
        "values": [[float(row % 2), float(row), 1.0] for row in range(count)],
        "label": [row % 2 if labelled else -1 for row in range(count)],
        "who": [f"u{row % 4}" for row in range(count)],
    }


@pytest.fixture
def saved(datasets: object, tmp_path: Path) -> Path:
    """A DatasetDict whose test split has no labels, as those of GLUE."""
    from datasets import Dataset, DatasetDict

    splits = {"train": rows(60), "validation": rows(12), "test": rows(8, labelled=False)}
    made = DatasetDict({name: Dataset.from_dict(part) for name, part in splits.items()})
    made.save_to_disk(str(tmp_path / "saved"))
    return tmp_path / "saved"


def test_a_folder_on_disk_is_a_federation(saved: Path) -> None:
    with pytest.warns(DataWarning, match="a split 'test' without labels; 'validation' is used"):
        made = federation(f"hf:{saved},x=values", pool=3, inputs=Inputs("raw"))
    assert made.test.x.shape == (12, 3) and made.classes == 2
    assert made.test.x[:, 1].tolist() == list(range(12))
    assert made.test.y.tolist() == [0, 1] * 6
    assert sum(len(made.client(each).train) for each in range(3)) == 60


def test_columns_splits_and_clients_are_named_after_commas(saved: Path) -> None:
    name = f"hf:{saved},x=values,group=who,train=validation,test=train"
    made = federation(name, partition="natural")
    assert len(made.pool) == 4 and len(made.test) == 60
    with pytest.raises(ValueError, match=r"no split 'dev'; it has train, validation, test, name"):
        data.load(f"hf:{saved},test=dev")
    with pytest.raises(ValueError, match=r"has 'y'; write hf:NAME,CONFIG and options of config"):
        data.load(f"hf:{saved},y=label")
    with pytest.raises(KeyError, match=r"no column 'text'; there are idx, values, label, who"):
        data.load(f"hf:{saved},x=text,test=validation")


def test_labels_of_other_tasks_are_taken(saved: Path) -> None:
    arrays = data.load(
        f"hf:{saved},x=values,test=validation", inputs=Inputs(label="idx", task="regression")
    )
    assert isinstance(arrays.kind, Features) and arrays.labels.task == "regression"
    assert arrays.labels.test.dtype == np.float32
    assert arrays.labels.test.tolist() == list(range(12))


def test_a_lone_table_of_text_is_split(datasets: object, tmp_path: Path) -> None:
    from datasets import Dataset

    texts = {"text": ["good film", "bad film"] * 20, "Target": ["pos", "neg"] * 20}
    Dataset.from_dict(texts).save_to_disk(str(tmp_path / "alone"))
    arrays = data.load(f"hf:{tmp_path / 'alone'}")
    assert isinstance(arrays.kind, Tokens) and arrays.labels.classes == 2
    assert (len(arrays.train), len(arrays.test)) == (32, 8)


def test_files_in_a_folder_are_read_without_the_hub(
    datasets: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "files"
    folder.mkdir()
    lines = ["text,label", *(f"film {row},{row % 2}" for row in range(30))]
    (folder / "train.csv").write_text("\n".join(lines))
    with pytest.warns(DataWarning, match="a fifth of 'train' is used"):
        arrays = data.load(f"hf:{folder}")
    assert (len(arrays.train), len(arrays.test)) == (24, 6)


def test_a_hub_that_cannot_be_reached_is_said(datasets: object) -> None:
    with pytest.raises(ValueError, match=r"hf:nobody/nothing cannot be loaded \(.*`save_to_disk`"):
        data.load("hf:nobody/nothing")
    with pytest.raises(ValueError, match=r"/nowhere/at/all does not exist\); check the name"):
        data.load("hf:/nowhere/at/all")


def test_without_the_package_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"pip install 'gossamer\[hf\]'"):
        data.load("hf:stanfordnlp/sst2,default")
    assert main(["run", "fedavg", "--data", "hf:stanfordnlp/sst2", "--rounds", "1"]) == 2
    assert "pip install 'gossamer[hf]'" in capsys.readouterr().err


def test_a_run_reads_a_saved_set(
    saved: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(saved.parent)
    command = "run fedavg --data hf:saved,x=values,test=validation --pool 3 --clients 2 --rounds 2"
    model = "--model mlp:hidden=4 --out out --json"
    assert main([*command.split(), *model.split()]) == 0
    assert '"accuracy"' in capsys.readouterr().out


def test_folders_get_their_full_path_and_names_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "saved").mkdir()
    for text, full in {
        "hf:saved,x=values": f"hf:{tmp_path}/saved,x=values",
        "hf:stanfordnlp/sst2": "hf:stanfordnlp/sst2",
    }.items():
        assert absolute_paths(Experiment(data=text)).data == full
