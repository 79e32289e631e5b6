"""What authors do with a page: download charts and data, zoom, read small differences."""

from __future__ import annotations

import csv
import struct
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from browser import Page, find
from run_folders import write_run
from test_report_page import CHARTS, evil

from gossamer.report import report

pytestmark = pytest.mark.skipif(find() is None, reason="there is no Chromium on this machine")

SVG = "{http://www.w3.org/2000/svg}"
CURVES = ("rounds", "sent", "device_seconds", "flops", "worst", "density", "mismatch")
LABELS = {
    "rounds": "accuracy, global model",
    "worst": "accuracy, worst decile of clients",
    "density": "density",
    "histogram": "share of clients",
}
HEADERS = {
    "rounds": ["run", "round", "global_accuracy", "standard_error", "n"],
    "sent": ["run", "round", "sent", "global_accuracy", "standard_error", "n"],
    "histogram": ["run", "accuracy_from", "accuracy_to", "share_of_clients"],
    "ledger": ["run", "direction", "field", "bits_sent", "bits_as_papers_count"],
    "layers": ["run", "layer", "round", "density", "standard_error", "n"],
    "partition": ["client", "class", "examples"],
}


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of a dense method and of two seeds of a sparse one that end a point apart."""
    place = tmp_path_factory.mktemp("several")
    data = {"data": "fmnist-mini", "partition": "dirichlet:0.3", "rounds": 20}
    runs = [
        write_run(place / "a", "fedavg", masks=False, density=1.0, sent=10**6, top=0.86, **data),
        write_run(place / "b", seed=1, top=0.85, **data),
        write_run(place / "c", seed=2, top=0.85, **data),
    ]
    path = place / "report.html"
    path.write_text(report(runs).html)
    return path


def option(page: Page, chart: str, what: str) -> Any:
    """A part of what ECharts was told to draw."""
    found = f"echarts.getInstanceByDom(document.querySelector('[data-chart={chart}]'))"
    return page.evaluate(f"{found}.getOption().{what}")


def tool(chart: str, form: str) -> str:
    """The selector of a button of a chart."""
    which = "[data-tool=zoom]" if form == "zoom" else f"[value={form}]"
    return f"figure:has([data-chart={chart}]) .tools {which}"


# downloads ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("chart", CHARTS)
def test_every_chart_is_downloaded_as_svg_and_png(
    page: Page, several: Path, tmp_path: Path, chart: str
) -> None:
    """Dark on the page, and on white paper in the files."""
    page.open(several, 1280, dark=True)
    drawn = page.download(tool(chart, "svg"), tmp_path)
    root = ElementTree.parse(drawn).getroot()
    assert root.tag == f"{SVG}svg" and len(root.findall(f".//{SVG}path")) > 5
    words = {"".join(text.itertext()) for text in root.iter(f"{SVG}text")}
    if chart not in ("partition", "ledger"):
        assert {"fedavg", "spdst (n = 2)"} <= words
    if chart in LABELS:
        assert LABELS[chart] in words
    assert root[0].attrib["fill"] == "#fff" and "rgb(228, 233, 239)" not in drawn.read_text()
    image = page.download(tool(chart, "png"), tmp_path)
    assert image.stem == drawn.stem
    data = image.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and len(data) > 5_000
    size = struct.unpack(">II", data[16:24])
    assert size == tuple(3 * int(root.attrib[name]) for name in ("width", "height"))
    assert page.complaints() == []
    assert all(url.startswith(("file:", "data:", "blob:")) for url in page.requests())


@pytest.mark.parametrize("chart", CHARTS)
def test_the_data_of_every_chart_are_downloaded_as_csv(
    page: Page, several: Path, tmp_path: Path, chart: str
) -> None:
    page.open(several, 390)
    with page.download(tool(chart, "csv"), tmp_path).open(newline="") as file:
        header, *rows = csv.reader(file)
    assert rows and {len(row) for row in rows} == {len(header)}
    assert header == HEADERS.get(chart, header) and page.complaints() == []
    if chart == "rounds":
        shown = "JSON.parse(document.getElementById('data').textContent).groups[1].evaluated"
        known = page.evaluate(shown)
        assert [row[1:] for row in rows if row[0] == "spdst"] == [
            [str(known["round"][at]), str(value), str(known["global_score±"][at]), "2"]
            for at, value in enumerate(known["global_score"])
        ]
        assert [row[-2:] for row in rows if row[0] == "fedavg"] == [["", "1"]] * 21
    if chart == "partition":
        assert sum(int(row[2]) for row in rows) == 10_000


def test_a_download_has_the_runs_that_are_shown(page: Page, several: Path, tmp_path: Path) -> None:
    page.open(several, 1280)
    page.click('[data-group="0"]')
    text = page.download(tool("rounds", "csv"), tmp_path).read_text()
    assert "spdst" in text and "fedavg" not in text


def test_names_are_text_in_downloads_too(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(report([evil(tmp_path / "x"), write_run(tmp_path / "y", density=0.2)]).html)
    page.open(path, 1280)
    place = tmp_path / "files"
    root = ElementTree.parse(page.download(tool("layers", "svg"), place)).getroot()
    words = ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]
    assert any(word.startswith('"><img src=x onerror=alert(1)>') for word in words)
    assert {each.tag for each in root.iter()} <= {
        f"{SVG}{tag}" for tag in ("svg", "g", "rect", "path", "text", "defs", "clipPath", "style")
    }
    with page.download(tool("layers", "csv"), place).open(newline="") as file:
        assert {len(row) for row in csv.reader(file)} == {6}
    page.download(tool("layers", "png"), place)
    assert page.complaints() == []


# zoom ---------------------------------------------------------------------------------------------


def corners(page: Page, chart: str) -> tuple[tuple[float, float], tuple[float, float]]:
    """Two places in the window, within the axes of a chart."""
    left, top, width, height = page.evaluate(
        f"""(() => {{ const chart = document.querySelector("[data-chart={chart}]");
        chart.scrollIntoView({{block: "center"}}); const box = chart.getBoundingClientRect();
        return [box.left, box.top, box.width, box.height]; }})()"""
    )
    return (left + 0.4 * width, top + 0.2 * height), (left + 0.7 * width, top + 0.5 * height)


@pytest.mark.parametrize("chart", [*CURVES, "histogram", "layers", "partition"])
def test_dragging_zooms_and_a_double_click_resets(page: Page, several: Path, chart: str) -> None:
    page.open(several, 1280)
    whole = [option(page, chart, "xAxis[0].min"), option(page, chart, "yAxis[0].min")]
    start, end = corners(page, chart)
    if chart == "layers":  # four panels side by side: within the second
        start, end = (start[0] - 40, start[1] + 30), (start[0] + 30, start[1] + 30)
    page.drag(start, end)
    least, most = option(page, chart, "xAxis[0].min"), option(page, chart, "xAxis[0].max")
    assert least != whole[0] and isinstance(least, int | float) and least < most
    assert page.evaluate(f"document.querySelector('{tool(chart, 'zoom')}').innerText") == "Reset"
    if chart in ("layers", "partition"):
        assert option(page, chart, "xAxis[1].min") == least
    elif chart != "worst":
        assert option(page, chart, "yAxis[0].min") > (whole[1] or 0)
    page.evaluate(
        f"document.querySelector('[data-chart={chart}]')"
        ".dispatchEvent(new MouseEvent('dblclick', {bubbles: true}))"
    )
    again = [option(page, chart, "xAxis[0].min"), option(page, chart, "yAxis[0].min")]
    assert again == whole and page.complaints() == []
    assert page.evaluate(f"document.querySelector('{tool(chart, 'zoom')}').innerText") == "Zoom"


def test_a_zoomed_part_is_downloaded_as_it_is_shown_and_survives_other_colours(
    page: Page, several: Path, tmp_path: Path
) -> None:
    page.open(several, 1280)
    before = page.download(tool("rounds", "svg"), tmp_path).read_text()
    page.drag(*corners(page, "rounds"))
    least = option(page, "rounds", "xAxis[0].min")
    page.click("#theme")
    assert option(page, "rounds", "xAxis[0].min") == least
    assert page.download(tool("rounds", "svg"), tmp_path / "zoomed").read_text() != before
    page.click(tool("rounds", "zoom"))
    assert option(page, "rounds", "xAxis[0].min") == 0


TOUCH = """(([x, y], [to, down]) => {
  const chart = document.querySelector("[data-chart=rounds]");
  const send = (type, clientX, clientY) => chart.dispatchEvent(new PointerEvent(type, {
    pointerType: "touch", pointerId: 1, clientX, clientY, bubbles: true }));
  chart.setPointerCapture = () => {};
  send("pointerdown", x, y); send("pointermove", to, down); send("pointerup", to, down);
})(%s, %s)"""


def test_a_finger_scrolls_the_page_unless_it_is_told_to_zoom(page: Page, several: Path) -> None:
    page.open(several, 390)
    touch = TOUCH % tuple(map(list, corners(page, "rounds")))
    page.evaluate(touch)
    assert option(page, "rounds", "xAxis[0].min") == 0
    page.click(tool("rounds", "zoom"))
    page.evaluate(touch)
    assert option(page, "rounds", "xAxis[0].min") > 0


# axes and legends ---------------------------------------------------------------------------------

PIXELS = """(() => { const chart = echarts.getInstanceByDom(
  document.querySelector("[data-chart=rounds]"));
  return chart.convertToPixel({yAxisIndex: 0}, 0.85) - chart.convertToPixel({yAxisIndex: 0}, 0.86);
})()"""


def test_a_point_of_accuracy_can_be_seen(page: Page, several: Path) -> None:
    """Curves rise from 0.1 to 0.85 and 0.86; the rise is left out unless all is wanted."""
    page.open(several, 1280)
    least, most = (option(page, "rounds", f"yAxis[0].{end}") for end in ("min", "max"))
    assert 0.6 < least < 0.85 and 0.86 < most <= 1 and page.evaluate(PIXELS) > 8
    page.click("[data-choice=range][value=whole]")
    assert option(page, "rounds", "yAxis[0].min") <= 0.1 and page.evaluate(PIXELS) < 4
    page.click("[data-choice=range][value=late]")
    assert option(page, "rounds", "yAxis[0].min") == least


@pytest.mark.parametrize(
    ("least", "most", "wanted"),
    [
        (0.82, 0.88, (0.81, 0.89, 0.01)),
        (0.853, 0.853, (0.84, 0.865, 0.005)),
        (0.0, 0.97, (0.0, 1.0, 0.2)),
        (0.99, 1.0, (0.985, 1.0, 0.005)),
    ],
)
def test_the_axis_of_accuracies_has_round_ticks_around_what_is_there(
    page: Page, several: Path, least: float, most: float, wanted: tuple[float, float, float]
) -> None:
    page.open(several, 1280)
    rows = f"[[[0, {least}, 0, null], [1, {most}, 1, null]]]"
    found = page.evaluate(f"(({{min, max, interval}}) => [min, max, interval])({AROUND % rows})")
    assert found[0] <= least and found[1] >= most
    assert found == pytest.approx(wanted)


AROUND = "Parts.around(%s, 'whole')"


@pytest.mark.parametrize("width", [390, 1280])
def test_classes_have_a_legend(page: Page, several: Path, width: int) -> None:
    page.open(several, width)
    labels = option(page, "partition", "legend[0].data")
    assert labels == [str(label) for label in range(10)]
    assert option(page, "partition", "series.slice(0, 10).map((each) => each.name)") == labels
    drawn = page.evaluate("document.querySelector('[data-chart=partition]').innerText.split('\\n')")
    assert "class" in drawn and any("0 %" in text for text in drawn)
