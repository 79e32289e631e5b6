"""Official downloads: resumable, verified by checksums, and unpacked safely."""

from __future__ import annotations

import hashlib
import http.client
import shutil
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from gossamer._locks import locked
from gossamer.data.sources.search import advice, find, holds, home
from gossamer.data.sources.source import Remote, Source

Progress = Callable[[str, int, int | None], None]
"""Called with the file's name, the bytes so far and, if known, the total."""

ATTEMPTS = 3
TIMEOUT = 30.0
BLOCK = 1 << 18


class DownloadError(OSError):
    """A download failed; the message says how to get the files otherwise."""


def bar(name: str, done: int, total: int | None) -> None:
    """Progress on standard error: a line that is overwritten, or one final line if no terminal."""
    finished = done == total
    if not sys.stderr.isatty() and not finished:
        return
    size = f"{done / 1e6:.1f} MB" if total is None else f"{done / 1e6:.1f} of {total / 1e6:.1f} MB"
    share = "" if not total else f"{100 * done // total:3d} % "
    start, end = ("\r", "\n" if finished else "") if sys.stderr.isatty() else ("", "\n")
    sys.stderr.write(f"{start}{name}  {share} {size}{end}")
    sys.stderr.flush()


def fetch(source: Source, folder: Path | None = None, progress: Progress | None = bar) -> Path:
    """Downloads a data set unless it is here already; partial files never take its place.

    Raises:
        DownloadError: there is no official download, or it failed.
    """
    existing = find(source) if folder is None else None
    if existing is not None and _whole(source, existing):
        return existing
    if not source.remotes:
        raise DownloadError(f"{source.title} has no official download; {advice(source)}")
    if existing is not None and not any(remote.unpack for remote in source.remotes):
        folder = existing  # replace the damaged files, which would be found first again
    folder = folder or home() / source.name
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, wait=True):
        whole = _in(folder, source)
        if whole is not None and _whole(source, whole):
            return whole  # another process may have just done it
        for remote in source.remotes:
            target = folder / remote.name
            if not (target.exists() and md5(target) == remote.md5):
                _download(source, remote, target, progress)
            if remote.unpack:
                unpack(target, folder)
                target.unlink()
    whole = _in(folder, source)
    if whole is None:
        raise DownloadError(
            f"the download of {source.title} lacks {', '.join(source.files)}; "
            f"put them into {folder}"
        )
    return whole


def _in(folder: Path, source: Source) -> Path | None:
    """The part of a folder that holds a data set, if any."""
    layouts = ("", *(layout.removeprefix(f"{source.name}/") for layout in source.folders))
    return next((folder / part for part in layouts if holds(folder / part, source)), None)


def _whole(source: Source, folder: Path) -> bool:
    """Whether an existing data set can be read completely."""
    try:
        source.read(folder)
    except ImportError:  # the files are not to blame
        return True
    except Exception:  # damage can show in any way
        return not source.remotes
    return True


def md5(path: Path) -> str:
    """The md5 of a file, read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _download(source: Source, remote: Remote, target: Path, progress: Progress | None) -> None:
    """Tries every address several times, resuming partial downloads."""
    part = target.with_name(target.name + ".part")
    reasons = []
    for url in remote.urls:
        for attempt in range(ATTEMPTS):
            resumed = part.exists()
            try:
                _transfer(url, part, remote.name, progress)
            except (OSError, http.client.HTTPException) as error:
                reasons.append(f"{url}: {_reason(error)}")
                if isinstance(error, urllib.error.HTTPError) or attempt == ATTEMPTS - 1:
                    break
                continue
            checksum = md5(part)
            if checksum == remote.md5:
                part.replace(target)
                return
            part.unlink()
            reasons.append(f"{url}: md5 is {checksum}, not {remote.md5}")
            if not resumed:  # A part from elsewhere may be to blame; a whole file is not.
                break
    raise DownloadError(
        f"could not download {remote.name} ({'; '.join(dict.fromkeys(reasons))}); try again later, "
        f"or put {_offline(source)} into {target.parent} by other means"
    )


def _offline(source: Source) -> str:
    archives = [remote.name for remote in source.remotes if remote.unpack]
    files = ", ".join(source.files)
    return f"{files} from {', '.join(archives)}" if archives else files


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        with error:
            return f"the server answered {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    return str(error) or type(error).__name__


def _transfer(url: str, part: Path, name: str, progress: Progress | None) -> None:
    """Continues a partial download; raises OSError if the server stops too early."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "gossamer"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=TIMEOUT
        )
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # Nothing after these bytes: the checksum will judge them.
            error.close()
            return
        raise
    with response:
        if response.status != 206:
            have = 0  # A server that knows no ranges sends everything again.
        length = response.headers.get("Content-Length")
        total = have + int(length) if length and length.isdigit() else None
        with part.open("ab" if have else "wb") as file:
            while block := response.read(BLOCK):
                file.write(block)
                have += len(block)
                if progress is not None:
                    progress(name, have, total)
    if total is not None and have < total:
        raise OSError(f"the connection ended after {have} of {total} bytes")


def unpack(archive: Path, folder: Path) -> None:
    """Unpacks next to the destination, then moves the entries in; refuses paths that escape it."""
    with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=folder) as temporary:
        place = Path(temporary)
        try:
            if archive.suffix == ".zip":
                with zipfile.ZipFile(archive) as packed:
                    _refuse_escapes(packed.namelist())
                    packed.extractall(place)
            else:
                with tarfile.open(archive) as bundle:
                    bundle.extractall(place, filter="data")
        except (tarfile.TarError, zipfile.BadZipFile, ValueError) as error:
            reason = str(error).partition(":\n")[0]
            raise DownloadError(
                f"{archive} cannot be unpacked ({reason}); delete it and download it again"
            ) from None
        for entry in sorted(place.iterdir()):
            destination = folder / entry.name
            if destination.is_dir():
                shutil.rmtree(destination)
            entry.replace(destination)


def _refuse_escapes(names: list[str]) -> None:
    for name in names:
        path = PurePosixPath(name.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"it would write to {name}")
