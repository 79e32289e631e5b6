"""What is known of a data set before any of it is read: sizes, licence, official files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gossamer.data.arrays import Arrays


@dataclass(frozen=True)
class Remote:
    """One official file: where it is, and the md5 that proves it."""

    name: str
    md5: str
    urls: tuple[str, ...]
    unpack: bool = False
    """An archive, unpacked beside the place where it would have been."""


@dataclass(frozen=True)
class Source:
    """A named data set, where its files may lie, and the function that reads them."""

    name: str
    title: str
    classes: int
    train: int
    """Examples of the official training set; 0 where its makers leave the size open."""
    test: int
    shape: tuple[int, ...]
    licence: str
    read: Callable[[Path], Arrays]
    files: tuple[str, ...]
    """Paths that a folder must have to hold this set; `.gz` may be added or missing."""
    alternatives: tuple[tuple[str, ...], ...] = ()
    """Other files that will do in the place of `files`."""
    folders: tuple[str, ...] = ()
    """Common layouts, relative to the folder of all data sets; the set's own name comes first."""
    system: tuple[str, ...] = ()
    """Absolute folders of distribution packages."""
    remotes: tuple[Remote, ...] = ()
    recipe: str = ""
    """How to make the files where there is no official download."""
    partition: str = "iid"
    """What `federation` uses when no partition is asked for."""
    embedded: bool = False
    read_tokens: Callable[[Path], Arrays] | None = None
    """Reads a text as sequences, with the next token of every token as its label."""
