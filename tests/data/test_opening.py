from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from gossamer.data import SOURCES, Inputs, Tensors, federation, get, ls


def test_the_embedded_set_needs_nothing() -> None:
    made = federation("fmnist-mini", "dirichlet:0.3", pool=20)
    assert len(made.pool) == 20
    assert made.client(0).train.x.shape[1:] == (1, 28, 28)
    assert sum(client.examples for client in made.pool) == 10_000


def test_the_same_arguments_give_the_same_federation_whatever_the_global_seeds() -> None:
    def rows(global_seed: int, seed: int = 0) -> list[int]:
        random.seed(global_seed)
        np.random.seed(global_seed)  # noqa: NPY002
        torch.manual_seed(global_seed)
        made = federation("fmnist-mini", "dirichlet:0.2", pool=30, seed=seed, valid=0.1)
        assert isinstance(made, Tensors)
        return [*made.train.rows.tolist(), *made.valid.rows.tolist()]

    assert rows(1) == rows(2)
    assert rows(1) != rows(1, seed=1)


def test_partitions_of_seed_zero_never_change() -> None:
    """A change of these numbers changes every published result: say so in the changelog."""
    made = federation("fmnist-mini", "dirichlet:0.2", pool=10)
    assert [client.examples for client in made.pool] == [
        1684,
        432,
        101,
        550,
        1112,
        1671,
        548,
        950,
        1927,
        1025,
    ]


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(KeyError, match=r"no data set 'fmnst'; did you mean 'fmnist'\?"):
        federation("fmnst")
    with pytest.raises(KeyError, match="`gossamer ls` lists them all"):
        get("imagenet-22k-full")


def test_a_missing_set_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOSSAMER_DATA", str(tmp_path / "mine"))
    with pytest.raises(
        FileNotFoundError,
        match=r"CIFAR-10 is not on this machine; run `gossamer data get cifar10`, or put "
        r"data_batch_1.* into .*mine/cifar10",
    ):
        federation("cifar10")
    with pytest.raises(FileNotFoundError, match=r"leaf/data/femnist && ./preprocess.sh -s niid"):
        federation("femnist")


def test_numbers_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="a pool of 0 clients is empty"):
        federation("fmnist-mini", pool=0)
    with pytest.raises(ValueError, match="least is -1"):
        federation("fmnist-mini", least=-1)


def test_the_list_has_every_set_and_where_it_is() -> None:
    entries = {entry.name: entry for entry in ls()}
    assert list(entries) == list(SOURCES)
    assert entries["fmnist-mini"].found is not None
    assert entries["cifar100"].found is None
    assert "gossamer data get cifar100" in entries["cifar100"].advice
    assert all(entry.licence for entry in entries.values())


def test_an_embedded_set_is_got_without_a_network() -> None:
    assert get("fmnist-mini").is_dir()


def test_synthetic_data_cannot_be_augmented() -> None:
    with pytest.raises(ValueError, match="no pictures"):
        federation("synthetic", inputs=Inputs(augment=True))
