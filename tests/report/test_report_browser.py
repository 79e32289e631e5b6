"""The page in a real browser: it draws, asks for nothing, complains of nothing, fits a phone."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser import Page, find
from run_folders import write_run
from test_report_page import CHARTS, EVIL, evil

from gossamer.report import report

pytestmark = pytest.mark.skipif(find() is None, reason="there is no Chromium on this machine")

DRAWN = """[...document.querySelectorAll("[data-chart]")].map((chart) => {
  const shapes = chart.querySelectorAll("svg path, svg polygon, svg polyline, svg rect").length;
  const size = (chart.querySelector("svg, canvas") || document.head).getBoundingClientRect();
  const canvas = chart.querySelector("canvas") ? 100 : 0;
  return [chart.dataset.chart, size.width, size.height, shapes + canvas];
})"""
LINES = """echarts.getInstanceByDom(document.querySelector("[data-chart=rounds]"))
  .getOption().series.filter((series) => series.type === "line").map((series) => series.name)"""


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of a dense method and of two seeds of a sparse one."""
    place = tmp_path_factory.mktemp("several")
    runs = [
        write_run(place / "a", "fedavg", masks=False, density=1.0, sent=10**6),
        write_run(place / "b", seed=1),
        write_run(place / "c", seed=2, top=0.7),
    ]
    path = place / "report.html"
    path.write_text(report(runs).html)
    return path


@pytest.mark.parametrize(
    ("width", "dark"),
    [(360, False), (390, True), (1280, False), (1280, True)],
    ids=["small phone", "phone, dark", "desktop", "desktop, dark"],
)
def test_every_chart_is_drawn_and_nothing_leaves_the_page(
    page: Page, several: Path, width: int, dark: bool
) -> None:
    page.open(several, width, dark=dark)
    drawn = page.evaluate(DRAWN)
    assert [name for name, *_ in drawn] == CHARTS
    for name, across, high, shapes in drawn:
        assert 300 < across <= width and high > 100 and shapes > 5, name
    assert page.complaints() == []
    assert page.requests() == [several.resolve().as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(15, 19, 24)" if dark else "rgb(245, 246, 248)")


def test_a_page_that_complains_or_asks_for_more_is_found_out(page: Page, tmp_path: Path) -> None:
    """What the other tests rely on."""
    path = tmp_path / "bad.html"
    path.write_text('<img src="https://example.org/x.png"><script>console.error("no")</script>')
    page.open(path, 390)
    assert "https://example.org/x.png" in page.requests()
    assert any('"no"' in text for text in page.complaints())


def test_a_section_that_was_closed_is_drawn_as_things_are_when_it_is_opened(
    page: Page, several: Path
) -> None:
    page.open(several, 1280)
    page.evaluate(
        """(async () => {
        const chart = document.querySelector("[data-chart=rounds]");
        const closed = chart.closest("details");
        const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
        closed.open = false; await frame();
        document.querySelector('[data-group="0"]').click(); await frame();
        closed.open = true; await frame(); })()"""
    )
    assert page.evaluate(LINES) == ["spdst"]


def test_runs_are_switched_off_and_on_in_all_charts(page: Page, several: Path) -> None:
    page.open(several, 1280)
    assert page.evaluate(LINES) == ["fedavg", "spdst"]
    page.evaluate("document.querySelector('[data-group=\"0\"]').click()")
    assert page.evaluate(LINES) == ["spdst"]
    page.evaluate("document.querySelector('[data-group=\"0\"]').click()")
    assert page.evaluate(LINES) == ["fedavg", "spdst"]
    assert page.complaints() == []


def test_values_are_shown_where_the_pointer_is(page: Page, several: Path) -> None:
    page.open(several, 1280)
    place = page.evaluate(
        """(() => { const chart = document.querySelector("[data-chart=rounds]");
        chart.scrollIntoView({block: "center"}); const box = chart.getBoundingClientRect();
        return [box.right - 25, box.top + 60]; })()"""
    )
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=place[0], y=place[1])
    shown = page.evaluate(
        "new Promise(done => setTimeout(() => done(document.querySelector('.told').innerText), 50))"
    )
    assert shown.startswith("round 6") and "fedavg" in shown and "±" in shown


def test_choices_and_colours_change_what_is_drawn(page: Page, several: Path) -> None:
    page.open(several, 1280)
    for choice in page.evaluate(
        "[...document.querySelectorAll('[data-choice]')].map(b => [b.dataset.choice, b.value])"
    ):
        page.evaluate(
            f"document.querySelector('[data-choice={choice[0]}][value={choice[1]}]').click()"
        )
    page.evaluate("document.getElementById('theme').click()")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    axis = "echarts.getInstanceByDom(document.querySelector('[data-chart=sent]')).getOption().xAxis"
    assert page.evaluate(f"{axis}[0].type") == "log"
    assert page.evaluate(f"{axis}[0].name").startswith("bits as the papers count")
    assert page.complaints() == []


def test_a_printed_page_is_light_whole_and_as_it_was_afterwards(
    page: Page, several: Path, tmp_path: Path
) -> None:
    page.open(several, 1280, dark=True)
    page.evaluate(
        """window.seen = [];
        const watch = () => seen.push([
          document.querySelectorAll("details:not([open])").length,
          getComputedStyle(document.body).color,
          document.querySelector("[data-chart=rounds] svg").clientWidth,
        ]);
        addEventListener("beforeprint", watch); addEventListener("afterprint", watch); 0"""
    )
    page.pdf(tmp_path / "page.pdf")
    before, after = page.evaluate("seen")
    assert before == [0, "rgb(28, 37, 48)", 330]
    assert after[0] > 0 and after[1] == "rgb(228, 233, 239)" and after[2] > 400
    assert (tmp_path / "page.pdf").stat().st_size > 20_000
    assert page.complaints() == []


def test_names_are_text_and_never_code(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    folders = [evil(tmp_path / "x"), write_run(tmp_path / "y", density=0.2)]
    path.write_text(report(folders, EVIL).html)
    page.open(path, 1280)
    assert page.evaluate("document.querySelector('h1').innerText") == EVIL
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    assert page.evaluate("Number(document.documentElement.dataset.drawn)") == len(CHARTS)
    assert page.complaints() == [] and len(page.requests()) == 1


def test_ten_runs_of_five_hundred_rounds_are_drawn(
    page: Page, ten: list[Path], tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    path.write_text(report(ten).html)
    page.open(path, 1280)
    assert page.complaints() == []
    assert len(page.evaluate(LINES)) == 10
