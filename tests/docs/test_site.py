"""The site in a browser: it asks for nothing from elsewhere, fits a phone, and can be searched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from transcripts import ROOT

sys.path.insert(0, str(ROOT / "tests" / "report"))

from browser import Page, browser, find

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find() is None, reason="no Chromium here"),
]
PAGES = ["index", "tutorials/method", "contradictions", "reference/core", "reference/options"]
SEARCH = """new Promise(done => {
    const field = document.querySelector("[data-md-component=search-query]");
    field.focus();
    field.value = "thresholds";
    field.dispatchEvent(new KeyboardEvent("keyup", {bubbles: true}));
    const look = () => {
        const found = document.querySelectorAll(".md-search-result__link").length;
        found ? done(found) : requestAnimationFrame(look);
    };
    look();
})"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="needs what `make docs` installs")
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(place)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(command, check=True, cwd=ROOT, env=quiet)
    return place


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> object:
    with browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.mark.parametrize("width", [390, 1300])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_asks_for_nothing_and_fits(site: Path, page: Page, name: str, width: int) -> None:
    page.open(site / f"{name}.html", width, dark=width < 600)
    assert page.complaints() == []
    assert {address.partition(":")[0] for address in page.requests()} <= {"file", "data"}
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_page_that_is_a_file_can_be_searched(site: Path, page: Page) -> None:
    page.open(site / "index.html", 1300)
    assert page.evaluate(SEARCH) > 3
