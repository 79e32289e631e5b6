"""Compressed files are unpacked once, and nothing wrong comes of what was kept."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import pytest

from gossamer.data import load
from gossamer.data.sources.idx import read_idx
from gossamer.data.sources.mini import FILE
from gossamer.data.sources.unpacked import folder, unpacked

TEXT = b"what a file holds" * 1000


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    path = tmp_path / "values.zz"
    path.write_bytes(zlib.compress(TEXT))
    return path


def never(content: bytes) -> bytes:
    raise AssertionError("it was unpacked before")


def test_the_second_time_nothing_is_unpacked(packed: Path) -> None:
    assert unpacked(packed, zlib.decompress) == TEXT
    assert unpacked(packed, never) == TEXT
    assert [path.stat().st_size for path in folder().iterdir()] == [len(TEXT)]


def test_it_is_unpacked_anew_if_asked_for(packed: Path) -> None:
    unpacked(packed, lambda content: b"something else")
    assert unpacked(packed, zlib.decompress, anew=True) == TEXT
    assert unpacked(packed, never) == TEXT


def test_a_file_that_changed_is_another_one(packed: Path) -> None:
    unpacked(packed, zlib.decompress)
    packed.write_bytes(zlib.compress(b"new"))
    assert unpacked(packed, zlib.decompress) == b"new"


def test_a_file_with_an_identity_is_known_by_it(packed: Path, tmp_path: Path) -> None:
    unpacked(packed, zlib.decompress, "the same")
    other = tmp_path / "elsewhere" / packed.name
    other.parent.mkdir()
    other.touch()
    assert unpacked(other, never, "the same") == TEXT


def test_a_cache_that_is_emptied_is_filled_again(packed: Path) -> None:
    unpacked(packed, zlib.decompress)
    (kept,) = folder().iterdir()
    kept.unlink()
    assert unpacked(packed, zlib.decompress) == TEXT
    assert kept.read_bytes() == TEXT


def test_what_others_gave_up_is_removed(packed: Path) -> None:
    folder().mkdir(parents=True)
    old, new = folder() / ".part-old", folder() / ".part-new"
    for part in (old, new):
        part.touch()
    os.utime(old, (1, 1))
    unpacked(packed, zlib.decompress)
    assert new.exists() and not old.exists()


def test_a_cache_that_cannot_be_written_is_done_without(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert unpacked(packed, zlib.decompress) == TEXT
    assert unpacked(packed, zlib.decompress) == TEXT


def test_nobody_needs_a_home(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", nowhere)
    assert unpacked(packed, zlib.decompress) == TEXT


def test_a_file_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_idx(tmp_path / "none.gz")


def test_a_file_that_cannot_be_unpacked_leaves_nothing(packed: Path) -> None:
    packed.write_bytes(b"no such thing")
    with pytest.raises(zlib.error):
        unpacked(packed, zlib.decompress)
    assert not folder().exists()


def test_values_that_were_damaged_in_the_cache_are_replaced() -> None:
    load("fmnist-mini")
    (kept,) = folder().iterdir()
    whole = kept.read_bytes()
    damaged = kept.with_name("damaged")
    damaged.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    damaged.replace(kept)
    assert load("fmnist-mini").test[range(2000)].tobytes()[-1] == whole[-1]
    assert kept.read_bytes() == whole
    assert kept.name.startswith(FILE.stem)
