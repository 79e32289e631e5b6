"""Ways to damage one file of a folder, for tests of what is noticed."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

DAMAGES = ("flip", "truncate", "zero", "empty", "remove", "swap", "foreign", "age")


def files(folder: Path) -> list[Path]:
    """All files of a folder, relative to it."""
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


def contents(folder: Path) -> dict[Path, bytes]:
    return {name: (folder / name).read_bytes() for name in files(folder)}


def damaged(path: Path, name: Path, how: str, older: Path, other: Path) -> bool:
    """Damages the file `name` in the folder `path`.

    Args:
        path: The folder.
        name: The file in it.
        how: One of `DAMAGES`.
        older: The same folder at an earlier time.
        other: The folder of another run.

    Returns:
        Whether the file is another one now.
    """
    file = path / name
    before = file.read_bytes()
    match how:
        case "flip":
            place = len(before) // 3
            file.write_bytes(before[:place] + bytes([before[place] ^ 4]) + before[place + 1 :])
        case "truncate":
            file.write_bytes(before[: -(1 + len(before) // 10)])
        case "zero":
            file.write_bytes(bytes(len(before)))
        case "empty":
            file.write_bytes(b"")
        case "remove":
            file.unlink()
            return True
        case "swap":
            twin = next((each for each in files(path) if _is_twin(each, name)), None)
            if twin is None:
                return False
            file.write_bytes((path / twin).read_bytes())
            (path / twin).write_bytes(before)
        case "foreign":
            if not (other / name).exists():
                return False
            shutil.copy(other / name, file)
        case "age":
            if not (older / name).exists():
                return False
            shutil.copy(older / name, file)
    return file.read_bytes() != before


def _is_twin(each: Path, name: Path) -> bool:
    return each != name and each.suffix == name.suffix and (each.name == name.name or _state(each))


def _state(name: Path) -> bool:
    return name.parent.name == "local"


def random_damage(seed: int, path: Path) -> Path:
    """Damages one file at random places, and returns its name."""
    draw = random.Random(seed)
    name = draw.choice(files(path))
    data = bytearray((path / name).read_bytes())
    match draw.randrange(4):
        case 0:
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        case 1:
            del data[draw.randrange(len(data)) :]
        case 2:
            start = draw.randrange(len(data))
            end = min(len(data), start + draw.randrange(1, 512))
            data[start:end] = draw.randbytes(end - start)
        case 3:
            start = draw.randrange(len(data))
            del data[start : start + draw.randrange(1, 64)]
    (path / name).write_bytes(bytes(data))
    return name
