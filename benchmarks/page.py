"""How long the report of ten runs of five hundred rounds takes, to make and to open.

Opened by Chromium without a window, with the runs that the tests of reports write: from the address
to the moment when all that is in sight is drawn.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

from gossamer.report import report

TESTS = Path(__file__).parents[1] / "tests" / "report"
RUNS, ROUNDS, TURNS = 10, 500, 5
WIDTHS = {"phone": 390, "desktop": 1280}


def measure() -> dict[str, object]:
    """Seconds to write the page and to open it, and its size."""
    sys.path.insert(0, str(TESTS))
    import browser
    from run_folders import write_run

    if browser.find() is None:
        return {"skipped": "Chromium is missing"}
    with tempfile.TemporaryDirectory() as place:
        names = [f"method{number}" for number in range(RUNS)]
        runs = [write_run(Path(place) / name, name, rounds=ROUNDS, clients=10) for name in names]
        start = time.perf_counter()
        page = Path(place) / "report.html"
        page.write_text(report(runs).html)
        made = time.perf_counter() - start
        opened: dict[str, list[float]] = {name: [] for name in WIDTHS}
        with browser.browser(Path(place) / "profile") as tab:
            for _ in range(TURNS):
                for name, width in WIDTHS.items():
                    opened[name].append(tab.open(page, width))
        size = page.stat().st_size
    return {
        "job": f"{RUNS} runs, {ROUNDS} rounds, 10 clients a round, median of {TURNS}",
        "megabytes": round(size / 1e6, 2),
        "seconds_to_make": round(made, 2),
        "seconds_to_open": {name: round(statistics.median(all), 2) for name, all in opened.items()},
        "first": {name: round(all[0], 2) for name, all in opened.items()},
    }
