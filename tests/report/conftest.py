"""A browser for each file of tests, and runs that are long, written once."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Page, browser
from run_folders import write_run


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


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
