from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from gossamer.data.sources.pickles import read_pickle


class Malicious:
    """Creates a file when unpickled by the ordinary unpickler."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_malicious_pickle_is_refused_and_runs_nothing(tmp_path: Path, protocol: int) -> None:
    trap = tmp_path / "executed"
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps({"data": Malicious(trap)}, protocol))
    with pytest.raises(ValueError, match=r"asks to load \w+\.mkdir, which no data file needs"):
        read_pickle(path)
    assert not trap.exists()


@pytest.mark.parametrize(
    "name", [b"builtins\neval", b"numpy\nload", b"numpy.core.multiarray\nfromfile", b"os\nsystem"]
)
def test_names_beside_the_list_are_refused(tmp_path: Path, name: bytes) -> None:
    path = tmp_path / "batch"
    path.write_bytes(b"c" + name + b"\n.")
    with pytest.raises(ValueError, match="do not use this file"):
        read_pickle(path)


def test_arrays_of_objects_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps({"data": np.asarray([{}], object)}, 2))
    with pytest.raises(ValueError, match="an array of O8"):
        read_pickle(path)


@pytest.mark.parametrize("protocol", [2, 3])
def test_arrays_bytes_and_strings_are_read(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "batch"
    value = {"data": np.arange(6, dtype=np.uint8).reshape(2, 3), "raw": b"\xff\0", "labels": [1, 2]}
    path.write_bytes(pickle.dumps(value, protocol))
    found = read_pickle(path)
    assert isinstance(found["data"], np.ndarray)
    assert found["data"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found["labels"] == [1, 2]
    assert found["raw"] == b"\xff\0"


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x80\x02}q\x01("])
def test_nonsense_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "batch"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"batch .*(readable pickle|asks to load)"):
        read_pickle(path)


def test_other_things_than_a_dictionary_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps([1]))
    with pytest.raises(ValueError, match="holds a list, not a dictionary"):
        read_pickle(path)


def test_the_md5_is_checked_before_anything_is_read(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    path.write_bytes(b"anything")
    with pytest.raises(ValueError, match=r"has md5 .*, the official file has 0123"):
        read_pickle(path, "0123")
