"""Runs that are long, written once."""

from pathlib import Path

import pytest
from run_folders import write_run


@pytest.fixture(scope="session")
def ten(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Ten methods of five hundred rounds each."""
    place = tmp_path_factory.mktemp("ten")
    first = write_run(place / "method0", "method0", rounds=500, clients=1)
    for number in range(1, 10):
        folder = place / f"method{number}"
        folder.mkdir()
        for path in first.iterdir():
            text = path.read_text().replace("method0", folder.name)
            (folder / path.name).write_text(text)
    return sorted(place.iterdir())
