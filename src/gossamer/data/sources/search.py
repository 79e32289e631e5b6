"""Where data sets lie: GOSSAMER_DATA, then distribution packages, then the user's cache."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from gossamer.data.sources.mini import FILE
from gossamer.data.sources.source import Source


def cache() -> Path:
    """The folder that downloads go to unless GOSSAMER_DATA names another."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "gossamer" / "data"


def home() -> Path:
    """The folder that `get` writes to."""
    chosen = os.environ.get("GOSSAMER_DATA")
    return Path(chosen) if chosen else cache()


def _candidates(source: Source) -> Iterator[Path]:
    if source.embedded:
        yield FILE.parent
        return
    chosen = os.environ.get("GOSSAMER_DATA")
    layouts = (source.name, *source.folders)
    if chosen:
        yield from (Path(chosen) / layout for layout in layouts)
    yield from map(Path, source.system)
    yield from (cache() / layout for layout in layouts)


def holds(folder: Path, source: Source) -> bool:
    """Whether a folder has all files of a set, compressed or not."""

    def there(file: str) -> bool:
        return (folder / file).exists() or (folder / file.removesuffix(".gz")).exists()

    return any(all(map(there, files)) for files in (source.files, *source.alternatives))


def find(source: Source) -> Path | None:
    """The first folder that has the set, or None."""
    return next((folder for folder in _candidates(source) if holds(folder, source)), None)


def advice(source: Source) -> str:
    """How to come by a set, in one clause."""
    put = f"put {', '.join(source.files)} into {home() / source.name}"
    if source.recipe:
        return f"{source.recipe}, then {put}"
    return f"run `gossamer data get {source.name}`, or {put}"


def located(source: Source) -> Path:
    """The folder that has the set; an error that says how to get it where there is none."""
    folder = find(source)
    if folder is None:
        raise FileNotFoundError(f"{source.title} is not on this machine; {advice(source)}")
    return folder
