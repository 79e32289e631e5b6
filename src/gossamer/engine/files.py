"""Files at rest: written completely or not at all, for their owner only, and with checksums.

A sealed file ends with a statement of what it is, such as the run, the client and the round, and
with a checksum over content and statement. Damage, a file in another's place, or an older one is
found when the file is read. A log is a chain: every line has a checksum over all lines up to it.
"""

from __future__ import annotations

import json
import logging
import os
import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gossamer.wire import fingerprint

notices = logging.getLogger("gossamer.engine")
"""Sentences about what was found and done; the command line prints them to standard error."""

PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700
About = Mapping[str, str | int]
"""What a file is, as its seal states it."""

_MARK = b"GSUM"
_TAIL = struct.Struct("<I16s4s")
"""Length of the statement, checksum, mark."""
_SEALED_TEXT = re.compile(r"^# checksum ([0-9a-f]{32})\n\Z", re.MULTILINE)
_LONGEST_LINE = 2**16
_LINK = re.compile(rb',"chain":"([0-9a-f]{16})"(\}+\n)\Z')


class Damaged(ValueError):
    """A file is not what was written, or is missing; the message names it."""


# writing -----------------------------------------------------------------------------------------


def write_atomically(path: Path, data: bytes, *, private: bool = False) -> None:
    """Writes a file so that it has all of `data`, or is as it was before.

    Args:
        path: The file.
        data: Its content.
        private: Whether only the file's owner may read it.
    """
    partial = path.with_name(path.name + ".partial")
    write(partial, data, PRIVATE_FILE if private else 0o666)
    flush(partial)
    partial.replace(path)
    flush(path.parent)


def write(path: Path, data: bytes, mode: int = PRIVATE_FILE) -> None:
    """Writes a file, possibly only a part of it if the process ends meanwhile."""
    how = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with os.fdopen(os.open(path, how, mode), "wb") as file:
        file.write(data)


def private_folder(path: Path) -> None:
    """Makes a folder that only its owner can open; one that exists stays as it is."""
    path.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)


@contextmanager
def private_files() -> Iterator[None]:
    """Files that this process and those that it starts make are for their owner only."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def flush(path: Path) -> None:
    """A file, or the list of a folder's files, is on disk; nothing if there is none."""
    if not path.exists() or (os.name == "nt" and path.is_dir()):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# sealed files ------------------------------------------------------------------------------------


def seal(data: bytes, about: About) -> bytes:
    """The content of a sealed file."""
    statement = json.dumps(about).encode()
    checksum = bytes.fromhex(fingerprint(data, statement))
    return b"".join([data, statement, _TAIL.pack(len(statement), checksum, _MARK)])


def unseal(path: Path, wanted: About) -> bytes:
    """The data in a sealed file that is what it should be.

    Raises:
        Damaged: The file is missing or damaged, or states something else than `wanted`.
    """
    data, about = opened(path)
    for name, value in wanted.items():
        if about.get(name) != value:
            raise Damaged(
                f"{path} is not in its place: it is of {name} {about.get(name)}, not of {value}"
            )
    return data


def opened(path: Path) -> tuple[bytes, dict[str, Any]]:
    """The data in a sealed file, and what it states.

    Raises:
        Damaged: The file is missing or damaged.
    """
    whole = content(path)
    end = len(whole) - _TAIL.size
    if end < 0 or whole[-len(_MARK) :] != _MARK:
        raise Damaged(f"{path} is damaged: it does not end with a checksum")
    length, checksum, _ = _TAIL.unpack_from(whole, end)
    data, statement = whole[: max(0, end - length)], whole[max(0, end - length) : end]
    if bytes.fromhex(fingerprint(data, statement)) != checksum:
        raise Damaged(f"{path} is damaged: its checksum does not match its content")
    return data, json.loads(statement)


def content(path: Path) -> bytes:
    """All bytes of a file.

    Raises:
        Damaged: It is missing or cannot be read.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise Damaged(f"{path} is missing") from None
    except OSError as problem:
        raise Damaged(f"{path} cannot be read: {problem.strerror}") from problem


def seal_json(plain: Mapping[str, Any]) -> bytes:
    """An object as JSON, with a checksum over its other entries."""
    return json.dumps({**plain, "checksum": _checksum(plain)}).encode()


def unseal_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        Damaged: The file is missing or damaged.
    """
    try:
        plain = json.loads(content(path))
    except (ValueError, RecursionError) as problem:
        if isinstance(problem, Damaged):
            raise
        raise Damaged(f"{path} is damaged: it is not JSON") from None
    if not isinstance(plain, dict) or "checksum" not in plain:
        raise Damaged(f"{path} is damaged: it has no checksum")
    if plain.pop("checksum") != _checksum(plain):
        raise Damaged(f"{path} is damaged: its checksum does not match its content")
    return plain


def _checksum(plain: Mapping[str, Any]) -> str:
    return fingerprint(json.dumps(plain).encode())  # in the order of the file


def seal_text(text: str) -> str:
    """A configuration with a last line that has its checksum."""
    return f"{text}# checksum {fingerprint(text.encode())}\n"


def check_text(path: Path) -> None:
    """Checks a configuration against its last line.

    Raises:
        Damaged: The file is missing, was changed or cut, or has no checksum.
    """
    try:
        text = content(path).decode()
    except UnicodeDecodeError:
        raise Damaged(f"{path} is damaged: it is not UTF-8 text") from None
    found = _SEALED_TEXT.search(text)
    if found is None:
        raise Damaged(
            f"{path} does not end with its checksum: it was cut or changed, or an older version "
            "wrote it; use a copy of it for a new run: gossamer run COPY.toml --out FOLDER"
        )
    if found[1] != fingerprint(text[: found.start()].encode()):
        raise Damaged(
            f"{path} was changed since the run began, or is damaged: its checksum does not match; "
            "put it back, or use a copy of it for a new run: gossamer run COPY.toml --out FOLDER"
        )


# chains ------------------------------------------------------------------------------------------


def chained(before: str, line: bytes) -> tuple[bytes, str]:
    """A line of a log with its checksum, and that checksum.

    Args:
        before: The checksum of the line before; empty for the first.
        line: A JSON object on one line.
    """
    body = line.rstrip(b"}\n")
    link = _link(before, body)
    return b"".join([body, b',"chain":"', link.encode(), b'"', line[len(body) :]]), link


def append(path: Path, entry: Mapping[str, Any]) -> None:
    """Appends a line to a log that is seldom written; a last line that was cut short is dropped."""
    how = os.O_RDWR | os.O_CREAT
    with os.fdopen(os.open(path, how, PRIVATE_FILE), "r+b") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _LONGEST_LINE))
        lines = file.read().splitlines(keepends=True)
        if lines and not lines[-1].endswith(b"\n"):
            file.truncate(file.tell() - len(lines.pop()))
        before = _LINK.search(lines[-1]) if lines else None
        line = json.dumps(entry, separators=(",", ":")).encode() + b"\n"
        file.seek(0, os.SEEK_END)
        file.write(chained(before[1].decode() if before else "", line)[0])


def follows(before: str, line: bytes) -> str | None:
    """The checksum of a line, if it has one that fits the line and all before it; else None."""
    found = _LINK.search(line)
    if found is None or _link(before, line[: found.start()]) != found[1].decode():
        return None
    return found[1].decode()


def is_chained(line: bytes) -> bool:
    """Whether a line has a checksum, right or wrong."""
    return _LINK.search(line) is not None


def _link(before: str, body: bytes) -> str:
    return fingerprint(before.encode(), body)[:16]
